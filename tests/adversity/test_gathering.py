"""Messages that come one by one and fast are taken several at a time; none is lost, nothing slow waits."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from conformance.kit import connected
from waiting import WAIT_S, before_others

from tidemq.bench.load.generator import Generator
from tidemq.bench.peer.target import local_target
from tidemq.bench.workload import Workload

if TYPE_CHECKING:
    from adversity.conftest import StartEngine


def test_one_by_one(start_engine: StartEngine) -> None:
    with before_others():
        engine = start_engine(1)
        deadline = time.monotonic() + WAIT_S
        while not engine.count("turns_gathered"):
            assert time.monotonic() < deadline, "no turn has waited"
            load = Workload(name="flood", messages=20_000, one_by_one=True)
            generator = Generator(load, local_target(engine.port))
            try:
                generator.connect(timeout_s=WAIT_S)
                assert generator.run().intact
            finally:
                generator.close()


def test_single_messages_are_not_waited_for(start_engine: StartEngine) -> None:
    engine = start_engine(1)
    subscriber, publisher = connected(engine), connected(engine)
    subscriber.subscribe("t")
    for number in range(300):
        publisher.publish("t", b"%d" % number)
        subscriber.expect_message("t", b"%d" % number)
    assert engine.count("turns_gathered") == 0
