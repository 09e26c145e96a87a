"""Many connections, half connections, too many connections, and no file descriptors left."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import pytest
from conformance.kit import Client, ConnectionEnded, connected, refused, unique
from conformance.packets import CONNACK, connect, publish
from waiting import WAIT_S

if TYPE_CHECKING:
    from adversity.conftest import EngineUnderTest, StartEngine


def assert_it_works(engine: EngineUnderTest | Listening) -> None:
    """A new pair of clients exchanges a message."""
    receiver, publisher = connected(engine), connected(engine)
    topic = unique("works")
    receiver.subscribe(topic, 1)
    publisher.publish(topic, b"yes", 1)
    receiver.expect_message(topic, b"yes", 1)
    receiver.disconnect()
    publisher.disconnect()


class Listening(NamedTuple):
    port: int


def test_a_flood_of_connections_is_served_whole(start_engine: StartEngine) -> None:
    engine = start_engine(2)
    good = connected(engine)
    good.subscribe("good", 1)
    flood = [Client(engine.port) for _ in range(400)]
    for client in flood:
        client.send(connect(""))
    good.publish("other", b"", 1)
    for client in flood:
        client.expect(CONNACK, reason=0)
    engine.wait_for("live_connections", 401)
    flood[0].publish("good", b"still there", 1)
    good.expect_message("good", b"still there", 1)
    for client in flood:
        client.drop()
    engine.wait_for("connections_closed", 400)
    assert engine.count("live_connections") == 1
    good.ping()


@pytest.mark.parametrize("size", [0, 1, 2, 20, 100_000])
def test_half_a_packet_ends_at_the_connect_timeout(start_engine: StartEngine, size: int) -> None:
    engine = start_engine(1, connect_timeout_s=1)
    half = connect("c", username="u" * 60_000, password=b"p" * 60_000)[:size]
    halves = [Client(engine.port) for _ in range(50)]
    for client in halves:
        client.send(half)
    engine.wait_for("live_connections", 50)
    assert_it_works(engine)
    for client in halves:
        client.expect_closed()
    engine.wait_for("connections_closed", 50)
    assert engine.count("memory_buffers") < 1 << 20


def test_half_a_publish_waits_and_goes_with_its_connection(start_engine: StartEngine) -> None:
    engine = start_engine(1)
    data = publish("half", bytes(900_000), 1, 1)
    for size in (1, 3, 6, 1000, 300_000, len(data) - 1):
        client = connected(engine)
        client.send(data[:size])
        assert_it_works(engine)
        client.drop()
    other, last, bystander = connected(engine), connected(engine), connected(engine)
    other.subscribe("half", 1)
    for at in range(0, len(data), 90_000):
        last.send(data[at : at + 90_000])
        bystander.ping()
    other.expect_message("half", bytes(900_000), 1)


def test_no_more_than_connections_max(start_engine: StartEngine) -> None:
    engine = start_engine(1, connections_max=5)
    clients = [connected(engine) for _ in range(5)]
    with pytest.raises((ConnectionEnded, ConnectionError)):
        Client(engine.port).connect()
    engine.wait_for("connections_refused")
    for client in clients:
        client.ping()
    clients.pop().disconnect()
    engine.wait_for("connections_closed")
    connected(engine).ping()


def test_no_more_than_sessions_max(start_engine: StartEngine) -> None:
    engine = start_engine(2, sessions_max=3)
    kept = [connected(engine, session_expiry=100, clean=False) for _ in range(3)]
    newcomer = Client(engine.port)
    newcomer.send(connect("newcomer"))
    refused(newcomer, 0x97)
    kept[0].drop()
    connected(engine, client_id=kept[0].client_id, clean=False).ping()  # its session is there already


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
from tidemq.engine import Engine
from tidemq.engine.door.listeners import tcp_sockets
from tidemq.limits import Limits
engine = Engine(Limits(), reactors=4)
sockets = tcp_sockets("127.0.0.1", 0, 4)
engine.listen(sockets)
print(sockets[0].getsockname()[1], flush=True)
engine.start()
for line in sys.stdin:
    if line.startswith("descriptors"):
        resource.setrlimit(resource.RLIMIT_NOFILE, (int(line.split()[1]), 64))
        line = "turns"
    print(engine.counters()[line.strip()], flush=True)
engine.close()
print({name: value for name, value in engine.live_objects().items() if value}, flush=True)
"""


@contextlib.contextmanager
def limited_broker() -> Iterator[tuple[Listening, Callable[[str], int]]]:
    """A broker that may have 64 file descriptors, and what asks it for a counter; "descriptors N" is how many
    it may have from now on.
    """
    with subprocess.Popen(
        [sys.executable, "-c", LIMITED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        asked, answers = process.stdin, process.stdout

        def count(name: str) -> int:
            print(name, file=asked, flush=True)
            return int(answers.readline())

        yield Listening(int(answers.readline())), count
        asked.close()
        assert answers.readline() == "{}\n"
        assert process.wait(WAIT_S) == 0


def test_without_file_descriptors_it_refuses_and_recovers() -> None:
    with limited_broker() as (broker, count):
        first = connected(broker)
        flood, turned_away = [], 0
        for _ in range(30):
            # at once, so that reactors which have no descriptor left refuse at the same time
            for client in [Client(broker.port) for _ in range(10)]:
                try:
                    client.connect()
                    flood.append(client)
                except (ConnectionEnded, ConnectionError):
                    turned_away += 1
        assert turned_away
        assert len(flood) > 20
        assert count("connections_refused") >= turned_away
        turns = count("turns")
        first.ping()
        flood[0].ping()
        assert count("turns") - turns < 1000, "it spins"
        for client in flood:
            client.disconnect()
        assert_it_works(broker)


def test_without_one_to_refuse_with_it_waits_until_there_is() -> None:
    with limited_broker() as (broker, count):
        first = connected(broker)
        turns = count("descriptors 3")  # fewer than it has: the reserved one cannot be had again
        waiting = [Client(broker.port) for _ in range(10)]
        time.sleep(1)
        assert count("turns") - turns < 1000, "it spins"
        first.ping()
        count("descriptors 64")
        for client in waiting:
            with contextlib.suppress(ConnectionEnded, ConnectionError):  # one was refused before
                client.connect()
        assert_it_works(broker)
        first.ping()
