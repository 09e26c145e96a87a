"""A node that is no member any more, and begins anew as another one: it takes over what the others have.

One that has left by itself has nothing that the others lack. One that was struck off while it was away may
have messages in queues that nobody else ever had. They are put aside before all else is removed, by what
another member had applied when it said so. When the node is there again it adds them to the queues of the
sessions that there are, as new messages of its own with the ids that they have. All else that only it had is
gone: sessions, subscriptions, retained messages, what has been acknowledged.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator

from tidemq.cluster import operations as ops
from tidemq.cluster.forms import Reader, decode, encode
from tidemq.cluster.operations import GROUP, Operation, Owner, Stamp
from tidemq.cluster.snapshots import ASIDE, REJOINS, STRUCK_OFF, UNFINISHED, write_in_pieces
from tidemq.cluster.stored_rows import StoredRows
from tidemq.cluster.stored_tables import FAMILY, tuple_layout
from tidemq.cluster.vectors import Vector, has_seen
from tidemq.store import Store, Write

NEW_REJOINS = REJOINS + b"n"  # the same row, when the node has become another one
ADDED_AT_ONCE = 256  # entries that come back between two pieces of work
ADDED_BYTES = 512 << 10  # of their messages, and one message more

_ADDED = "B B I q I*"  # of an entry: flags, QoS, bytes, when it expires, identifiers of subscriptions
_Fields = tuple[int, int, int, int, tuple[int, ...]]

_log = logging.getLogger("tidemq.cluster")


def note_leaving(store: Store, addresses: list[str]) -> None:
    """The node is about to say its last word; the others are there."""
    store.write([(FAMILY, REJOINS, "\n".join(addresses).encode())], sync=True)


def note_struck_off(store: Store, addresses: list[str], known: Vector) -> None:
    """The node was struck off by somebody who has applied these records."""
    store.write([(FAMILY, STRUCK_OFF, encode("vector text", known, "\n".join(addresses)))], sync=True)


def begin_anew_if_due(store: Store) -> list[str]:
    """Where the others are, of a node that begins anew with this start or has not got as far as to take over
    what they have; none: it goes on as it was. What is in the store is removed as after a snapshot that was
    not ended.
    """
    struck_off = store.get(FAMILY, STRUCK_OFF)
    if struck_off is not None:
        known, text = decode("vector text", struck_off)
        _log.warning("this node was struck off while it was away, and begins anew")
        _log.warning("%d entries of queues that only it has are put aside", _put_aside(store, known))
        _begin_anew(store, text.encode())
    elif _has_left(store):
        _begin_anew(store, store.get(FAMILY, REJOINS) or b"")
    return (store.get(FAMILY, NEW_REJOINS) or b"").decode().split()


def _has_left(store: Store) -> bool:
    """Whether the node of this store has said that it leaves."""
    own = int.from_bytes(store.get("meta", b"incarnation") or b"")
    said = tuple_layout(store, b"k", ("Q", "", "text Q")).load(own, None)
    return said is not None and said[1] == own


def _begin_anew(store: Store, addresses: bytes) -> None:
    gone = ((family, key, None) for family in ("log", "shared") for key, _ in store.scan(family))
    write_in_pieces(store, gone)  # of no use from now on, and done again where this does not get any further
    own = (b"b", b"c", REJOINS, STRUCK_OFF)
    last: list[Write] = [("meta", b"incarnation", None), *((FAMILY, key, None) for key in own)]
    store.write([*last, (FAMILY, NEW_REJOINS, addresses), (FAMILY, UNFINISHED, b"")], sync=True)


def _put_aside(store: Store, known: Vector) -> int:
    """All entries of which no record is among those that are known. May be done again."""
    rows = StoredRows(store, lambda: 0)
    count = 0

    def writes() -> Iterator[Write]:
        nonlocal count
        for owner, message_id, entry in rows.entries.all():
            shown = rows.shown(owner, entry)
            if not shown or any(has_seen(known, each.dot) for each in entry.adds):
                continue
            payload = rows.payloads.get(message_id, None)
            if payload is not None:
                count += 1
                key = ASIDE + encode("stamp owner", message_id, owner)
                yield FAMILY, key, encode(_ADDED, *shown[0].fields) + encode("bytes", payload.message)

    write_in_pieces(store, writes())
    return count


class Returning:
    """Adds what was put aside, on the keeper's thread; `counts`: `cluster_entries_returned` and
    `cluster_entries_without_session`, whose session there is no more.
    """

    def __init__(self, store: Store, rows: StoredRows, counts: Counter[str]) -> None:
        self._store = store
        self._rows = rows
        self._counts = counts
        self._is_done = False

    def advance(self, write: Callable[[list[Operation], list[Write]], object]) -> list[tuple[Owner, Stamp]]:
        """Some of it, in the order of ids; gives the entries that came. `write` makes one batch durable, of
        operations and of rows that are this node's alone.
        """
        if self._is_done:
            return []
        operations: list[Operation] = []
        added: list[tuple[Owner, Stamp]] = []
        gone: list[Write] = []
        brought = Stamp(0, 0)
        for key, message_id, owner, fields, message in self._some():
            gone.append((FAMILY, key, None))
            if not self._has_place(owner, message_id):
                self._counts["cluster_entries_without_session"] += 1
                continue
            if message_id != brought:
                operations.append(ops.Payload(message_id, message))
                brought = message_id
            flags, qos, size, expires_at_ms, subscription_ids = fields
            operations.append(
                ops.Add(owner, message_id, flags, qos, size, expires_at_ms, True, subscription_ids)
            )
            added.append((owner, message_id))
        if not gone:
            self._is_done = True
            return []
        write(operations, gone)
        self._counts["cluster_entries_returned"] += len(added)
        return added

    def _some(self) -> Iterator[tuple[bytes, Stamp, Owner, _Fields, bytes]]:
        size = 0
        for count, (key, value) in enumerate(self._store.scan(FAMILY, ASIDE)):
            if count == ADDED_AT_ONCE or size >= ADDED_BYTES:
                return
            message_id, owner = decode("stamp owner", key[len(ASIDE) :])
            reader = Reader(value)
            flags, qos, bytes_, expires, ids = (reader.read(form) for form in _ADDED.split())
            message = reader.read("bytes")
            size += len(message)
            yield key, message_id, owner, (flags, qos, bytes_, expires, tuple(ids)), message

    def _has_place(self, owner: Owner, message_id: Stamp) -> bool:
        """Whether an entry has a queue, and is not there, nor was it and has been removed."""
        rows = self._rows
        if rows.removed.get(owner, message_id) or rows.entries.get(owner, message_id) is not None:
            return False
        return owner.kind == GROUP or rows.sessions.get(owner.name, None) is not None
