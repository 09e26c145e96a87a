"""Servers on real stores, and afterwards the proof that their engines left nothing behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from durable.nodes import AskingNode, Node
from durable.server import Server, StoreDouble


class Servers:
    """Starts servers and remembers them, those that `restart` starts too."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[Server] = []

    def __call__(self, kind: str = "memory", reactors: int = 1, **settings: Any) -> Server:
        store = None if kind == "none" else StoreDouble(kind, self.folder / f"data{len(self.started)}")
        return self._remember(Server(store, reactors, **settings))

    def node(self, reactors: int = 1, *, asks: bool = False, **settings: Any) -> Any:
        """One of several between which sessions move, see `nodes`."""
        store = StoreDouble("memory", self.folder / f"data{len(self.started)}")
        return self._remember((AskingNode if asks else Node)(store, reactors, **settings))

    def restart(self, server: Server, crash: bool, **changes: Any) -> Server:
        return self._remember(server.restart(crash, **changes))

    def _remember(self, server: Server) -> Server:
        self.started.append(server)
        return server


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    """Starts servers on stores: `servers("rocksdb", 2, queued_messages_max=10)`."""
    servers = Servers(tmp_path)
    yield servers
    for server in servers.started:
        server.stop()


@pytest.fixture(params=[("rocksdb", 2, True), ("sqlite", 1, False)], ids=["rocksdb-2-crash", "sqlite-1-stop"])
def mode(request: pytest.FixtureRequest) -> tuple[str, int, bool]:
    """The engine, the number of reactors, and whether a restart comes after a crash."""
    value: tuple[str, int, bool] = request.param
    return value


@pytest.fixture
def server(mode: tuple[str, int, bool], servers: Servers) -> Server:
    """A server on each engine, with one reactor or two."""
    kind, reactors, _ = mode
    return servers(kind, reactors)


@pytest.fixture
def crash(mode: tuple[str, int, bool]) -> bool:
    """Whether a restart comes after a crash, else after a clean stop."""
    return mode[2]
