"""Brokers as processes, in a folder that every user may look into."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from privileges.serving import Serving, Start, start

from tidemq.testing.ports import free_port


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """Not below pytest's own, which nobody but its owner may look into."""
    folder = Path(tempfile.mkdtemp(prefix="tidemq-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Start]:
    """Starts brokers; those that still run at the end are stopped, and have to end well."""
    started: list[Serving] = []

    def begin(
        settings: str = "",
        *,
        port: int = 0,
        admin: bool = False,
        ready: bool = True,
        umask: int = -1,
        under: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
    ) -> Serving:
        admin_port = free_port() if admin else 0
        broker = start(tmp_path, settings, port, admin_port, umask, under, environment)
        started.append(broker)
        if ready:
            broker.wait_until_ready()
        return broker

    yield begin
    for broker in started:
        if broker.process.poll() is None:
            assert broker.stop() == 0, broker.log
