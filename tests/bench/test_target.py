"""The URL of a broker: what it says, what it resolves to, what of it may be shown."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tidemq.bench.peer.target import parse_url
from tidemq.bench.process import listener_pid
from tidemq.errors import UsageError


def test_an_ipv4_address() -> None:
    target = parse_url("mqtt://ann:p%40ss%3A@127.0.0.1:1234")
    assert (target.username, target.password) == ("ann", "p@ss:")
    assert target.url == "mqtt://ann@127.0.0.1:1234"
    assert "p@ss" not in repr(target)
    assert target.address == struct.pack("=H", socket.AF_INET) + b"\x04\xd2\x7f\0\0\1" + bytes(8)
    assert target.endpoint == ("127.0.0.1", 1234)
    assert target.local


def test_an_ipv6_address() -> None:
    target = parse_url("mqtt://[::1]")
    assert target.family == socket.AF_INET6
    assert target.address == struct.pack("=H", socket.AF_INET6) + b"\x07\x5b" + bytes(4) + bytes(
        15
    ) + b"\1" + bytes(4)
    assert target.local


@pytest.mark.parametrize(
    ("url", "port", "resource"),
    [
        ("mqtts://localhost", 8883, ""),
        ("ws://localhost", 80, "/mqtt"),
        ("wss://ann:secret@localhost", 443, "/mqtt"),
        ("wss://localhost:8084/a/b%20c", 8084, "/a/b%20c"),
    ],
)
def test_tls_and_websocket(url: str, port: int, resource: str) -> None:
    target = parse_url(url)
    assert (target.port, target.resource) == (port, resource)
    assert (target.security is not None) == (urlsplit(url).scheme in ("mqtts", "wss"))
    assert (target.server_name, target.http_host.partition(":")[0]) == ("localhost", "localhost")
    assert "secret" not in target.url
    assert target.scheme() is not None
    assert parse_url("mqtt://localhost").scheme() is None


def test_a_name_is_resolved() -> None:
    assert parse_url("mqtt://localhost:7").host in ("127.0.0.1", "::1")


def test_a_unix_socket() -> None:
    target = parse_url("unix://ann@/run/a%20b.sock")
    assert (target.username, target.password) == ("ann", None)
    assert target.address[:13] == struct.pack("=H", socket.AF_UNIX) + b"/run/a b.so"
    assert len(target.address) == 110
    assert target.endpoint == "/run/a b.sock"
    assert target.local


def test_a_password_alone_stands_with_an_empty_user_name() -> None:
    """3.1.1 knows no other."""
    target = parse_url("mqtt://:secret@127.0.0.1")
    assert (target.username, target.password) == ("", "secret")


def test_an_address_of_another_machine_is_not_local() -> None:
    assert not parse_url("mqtt://192.0.2.1").local  # of documentation, nobody's


@pytest.mark.parametrize(
    "url", ["", "localhost", "mqtt://", "mqtt://h?x", "mqtt://h#x", "http://h", "unix:///"]
)
def test_what_is_no_broker(url: str) -> None:
    with pytest.raises(UsageError, match=r"\w"):
        parse_url(url)


def test_a_long_password_is_refused() -> None:
    with pytest.raises(UsageError, match="65535 bytes at most"):
        parse_url(f"mqtt://a:{'x' * 65_536}@127.0.0.1")


def test_the_process_that_listens(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert listener_pid(port) == os.getpid()
    assert listener_pid(port) is None
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        assert listener_pid(path=path) == os.getpid()
    assert listener_pid(path=path) is None
