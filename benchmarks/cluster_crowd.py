"""How long many clients are without their sessions when their node is killed.

    python benchmarks/cluster_crowd.py [--sessions 10000] [--rounds 3]

So many clients with a stored session and a subscription each are at one of two nodes, which is killed. All
come to the other one at once, and again where they are refused, until each has its session. Also said: how
long the same takes where they come to a node that has their sessions, after a connection that broke.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from peers import nodes as peers
from peers.nodes import TWO

from tidemq.bench.load.frames import encode_packet, encode_string

AT_ONCE = 500  # clients that have sent CONNECT and are not answered
RETRY_S = 0.2
WAIT_S = 300.0
PRESENT, NEW = b"\x20\x02\x01\x00", b"\x20\x02\x00\x00"  # CONNACK with a session, and with a new one


@dataclass(frozen=True, slots=True)
class Crowd:
    """Seconds until the first, half, and the last had its session; how many got a new one, or a refusal."""

    first_s: float
    half_s: float
    last_s: float
    new: int
    refused: int


class Client:
    """One of the crowd."""

    def __init__(self, number: int) -> None:
        self._name = b"crowd%06d" % number
        self._writer: asyncio.StreamWriter | None = None

    async def connect(self, port: int) -> bytes:
        """The CONNACK; empty where there is none."""
        reader, self._writer = await asyncio.open_connection("127.0.0.1", port)
        head = encode_string(b"MQTT") + b"\x04\x00\0\0"
        self._writer.write(encode_packet(0x10, head + encode_string(self._name)))
        try:
            return await reader.readexactly(4)
        except (asyncio.IncompleteReadError, ConnectionError):
            return b""

    async def subscribe(self) -> None:
        assert self._writer is not None
        body = b"\x00\x01" + encode_string(b"crowd/" + self._name) + b"\x01"
        self._writer.write(encode_packet(0x82, body))
        await self._writer.drain()

    def drop(self) -> None:
        """Without a word."""
        if self._writer is not None:
            self._writer.transport.abort()
            self._writer = None


async def come(clients: list[Client], port: int) -> Crowd:
    """All of them, until each has a session."""
    turns, begun = asyncio.Semaphore(AT_ONCE), time.monotonic()
    took: list[float] = []
    new = refused = 0

    async def one(client: Client) -> None:
        nonlocal new, refused
        while True:
            async with turns:
                try:
                    answer = await client.connect(port)
                except OSError:
                    answer = b""
            if answer in (PRESENT, NEW):
                took.append(time.monotonic() - begun)
                new += answer == NEW
                return
            refused += 1
            client.drop()
            await asyncio.sleep(RETRY_S)

    async with asyncio.timeout(WAIT_S):
        await asyncio.gather(*(one(each) for each in clients))
    return Crowd(took[0], took[len(took) // 2], took[-1], new, refused)


async def measure(sessions: int, parent: Path) -> tuple[Crowd, Crowd]:
    """Where their node is there, and where it was killed."""
    with peers.started(TWO, parent) as nodes:
        dies, lives = nodes.brokers[0], nodes.brokers[1]
        clients = [Client(number) for number in range(sessions)]
        await come(clients, dies.port)
        for each in clients:
            await each.subscribe()
        nodes.rest()
        for each in clients:
            each.drop()
        nodes.rest()
        back = await come(clients, dies.port)
        nodes.rest()
        dies.kill()
        for each in clients:
            each.drop()
        moved = await come(clients, lives.port)
        for each in clients:
            each.drop()
    return back, moved


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()), help="on a disk")
    given = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    lasts = []
    for _round in range(given.rounds):
        back, moved = asyncio.run(measure(given.sessions, given.data))
        print(f"{given.sessions} sessions, their node is there:   {back}")
        print(f"{given.sessions} sessions, their node was killed: {moved}", flush=True)
        lasts.append(moved.last_s)
    print(f"until the last has its session: {statistics.median(lasts):.1f} s")


if __name__ == "__main__":
    main()
