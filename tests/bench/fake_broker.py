"""A double of a broker, on a thread of this process, that does what a test tells it, also what is wrong."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from tidemq.bench.load.frames import encode_packet

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[None, None, None]]
Deliver = Callable[[int, bytes], list[bytes]]  # number of the message and its frame -> what is sent for it


def faithful(number: int, frame: bytes) -> list[bytes]:
    return [frame]


class FakeBroker:
    """An MQTT 3.1.1 broker that sends every message to every subscriber, as `deliver` changes it."""

    def __init__(self, deliver: Deliver = faithful, *, chunk: int = 0, delay_s: float = 0.0) -> None:
        self.deliver = deliver
        self.chunk = chunk  # bytes a write; 0: whole packets
        self.delay_s = delay_s  # before a message is passed on
        self.connack = b"\x20\x02\x00\x00"
        self.suback_reason: int | None = None  # None: the QoS asked for
        self.die_at = 0  # messages; 0: never
        self.ack_order: Callable[[list[bytes]], list[bytes]] = list
        self.ack_batch = 1
        self.messages = 0
        self.unacknowledged_max = 0
        self.subscribers: list[asyncio.StreamWriter] = []
        self.acks: list[bytes] = []
        self.completion_batch = 1  # PUBCOMPs sent at a time, last first
        self.completions: list[bytes] = []
        self.outgoing_id = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                first, body = await read_packet(reader)
                await self.take(first, body, writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            writer.close()

    async def take(self, first: int, body: bytes, writer: asyncio.StreamWriter) -> None:
        kind = first >> 4
        if kind == 1:
            writer.write(self.connack)
        elif kind == 8:
            self.subscribers.append(writer)
            asked = body[-1]
            reason = asked if self.suback_reason is None else self.suback_reason
            writer.write(b"\x90\x03" + body[:2] + bytes([reason]))
        elif kind == 3:
            await self.take_publish(first, body, writer)
        elif kind == 5:  # PUBREC of a subscriber
            writer.write(b"\x62\x02" + body)
        elif kind == 6:  # PUBREL of a publisher
            self.completions.append(b"\x70\x02" + body)
            if len(self.completions) == self.completion_batch:
                writer.write(b"".join(self.completions[::-1]))
                self.completions.clear()

    async def take_publish(self, first: int, body: bytes, writer: asyncio.StreamWriter) -> None:
        number = self.messages
        self.messages += 1
        if self.die_at and self.messages >= self.die_at:
            for each in self.subscribers:
                each.transport.abort()
            return
        qos = first >> 1 & 3
        topic_end = 2 + int.from_bytes(body[:2])
        if qos:
            self.acknowledge(qos, body[topic_end : topic_end + 2], writer)
            self.outgoing_id = self.outgoing_id % 65_535 + 1
            body = body[:topic_end] + self.outgoing_id.to_bytes(2) + body[topic_end + 2 :]
        frame = encode_packet(first, body)
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        for sent in self.deliver(number, frame):
            for each in self.subscribers:
                await self.write(each, sent)

    def acknowledge(self, qos: int, packet_id: bytes, writer: asyncio.StreamWriter) -> None:
        """PUBACK or PUBREC, some at a time, in an order that a test may choose."""
        self.acks.append((b"\x40\x02" if qos == 1 else b"\x50\x02") + packet_id)
        self.unacknowledged_max = max(self.unacknowledged_max, len(self.acks))
        if len(self.acks) == self.ack_batch:
            writer.write(b"".join(self.ack_order(self.acks)))
            self.acks.clear()

    async def write(self, writer: asyncio.StreamWriter, frame: bytes) -> None:
        step = self.chunk or len(frame)
        for at in range(0, len(frame), step):
            writer.write(frame[at : at + step])
            if self.chunk:
                await writer.drain()
                await asyncio.sleep(0)


async def read_packet(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    first, size = await reader.readexactly(2)
    shift = 7
    if size > 127:
        size &= 127
        while True:
            (more,) = await reader.readexactly(1)
            size |= (more & 127) << shift
            shift += 7
            if more < 128:
                break
    return first, await reader.readexactly(size)


def listening(
    serve: Serve, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1"
) -> AbstractContextManager[int]:
    """The port of a server, on a thread with a loop of its own."""
    return running(lambda: asyncio.start_server(serve, host, 0, ssl=tls))


class Server(Protocol):
    """What listens."""

    @property
    def sockets(self) -> Iterable[socket.socket]: ...
    def close(self) -> None: ...


@contextmanager
def running(start: Callable[[], Coroutine[None, None, Server]]) -> Iterator[int]:
    """The same of whatever `start` starts."""
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(start())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield next(iter(server.sockets)).getsockname()[1]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        server.close()
        if tasks := asyncio.all_tasks(loop):
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.wait(tasks))
        loop.close()


class DemandingBroker(FakeBroker):
    """A 5.0 broker with properties in its CONNACK; counts PINGREQs."""

    def __init__(self, properties: bytes) -> None:
        super().__init__()
        self.connack = encode_packet(0x20, b"\0\0" + bytes([len(properties)]) + properties)
        self.pings = 0

    async def take(self, first: int, body: bytes, writer: asyncio.StreamWriter) -> None:
        if first == 0xC0:
            self.pings += 1
            writer.write(b"\xd0\x00")
        elif first >> 4 == 8:
            self.subscribers.append(writer)
            writer.write(b"\x90\x04" + body[:2] + b"\x00" + body[-1:])
        else:
            await super().take(first, body, writer)


class StrictBroker(DemandingBroker):
    """Demands a keep alive of a second, and ends a client that is silent for longer than half as much again.
    The last of so many clients is let in late."""

    def __init__(self, clients: int = 0, late_s: float = 0.0) -> None:
        super().__init__(b"\x13\x00\x01")
        self.clients, self.late_s = clients, late_s
        self.ended = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                async with asyncio.timeout(1.5):
                    first, body = await read_packet(reader)
                await self.take(first, body, writer)
        except TimeoutError:
            self.ended += 1
            writer.close()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            writer.close()

    async def take(self, first: int, body: bytes, writer: asyncio.StreamWriter) -> None:
        if first >> 4 == 1:
            self.clients -= 1
            if self.clients == 0:
                await asyncio.sleep(self.late_s)
        await super().take(first, body, writer)


class PairBroker(FakeBroker):
    """Sends a message to the subscriber of its topic only."""

    def __init__(self, delay_s: float) -> None:
        super().__init__(delay_s=delay_s)
        self.by_topic: dict[bytes, asyncio.StreamWriter] = {}

    async def take(self, first: int, body: bytes, writer: asyncio.StreamWriter) -> None:
        if first >> 4 == 8:
            self.by_topic[body[4:-1]] = writer
        await super().take(first, body, writer)

    async def take_publish(self, first: int, body: bytes, writer: asyncio.StreamWriter) -> None:
        self.subscribers = [self.by_topic[body[2 : 2 + int.from_bytes(body[:2])]]]
        await super().take_publish(first, body, writer)
