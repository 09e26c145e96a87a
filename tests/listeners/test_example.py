"""The broker in the open of docs/security.md, as it stands there, with real certificates and clients."""

from __future__ import annotations

import asyncio
import re
import ssl
from pathlib import Path
from typing import Any

import pytest
from listeners.conftest import Authority, Files
from listeners.test_tls import revocation_list, trusting
from waiting import WAIT_S

from tidemq.broker import Broker
from tidemq.broker.authenticators.password_file import change_password_file
from tidemq.client import Client, ConnectError, PublishError, ServerRefusedError
from tidemq.config import load_config

PAGE = Path(__file__).parents[2] / "docs/security.md"

pytestmark = pytest.mark.skipif(not PAGE.is_file(), reason="the source tree is hidden")


def shown(kind: str, first: str) -> str:
    """The block of the page that begins with this line."""
    found = re.search(rf"```{kind}\n({re.escape(first)}\n.*?)```", PAGE.read_text(), re.DOTALL)
    assert found, first
    return found[1]


async def test_the_broker_in_the_open_does_what_the_page_says(
    authority: Authority, server_files: Files, tmp_path: Path
) -> None:
    text = shown("toml", "# /etc/tidemq/tidemq.toml").replace("/etc/tidemq", str(tmp_path))
    text = text.replace("/var/lib/tidemq", str(tmp_path / "data"))
    text = re.sub(r"^user = .*$", "", text, flags=re.MULTILINE)  # this process stays who it is
    text = re.sub(r"^port = .*$", 'host = "127.0.0.1"\nport = 0', text, flags=re.MULTILINE)
    (tmp_path / "tidemq.toml").write_text(text)
    (tmp_path / "rules.acl").write_text(shown("", "# /etc/tidemq/rules.acl"))
    for name, file in (("server.pem", server_files.cert), ("server.key", server_files.key)):
        (tmp_path / name).write_bytes(file.read_bytes())
    pump, revoked = (authority.issue(f"{name}.example", common_name=name) for name in ("pump-7", "pump-8"))
    (tmp_path / "devices.pem").write_bytes(authority.ca.read_bytes())
    (tmp_path / "devices.crl").write_bytes(revocation_list(authority, revoked.cert))
    change_password_file(tmp_path / "passwd", "ann", b"right")

    def context(files: Files | None = None) -> ssl.SSLContext:
        made = trusting(authority)
        if files is not None:
            made.load_cert_chain(files.cert, files.key)
        return made

    async with asyncio.timeout(WAIT_S), Broker(load_config(tmp_path / "tidemq.toml")) as broker:
        assert list(broker.addresses) == ["users", "devices"]
        users, devices = (f"mqtts://localhost:{port}" for port in broker.ports)
        ann: dict[str, Any] = {"username": "ann", "password": "right", "tls": context()}
        device: dict[str, Any] = {"client_id": "pump-7", "tls": context(pump)}
        async with Client(users, **ann) as user, Client(devices, **device) as client:
            readings = (await user.subscribe("devices/#", qos=1)).messages
            commands = (await client.subscribe("commands/pump-7/#", qos=1)).messages
            await client.publish("devices/pump-7/state", b"on", qos=1)
            assert (await anext(readings)).payload == b"on"
            await user.publish("commands/pump-7/state", b"off", qos=1)
            assert (await anext(commands)).payload == b"off"
            refused_before = broker.counters()["refused_not_authorised"]
            with pytest.raises(PublishError, match="not authori"):
                await client.publish("devices/pump-9/state", b"on", qos=1)
            assert broker.counters()["refused_not_authorised"] == refused_before + 1
        for url, options in (
            (users, ann | {"password": "wrong"}),
            (users, {"tls": context()}),
            (devices, device | {"client_id": "pump-9"}),
        ):
            with pytest.raises(ServerRefusedError):
                await Client(url, reconnect=False, **options).connect()
        for url, options in (
            (devices, ann),  # no certificate
            (devices, {"client_id": "pump-8", "tls": context(revoked)}),
            (users.replace("mqtts", "mqtt"), {}),  # no TLS
        ):
            with pytest.raises(ConnectError):
                await Client(url, reconnect=False, **options).connect()
