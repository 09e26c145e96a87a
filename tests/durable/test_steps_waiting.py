"""Very many publishers that wait go on over several turns, whatever they have waited for.

A publisher that waits is a connection, and there are no more of those than sockets: fewer than 100,000, but
more than a turn may take steps for, because each is two steps.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from conformance.kit import Client, connected
from conformance.packets import PUBACK, PUBLISH, acknowledge, publish
from waiting import WAIT_S, wait_until

from tidemq.config import StreamConfig
from tidemq.engine.base.asserting import checks_invariants

if TYPE_CHECKING:
    from durable.conftest import Servers
    from durable.server import Server

TESTS = Path(__file__).parents[1]
COUNT = 12_000 if checks_invariants() else 1000
PIECE = bytes(50_000)
CEILING = 100_000_000
STREAM = StreamConfig(name="s", filters=("s/#",))


class Crowd:
    """So many publishers, all connected."""

    def __init__(self, server: Server, process: subprocess.Popen[str]) -> None:
        self.server = server
        self.process = process

    def hear(self, said: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == said

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        print(line, file=self.process.stdin, flush=True)

    def wait(self, topic: str) -> None:
        """Everybody publishes, and is held for that."""
        before = self.server.count("publishers_paused")
        self.say(topic)
        held = before + COUNT
        wait_until(lambda: self.server.count("publishers_paused") >= held, "all wait")
        self.say("and on")

    def go_on(self) -> None:
        """All of them."""
        self.hear("answered")


@contextmanager
def crowd_of(server: Server) -> Iterator[Crowd]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    command = [sys.executable, "-m", "adversity.crowd", str(server.port), str(COUNT)]
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path}
    with subprocess.Popen(
        command, text=True, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        crowd = Crowd(server, process)
        crowd.hear("joined")
        try:
            yield crowd
        finally:
            process.kill()
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def fill(server: Server, publisher: Client, topic: str, qos: int = 0) -> int:
    """Publishes, one message after the other was taken, until that is held; returns how many."""
    sent = 0
    paused, received = server.count("publishers_paused"), server.count("messages_received")

    def is_held() -> bool:
        return server.count("publishers_paused") > paused

    while not is_held():
        sent += 1
        assert sent < 10_000, "nobody holds the publisher"
        publisher.send(publish(topic, PIECE, qos, sent if qos else 0))
        wait_until(lambda: server.count("messages_received") >= received + sent or is_held(), "it came")  # noqa: B023 (called at once)
    return sent


def drain(receiver: Client, count: int) -> None:
    """Reads so many messages, and acknowledges them."""
    for _ in range(count):
        message = receiver.expect(PUBLISH)
        if message.qos:
            receiver.send(acknowledge(PUBACK, message.packet_id))


def test_for_a_receiver(servers: Servers) -> None:
    server = servers("none", backpressure_s=600)
    receiver, publisher = connected(server), connected(server)
    receiver.subscribe("t", 1)
    with crowd_of(server) as crowd:
        sent = fill(server, publisher, "t", 1)
        crowd.wait("t")
        drain(receiver, sent + COUNT)
        crowd.go_on()


def test_for_memory(servers: Servers) -> None:
    server = servers("none", backpressure_s=600, memory_bytes_max=CEILING, output_high_bytes=1 << 30)
    receiver, publisher = connected(server), connected(server)
    receiver.subscribe("t", 1)
    with crowd_of(server) as crowd:
        sent = fill(server, publisher, "t", 1)
        crowd.wait("elsewhere")
        drain(receiver, sent)
        crowd.go_on()


def test_for_a_stream(servers: Servers) -> None:
    server = servers("rocksdb", streams=[STREAM])
    publisher = connected(server)
    with crowd_of(server) as crowd:
        server.store.hold()
        publisher.send(publish("s/0", b"x", 1, 1))
        assert server.store.at_gate.wait(WAIT_S)
        fill(server, publisher, "s/0")
        crowd.wait("s/1")
        server.store.let_go()
        crowd.go_on()
