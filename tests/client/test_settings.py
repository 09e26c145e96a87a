"""What a client may be told: wrong settings are named with the nearest right one; payloads and wills."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from client.servers import Server

from tidemq.client import Client, Message, Will, sync
from tidemq.errors import UsageError
from tidemq.wire import payload_bytes


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("keepalive", "keep_alive_s"),
        ("keep_alive", "keep_alive_s"),
        ("clean_session", "clean_start"),
        ("clientid", "client_id"),
        ("user_name", "username"),
        ("reconnects", "reconnect"),
    ],
)
@pytest.mark.parametrize("kind", [Client, sync.Client])
def test_a_wrong_setting_is_named_with_the_nearest(kind: Callable[..., object], name: str, near: str) -> None:
    with pytest.raises(UsageError, match=rf"no setting '{name}'; did you mean {near}\?"):
        kind("mqtt://host", **{name: 1})


def test_one_that_is_near_to_none_is_named_with_all() -> None:
    with pytest.raises(UsageError, match=r"no setting 'xyzzy'; accepted: client_id, .*packet_bytes_max"):
        Client("mqtt://host", xyzzy=1)  # type: ignore[call-arg]


PAYLOADS = [
    (b"b", b"b"),
    (bytearray(b"ba"), b"ba"),
    (memoryview(b"abcd")[::2], b"ac"),
    ("ä", "ä".encode()),
    (21, b"21"),
    (-2.5, b"-2.5"),
    (None, b""),
]


@pytest.mark.parametrize(("payload", "sent"), PAYLOADS)
def test_message_will_and_publish_take_the_same(payload: Any, sent: bytes) -> None:
    assert payload_bytes(payload) == sent
    assert Message("a", payload).payload == sent
    will = Will("a", payload, qos=1, retain=True)
    assert (will.topic, will.payload, will.qos, will.retain) == ("a", sent, 1, True)
    assert will == Will(topic="a", payload=sent, qos=1, retain=True)


@pytest.mark.parametrize("payload", [True, [1], {"a": 1}, object(), "\ud800", 1j])
def test_what_is_no_payload_is_refused(payload: Any) -> None:
    for made in (Message, Will):
        with pytest.raises(UsageError, match="payload"):
            made("a", payload)


@pytest.mark.parametrize(("payload", "sent"), PAYLOADS)
async def test_every_way_of_publishing_takes_it(
    server: Server, topic: str, payload: Any, sent: bytes
) -> None:
    async with Client(server.url) as client:
        await client.subscribe(topic, qos=1)
        await client.publish(topic, payload)
        await client.publish(topic, payload, qos=1)
        await client.publish(topic, payload, qos=1, timeout_s=20)
        client.publish_nowait(topic, payload, qos=1)
        await client.publish_many([(topic, payload), Message(topic, payload)], qos=1)
        for _ in range(6):
            assert (await anext(client.messages)).payload == sent


@pytest.mark.parametrize(
    ("url", "options", "text"),
    [
        ("mqtt://host", {"tls_server_name": "other"}, "tls_server_name mean nothing to mqtt"),
        ("mqtts://host", {"headers": {"A": "b"}}, "headers mean nothing to mqtts"),
        ("ws://host", {"headers": {"A": "b\r\nC: d"}}, "'A' and its value are no header"),
        ("ws://host", {"headers": {"A b": "c"}}, "'A b' and its value are no header"),
        ("mqtt://host", {"proxy": "ftp://proxy"}, "accepted: http://host:port and socks5://host:port"),
        ("mqtt://host", {"proxy": "http://proxy:x"}, "no valid port"),
        ("mqtt://host", {"proxy": f"http://{'x' * 64}.example"}, "not the name of a host"),
        ("mqtt://host", {"proxy": f"socks5://{'u' * 256}@proxy"}, "255 bytes"),
        ("mqtt://host", {"proxy": f"socks5://u:{'%C3%BC' * 128}@proxy"}, "255 bytes"),
        ("mqtts://host", {"tls_server_name": "x" * 64}, "not the name of a host"),
        ("unix:///socket", {"proxy": "http://proxy"}, "a proxy cannot be used with a Unix socket"),
    ],
)
def test_what_does_not_go_together_is_refused(url: str, options: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        Client(url, **options)


def test_secrets_are_in_no_text() -> None:
    client = Client(
        "wss://ann:secret@host/mqtt?key=secret",
        headers={"Authorization": "secret"},
        proxy="http://me:secret@proxy",
    )
    assert "secret" not in repr((client.settings, client._route)) + str(client._address)
    with pytest.raises(UsageError) as raised:
        Client("mqtt://host", proxy="gopher://me:secret@proxy")
    assert "secret" not in str(raised.value)
