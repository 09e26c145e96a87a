"""A broker with the listeners that a test asks for, in this process, and an authority of certificates."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trustme
from clients.conftest import mosquitto_clients, node_modules, topic

from tidemq.broker import Broker
from tidemq.config import Config, Listener

__all__ = ["mosquitto_clients", "node_modules", "topic"]


class Files(NamedTuple):
    """A certificate and its key, PEM."""

    cert: Path
    key: Path

    @property
    def tls(self) -> dict[str, Any]:
        return {"cert": self.cert, "key": self.key}


class Authority:
    """Issues certificates into a folder; `ca` is its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        self.authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
        self.ca = folder / "ca.pem"
        self.authority.cert_pem.write_to_path(str(self.ca))

    def issue(self, *names: str, common_name: str | None = None, into: Files | None = None) -> Files:
        """A new certificate for these names; `into`: in the place of another."""
        self._count += 1
        files = into or Files(self._folder / f"{self._count}.pem", self._folder / f"{self._count}.key")
        made = self.authority.issue_cert(*names, common_name=common_name, key_type=trustme.KeyType.ECDSA)
        made.private_key_pem.write_to_path(str(files.key))
        files.cert.write_bytes(b"".join(each.bytes() for each in made.cert_chain_pems))
        return files


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def server_files(authority: Authority) -> Files:
    return authority.issue("localhost", "127.0.0.1")


BrokerAt = Callable[..., AbstractAsyncContextManager[Broker]]


@pytest.fixture
def broker_at() -> BrokerAt:
    """`async with broker_at({"port": 0, "name": "x"}, ...) as broker`: these listeners and no other. Further
    keywords are the configuration's. Nothing of the engine may be left afterwards.
    """

    @asynccontextmanager
    async def start(*listeners: dict[str, Any], **settings: Any) -> AsyncIterator[Broker]:
        given = [Listener(**{"host": "127.0.0.1", "port": 0, **each}) for each in listeners]
        changes: dict[str, Any] = {
            "plain": False,
            "store": "memory",
            "reactors": 2,
            "sys_interval_s": 0,
        } | settings
        broker = Broker(Config(listeners=tuple(given), **changes))
        async with broker:
            engine = broker._engine
            yield broker
        assert engine is not None
        assert not {name: value for name, value in engine.live_objects().items() if value}

    return start
