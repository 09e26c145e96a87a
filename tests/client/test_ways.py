"""Ways to a server that more than a URL says: a WebSocket's query and headers, proxies, another name for
TLS; and a WebSocket that the server closes."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trustme
from client.servers import Server
from waiting import WAIT_S
from websockets.asyncio.server import ServerConnection, serve
from websockets.typing import Subprotocol

from tidemq.client import Client, ConnectError, DisconnectedError
from tidemq.testing import Proxy
from tidemq.wire import Connack, encode

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[tuple[str, int] | None]]


async def test_a_websocket_has_a_query_and_headers_of_ones_own() -> None:
    asked: list[tuple[str, str | None, str | None]] = []

    async def handle(socket: ServerConnection) -> None:
        request = socket.request
        assert request is not None
        asked.append((request.path, request.headers.get("X-Key"), request.headers["Host"]))
        await socket.recv()
        await socket.send(encode(Connack(), 5))
        await socket.wait_closed()

    async with serve(handle, "127.0.0.1", 0, subprotocols=[Subprotocol("mqtt")]) as server:
        port = server.sockets[0].getsockname()[1]
        url = f"ws://127.0.0.1:{port}/path?token=a%20b&x=1"
        async with Client(url, headers={"X-Key": "k", "Host": "broker.example"}):
            pass
    assert asked == [("/path?token=a%20b&x=1", "k", "broker.example")]


async def test_a_websocket_that_the_server_closes_is_a_lost_connection() -> None:
    """While the client publishes: nothing reaches the loop's exception handler."""
    failures: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))

    async def handle(socket: ServerConnection) -> None:
        await socket.recv()
        await socket.send(encode(Connack(), 5))
        await socket.recv()
        await socket.close()

    async with serve(handle, "127.0.0.1", 0, subprotocols=[Subprotocol("mqtt")]) as server:
        port = server.sockets[0].getsockname()[1]
        for _ in range(5):
            receipts = []
            client = Client(f"ws://127.0.0.1:{port}", reconnect=False, buffer_full="reject")
            await client.connect()
            with contextlib.suppress(DisconnectedError):
                while True:
                    receipts.append(client.publish_nowait("t", "x"))
                    await asyncio.sleep(0)
            await client.disconnect()
            results = await asyncio.gather(*(each.sent for each in receipts), return_exceptions=True)
            assert results[0] is None
            assert {type(each) for each in results[1:]} <= {type(None), DisconnectedError}
    assert failures == []


# --- proxies


async def _http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[str, int] | None:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    if "Proxy-Authorization: Basic bWU6c2VjcmV0" not in lines:
        writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
        return None
    method, where, _ = lines[0].split(" ")
    assert method == "CONNECT"
    writer.write(b"HTTP/1.1 200 OK\r\nVia: ")
    await writer.drain()
    await asyncio.sleep(0.01)
    writer.write(b"1.1 test\r\n\r\n")
    host, port = where.rsplit(":", 1)
    return host, int(port)


async def _socks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[str, int] | None:
    version, count = await reader.readexactly(2)
    methods = await reader.readexactly(count)
    assert version == 5
    if 2 not in methods:
        writer.write(b"\x05\xff")
        return None
    writer.write(b"\x05\x02")
    _, size = await reader.readexactly(2)
    name = await reader.readexactly(size)
    secret = await reader.readexactly((await reader.readexactly(1))[0])
    if (name, secret) != (b"me", b"secret"):
        writer.write(b"\x01\x01")
        return None
    writer.write(b"\x01\x00")
    _, _, _, kind = await reader.readexactly(4)
    if kind == 1:
        host = ".".join(map(str, await reader.readexactly(4)))
    else:
        assert kind == 3
        host = (await reader.readexactly((await reader.readexactly(1))[0])).decode()
    port = int.from_bytes(await reader.readexactly(2), "big")
    if host == "unreachable.example":
        writer.write(b"\x05\x04\x00\x01" + bytes(6))
        return None
    writer.write(b"\x05\x00\x00\x03\x02ab" + bytes(2))
    return host, port


@asynccontextmanager
async def forward_proxy(talk: Talk) -> AsyncIterator[int]:
    """One that passes bytes on to where `talk` was asked for."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            where = await talk(reader, writer)
            if where is not None:
                there, here = await asyncio.open_connection(*where)
                await asyncio.gather(_pass(reader, here), _pass(there, writer))
        except OSError:
            pass
        finally:
            writer.close()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
    writer.close()


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.mark.parametrize(("scheme", "talk"), [("http", _http), ("socks5", _socks)])
@pytest.mark.parametrize("kind", ["plain", "name", "tls"])
async def test_a_proxy_leads_to_the_server(
    server: Server, topic: str, authority: trustme.CA, scheme: str, talk: Callable[..., Any], kind: str
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    async with asyncio.timeout(WAIT_S), forward_proxy(talk) as port:
        way = f"{scheme}://me:secret@127.0.0.1:{port}"
        async with Proxy(server.port, tls=context) as secured:
            url = {
                "plain": server.url,
                "name": f"mqtt://localhost:{server.port}",
                "tls": f"mqtts://localhost:{secured.port}",
            }[kind]
            tls = trusting if kind == "tls" else None
            async with Client(url, proxy=way, tls=tls) as client:
                await client.subscribe(topic, qos=1)
                await client.publish(topic, b"x" * 100_000, qos=1)
                assert len((await anext(client.messages)).payload) == 100_000


@pytest.mark.parametrize(
    ("talk", "way", "host", "text"),
    [
        (_http, "http://127.0.0.1:{}", "h", "407 Proxy Authentication Required"),
        (_socks, "socks5://127.0.0.1:{}", "h", "another way to log in"),
        (_socks, "socks5://me:wrong@127.0.0.1:{}", "h", "user name or the password"),
        (_socks, "socks5://me:secret@127.0.0.1:{}", "unreachable.example", "the host is unreachable"),
    ],
)
async def test_what_a_proxy_refuses_is_said(talk: Callable[..., Any], way: str, host: str, text: str) -> None:
    async with forward_proxy(talk) as port:
        with pytest.raises(ConnectError, match=text) as raised:
            await Client(f"mqtt://{host}", proxy=way.format(port), connect_timeout_s=2).connect()
        assert "secret" not in str(raised.value)


async def test_a_proxy_that_is_not_there_is_named(unused_tcp_port: int) -> None:
    with pytest.raises(ConnectError, match=rf"the proxy http://127\.0\.0\.1:{unused_tcp_port} gives no"):
        await Client("mqtt://h", proxy=f"http://127.0.0.1:{unused_tcp_port}").connect()


async def test_a_certificate_may_have_another_name(server: Server, topic: str, authority: trustme.CA) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("broker.example").configure_cert(context)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    async with Proxy(server.port, tls=context) as proxy:
        url = f"mqtts://127.0.0.1:{proxy.port}"
        with pytest.raises(ConnectError, match="certificate"):
            await Client(url, tls=trusting).connect()
        async with Client(url, tls=trusting, tls_server_name="broker.example") as client:
            await client.publish(topic, qos=1)
