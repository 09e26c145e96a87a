"""Mosquitto at the other side."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bridge.kit import mosquitto
from client.servers import Server

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def shared_far(
    tmp_path_factory: pytest.TempPathFactory, install: Callable[[str, str], None]
) -> Iterator[Server]:
    install("mosquitto", "mosquitto")
    server = mosquitto(tmp_path_factory.mktemp("mosquitto")).start()
    yield server
    server.kill()


@pytest.fixture
def far(shared_far: Server) -> Server:
    """A Mosquitto that tests share; each uses topics of its own."""
    assert shared_far.process is not None
    assert shared_far.process.poll() is None
    return shared_far


@pytest.fixture
def own_far(tmp_path: Path, install: Callable[[str, str], None]) -> Iterator[Server]:
    """One that the test starts, and may kill."""
    install("mosquitto", "mosquitto")
    folder = tmp_path / "far"
    folder.mkdir()
    server = mosquitto(folder, f"persistence true\npersistence_location {folder}/\nautosave_interval 1\n")
    yield server
    server.kill()


@pytest.fixture
def place() -> str:
    """The beginning of topics, and of client identifiers, that no other test uses."""
    return f"t{next(_numbers)}"
