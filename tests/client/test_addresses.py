"""URLs, and every way to a server: TCP, TLS, WebSocket, Unix socket; what cannot be reached is named."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme
from client.servers import Server
from waiting import WAIT_S
from websockets.asyncio.server import ServerConnection, serve
from websockets.typing import Subprotocol

from tidemq.client import Client, ConnectError, ServerRefusedError
from tidemq.client.address import parse_url
from tidemq.errors import TideMQError, UsageError
from tidemq.testing import Proxy
from tidemq.testing.ports import free_port


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def server_tls(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost", "127.0.0.1").configure_cert(context)
    return context


@pytest.fixture(scope="module")
def client_tls(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


async def goes_both_ways(url: str, topic: str, tls: ssl.SSLContext | None = None) -> None:
    """Small messages, one larger than any buffer on the way, and many at once."""
    large = bytes(range(256)) * 3000
    async with asyncio.timeout(WAIT_S), Client(url, tls=tls) as client:
        await client.subscribe(topic, qos=1)
        receipt = client.publish_nowait(topic, large, qos=1)
        await receipt.sent
        await receipt.acknowledged
        assert (await anext(client.messages)).payload == large
        await client.publish_many(((topic, b"%d" % n) for n in range(2000)), qos=1)
        for n in range(2000):
            assert (await anext(client.messages)).payload == b"%d" % n


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("mqtt://host", "mqtt://host:1883"),
        ("mqtts://host", "mqtts://host:8883"),
        ("mqtt://user:se%40cret@host:77/", "mqtt://host:77"),
        ("ws://host", "ws://host:80/mqtt"),
        ("wss://[::1]/chat", "wss://[::1]:443/chat"),
        ("mqtt://[fe80::1%25eth0]", "mqtt://[fe80::1%25eth0]:1883"),
        ("mqtt://bücher.example.", "mqtt://bücher.example.:1883"),
        ("unix:///run/a%20b.sock", "unix:///run/a b.sock"),
    ],
)
def test_urls(url: str, text: str) -> None:
    assert str(parse_url(url)) == text


def test_user_and_password_of_a_url() -> None:
    address = parse_url("mqtt://us%2Fer:se%40cret@host")
    assert (address.username, address.password) == ("us/er", "se@cret")


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("http://host", "no known scheme"),
        ("host:1883", "no known scheme"),
        ("mqtt://", "no host"),
        ("mqtt://host:0x1", "no valid port"),
        ("mqtt://host:99999", "no valid port"),
        ("mqtt://host/path", "a path"),
        ("mqtt://host?a=b", "a query"),
        ("unix://", "no file"),
        ("unix://host/file", "no file"),
        ("unix:///a%00b", "no file"),
        ("mqtt://[::1", "is not a URL"),
        (f"mqtt://{'x' * 64}.example", "not the name of a host"),
        (f"mqtt://{'abc.' * 80}example", "not the name of a host"),
        ("wss://a..example", "not the name of a host"),
        ("mqtts://.example", "not the name of a host"),
        ("mqtt://a\0b", "not the name of a host"),
    ],
)
def test_a_wrong_url_is_named(url: str, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        Client(url)


async def test_tcp(server: Server, topic: str) -> None:
    await goes_both_ways(server.url, topic)


async def test_unix_socket(server: Server, topic: str, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    async with Proxy(server.port, path=path):
        await goes_both_ways(f"unix://{path}", topic)


async def test_tls(
    server: Server, topic: str, server_tls: ssl.SSLContext, client_tls: ssl.SSLContext
) -> None:
    async with Proxy(server.port, tls=server_tls) as proxy:
        await goes_both_ways(f"mqtts://localhost:{proxy.port}", topic, client_tls)


@asynccontextmanager
async def websocket_proxy(port: int, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """In front of a broker: neither TideMQ nor Debian's Mosquitto listens for WebSockets. Its frames cut
    packets anywhere, as they may."""

    async def handle(socket: ServerConnection) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)

        async def back() -> None:
            while data := await reader.read(1000):
                await socket.send(data)
            await socket.close()

        task = asyncio.create_task(back())
        async for data in socket:
            assert isinstance(data, bytes)
            writer.write(data)
        writer.close()
        await task

    async with serve(
        handle, "127.0.0.1", 0, ssl=tls, subprotocols=[Subprotocol("mqtt")], max_size=None
    ) as server:
        yield server.sockets[0].getsockname()[1]


async def test_websocket(server: Server, topic: str) -> None:
    async with websocket_proxy(server.port) as port:
        await goes_both_ways(f"ws://127.0.0.1:{port}/mqtt", topic)


async def test_websocket_over_tls(
    server: Server, topic: str, server_tls: ssl.SSLContext, client_tls: ssl.SSLContext
) -> None:
    async with websocket_proxy(server.port, server_tls) as port:
        await goes_both_ways(f"wss://localhost:{port}", topic, client_tls)


async def test_mosquittos_own_tls_and_unix_listeners(
    tmp_path: Path,
    topic: str,
    authority: trustme.CA,
    client_tls: ssl.SSLContext,
    install: Callable[[str, str], None],
) -> None:
    install("mosquitto", "mosquitto")
    certificate, key, path = tmp_path / "chain.pem", tmp_path / "key.pem", tmp_path / "socket"
    issued = authority.issue_cert("localhost")
    issued.private_key_pem.write_to_path(key)
    for blob in issued.cert_chain_pems:
        blob.write_to_path(certificate, append=True)
    port = free_port()
    more = f"user root\nlistener {port} 127.0.0.1\ncertfile {certificate}\nkeyfile {key}\nlistener 0 {path}\n"
    server = Server("mosquitto", tmp_path, settings=more).start()
    try:
        await goes_both_ways(f"mqtts://localhost:{port}", topic, client_tls)
        await goes_both_ways(f"unix://{path}", topic)
    finally:
        server.kill()


async def fails(url: str, **options: Any) -> str:
    """The text of the error that connecting ends with."""
    with pytest.raises(TideMQError) as caught:
        async with Client(url, connect_timeout_s=2, **options):
            raise AssertionError("connected")
    assert isinstance(caught.value, ConnectError | ServerRefusedError)
    return str(caught.value)


async def test_nobody_listens() -> None:
    port = free_port()
    assert await fails(f"mqtt://127.0.0.1:{port}") == (
        f"cannot connect to mqtt://127.0.0.1:{port}: Connect call failed ('127.0.0.1', {port})"
    )


async def test_no_such_host() -> None:
    text = await fails("mqtt://nowhere.invalid")
    assert text.startswith("cannot connect to mqtt://nowhere.invalid:1883: ")


async def test_no_such_socket(tmp_path: Path) -> None:
    text = await fails(f"unix://{tmp_path}/none")
    assert text == f"cannot connect to unix://{tmp_path}/none: No such file or directory"


async def test_a_certificate_that_is_not_trusted(server: Server, server_tls: ssl.SSLContext) -> None:
    async with Proxy(server.port, tls=server_tls) as proxy:
        text = await fails(f"mqtts://localhost:{proxy.port}")
    assert "its certificate is not accepted: unable to get local issuer certificate" in text


async def test_a_certificate_of_another_host(
    server: Server, authority: trustme.CA, client_tls: ssl.SSLContext
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("elsewhere.example").configure_cert(context)
    async with Proxy(server.port, tls=context) as proxy:
        text = await fails(f"mqtts://localhost:{proxy.port}", tls=client_tls)
    assert "Hostname mismatch" in text


async def test_tls_where_there_is_none(server: Server, client_tls: ssl.SSLContext) -> None:
    text = await fails(f"mqtts://127.0.0.1:{server.port}", tls=client_tls)
    assert text.startswith(f"cannot connect to mqtts://127.0.0.1:{server.port}: ")


async def test_websocket_where_there_is_none(server: Server) -> None:
    text = await fails(f"ws://127.0.0.1:{server.port}")
    assert "WebSocket" in text
