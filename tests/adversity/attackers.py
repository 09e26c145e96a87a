"""A process of attackers: `attackers.py PORT TLS_PORT SECONDS CONNECTIONS SEED`. Each connection does one
sort of harm until the broker ends it, then begins again with the next; the process prints what it did.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import socket
import ssl
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from adversity.collisions import colliding
from conformance.packets import connect, publish, subscribe

Attack = Callable[[asyncio.StreamReader, asyncio.StreamWriter, random.Random], Awaitable[None]]

COLLIDING = [text.decode() for text in colliding(2000)]
PATIENCE_S = 5.0  # how long one waits for the broker to end what it does


async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, draw: random.Random) -> None:
    writer.write(draw.randbytes(draw.randint(1, 5000)))


async def half_connect(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, draw: random.Random
) -> None:
    """A byte now and then."""
    for value in connect("c", username="u" * 1000):
        writer.write(bytes([value]))
        await asyncio.sleep(0.5)


async def come_in(writer: asyncio.StreamWriter, client_id: str = "") -> None:
    writer.write(connect(client_id, keep_alive_s=0))
    await writer.drain()


async def half_publish(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, draw: random.Random
) -> None:
    await come_in(writer)
    whole = publish("half", bytes(900_000), 1, 1)
    writer.write(whole[: draw.choice((3, 1000, 300_000))])


async def open_and_close(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, draw: random.Random
) -> None:
    writer.close()


async def take_over(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, draw: random.Random) -> None:
    """Connects again and again as one of a few clients that fight for their sessions."""
    host, port = writer.get_extra_info("peername")
    source, _ = writer.get_extra_info("sockname")
    for _ in range(20):
        await come_in(writer, f"storm{draw.randint(0, 3)}")
        await asyncio.sleep(0.05)
        writer.close()
        _, writer = await asyncio.open_connection(host, port, local_addr=(source, 0))
    writer.close()


async def subscribe_much(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, draw: random.Random
) -> None:
    await come_in(writer)
    for start in range(0, 20_000, 50):
        filters = [(f"flood/{draw.random()}/+/{n}/{'x' * 500}/#", 1) for n in range(start, start + 50)]
        writer.write(subscribe(start + 1, *filters))
        await writer.drain()


async def go_deep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, draw: random.Random) -> None:
    await come_in(writer)
    for number in range(5000):
        topic = "/".join(str(draw.randint(0, 99)) for _ in range(60))
        writer.write(publish(topic) + subscribe(number + 1, ("+/" * 60 + str(number), 0)))
        await writer.drain()


async def retain_much(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, draw: random.Random
) -> None:
    await come_in(writer)
    for _ in range(20_000):
        writer.write(publish(f"kept/{draw.random()}/{'y' * 300}", bytes(2000), retain=True))
        await writer.drain()


async def collide(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, draw: random.Random) -> None:
    await come_in(writer, draw.choice(COLLIDING))
    for start in range(0, len(COLLIDING), 50):
        writer.write(subscribe(start + 1, *((text, 0) for text in COLLIDING[start : start + 50])))
        writer.write(b"".join(publish(text) for text in COLLIDING[start : start + 50]))
        await writer.drain()


async def publish_much(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, draw: random.Random
) -> None:
    await come_in(writer)
    block = b"".join(publish(f"flood/{number}", bytes(500)) for number in range(1000))
    while True:
        writer.write(block)
        await writer.drain()


async def read_nothing(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, draw: random.Random
) -> None:
    """Subscribes to everything that the others send, and takes none of it."""
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
    await come_in(writer)
    writer.write(subscribe(1, ("flood/#", 0), ("kept/#", 1)))
    await writer.drain()
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    await asyncio.sleep(PATIENCE_S)


async def half_handshake(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, draw: random.Random
) -> None:
    """The beginning of a TLS handshake, at a port with TLS."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    handshake = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        handshake.do_handshake()
    hello = outgoing.read()
    writer.write(hello[: draw.choice((5, 100, len(hello)))])


PLAIN: list[Attack] = [
    *(garbage, half_connect, half_publish, open_and_close, take_over, subscribe_much, go_deep),
    *(retain_much, collide, publish_much, read_nothing),
]


async def attack(port: int, tls_port: int, number: int, seed: int, done: Counter[str]) -> None:
    draw = random.Random(f"{seed} {number}")
    # nine from each address, of which eight may be
    source = f"127.{1 + seed}.{number // 9 // 200}.{1 + number // 9 % 200}"
    kinds = [half_handshake, *PLAIN] if tls_port else PLAIN
    for turn in itertools.count(number):
        kind = kinds[turn % len(kinds)]
        try:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", tls_port if kind is half_handshake else port, local_addr=(source, 0)
            )
        except OSError:
            await asyncio.sleep(0.5)
            continue
        # what it has sent is worked off, at the rate that it may have, when it has gone
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
        done[kind.__name__] += 1
        drained = asyncio.ensure_future(drain(reader))
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                await kind(reader, writer, draw)
                await drained
        drained.cancel()
        writer.transport.abort()
        await asyncio.sleep(draw.random())


async def drain(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(OSError):
        while await reader.read(1 << 16):
            pass


async def main(port: int, tls_port: int, seconds: float, connections: int, seed: int) -> None:
    done: Counter[str] = Counter()
    tasks = [
        asyncio.ensure_future(attack(port, tls_port, number, seed, done)) for number in range(connections)
    ]
    await asyncio.sleep(seconds)
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if not isinstance(result, asyncio.CancelledError):
            raise RuntimeError("an attacker gave up") from result
    print(dict(done))


if __name__ == "__main__":
    _, first, second, length, count, begin = sys.argv
    asyncio.run(main(int(first), int(second), float(length), int(count), int(begin)))
