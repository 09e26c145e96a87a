"""The configuration in docs/how-to/haproxy.md: HAProxy takes it, and messages go through it."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conformance.packets import connect
from listeners.conftest import Authority
from waiting import WAIT_S, until

from tidemq.broker import Broker
from tidemq.broker.authenticators.password_file import change_password_file
from tidemq.client import Client
from tidemq.config import load_config
from tidemq.testing.ports import free_port

PAGE = Path(__file__).parents[2] / "docs/how-to/haproxy.md"
FRONTENDS, LISTENERS = (8883, 8884), (1884, 1885)
CHECKS = 3


def shown(kind: str) -> str:
    found = re.findall(rf"^```{kind}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(found) == 1
    return str(found[0])


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def files(authority: Authority, tmp_path: Path) -> Path:
    """Both configurations as the page has them, with files and ports that there are."""
    issued = authority.issue("localhost", "127.0.0.1")
    both = tmp_path / "both.pem"
    both.write_bytes(issued.cert.read_bytes() + issued.key.read_bytes())
    change_password_file(tmp_path / "passwd", "ann", b"tide")
    haproxy, tidemq = shown("haproxy"), shown("toml")
    for port in LISTENERS:
        free = str(free_port())
        assert f"127.0.0.1:{port} send-proxy-v2" in haproxy
        haproxy, tidemq = (re.sub(rf"\b{port}\b", free, text) for text in (haproxy, tidemq))
    for port in FRONTENDS:
        haproxy = haproxy.replace(f"bind :{port}", f"bind 127.0.0.1:{free_port()}")
    haproxy = haproxy.replace("/etc/haproxy/certs/broker.pem", str(both)).replace(
        "maxconn 40000", "maxconn 50"
    )
    tidemq = tidemq.replace("/etc/tidemq/server.pem", str(issued.cert)).replace(
        "/etc/tidemq/server.key", str(issued.key)
    )
    (tmp_path / "haproxy.cfg").write_text(haproxy)
    (tmp_path / "tidemq.toml").write_text(tidemq.replace("/etc/tidemq", str(tmp_path)))
    return tmp_path


def test_it_is_taken(files: Path, install: Callable[[str, str], None]) -> None:
    install("haproxy", "haproxy")
    command = ["haproxy", "-c", "-f", str(files / "haproxy.cfg")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    config = load_config(files / "tidemq.toml")
    assert [listener.proxy_protocol for listener in config.listeners] == [True, True]


@contextmanager
def haproxy_running(config: Path) -> Iterator[list[int]]:
    """The ports of its frontends."""
    with (config.parent / "haproxy.log").open("wb") as log:
        process = subprocess.Popen(["haproxy", "-db", "-f", str(config)], stdout=log, stderr=log)
    try:
        yield [int(port) for port in re.findall(r"bind 127\.0\.0\.1:(\d+)", config.read_text())]
    finally:
        process.kill()
        process.wait()


def come_from(source: str, port: int, context: ssl.SSLContext) -> ssl.SSLSocket:
    """A client of 3.1.1 that comes from another address of this machine."""
    plain = socket.create_connection(("127.0.0.1", port), WAIT_S, (source, 0))
    secure = context.wrap_socket(plain, server_hostname="localhost")
    secure.sendall(connect("probe", 4, username="ann", password=b"tide"))
    assert secure.recv(4) == b"\x20\x02\0\0"
    return secure


def asked(broker: Broker, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.admin_port}{path}", timeout=WAIT_S) as answer:
        return str(answer.read().decode())


@pytest.mark.long
async def test_clients_come_through_with_their_own_addresses(
    files: Path, authority: Authority, install: Callable[[str, str], None]
) -> None:
    install("haproxy", "haproxy")
    context = ssl.create_default_context(cafile=str(authority.ca))
    config = load_config(files / "tidemq.toml", {"store": "memory", "reactors": 1, "admin_port": free_port()})
    async with Broker(config) as broker:
        with haproxy_running(files / "haproxy.cfg") as ports:

            def accepted() -> int:
                return broker.counters()["connections_accepted"]

            await until(lambda: accepted() >= 2 * CHECKS, "HAProxy looks whether the broker is there")
            assert broker.counters()["handshakes_failed"] == 0
            assert broker.counters()["faults"] == 0
            for port in ports:
                probe = await asyncio.to_thread(come_from, "127.0.0.9", port, context)
                said = await asyncio.to_thread(asked, broker, "/api/v1/clients/probe")
                assert '"127.0.0.9' in said
                probe.close()
            urls = [f"mqtts://localhost:{port}" for port in ports]
            ann = {"username": "ann", "password": "tide", "tls": context}
            async with Client(urls[0], **ann) as plain, Client(urls[1], **ann) as secure:  # type: ignore[arg-type]
                await secure.subscribe("plant/#", qos=1)
                await plain.publish("plant/1", "running", qos=1)
                message = await anext(secure.messages)
                assert bytes(message.payload) == b"running"
