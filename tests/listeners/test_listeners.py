"""Listeners of a real broker: Unix sockets, protocol versions, who is let in, PROXY headers."""

from __future__ import annotations

import asyncio
import socket
import stat
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from listeners.conftest import BrokerAt
from waiting import WAIT_S, until

from tidemq.broker import Broker
from tidemq.client import Client, ConnectError, ServerRefusedError
from tidemq.config import Config, Listener, load_config
from tidemq.errors import ConfigError
from tidemq.wire import Connack, Connect, Decoder, encode


async def exchange(url: str, payload: bytes = b"x" * 1000, count: int = 20, **options: Any) -> None:
    """A client that gets back all that it publishes, in order."""
    async with asyncio.timeout(WAIT_S), Client(url, reconnect=False, **options) as client:
        topic = f"back/to/{client.client_id}"
        messages = (await client.subscribe(topic, qos=1)).messages
        for number in range(count):
            await client.publish(topic, b"%d " % number + payload, qos=1)
        for number in range(count):
            message = await anext(messages)
            assert message.payload == b"%d " % number + payload


async def test_a_unix_socket_serves_its_owner(broker_at: BrokerAt, tmp_path: Path) -> None:
    path = tmp_path / "mqtt.sock"
    async with broker_at({"path": path}, {"name": "tcp"}) as broker:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert broker.addresses == {str(path): str(path), "tcp": f"127.0.0.1:{broker.port}"}
        await asyncio.gather(*(exchange(f"unix://{path}", count=5) for _ in range(8)))
        with pytest.raises(OSError, match="in use"):
            async with broker_at({"path": path}):
                pass
        await exchange(f"unix://{path}", count=1)
    assert not path.exists()


async def test_a_socket_that_a_killed_broker_has_left_is_replaced_and_a_file_is_not(
    broker_at: BrokerAt, tmp_path: Path
) -> None:
    path = tmp_path / "mqtt.sock"
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.close()
    async with broker_at({"path": path, "mode": "0660"}):
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        await exchange(f"unix://{path}", count=1)
    path.write_text("not a socket")
    with pytest.raises(OSError, match=r"mqtt\.sock"):
        async with broker_at({"path": path}):
            pass
    assert path.read_text() == "not a socket"


async def test_a_listener_takes_the_versions_that_it_is_for(broker_at: BrokerAt) -> None:
    async with broker_at({"protocol_versions": ["5.0"]}, {"protocol_versions": ["3.1", "3.1.1"]}) as broker:
        new, old = (f"mqtt://127.0.0.1:{port}" for port in broker.ports)
        await exchange(new, version=5, count=1)
        await exchange(old, version=4, count=1)
        await exchange(old, version=3, count=1, client_id="three")
        for url, version in ((new, 4), (new, 3), (old, 5)):
            with pytest.raises(ServerRefusedError, match="unsupported protocol version"):
                await exchange(url, version=version, client_id="c")


async def test_a_listener_has_a_limit_of_its_own(broker_at: BrokerAt) -> None:
    async with broker_at({"connections_max": 2}, {}) as broker:
        small, other = (f"mqtt://127.0.0.1:{port}" for port in broker.ports)
        async with Client(small), Client(small):
            with pytest.raises(ConnectError):
                await exchange(small)
            await exchange(other, count=1)
        await until(lambda: not broker.counters()["live_connections"])
        await exchange(small, count=1)
        assert broker.counters()["connections_refused"] == 1


def header_1(address: str) -> bytes:
    return f"PROXY TCP4 {address} 10.0.0.1 40000 1883\r\n".encode()


def header_2(address: str) -> bytes:
    addresses = socket.inet_aton(address) + socket.inet_aton("10.0.0.1") + struct.pack(">HH", 40000, 1883)
    return b"\r\n\r\n\0\r\nQUIT\n" + bytes([0x21, 0x11]) + struct.pack(">H", len(addresses)) + addresses


LOCAL_2 = b"\r\n\r\n\0\r\nQUIT\n" + bytes([0x20, 0x00, 0, 0])


async def connack_after(port: int, first: bytes, pieces: int = 1) -> Connack | None:
    """The answer to a CONNECT after these bytes; None: the connection ended without one."""
    data = first + encode(Connect(version=5, client_id="behind", clean_start=True), 5)
    size = max(1, len(data) // pieces)
    async with asyncio.timeout(WAIT_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            for at in range(0, len(data), size):
                writer.write(data[at : at + size])
                await writer.drain()
                await asyncio.sleep(0)
            decoder = Decoder(5)
            while chunk := await reader.read(4096):
                decoder.feed(chunk)
                for packet in decoder:
                    assert isinstance(packet, Connack)
                    return packet
        except ConnectionResetError:
            pass
        finally:
            writer.close()
    return None


@pytest.mark.parametrize("pieces", [1, 30])
@pytest.mark.parametrize("header", [header_1, header_2])
async def test_behind_a_proxy_the_clients_address_counts(
    broker_at: BrokerAt, header: Callable[..., Any], pieces: int
) -> None:
    async with broker_at({"proxy_protocol": True}) as broker:
        accepted = await connack_after(broker.port, header("127.0.0.5"), pieces)
        assert accepted is not None
        assert accepted.reason == 0
        refused = await connack_after(broker.port, header("203.0.113.9"), pieces)
        assert refused is not None
        assert refused.reason == 0x87
        assert "authenticator" in (refused.properties.reason_string or "")


async def test_without_the_header_nobody_comes_in(
    broker_at: BrokerAt, caplog: pytest.LogCaptureFixture
) -> None:
    async with broker_at({"proxy_protocol": True}) as broker:
        assert await connack_after(broker.port, b"") is None
        assert await connack_after(broker.port, b"PROXY TCP4 1.2.3.4 nonsense\r\n") is None
        local = await connack_after(broker.port, LOCAL_2)  # the proxy's own look whether we live
        assert local is not None
        assert local.reason == 0
        await until(lambda: broker.counters()["faults"] >= 2)
    assert "the PROXY header, TLS or the WebSocket" in caplog.text


async def test_a_header_where_none_is_wanted_is_no_mqtt(broker_at: BrokerAt) -> None:
    async with broker_at({}) as broker:
        assert await connack_after(broker.port, header_1("127.0.0.5")) is None


async def test_whoever_allows_it_takes_clients_of_other_machines(broker_at: BrokerAt) -> None:
    options = {"authenticator": "anonymous", "authenticator_options": {"remote": True}}
    async with broker_at({"proxy_protocol": True} | options) as broker:
        accepted = await connack_after(broker.port, header_1("203.0.113.9"))
        assert accepted is not None
        assert accepted.reason == 0


async def test_each_listener_has_its_authenticator(broker_at: BrokerAt) -> None:
    users = {"authenticator": "static", "authenticator_options": {"users": {"ann": "secret"}}}
    async with broker_at({"name": "open"}, {"name": "closed"} | users) as broker:
        opened, closed = (f"mqtt://127.0.0.1:{port}" for port in broker.ports)
        await exchange(opened, count=1)
        await exchange(closed, count=1, username="ann", password="secret")
        with pytest.raises(ServerRefusedError, match="bad user name or password"):
            await exchange(closed, count=1, username="ann", password="wrong")
        with pytest.raises(ServerRefusedError):
            await exchange(closed, count=1)


def test_what_contradicts_itself_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "tidemq.toml"
    for text, said in (
        ("[[listeners]]\nauthenticator_options = {users = {}}", "authenticator of the listener's own"),
        ("[[listeners]]\n[listeners.tls]\ncert = 'a'\nclient_cert = 'required'", "client_ca"),
        ("[[listeners]]\n[listeners.tls]\ncert = 'a'\nclient_cret = 'required'", "did you mean client_cert?"),
        ("[[listeners]]\nprotocol_versions = []", "listeners.0.protocol_versions"),
        ("[[listeners]]\nmode = 'rw'", "listeners.0.mode"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError) as caught:
            load_config(file)
        assert said in str(caught.value), text


async def test_sockets_that_listen_already_are_used(tmp_path: Path) -> None:
    tcp = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    unix = socket.socket(socket.AF_UNIX)
    unix.bind(str(tmp_path / "mqtt.sock"))
    unix.listen()
    for each in (*tcp, unix):
        each.setblocking(False)
    given = {"default": tcp, "local": [unix]}
    config = Config(listeners=(Listener(name="local"),), store="memory", reactors=3, sys_interval_s=0)
    async with Broker(config, sockets=given) as broker:
        assert broker.port == tcp[0].getsockname()[1]
        for each in tcp:
            await exchange(f"mqtt://127.0.0.1:{each.getsockname()[1]}", count=2)
        await exchange(f"unix://{tmp_path}/mqtt.sock", count=2)
    with pytest.raises(ConfigError, match="'other' is unknown"):
        await Broker(config, sockets={"other": []}).start()


async def test_two_listeners_have_two_names(broker_at: BrokerAt) -> None:
    with pytest.raises(ConfigError, match="two are called 'x'"):
        async with broker_at({"name": "x"}, {"name": "x"}):
            pass
    with pytest.raises(ConfigError, match="there is no listener"):
        async with broker_at():
            pass
