"""The default lets in clients of the same machine; others are told what to set."""

from __future__ import annotations

import asyncio
import logging
import socket
from dataclasses import replace
from typing import Literal

import pytest
from unit.conftest import BrokerOnFake

from tidemq import Broker, Config, Listener
from tidemq.broker.authenticators import builtin
from tidemq.broker.authenticators.builtin import LocalOnly, make_anonymous
from tidemq.client import Client, ServerRefusedError
from tidemq.engine.door.events import ConnectRequest
from tidemq.errors import ConfigError
from tidemq.wire import Connack, Connect, Decoder, encode


def own_address() -> str:
    """An address of this machine that others could reach it at: a connection to it comes from it too."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            pytest.skip("this machine has no address but loopback ones")
        address: str = probe.getsockname()[0]
    return address


def open_to(host: str, **options: object) -> Config:
    return Config(
        host=host, port=0, reactors=1, store="memory", sys_interval_s=0, authenticator_options=options
    )


async def enters(url: str, version: Literal[3, 4, 5] = 5) -> ServerRefusedError | None:
    try:
        async with Client(url, version=version, username="anybody", password="anything"):
            return None
    except ServerRefusedError as error:
        return error


async def test_other_machines_are_refused_and_told_why(caplog: pytest.LogCaptureFixture) -> None:
    address = own_address()
    async with Broker(open_to("0.0.0.0")) as broker:
        assert await enters(f"mqtt://127.0.0.1:{broker.port}") is None
        assert await enters(f"mqtt://127.1.2.3:{broker.port}") is None
        refused = await enters(f"mqtt://{address}:{broker.port}")
        assert refused is not None
        assert refused.reason == 0x87
        assert "authenticator_options.remote = true" in (refused.reason_string or "")
        old = await enters(f"mqtt://{address}:{broker.port}", version=4)
        assert old is not None
        assert old.reason == 0x87  # return code 5
    assert "authenticator_options.remote = true" in caplog.text


async def test_loopback_of_ipv6_is_local() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    async with Broker(open_to("::")) as broker:
        assert await enters(f"mqtt://[::1]:{broker.port}") is None
        assert await enters(f"mqtt://127.0.0.1:{broker.port}") is None  # as ::ffff:127.0.0.1


async def test_remote_lets_everybody_in() -> None:
    async with Broker(open_to("0.0.0.0", remote=True)) as broker:
        assert await enters(f"mqtt://{own_address()}:{broker.port}") is None


def test_the_log_says_it_once_in_a_while(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now_s = [1000.0]
    monkeypatch.setattr(builtin.time, "monotonic", lambda: now_s[0])  # type: ignore[attr-defined]
    provider = LocalOnly()
    request = ConnectRequest(1, "c", None, None, "192.0.2.1:5", 5, True, 60, None, None, None)
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            assert provider.authenticate(request).reason == 0x87
        assert len(caplog.records) == 1
        now_s[0] += 60.0
        provider.authenticate(request)
        assert len(caplog.records) == 2
    assert provider.authenticate(replace(request, peer="unix:7")).reason == 0


@pytest.mark.parametrize("remote", [True, False])
async def test_the_engine_sees_to_it_and_nobody_is_asked(
    broker_on_fake: type[BrokerOnFake], remote: bool
) -> None:
    async with broker_on_fake(open_to("127.0.0.1", remote=remote)) as broker:
        [settings] = broker.engine.listeners
        assert (settings.asks, settings.local_only) == (False, not remote)


@pytest.mark.parametrize("options", [{"remote": "yes"}, {"remot": True}])
def test_a_wrong_option_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"options of anonymous\.remot"):
        make_anonymous(Config(), options)


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("127.0.0.1", True),
        ("127.255.3.4", True),
        ("128.0.0.1", False),
        ("12.7.0.1", False),
        ("0.0.0.0", False),
        ("::1", True),
        ("0:0:0:0:0:0:0:1", True),
        ("::", False),
        ("::2", False),
        ("1::1", False),
        ("::ffff:127.0.0.1", True),
        ("::ffff:7f00:1", True),
        ("::ffff:128.0.0.1", False),
        ("::127.0.0.1", False),
        ("2001:db8::127.0.0.1", False),
    ],
)
async def test_the_engine_and_a_chain_agree_on_who_is_local(address: str, local: bool) -> None:
    """By itself `anonymous` is the engine's part, in a chain it is asked: each looks at the address in a way
    of its own."""
    of = [{"authenticator": "anonymous"}]
    listeners = (
        Listener(name="alone", host="127.0.0.1", port=0, proxy_protocol=True),
        Listener(
            name="chain",
            host="127.0.0.1",
            port=0,
            proxy_protocol=True,
            authenticator="chain",
            authenticator_options={"of": of},
        ),
    )
    config = Config(
        plain=False, listeners=listeners, reactors=1, store="memory", sys_interval_s=0, failed_login_delay_s=0
    )
    kind, own = ("TCP6", "::1") if ":" in address else ("TCP4", "127.0.0.1")
    reasons = []
    async with Broker(config) as broker:
        for port in broker.ports:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"PROXY {kind} {address} {own} 4000 1883\r\n".encode())
            writer.write(encode(Connect(version=5, client_id="c"), 5))
            decoder = Decoder(5)
            while (packet := next(decoder, None)) is None:
                decoder.feed(await reader.readexactly(1))
            assert isinstance(packet, Connack)
            reasons.append(packet.reason)
            writer.close()
    assert reasons == ([0, 0] if local else [0x87, 0x87])


@pytest.mark.parametrize(("remote", "address", "enters"), [
    (True, "192.0.2.7:1", True), (False, "192.0.2.7:1", False), (False, "127.0.0.1:1", True)
])  # fmt: skip
def test_who_gives_a_user_name_may_be_left_to_others(remote: bool, address: str, enters: bool) -> None:
    """In a chain behind users with passwords no stranger comes in under a name."""
    chosen = make_anonymous(Config(), {"remote": remote, "named": False})
    assert chosen is not None
    question = ConnectRequest(1, "c", None, None, address, 5, True, 60, None, None, None)
    assert (chosen.authenticate(question).reason == 0) == enters
    named = chosen.authenticate(replace(question, username="ann"))
    assert (named.reason, named.unknown) == (0x86, True)
