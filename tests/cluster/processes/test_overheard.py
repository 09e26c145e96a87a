"""What is heard on a guest's connections, and links that are slow."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from cluster.processes.overheard import OverheardLink

from tidemq.testing.links import Link
from tidemq.wire import Connack, Connect, Pubcomp, Publish, Pubrec, Pubrel, encode

LATE_S = 0.5


def message(packet_id: int, payload: bytes) -> bytes:
    return encode(Publish(topic="a", payload=payload, qos=2, packet_id=packet_id), 4)


@asynccontextmanager
async def connected(link: Link, served: bytes) -> AsyncIterator[asyncio.StreamWriter]:
    """A client of a server that answers the first bytes with these."""
    reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
    writer.write(encode(Connect(version=4, client_id="ann", clean_start=False), 4))
    assert await reader.readexactly(len(served)) == served
    yield writer
    writer.close()


async def serve(stack: AsyncExitStack, answers: list[bytes]) -> int:
    """One answer for each connection; its port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1024)
        writer.write(answers.pop(0))
        await reader.read()
        writer.close()

    server = await stack.enter_async_context(await asyncio.start_server(answer, "127.0.0.1", 0))
    port: int = server.sockets[0].getsockname()[1]
    return port


async def heard(answers: list[bytes], said: list[bytes]) -> list[tuple[int, bytes]]:
    """What is hidden, where the client says this in its connections, one after the other, upon the answer."""
    hidden: list[tuple[int, bytes]] = []
    async with AsyncExitStack() as stack:
        port = await serve(stack, list(answers))
        link = OverheardLink(lambda: port, "ann", lambda *found: hidden.append(found))
        await link.start()
        stack.push_async_callback(link.close)
        for answer, words in zip(answers, said, strict=True):
            async with connected(link, answer) as writer:
                writer.write(words)
                writer.write_eof()
                await asyncio.sleep(0.1)  # they are passed on
    return hidden


async def test_a_message_under_the_identifier_of_another_one_is_heard() -> None:
    present, new = encode(Connack(session_present=True), 4), encode(Connack(session_present=False), 4)
    answers = [
        new + message(1, b"first") + message(2, b"second"),
        present + message(1, b"first") + message(2, b"other") + encode(Pubrel(packet_id=1), 4),
        present + message(1, b"third"),
        new + message(1, b"fourth") + message(2, b"fifth"),
    ]
    received, released = encode(Pubrec(packet_id=1), 4), encode(Pubcomp(packet_id=1), 4)
    assert await heard(answers, [received, released, received, received]) == [(2, b"other")]


async def test_an_identifier_is_free_when_the_client_says_so() -> None:
    """A PUBREL may be lost in the end of a connection."""
    present = encode(Connack(session_present=True), 4)
    answers = [present + message(1, b"first") + encode(Pubrel(packet_id=1), 4), present + message(1, b"next")]
    received = encode(Pubrec(packet_id=1), 4)
    assert await heard(answers, [received, received]) == [(1, b"next")]


async def test_connections_of_others_are_not_heard() -> None:
    answer = encode(Connack(session_present=True), 4) + message(1, b"first") + message(1, b"second")
    hidden: list[tuple[int, bytes]] = []
    async with AsyncExitStack() as stack:
        port = await serve(stack, [answer])
        link = OverheardLink(lambda: port, "bob", lambda *found: hidden.append(found))
        await link.start()
        stack.push_async_callback(link.close)
        async with connected(link, answer):
            pass
    assert hidden == []


async def test_a_slow_link_is_late_until_it_is_healed() -> None:
    answer = encode(Connack(session_present=True), 4)
    async with AsyncExitStack() as stack:
        port = await serve(stack, [answer] * 3)
        link = Link(lambda: port, lambda _: "ann")
        await link.start()
        stack.push_async_callback(link.close)
        took = []
        for is_slow in (False, True, False):
            if is_slow:
                link.slow(LATE_S, "ann")
            begun_s = time.monotonic()
            async with connected(link, answer):
                took.append(time.monotonic() - begun_s)
            link.heal()
    assert took[1] >= 2 * LATE_S > min(took[0], took[2]), "there and back"
