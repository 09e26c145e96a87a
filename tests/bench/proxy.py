"""A proxy between the load generator and a real broker that does to messages what no broker should."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress

from bench.fake_broker import listening, read_packet

from tidemq.bench.load.frames import encode_packet

Change = Callable[[int, bytes], list[bytes]]  # number of a PUBLISH and its frame -> what is sent for it


def lose(number: int, frame: bytes) -> list[bytes]:
    """Each tenth never comes."""
    return [] if number % 10 == 4 else [frame]


def repeat(number: int, frame: bytes) -> list[bytes]:
    """Each tenth comes twice."""
    return [frame, frame] if number % 10 == 4 else [frame]


class Swap:
    """Each tenth comes after the next one."""

    def __init__(self) -> None:
        self._kept: list[bytes] = []

    def __call__(self, number: int, frame: bytes) -> list[bytes]:
        if number % 10 == 4:
            self._kept.append(frame)
            return []
        return [frame, self._kept.pop()] if self._kept else [frame]


def cut_after(count: int) -> Change:
    """The connection ends with the message of that number."""

    def change(number: int, frame: bytes) -> list[bytes]:
        if number >= count:
            raise ConnectionError("cut")
        return [frame]

    return change


class Proxy:
    """Passes everything on, packet by packet; what a load publishes to clients as `change` makes it."""

    def __init__(self, broker_port: int, change: Change) -> None:
        self.broker_port = broker_port
        self.change = change
        self.published = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_broker, to_broker = await asyncio.open_connection("127.0.0.1", self.broker_port)
        with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            await asyncio.gather(self.up(reader, to_broker), self.down(from_broker, writer))
        to_broker.close()
        writer.close()

    async def up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
        raise ConnectionError("the client has gone")

    async def down(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            first, body = await read_packet(reader)
            packet = encode_packet(first, body)
            if first >> 4 == 3 and b"bench" in packet[:20]:
                number = self.published
                self.published += 1
                for frame in self.change(number, packet):
                    writer.write(frame)
            else:
                writer.write(packet)
            await writer.drain()


def proxied(broker_port: int, change: Change) -> AbstractContextManager[int]:
    """The port of a proxy before a broker of this machine."""
    return listening(Proxy(broker_port, change).serve)
