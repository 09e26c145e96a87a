"""`tidemq-client` has the client and nothing of the broker, depends on nothing, and publishes."""

from __future__ import annotations

import asyncio
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tidemq import Broker, Config
from tidemq.wire import ReasonCode

ROOT = Path(__file__).parents[2]
BYTES_MAX = 3_000_000

pytestmark = pytest.mark.timeout(600)

_PROGRAM = """
import sys
from tidemq.client import sync

with sync.Client(sys.argv[1]) as client:
    client.subscribe("a", qos=1)
    print(client.publish("a", 21.5, qos=1, timeout_s=20).name, client.messages.get(20).payload)
try:
    from tidemq import Broker
except ImportError as error:
    print(error)
"""


async def test_it_is_installed_alone_and_publishes(run: Callable[..., str], tmp_path: Path) -> None:
    run(sys.executable, ROOT / "tools" / "client_distribution.py", tmp_path, cwd=ROOT)
    (wheel,) = tmp_path.glob("tidemq_client-*.whl")  # noqa: ASYNC240 (nothing else runs here)
    assert wheel.stat().st_size < BYTES_MAX
    names = [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]
    parts = {Path(name).parts[1] for name in names}
    assert parts == {"__init__.py", "errors.py", "limits.py", "py.typed", "wire", "client"}
    assert [name for name in names if name.startswith("tidemq/client/outgoing.") and name.endswith(".so")]
    environment = tmp_path / "environment"
    run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=tmp_path)
    python = environment / "bin" / "python"
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
    run(*pip, "install", "--no-index", wheel, cwd=tmp_path)
    async with Broker(Config(host="127.0.0.1", port=0, store="memory")) as broker:
        url = f"mqtt://127.0.0.1:{broker.port}"
        printed = await asyncio.to_thread(run, python, "-c", _PROGRAM, url, cwd=tmp_path)
    published, error = printed.splitlines()
    assert published == f"{ReasonCode.SUCCESS.name} b'21.5'"
    assert "pip install tidemq" in error
