"""The client's beginnings and ends: cut short, failed, one behind the other. Nothing is left open, and
nothing is reported that nobody can act on."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from client.scripted import Peer, ScriptedServer
from waiting import WAIT_S, until

from tidemq.client import Client, ConnectError, ConnectionChange, DisconnectedError, Message, ReasonCode
from tidemq.errors import StoreError
from tidemq.wire import Disconnect, Publish, Suback, Subscribe

QUICK: dict[str, Any] = {"backoff_s_min": 0.01, "backoff_s_max": 0.05}


@pytest_asyncio.fixture
async def reported() -> AsyncIterator[list[str]]:
    """What came to the loop's exception handler."""
    found: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: found.append(context["message"]))
    yield found
    asyncio.get_running_loop().set_exception_handler(None)


async def keep_silent(peer: Peer) -> None:
    """A server that acknowledges nothing."""
    await peer.accept()
    while await peer.receive() is not None:
        pass


async def test_a_time_out_around_the_client_ends_it() -> None:
    async with asyncio.timeout(WAIT_S), ScriptedServer(keep_silent) as server:
        client = Client(server.url, close_timeout_s=2 * WAIT_S, **QUICK)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2), client:
                client.publish_nowait("t", qos=1)  # the end waits for its acknowledgement
        assert not client.is_connected
        assert not [each for each in asyncio.all_tasks() if each.get_name().startswith("tidemq-")]
        with pytest.raises(DisconnectedError, match="the client is closed"):
            await client.publish("t")


async def test_who_waited_in_one_life_does_not_count_in_the_next() -> None:
    async with asyncio.timeout(WAIT_S), ScriptedServer(keep_silent) as server:
        client = Client(server.url)
        await client.connect()
        waiting = asyncio.create_task(client.publish("t", qos=1))
        await until(lambda: client.held_messages, poll_s=0)
        await client.disconnect(wait=False)
        await client.connect()
        with pytest.raises(DisconnectedError):
            await waiting
        assert client._answers._awaited == 0
        await client.disconnect()


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_websocket_that_is_not_opened_in_time_is_closed(cancelled: bool) -> None:
    asked, closed = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        with contextlib.suppress(OSError):
            await reader.read()
        closed.set()
        writer.close()

    async with asyncio.timeout(WAIT_S), await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        connecting = asyncio.create_task(
            Client(url, connect_timeout_s=WAIT_S if cancelled else 0.3).connect()
        )
        await asked.wait()
        if cancelled:
            connecting.cancel()
        with pytest.raises(asyncio.CancelledError if cancelled else ConnectError):
            await connecting
        await closed.wait()


async def ended(client: Client) -> None:
    """Nothing refers to the client afterwards."""
    await until(lambda: not client.is_connected and not client._callbacks._tasks)


async def test_a_client_that_gives_up_reports_nothing_for_its_callbacks(reported: list[str]) -> None:
    """`on_connection` is told."""
    changes: list[ConnectionChange] = []
    got = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.accept()
        for _ in range(2):
            packet = await peer.receive()
            assert isinstance(packet, Subscribe)
            peer.send(Suback(packet_id=packet.packet_id, reasons=(0,)))
        peer.send(Publish(topic="a"), Disconnect(reason=ReasonCode.SESSION_TAKEN_OVER))

    def handle(_: Message) -> None:
        got.set()

    async with asyncio.timeout(WAIT_S), ScriptedServer(script) as server:
        client = Client(server.url, on_connection=changes.append)
        await client.connect()
        for name in ("a", "b"):
            await client.subscribe(name, callback=handle)
        await got.wait()
        await ended(client)
        await client.disconnect()
        del client
        gc.collect()
        await asyncio.sleep(0)
    assert [each.comes_back for each in changes] == [True, False]
    assert not reported


async def test_a_cancelled_connect_reports_nothing(reported: list[str]) -> None:
    async def script(peer: Peer) -> None:
        await peer.receive()
        asked.set()
        await peer.receive()

    asked = asyncio.Event()
    async with asyncio.timeout(WAIT_S), ScriptedServer(script) as server:
        client = Client(server.url)
        connecting = asyncio.create_task(client.connect())
        await asked.wait()
        connecting.cancel()
        await asyncio.wait([connecting])
        assert connecting.cancelled()
        del client, connecting
        gc.collect()
        await asyncio.sleep(0)
    assert not reported


async def test_a_client_whose_outbox_could_not_be_opened_tries_again(tmp_path: Path) -> None:
    folder = tmp_path / "later"
    async with asyncio.timeout(WAIT_S), ScriptedServer(keep_silent) as server:
        client = Client(server.url, outbox=str(folder / "outbox"))
        for _ in range(2):
            with pytest.raises(StoreError, match="later"):
                await client.connect()
        folder.mkdir()
        await client.connect()
        assert client.is_connected
        await client.disconnect()


async def test_flush_waits_until_the_system_has_everything() -> None:
    may_read = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.accept()
        await may_read.wait()
        while await peer.receive() is not None:
            pass

    async with asyncio.timeout(WAIT_S), ScriptedServer(script) as server, Client(server.url) as client:
        await client.publish("t", b"x" * (20 << 20))  # more than a socket's buffers hold
        flushing = asyncio.create_task(client.flush())
        await asyncio.sleep(0.2)
        assert not flushing.done()
        may_read.set()
        await flushing


async def test_flush_ends_with_the_connection_that_took_the_output_along() -> None:
    may_end = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.accept()
        if server.connections == 1:
            await may_end.wait()
        else:
            await peer.receive()

    async with asyncio.timeout(WAIT_S), ScriptedServer(script) as server:
        async with Client(server.url, **QUICK) as client:
            await client.publish("t", b"x" * (20 << 20))
            flushing = asyncio.create_task(client.flush())
            await asyncio.sleep(0.1)
            may_end.set()
            await flushing
