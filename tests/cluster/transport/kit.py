"""Nodes for tests: each a real `nats-server` and a transport, and all that the transport has said."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from listeners.conftest import Authority
from waiting import wait_until

from tidemq.cluster.transport.server import NatsServer, ServerSettings
from tidemq.cluster.transport.settings import Bounds, Patience, Security
from tidemq.cluster.transport.transport import Transport

PATIENCE = Patience(ping_s=0.2, retry_s=0.02, retry_s_max=0.3, refused_s=0.2, trim_s=0.05, stuck_s=1.0)
PASSWORD = "a-password".replace("-", "") * 3


def secure(folder: Path, password: str = PASSWORD, authority: Authority | None = None) -> Security:
    """A password file, and a certificate for 127.0.0.1 where there is somebody to issue it."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "password"
    if not file.exists():
        file.touch(mode=0o600)
        file.write_text(password + "\n")
    if authority is None:
        return Security(password_file=file)
    issued = authority.issue("127.0.0.1")
    return Security(password_file=file, ca=authority.ca, certificate=issued.cert, key=issued.key)


class Heard:
    """All that a transport has said. `log`: this node's own records, given again where they are asked for."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.transport: Transport | None = None
        self.messages: dict[int, list[tuple[str, bytes]]] = defaultdict(list)
        self.connections: list[tuple[str, int]] = []
        self.met: dict[int, str] = {}
        self.problems: list[tuple[str, str]] = []
        self.copied: dict[int, int] = {}
        self.lost: list[tuple[int, int]] = []
        self.records: list[tuple[int, int, list[bytes], str]] = []
        self.log: dict[int, bytes] = {}

    def on_message(self, kind: str, sender: int, body: bytes) -> None:
        self.messages[sender].append((kind, body))

    def on_connected(self, peer: int, address: str) -> None:
        self.connections.append(("connected", peer))

    def on_disconnected(self, peer: int) -> None:
        self.connections.append(("disconnected", peer))

    def on_met(self, peer: int, address: str) -> None:
        self.met[peer] = address

    def on_problem(self, address: str, text: str) -> None:
        self.problems.append((address, text))

    def on_copied(self, to: int, number: int) -> None:
        self.copied[to] = number

    def on_copies_lost(self, to: int, first_needed: int) -> None:
        self.lost.append((to, first_needed))
        with self.lock:
            again = [(number, self.log[number]) for number in sorted(self.log) if number >= first_needed]
        assert self.transport is not None
        self.transport.copy(to, again)

    def on_records(self, holder: int, incarnation: int, records: Sequence[bytes], problem: str) -> None:
        self.records.append((holder, incarnation, list(records), problem))

    def has_problem(self, *words: str) -> bool:
        return any(all(word in text for word in words) for _, text in self.problems)


class Node:
    """`with Node(folder, 1) as node:`, or `start` and `stop`."""

    def __init__(
        self,
        folder: Path,
        incarnation: int,
        *,
        cluster: str = "test",
        security: Security | None = None,
        patience: Patience = PATIENCE,
        bounds: Bounds | None = None,
        **more: Any,
    ) -> None:
        self.incarnation = incarnation
        self.security = security or secure(folder)
        settings = ServerSettings(
            folder=folder / f"nats-{incarnation}", listen="127.0.0.1:0", security=self.security, **more
        )
        self.folder = settings.folder
        self.server = NatsServer(settings)
        self.heard = Heard()
        self._options: dict[str, Any] = {"cluster": cluster, "patience": patience, "bounds": bounds}
        self._transport: Transport | None = None

    @property
    def transport(self) -> Transport:
        assert self._transport is not None
        return self._transport

    @property
    def address(self) -> str:
        return self.server.address

    def start(self) -> None:
        """It listens: others find more than its server."""
        self.server.start()
        self.open()
        wait_until(lambda: self.transport.status()["state"] == "connected", "the own server")

    def open(self) -> None:
        """The transport alone, where the server runs."""
        self._transport = Transport(
            incarnation=self.incarnation,
            address=self.address,
            security=self.security,
            events=self.heard,
            **self._options,
        )
        self.heard.transport = self._transport
        self._transport.start()

    def stop(self) -> None:
        if self._transport is not None:
            self._transport.close()
        self.server.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def append(self, to: int, numbers: range, size: int = 100) -> None:
        """Records of the own log, given for copies."""
        records = [(number, record(number, size)) for number in numbers]
        with self.heard.lock:
            self.heard.log.update(records)
        self.transport.copy(to, records)

    def bodies(self, sender: Node) -> list[bytes]:
        return [body for _, body in self.heard.messages[sender.incarnation]]


def record(number: int, size: int = 100) -> bytes:
    """Its number in its first bytes and its last."""
    word = number.to_bytes(8, "big")
    return word + bytes(max(0, size - 16)) + word


def connect(*nodes: Node) -> None:
    """Each with each, and all connections are there."""
    peers = {node.incarnation: node.address for node in nodes}
    for node in nodes:
        node.transport.set_peers(peers)
    await_connected(*nodes)


def await_connected(*nodes: Node) -> None:
    all_ = {node.incarnation for node in nodes}

    def is_connected(node: Node) -> bool:
        return {node.incarnation, *node.transport.connected()} >= all_

    wait_until(lambda: all(map(is_connected, nodes)), "every peer of every node")


def await_copied(node: Node, to: Node, number: int) -> None:
    wait_until(lambda: node.heard.copied.get(to.incarnation, 0) >= number, f"copies up to {number}")


def copies_at(holder: Node, origin: Node) -> list[bytes]:
    """All records of the origin's log that the holder's server has."""
    found: list[bytes] = []
    while True:
        first = int.from_bytes(found[-1][:8], "big") + 1 if found else 1
        holder.heard.records.clear()
        holder.transport.fetch(holder.incarnation, origin.incarnation, first, 1 << 40)
        wait_until(lambda: holder.heard.records, "an answer")
        *_, records, problem = holder.heard.records[0]
        assert not problem, problem
        if not records:
            return found
        found += records
