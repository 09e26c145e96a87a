"""A session that is to be at home here is brought into the engine, from the rows that the store has of it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from tidemq.cluster.conversion import Conversion
from tidemq.cluster.node import Node
from tidemq.cluster.operations import SESSION, Owner
from tidemq.cluster.sharing import LATE_S
from tidemq.store import Store
from tidemq.store.rows import IDLE, IN_FLIGHT

if TYPE_CHECKING:
    from tidemq.engine import StoreAccess

REACTOR = 63  # the bits of an id's clock that are its reactor

_log = logging.getLogger("tidemq.cluster")

Mark: TypeAlias = tuple[int, int, int]  # origin, reactor, the clock of the last id that was taken of these


class Adoption:
    """From `store` into the engine that `access` leads to."""

    def __init__(self, node: Node, conversion: Conversion, store: Store, access: StoreAccess) -> None:
        self._node = node
        self._conversion = conversion
        self._store = store
        self._access = access

    def adopt(
        self,
        client: str,
        taken: Sequence[Mark],
        *,
        doubles_s: float,
        crashed: bool,
        older_may_come: bool,
        stays: bool,
    ) -> bool:
        """Gives the engine what the store has of a session, or nothing where it cannot be read.

        `taken`: what its old home had taken of each publisher's node. `doubles_s`: for how long that may add
        messages, too. `crashed`: it did not hand the session over. `older_may_come`: from there, so that
        nothing that waits is sent until `all_came`. `stays`: its client may be connected to another node, so
        that it does not expire until `let_expire`.
        """
        rows, store, key = self._node.rows, self._store, client.encode()
        session, value = rows.sessions.get(client, None), store.get("session", key)
        if session is None or value is None:
            return False
        prefix = len(key).to_bytes(2) + key
        filters = [topic_filter.encode() for topic_filter, _ in rows.filters(client)]
        subscriptions = store.get_many("subscription", [prefix + each for each in filters])
        inflight = sorted(store.scan("queue", value[:8] + bytes([IN_FLIGHT])), key=lambda row: row[1][14:22])
        payloads = store.get_many("payload", [row[9:] for row, _ in inflight])
        idle, recent = self._idle(value[:8], taken)
        unreadable = self._access.adopt(
            key,
            value,
            [(prefix + each, row) for each, row in zip(filters, subscriptions, strict=True) if row],
            [row + mark for row, mark in store.scan("received", value[:8])],
            [(*row, payload) for row, payload in zip(inflight, payloads, strict=True)],
            idle=idle,
            next_place=session.row.next_sequence,
            crashed=crashed,
            unasked=session.row.unasked,
            doubles_s=doubles_s,
            taken=taken,
            recent=recent,
            older_may_come=older_may_come,
            stays=stays,
        )
        for family, row_key in unreadable:
            _log.error("a session cannot be taken: its row in %s cannot be read: %s", family, row_key.hex())
        if not unreadable:
            self._conversion.know(int.from_bytes(value[:8]), Owner(SESSION, client), session.row)
        return not unreadable

    def _idle(self, number: bytes, marks: Sequence[Mark]) -> tuple[tuple[int, int, int], list[bytes]]:
        """How many rows wait, the bytes of their messages, the clock of the first; and the ids of those whose
        messages may still come from their publishers' nodes.
        """
        taken = {(origin, reactor): clock for origin, reactor, clock in marks}
        recent: list[bytes] = []
        since = self._node.clock.last_ns - int(LATE_S * 1e9)
        count = size = oldest = 0
        for key, value in self._store.scan("queue", number + bytes([IDLE])):
            clock, origin = int.from_bytes(key[9:17]), int.from_bytes(key[17:25])
            oldest = oldest or clock
            count += 1
            size += int.from_bytes(value[2:6])
            if taken and clock > max(since, taken.get((origin, clock & REACTOR), 0)):
                recent.append(key[9:25])
        return (count, size, oldest), recent
