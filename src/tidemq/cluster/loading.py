"""What is at home here comes into an engine that has not started; on the keeper's thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tidemq.cluster.conversion import STREAM, Conversion
from tidemq.cluster.node import Node
from tidemq.cluster.operations import GROUP, SESSION, Owner
from tidemq.store import Store

if TYPE_CHECKING:
    from tidemq.engine import StoreAccess


class Loading:
    """`set_aside` takes a family and keys of rows that the engine cannot read."""

    def __init__(
        self,
        store: Store,
        access: StoreAccess,
        node: Node,
        conversion: Conversion,
        set_aside: Callable[[str, list[bytes]], None],
    ) -> None:
        self._store = store
        self._access = access
        self._node = node
        self._conversion = conversion
        self._set_aside = set_aside

    def load_sessions(self) -> None:
        """With their subscriptions, and the identifiers of QoS 2 that they have received."""
        access, rows, here = self._access, self._node.rows, set()
        for client, _, session in rows.sessions.all():
            key = client.encode()
            value = self._store.get("session", key)
            if session.row.home != self._node.incarnation or value is None:
                continue
            if not access.load_session(key, value, unasked=session.row.unasked):
                self._set_aside("session", [key])
                continue
            here.add(key)
            self._conversion.know(int.from_bytes(value[:8]), Owner(SESSION, client), session.row)
            if self._node.is_recent(session.row.epoch):
                self._node.sharing.begin(client)
        ended = {client.encode() for client, _, _ in rows.ends.all()}
        corrupt = []
        for key, value in self._store.scan("subscription"):
            name = key[2 : 2 + int.from_bytes(key[:2])]
            if name in ended and not self._is_there(name.decode(), key[2 + len(name) :].decode()):
                continue
            if name in here and not access.load_subscription(key, value):
                corrupt.append(key)
        self._set_aside("subscription", corrupt)
        for key, value in self._store.scan("received"):
            if self._conversion.owner(int.from_bytes(key[:8])) is not None:
                access.load_received(key + value)

    def _is_there(self, client: str, topic_filter: str) -> bool:
        """Whether a subscription is one of the client's present session's; those of streams all are."""
        return (
            topic_filter.startswith(STREAM) or self._node.rows.subscription(client, topic_filter) is not None
        )

    def load_shared(self, let_go: Callable[[int], None]) -> None:
        """Where a group has no members here, other nodes may have some: then its queue is `let_go`."""
        for key, value in self._store.scan("shared"):
            self._conversion.know(int.from_bytes(key), Owner(GROUP, value.decode()))
            if not self._access.load_shared(key, value):
                let_go(int.from_bytes(key))
