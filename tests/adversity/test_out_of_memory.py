"""Memory that runs out ends the process with one clear line, wherever in the engine it is missed."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from conformance.kit import Client, ConnectionEnded, Silence
from conformance.packets import publish, subscribe
from waiting import WAIT_S

ROOM_BYTES = 12 << 20  # what the broker may take beyond what it has after its start
LINE = "tidemq: out of memory: the process ends"

PROGRAM = """\
import sys
from tidemq.engine import Engine
from tidemq.engine.door.listeners import ListenerSettings, tcp_sockets
from tidemq.limits import Limits
engine = Engine(Limits(memory_bytes_max=1 << 40, subscriptions_max=1 << 30), reactors=1)
sockets = tcp_sockets("127.0.0.1", 0, 1)
engine.listen(sockets, ListenerSettings())
engine.start()
print(sockets[0].getsockname()[1], flush=True)
sys.stdin.read()
"""


class Broker:
    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process, self.port = process, port


@contextmanager
def cramped() -> Iterator[Broker]:
    """A broker whose address space ends soon."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=pipe, stdout=pipe, stderr=pipe, text=True
    ) as process:
        try:
            assert process.stdout
            port = int(process.stdout.readline())
            pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[0])
            most = pages * resource.getpagesize() + ROOM_BYTES
            resource.prlimit(process.pid, resource.RLIMIT_AS, (most, most))
            yield Broker(process, port)
        finally:
            process.kill()


def large_retained(client: Client, number: int) -> None:
    client.send(publish(f"t/{number}", bytes(100_000), retain=True))


def small_retained(client: Client, number: int) -> None:
    client.send(*(publish(f"t/{number}/{each}", b"x", retain=True) for each in range(1000)))


def subscriptions(client: Client, number: int) -> None:
    filters = [(f"{number}/{each}/a-filter-that-is-long-enough-to-be-on-the-heap", 0) for each in range(500)]
    client.send(subscribe(1, *filters))
    client.receive()


@pytest.mark.parametrize("load", [large_retained, small_retained, subscriptions])
def test_one_clear_line(load: object) -> None:
    with cramped() as broker:
        client = Client(broker.port)
        client.connect()
        with suppress(OSError, ConnectionEnded, Silence):
            for number in range(20_000):
                load(client, number)  # type: ignore[operator]
        broker.process.wait(WAIT_S)
        assert broker.process.stderr
        said = broker.process.stderr.read()
    assert said.startswith(LINE), said
    assert said.count(LINE) == 1
    assert "ignored" not in said
    assert broker.process.returncode == -signal.SIGABRT
