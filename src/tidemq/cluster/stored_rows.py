"""Rows in a store: in the layouts that the engine reads (`store/rows.py`), and beside them, in the family
`cluster`, what only a cluster must know of them.

So a session that has lived elsewhere can go on here from the rows that are there. What is left of one that
has ended is under a queue of its own (`owners.py`), where the engine does not look.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any

from tidemq.cluster.around_runs import Around
from tidemq.cluster.forms import Reader, decode, encode
from tidemq.cluster.operations import GROUP, SESSION, Owner, Run, Stamp
from tidemq.cluster.owners import Owners
from tidemq.cluster.pending import Pending, Readable
from tidemq.cluster.rows import (
    Added,
    End,
    Entry,
    Payload,
    Retained,
    Rows,
    Session,
    Standing,
    Subscription,
)
from tidemq.cluster.run_rows import NewestIds, RunRows
from tidemq.cluster.session_rows import SessionLayout
from tidemq.cluster.stored_tables import (
    FAMILY,
    KeptTable,
    NotedTable,
    PlainLayout,
    SparseTable,
    StoredTable,
    tuple_layout,
)
from tidemq.cluster.vectors import Dot, Vector
from tidemq.store import Write
from tidemq.store.rows import (
    COUNTED,
    IDLE,
    IN_FLIGHT,
    RELEASED,
    RETAIN,
    SENT,
    parse_queue,
    parse_subscription,
)

STANDINGS_MAX = 100_000  # in memory

_ID = struct.Struct(">QQ")
_NAME = slice(6, -16)  # of an owner, in the key of a removal
_QUEUE_KEY = struct.Struct(">QB16s")
_QUEUE = struct.Struct(">BBIqQ")
_PLACED = struct.Struct(">Q QQ I QQ")  # number, epoch, how many have added it, the first record of these
_EXPIRY_KEY = struct.Struct(">qQ16s")
_ADDED = "dot ? ? B B I q I*"
_END = "stamp vector stamp? dot? vector? vector"


def id_bytes(stamp: Stamp) -> bytes:
    """A message id as keys have it."""
    return _ID.pack(*stamp)


class EntryLayout:
    """`queue` and `expiry`; `q` owner, message id -> queue, a group's epoch, how many records have
    added it, and what each said. `is_shown`: whether an entry is there for its owner.
    """

    def __init__(self, store: Readable, owners: Owners, is_shown: Callable[[Owner, Entry], bool]) -> None:
        self._store = store
        self._owners = owners
        self._is_shown = is_shown
        self.places: dict[tuple[Owner, Stamp], int] = {}

    def load(self, owner: Owner, message_id: Stamp) -> Entry | None:
        """As in `Layout`."""
        text = self._store.get(FAMILY, self._key(owner, message_id))
        return None if text is None else self._join(message_id, text)

    def load_each(self, owner: Owner) -> Iterator[tuple[Stamp, Entry]]:
        """As in `Layout`."""
        for _, message_id, entry in self._scan(b"q" + encode("owner", owner)):
            yield message_id, entry

    def load_after(self, owner: Owner, after: Stamp) -> Iterator[tuple[Stamp, Entry]]:
        """Those with higher ids, in their order."""
        for _, message_id, entry in self._scan(b"q" + encode("owner", owner), self._key(owner, after)):
            yield message_id, entry

    def load_all(self) -> Iterator[tuple[Owner, Stamp, Entry]]:
        """As in `Layout`."""
        return self._scan(b"q")

    def groups(self) -> list[Owner]:
        """Those that have entries; one look for each."""
        found: list[Owner] = []
        prefix = b"q" + bytes([GROUP])
        after = b""
        while row := next(iter(self._store.scan(FAMILY, prefix, after)), None):
            found.append(decode("owner stamp", row[0][1:])[0])
            after = b"q" + encode("owner", found[-1]) + b"\xff" * 17
        return found

    def placed(self, owner: Owner) -> Iterator[tuple[Stamp, int, list[Dot]]]:
        """All of an owner's: the number of the queue that has it, and which records have added it."""
        prefix = b"q" + encode("owner", owner)
        for key, text in self._store.scan(FAMILY, prefix):
            number, _, _, adds, *first = _PLACED.unpack_from(text)
            message_id = Stamp(*_ID.unpack(key[len(prefix) :]))
            several = self._join(message_id, text).adds if adds > 1 else ()
            yield message_id, number, [each.dot for each in several] or [Dot(*first)]

    def queue_of(self, owner: Owner, message_id: Stamp) -> int:
        """The number of the queue that has it; 0: it is not there."""
        text = self._store.get(FAMILY, self._key(owner, message_id))
        return int.from_bytes(text[:8]) if text is not None else 0

    def _key(self, owner: Owner, message_id: Stamp) -> bytes:
        return b"q" + encode("owner stamp", owner, message_id)

    def _scan(self, prefix: bytes, after: bytes = b"") -> Iterator[tuple[Owner, Stamp, Entry]]:
        for key, text in self._store.scan(FAMILY, prefix, after):
            owner, message_id = decode("owner stamp", key[1:])
            yield owner, message_id, self._join(message_id, text)

    def _join(self, message_id: Stamp, text: bytes) -> Entry:
        """What lies beside a row, and the row itself."""
        reader = Reader(text)
        number, epoch = (reader.read(form) for form in ("Q", "stamp"))
        adds = tuple(Added(*(reader.read(form) for form in _ADDED.split())) for _ in range(reader.count()))
        reader.end()
        keys = [_QUEUE_KEY.pack(number, status, id_bytes(message_id)) for status in (IN_FLIGHT, IDLE)]
        for key, value in zip(keys, self._store.get_many("queue", keys), strict=True):
            if value is not None:
                row = parse_queue(key, value)
                sequence = row.sequence if row.status == IN_FLIGHT else -1
                released, sent = bool(row.flags & RELEASED), bool(row.flags & SENT)
                return Entry(adds, sequence, released, sent, epoch)
        return Entry(adds, epoch=epoch)

    def writes(self, owner: Owner, message_id: Stamp, value: Entry | None) -> Iterator[Write]:
        """As in `Layout`. Into the owner's current queue, but for what an ended session has left."""
        before = self._store.get(FAMILY, self._key(owner, message_id))
        if before is not None:
            yield from self._remove(before, message_id)
        if value is None:
            yield FAMILY, self._key(owner, message_id), None
            return
        place = self.places.pop((owner, message_id), 0)
        if place:
            number = place
        elif before is not None and owner.kind == GROUP:
            number = int.from_bytes(before[:8])
        elif owner.kind == GROUP:
            number = self._owners.elsewhere(owner)
        elif self._is_shown(owner, value):
            number = self._owners.current(owner)
        elif before is None:  # in one batch with the end of its session
            number = self._owners.earlier(owner)
        else:
            number = int.from_bytes(before[:8])
        text = bytearray(encode("Q stamp I", number, value.epoch, len(value.adds)))
        for added in value.adds:
            text += encode(_ADDED, *added)
        yield FAMILY, self._key(owner, message_id), bytes(text)
        yield from self._write_row(number, message_id, value)

    def _remove(self, before: bytes, message_id: Stamp) -> Iterator[Write]:
        """The row as it was, under either status, and that it expires."""
        number = int.from_bytes(before[:8])
        for status in (IDLE, IN_FLIGHT):
            yield "queue", _QUEUE_KEY.pack(number, status, id_bytes(message_id)), None
        expires = {added.expires_at_ms for added in self._join(message_id, before).adds}
        for expires_at_ms in expires - {0}:
            yield "expiry", _EXPIRY_KEY.pack(expires_at_ms, number, id_bytes(message_id)), None

    def _write_row(self, number: int, message_id: Stamp, entry: Entry) -> Iterator[Write]:
        added, key = entry.adds[0], id_bytes(message_id)
        status = IN_FLIGHT if entry.sequence >= 0 else IDLE
        flags = added.flags & RETAIN | COUNTED
        flags |= RELEASED * (entry.released and status == IN_FLIGHT) | SENT * entry.sent
        text = _QUEUE.pack(flags, added.qos, added.message_bytes, added.expires_at_ms, max(entry.sequence, 0))
        ids = struct.pack(f">{len(added.subscription_ids)}I", *added.subscription_ids)
        yield "queue", _QUEUE_KEY.pack(number, status, key), text + ids
        if added.expires_at_ms:
            yield "expiry", _EXPIRY_KEY.pack(added.expires_at_ms, number, key), b""


class PayloadLayout:
    """`payload` and `reference`, which is there where several refer to it."""

    def __init__(self, store: Readable) -> None:
        self._store = store

    def load(self, message_id: Stamp, _: None) -> Payload | None:
        """As in `Layout`."""
        key = id_bytes(message_id)
        message = self._store.get("payload", key)
        return None if message is None else Payload(message, self._count(key))

    def _count(self, key: bytes) -> int:
        return int.from_bytes(self._store.get("reference", key) or b"\1")

    def load_each(self, message_id: Stamp) -> Iterator[tuple[None, Payload]]:
        """As in `Layout`."""
        payload = self.load(message_id, None)
        if payload is not None:
            yield None, payload

    def load_all(self) -> Iterator[tuple[Stamp, None, Payload]]:
        """As in `Layout`."""
        for key, message in self._store.scan("payload"):
            yield decode("stamp", key)[0], None, Payload(message, self._count(key))

    def writes(self, message_id: Stamp, _: None, value: Payload | None) -> Iterator[Write]:
        """As in `Layout`. A message does not change."""
        key = id_bytes(message_id)
        several = value is not None and value.references > 1
        if several or self._store.get("reference", key) is not None:
            yield "reference", key, struct.pack(">I", value.references) if value and several else None
        if value is None:
            yield "payload", key, None
        elif self._store.get("payload", key) is None:
            yield "payload", key, value.message


class SubscriptionLayout:
    """`subscription`; `u` client, filter -> time of the change, record, whether it is there."""

    def __init__(self, store: Readable) -> None:
        self._store = store
        self._beside = tuple_layout(store, b"u", ("text", "text", "stamp dot ?"))

    def load(self, client: str, topic_filter: str) -> Subscription | None:
        """As in `Layout`."""
        beside = self._beside.load(client, topic_filter)
        return None if beside is None else self._join(client, topic_filter, *beside)

    def _join(self, client: str, topic_filter: str, stamp: Stamp, dot: Dot, there: bool) -> Subscription:
        key = self._key(client, topic_filter)
        text = self._store.get("subscription", key) if there else None
        if text is None:
            return Subscription(stamp, dot, None, 0)
        row = parse_subscription(key, text)
        return Subscription(stamp, dot, row.options, row.subscription_id)

    def load_each(self, client: str) -> Iterator[tuple[str, Subscription]]:
        """As in `Layout`."""
        for topic_filter, beside in self._beside.load_each(client):
            yield topic_filter, self._join(client, topic_filter, *beside)

    def load_all(self) -> Iterator[tuple[str, str, Subscription]]:
        """As in `Layout`."""
        for client, topic_filter, beside in self._beside.load_all():
            yield client, topic_filter, self._join(client, topic_filter, *beside)

    def _key(self, client: str, topic_filter: str) -> bytes:
        name = client.encode()
        return len(name).to_bytes(2) + name + topic_filter.encode()

    def writes(self, client: str, topic_filter: str, value: Subscription | None) -> Iterator[Write]:
        """As in `Layout`."""
        there = value is not None and value.options is not None
        beside = None if value is None else (value.stamp, value.dot, there)
        yield from self._beside.writes(client, topic_filter, beside)
        text = None
        if value is not None and value.options is not None:
            text = struct.pack(">BI", value.options, value.subscription_id)
        yield "subscription", self._key(client, topic_filter), text


class RetainedLayout:
    """`retained`; `t` topic -> message id or time of the change, record, whether there is a message."""

    def __init__(self, store: Readable) -> None:
        self._store = store
        self._beside = tuple_layout(store, b"t", ("text", "", "stamp dot ?"))

    def load(self, topic: str, _: None) -> Retained | None:
        """As in `Layout`."""
        beside = self._beside.load(topic, None)
        return None if beside is None else self._join(topic, *beside)

    def _join(self, topic: str, stamp: Stamp, dot: Dot, there: bool) -> Retained:
        text = self._store.get("retained", topic.encode()) if there else None
        return Retained(stamp, dot, None if text is None else text[16:])

    def load_each(self, topic: str) -> Iterator[tuple[None, Retained]]:
        """As in `Layout`."""
        retained = self.load(topic, None)
        if retained is not None:
            yield None, retained

    def load_all(self) -> Iterator[tuple[str, None, Retained]]:
        """As in `Layout`."""
        for topic, _, beside in self._beside.load_all():
            yield topic, None, self._join(topic, *beside)

    def writes(self, topic: str, _: None, value: Retained | None) -> Iterator[Write]:
        """As in `Layout`."""
        there = value is not None and value.message is not None
        beside = None if value is None else (value.id, value.dot, there)
        yield from self._beside.writes(topic, None, beside)
        text = None
        if value is not None and value.message is not None:
            text = id_bytes(value.id) + value.message
        yield "retained", topic.encode(), text


def _part_end(end: End) -> tuple[Any, ...]:
    return (end.epoch, end.seen, *(end.over or (None, None)), end.known, end.after)


def _join_end(
    epoch: Stamp,
    seen: dict[int, int],
    over: Stamp | None,
    by: Dot | None,
    known: dict[int, int] | None,
    after: dict[int, int],
) -> End:
    return End(epoch, seen, (over, by) if over is not None and by is not None else None, known, after)


def parse_end(text: bytes) -> End:
    """Of a row of the family `cluster` whose key begins with `e`."""
    return _join_end(*decode(_END, text))


class StoredRows(Rows):
    """The rows of one node in its store; `new_number` gives the number of a queue that never was.

    What `take_changes` gives is to be written, and then `confirm`ed, or `discard`ed.
    """

    def __init__(self, stored: Readable, new_number: Callable[[], int]) -> None:
        known = ((*decode("Q B", key[1:]), *decode("Q", value)) for key, value in stored.scan(FAMILY, b"n"))
        self._newest = NewestIds(known)
        store = self._pending = Pending(stored)
        self.owners = Owners(store, new_number)
        self._sessions = SessionLayout(store, self.owners)
        self._entries = EntryLayout(store, self.owners, lambda *entry: bool(self.shown(*entry)))
        self._log: PlainLayout[int, int, bytes] = PlainLayout(store, b"", ("Q", "Q", "bytes"), family="log")
        self._tables: list[StoredTable[Any, Any, Any]] = []
        self._standings: dict[str, Standing | None] = {}  # as the store has them

        def made(table: StoredTable[Any, Any, Any]) -> StoredTable[Any, Any, Any]:
            self._tables.append(table)
            return table

        super().__init__(
            sessions=made(StoredTable(self._sessions)),
            ends=made(
                SparseTable(PlainLayout(store, b"e", ("text", "dot", _END), part=_part_end, join=_join_end))
            ),
            removed=made(
                StoredTable(PlainLayout(store, b"r", ("owner", "stamp", "dots")))
            ),  # see `drop_removed`
            payloads=made(StoredTable(PayloadLayout(store))),
            subscriptions=made(StoredTable(SubscriptionLayout(store))),
            retained=made(StoredTable(RetainedLayout(store))),
            gone=made(StoredTable(PlainLayout(store, b"g", ("text", "text?", "dot")))),
            log=made(StoredTable(self._log)),
            applied=made(KeptTable(tuple_layout(store, b"a", ("Q", "", "Q digest")))),
            members=made(KeptTable(PlainLayout(store, b"m", ("Q", "", "text")))),
            struck=made(KeptTable(tuple_layout(store, b"k", ("Q", "", "text Q")))),
            boots=made(KeptTable(PlainLayout(store, b"b", ("", "", "Q")))),
            clock=made(KeptTable(PlainLayout(store, b"c", ("", "", "Q")))),
            format=made(KeptTable(PlainLayout(store, b"f", ("", "", "H")))),
            entries=made(
                NotedTable(self._entries, lambda _, message_id: self._newest.note(*message_id))
            ),  # after the sessions, which say what the current queue is
        )

    @property
    def _session_table(self) -> StoredTable[str, None, Session]:
        assert isinstance(self.sessions, StoredTable)
        return self.sessions

    @property
    def _removed(self) -> StoredTable[Owner, Stamp, tuple[Dot, ...]]:
        assert isinstance(self.removed, StoredTable)
        return self.removed

    @property
    def _entry_table(self) -> StoredTable[Owner, Stamp, Entry]:
        assert isinstance(self.entries, StoredTable)
        return self.entries

    @property
    def has_changes(self) -> bool:
        return bool(self._pending.writes) or any(table.changed for table in self._tables)

    @property
    def together(self) -> int:
        """How many writes there are of what was done together."""
        return len(self._pending.writes)

    @property
    def has_changed_sessions(self) -> bool:
        """Whether any session was put or ended."""
        return bool(self._changed(self.sessions))

    def do_run(
        self, run: Run, dot: Dot, seen: Vector, apart: Container[str], added: list[tuple[Owner, Stamp]]
    ) -> Iterator[bytes]:
        """As in `Rows`."""

        def note_added(client: str, message_id: bytes) -> None:
            added.append((Owner(SESSION, client), Stamp(*_ID.unpack(message_id))))

        around = Around(self, self._pending, dot.incarnation, apart, note_added)
        work = RunRows(run.text, encode("dot", dot), seen, self._newest, self._pending, around)
        while left := work.go_on():
            yield left

    def log_sizes(self, incarnation: int) -> Iterator[tuple[int, int]]:
        """As in `Rows`, as of the last `confirm`."""
        return ((number, len(text)) for number, text in self._log.load_each(incarnation))

    def homes(self) -> Iterator[tuple[str, int]]:
        """As in `Rows`, without the sessions' own rows."""
        changed = set(self._changed(self.sessions))
        for client, home in self._sessions.homes():
            if client not in changed:
                yield client, home
        for client in changed:
            session = self.sessions.get(client, None)
            if session is not None:
                yield client, session.row.home

    def count_at(self, home: int) -> int:
        """As in `Rows`."""
        count = self._sessions.count_at(home)
        for client in self._changed(self.sessions):
            session, before = self.sessions.get(client, None), self._sessions.standing(client)
            count += session is not None and session.row.home == home
            count -= before is not None and before.home == home
        return count

    def standing(self, client: str) -> Standing | None:
        """As in `Rows`."""
        if self._session_table.has_changed(client):
            return super().standing(client)
        if client not in self._standings:
            if len(self._standings) >= STANDINGS_MAX:
                self._standings.clear()
            self._standings[client] = self._sessions.standing(client)
        return self._standings[client]

    def entries_after(self, owner: Owner, after: Stamp) -> Iterator[tuple[Stamp, Entry]]:
        """As in `Rows`."""
        if self._entry_table.has_changed(owner):
            return super().entries_after(owner, after)
        return self._entries.load_after(owner, after)

    def in_flight(self, client: str) -> list[tuple[Stamp, Entry]]:
        """As in `Rows`, without a look at what waits: that may be a hundred thousand messages."""
        owner = Owner(SESSION, client)
        ids: set[Stamp] = set(self._entry_table.changed_of(owner))
        for number in self.owners.numbers(owner):
            prefix = _QUEUE_KEY.pack(number, IN_FLIGHT, bytes(16))[:9]
            ids.update(decode("stamp", key[9:])[0] for key, _ in self._pending.scan("queue", prefix))
        found = ((each, self.entries.get(owner, each)) for each in sorted(ids))
        return [(each, entry) for each, entry in found if entry is not None and entry.sequence >= 0]

    def groups(self) -> list[Owner]:
        """Shared groups for which something waits, on whatever node."""
        return self._entries.groups()

    def waiting(self, owner: Owner) -> Iterator[tuple[Stamp, Entry]]:
        """The entries of an owner, in the order of ids, as of the last `confirm`."""
        return self._entries.load_each(owner)

    def queue_of(self, owner: Owner, message_id: Stamp) -> int:
        """The number of the queue that an entry is in; 0: it is not there. As of the last `confirm`."""
        return self._entries.queue_of(owner, message_id)

    def place(self, owner: Owner, message_id: Stamp, number: int) -> None:
        """An entry of a group that is about to be added goes into this queue of the group's."""
        self._entries.places[owner, message_id] = number

    def which_are_removed(
        self, owners: Mapping[int | bytes, Owner], messages: Sequence[tuple[int | bytes, bytes]]
    ) -> set[tuple[int | bytes, bytes]]:
        """Of these messages in queues of `owners` those whose removal is known, as of the last `confirm`."""
        before = {number: b"r" + encode("owner", owner) for number, owner in owners.items()}
        found = self._pending.get_many(FAMILY, [before[number] + key for number, key in messages])
        return {each for each, row in zip(messages, found, strict=True) if row is not None}

    def drop_removed(
        self, stable: Vector, moving: Container[str], after: bytes, at_most: int
    ) -> tuple[bytes, bool]:
        """As in `Rows`."""
        last = after
        changed = {owner: set(self._removed.changed_of(owner)) for owner in self._removed.changed}
        now = [
            (owner, each, self._removed.get(owner, each)) for owner, ids in changed.items() for each in ids
        ]
        there = [(owner, each, removals) for owner, each, removals in now if removals is not None]
        held = self._drop_each(there, stable, moving)
        for looked, (key, value) in enumerate(self._pending.scan(FAMILY, b"r", after)):
            if looked == at_most:
                return last, held
            last = key
            if any(number > stable.get(incarnation, 0) for incarnation, number in _ID.iter_unpack(value[4:])):
                continue
            owner = Owner(key[1], key[_NAME].decode())
            if owner in changed and Stamp(*_ID.unpack(key[-16:])) in changed[owner]:
                continue
            if owner.kind == SESSION and owner.name in moving:
                held = True
            else:
                self._pending.writes.append((FAMILY, key, None))
        return b"", held

    def take_changes(self) -> list[Write]:
        writes = [*self._pending.writes]
        for incarnation, source, clock in self._newest.changes():
            writes.append((FAMILY, b"n" + encode("Q B", incarnation, source), encode("Q", clock)))
        for each in self._tables:
            if each is self.entries:  # which queue is the current one is known by now
                ended = [Owner(SESSION, client) for client in self._changed(self.ends)]
                begun = [owner for owner in self.owners.changed if owner.kind == SESSION]
                for owner in dict.fromkeys([*ended, *begun]):
                    self._gather(owner)
            writes += each.writes()
        writes += self.owners.writes()
        return writes

    def confirm(self) -> None:
        """The store has what `take_changes` gave."""
        for client in self._session_table.changed:
            self._standings.pop(client, None)
        self._pending.clear()
        self._newest.confirm()
        for each in self._tables:
            each.confirm()
        self._sessions.confirm()
        self.owners.forget_changes()

    def discard(self) -> None:
        """What has been changed since the last `confirm` is not, or the store may have it all the same."""
        for client in self._session_table.changed:
            self._standings.pop(client, None)
        self._pending.clear()
        for each in self._tables:
            each.discard()
        self._sessions.discard()
        self.owners.forget_changes()

    def read_again(self) -> None:
        """What is remembered of the store is as that has it, where it is open whether that has what was
        discarded last.
        """
        self._standings.clear()
        self._sessions.read_again()
        self.owners.read_again()
        for each in self._tables:
            each.read_again()

    def _changed(self, table: Any) -> list[str]:
        changed: list[str] = table.changed
        return changed

    def _gather(self, owner: Owner) -> None:
        """Of a session that has ended or begun: brings into its queue what waits for it in an earlier one, as
        when the end of that proves void; and forgets the earlier ones of which nothing is left.
        """
        numbers = self.owners.numbers(owner)
        if len(numbers) < 2:
            return
        left = {numbers[-1]}
        hidden: dict[Dot, bool] = {}  # many were made by one record
        changed = set(self._entry_table.changed_of(owner))
        for message_id, number, dots in self._entries.placed(owner):
            if number == numbers[-1]:
                continue
            for dot in dots:
                if dot not in hidden:
                    hidden[dot] = self.is_hidden(owner.name, dot)
            entry = self.entries.get(owner, message_id) if message_id in changed else None
            if message_id in changed:  # what is shown goes into the current queue when it is written
                left |= {number} if entry is not None and not self.shown(owner, entry) else set()
            elif all(hidden[dot] for dot in dots):
                left.add(number)
            else:
                self.entries.put(owner, message_id, self.entries.get(owner, message_id))
        self.owners.set(owner, [each for each in numbers if each in left])
