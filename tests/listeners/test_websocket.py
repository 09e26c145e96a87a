"""MQTT in WebSocket at a broker's listeners, with the package websockets, paho-mqtt and our own client."""

from __future__ import annotations

import asyncio
import os
import ssl
from typing import Any

import pytest
from listeners.conftest import Authority, BrokerAt, Files
from listeners.test_listeners import exchange
from waiting import WAIT_S, until
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Origin, Subprotocol

from tidemq import Broker
from tidemq.wire import Connack, Connect, Decoder, Packet, Pingreq, Pingresp, encode

HELLO = encode(Connect(version=5, client_id="web", clean_start=True), 5)


def url_of(broker: Broker, scheme: str = "ws", path: str = "/mqtt") -> str:
    return f"{scheme}://localhost:{broker.port}{path}"


async def packets_of(socket: ClientConnection, count: int) -> list[Packet]:
    decoder = Decoder(5)
    found: list[Any] = []
    async with asyncio.timeout(WAIT_S):
        while len(found) < count:
            data = await socket.recv()
            assert isinstance(data, bytes)
            decoder.feed(data)
            found += list(decoder)
    return found


@pytest.mark.parametrize("size", [10, 70_000, 900_000])
async def test_messages_of_all_sizes_come_through(broker_at: BrokerAt, size: int) -> None:
    async with broker_at({"websocket": {}}) as broker:
        await exchange(url_of(broker), payload=os.urandom(size), count=10)
        assert broker.counters()["handshakes"] == 1


@pytest.mark.parametrize("size", [10, 300_000])
async def test_over_tls_too(
    broker_at: BrokerAt, authority: Authority, server_files: Files, size: int
) -> None:
    context = ssl.create_default_context(cafile=str(authority.ca))
    async with broker_at({"websocket": {}, "tls": server_files.tls}) as broker:
        await exchange(url_of(broker, "wss"), payload=os.urandom(size), count=10, tls=context)


@pytest.mark.parametrize("subprotocol", ["mqtt", "mqttv3.1"])
async def test_packets_lie_in_frames_as_they_like(broker_at: BrokerAt, subprotocol: str) -> None:
    async with (
        broker_at({"websocket": {}}) as broker,
        connect(url_of(broker), subprotocols=[Subprotocol("other"), Subprotocol(subprotocol)]) as socket,
    ):
        assert socket.subprotocol == subprotocol
        await socket.send([HELLO[at : at + 1] for at in range(len(HELLO))])  # a message of one-byte fragments
        assert isinstance((await packets_of(socket, 1))[0], Connack)
        ping = encode(Pingreq(), 5)
        await socket.send(ping * 3 + ping[:1])
        assert await packets_of(socket, 3) == [Pingresp()] * 3
        await socket.send(ping[1:])
        assert await packets_of(socket, 1) == [Pingresp()]
        async with asyncio.timeout(WAIT_S):
            await (await socket.ping(b"still there?"))


@pytest.mark.parametrize(
    ("path", "headers", "subprotocols", "status"),
    [
        ("/other", {}, ["mqtt"], 404),
        ("/mqtt", {}, ["graphql"], 400),
        ("/mqtt", {}, None, 400),
        ("/mqtt", {"Origin": "https://evil.example"}, ["mqtt"], 403),
        ("/mqtt", {"X": "x" * 9000}, ["mqtt"], 431),
    ],
)
async def test_what_is_no_mqtt_is_refused_with_a_status(
    broker_at: BrokerAt,
    path: str,
    headers: dict[str, str],
    subprotocols: list[Subprotocol] | None,
    status: int,
) -> None:
    async with broker_at({"websocket": {}}) as broker:
        with pytest.raises(InvalidStatus) as caught:
            await connect(url_of(broker, path=path), subprotocols=subprotocols, additional_headers=headers)
        assert caught.value.response.status_code == status
        await until(lambda: broker.counters()["handshakes_failed"])


@pytest.mark.parametrize(
    ("origins", "origin"),
    [([], "http://localhost:8000"), (["https://app.example"], "https://app.example"), (["*"], "https://a.b")],
)
async def test_pages_that_may(broker_at: BrokerAt, origins: list[str], origin: str) -> None:
    async with (
        broker_at({"websocket": {"origins": origins, "path": "/"}}) as broker,
        connect(
            url_of(broker, path="/"), subprotocols=[Subprotocol("mqtt")], origin=Origin(origin)
        ) as socket,
    ):
        await socket.send(HELLO)
        assert isinstance((await packets_of(socket, 1))[0], Connack)


async def test_text_and_unmasked_frames_end_the_connection(broker_at: BrokerAt) -> None:
    async with broker_at({"websocket": {}}) as broker:
        async with connect(url_of(broker), subprotocols=[Subprotocol("mqtt")]) as socket:
            await socket.send("text")
            with pytest.raises(ConnectionClosed) as caught:
                await socket.recv()
            assert caught.value.rcvd is not None
            assert caught.value.rcvd.code == 1003
        async with connect(url_of(broker), subprotocols=[Subprotocol("mqtt")]) as socket:
            assert socket.transport is not None
            socket.transport.write(b"\x82\x02\xc0\x00")
            with pytest.raises(ConnectionClosed) as caught:
                await socket.recv()
            assert caught.value.rcvd is not None
            assert caught.value.rcvd.code == 1002
        await until(lambda: broker.counters()["faults"] >= 2)


async def test_goodbye_is_said_in_websockets_words(broker_at: BrokerAt) -> None:
    async with (
        broker_at({"websocket": {}}) as broker,
        connect(url_of(broker), subprotocols=[Subprotocol("mqtt")]) as socket,
    ):
        await socket.send(HELLO)
        await packets_of(socket, 1)
        await broker.disconnect("web", 0x98)
        assert (await packets_of(socket, 1))[0].reason == 0x98  # type: ignore[union-attr]
        with pytest.raises(ConnectionClosed) as caught:
            await socket.recv()
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1000


async def test_plain_http_is_answered(broker_at: BrokerAt) -> None:
    async with broker_at({"websocket": {}}) as broker:
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
        writer.write(b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\n\r\n")
        async with asyncio.timeout(WAIT_S):
            answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 4")
        assert b"Connection: close" in answer
        writer.close()


@pytest.mark.parametrize("path", ["/", "/mqtt", "/any/where?token=1"])
async def test_a_listener_may_be_there_at_any_path(broker_at: BrokerAt, path: str) -> None:
    async with (
        broker_at({"websocket": {"path": "*"}}) as broker,
        connect(url_of(broker, path=path), subprotocols=[Subprotocol("mqtt")]) as socket,
    ):
        await socket.send(HELLO)
        assert isinstance((await packets_of(socket, 1))[0], Connack)
