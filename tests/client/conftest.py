"""Brokers for the client's tests: every test that takes `server` runs against TideMQ and against
Mosquitto."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from client.servers import NAMES, Server

from tidemq.testing import Proxy

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def running(
    tmp_path_factory: pytest.TempPathFactory, install: Callable[[str, str], None]
) -> Iterator[dict[str, Server]]:
    """One of each kind for the whole session."""
    install("mosquitto", "mosquitto")
    servers = {name: Server(name, tmp_path_factory.mktemp(name)).start() for name in NAMES}
    yield servers
    for server in servers.values():
        server.kill()


@pytest.fixture(params=NAMES)
def server(request: pytest.FixtureRequest, running: dict[str, Server]) -> Server:
    found = running[request.param]
    assert found.process is not None
    assert found.process.poll() is None, f"{found.name} has ended"
    return found


@pytest.fixture(params=NAMES)
def own_server(
    request: pytest.FixtureRequest, tmp_path: Path, install: Callable[[str, str], None]
) -> Iterator[Server]:
    """One that the test may kill and start again."""
    install("mosquitto", "mosquitto")
    server = Server(request.param, tmp_path).start()
    yield server
    server.kill()


@pytest_asyncio.fixture
async def proxy(server: Server) -> AsyncIterator[Proxy]:
    async with Proxy(server.port) as proxy:
        yield proxy


@pytest.fixture
def topic() -> str:
    """A topic that no other test uses."""
    return f"client/{os.getpid()}/{next(_numbers)}"


@pytest_asyncio.fixture(autouse=True)
async def no_tasks_left() -> AsyncIterator[None]:
    """A closed client leaves no task behind."""
    yield
    await asyncio.sleep(0)
    left = [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("tidemq-")]
    assert not left
