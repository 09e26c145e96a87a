"""examples/letsencrypt/deploy-hook.sh gives a running broker a renewed certificate."""

from __future__ import annotations

import os
import re
import ssl
import subprocess
from pathlib import Path

import pytest
from listeners.conftest import Authority, Files
from waiting import WAIT_S, until

from tidemq.broker import Broker
from tidemq.client import Client
from tidemq.config import load_config

ROOT = Path(__file__).parents[2]
HOOK = ROOT / "examples/letsencrypt/deploy-hook.sh"
PAGE = ROOT / "docs/how-to/lets-encrypt.md"


@pytest.fixture
def lineage(tmp_path: Path) -> Files:
    """As certbot leaves it: certificate and chain in one file, the key in another."""
    (tmp_path / "live").mkdir()
    return Files(tmp_path / "live/fullchain.pem", tmp_path / "live/privkey.pem")


def deploy(lineage: Files, target: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "RENEWED_LINEAGE": str(lineage.cert.parent),
        "TARGET": str(target),
        "OWNER": f"{os.getuid()}:{os.getgid()}",
    }
    return subprocess.run([HOOK], env=environment, capture_output=True, text=True, timeout=WAIT_S)


async def test_the_broker_has_the_new_certificate_and_its_clients_stay(
    tmp_path: Path, lineage: Files
) -> None:
    authority, target = Authority(tmp_path), tmp_path / "server.pem"
    authority.issue("localhost", into=lineage)
    assert deploy(lineage, target).returncode == 0
    assert target.stat().st_mode & 0o777 == 0o600
    (text,) = re.findall(r"^```toml\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    text = text.replace("/etc/tidemq/server.pem", str(target)).replace("8883", "0")
    (tmp_path / "tidemq.toml").write_text(text)
    config = load_config(tmp_path / "tidemq.toml", {"store": "memory", "reactors": 1})
    context = ssl.create_default_context(cafile=str(authority.ca))
    async with Broker(config) as broker, Client(f"mqtts://localhost:{broker.port}", tls=context) as client:
        before = ssl.get_server_certificate(("127.0.0.1", broker.port))
        authority.issue("localhost", into=lineage)
        assert deploy(lineage, target).returncode == 0
        await until(
            lambda: ssl.get_server_certificate(("127.0.0.1", broker.port)) != before,
            "the new certificate",
            poll_s=0.1,
        )
        await client.publish("still", "here", qos=1)
        async with Client(f"mqtts://localhost:{broker.port}", tls=context) as another:
            await another.publish("new", "here", qos=1)


def test_what_is_no_certificate_does_not_take_the_place_of_one(tmp_path: Path, lineage: Files) -> None:
    target = tmp_path / "server.pem"
    target.write_text("the old one")
    lineage.cert.write_text("nothing")
    lineage.key.write_text("nothing")
    assert deploy(lineage, target).returncode != 0
    assert target.read_text() == "the old one"
    assert [each.name for each in tmp_path.iterdir() if each.is_file()] == ["server.pem"]
