"""What every node keeps: sessions, queues, subscriptions, retained messages, and the logs that bring them.

`memory_rows.py` has the rows in memory, `stored_rows.py` in a store.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeVar

from tidemq.cluster.operations import GROUP, SESSION, Owner, PutSession, Run, Stamp
from tidemq.cluster.vectors import Dot, Vector, has_seen

A = TypeVar("A")
B = TypeVar("B")
V = TypeVar("V")

NEVER = Stamp(0, 0)


class Added(NamedTuple):
    """An entry as one record added it."""

    dot: Dot
    shared: bool  # another node may add it as well
    unsent: bool  # the entry is in flight, and who sent it did not know of this
    flags: int
    qos: int
    message_bytes: int
    expires_at_ms: int
    subscription_ids: tuple[int, ...]

    @property
    def fields(self) -> tuple[int, int, int, int, tuple[int, ...]]:
        """What is of the message."""
        return self.flags, self.qos, self.message_bytes, self.expires_at_ms, self.subscription_ids


@dataclass(frozen=True, slots=True)
class Entry:
    """A message in a queue. `adds`: mostly one; the first of them that counts is what the entry is."""

    adds: tuple[Added, ...]
    sequence: int = -1  # in flight: its place in the outbox
    released: bool = False
    sent: bool = False  # it may have gone out before
    epoch: Stamp = NEVER  # of a group's entry: when it was last given to a member


@dataclass(frozen=True, slots=True)
class Session:
    """The newest row of a client's session, and the record that has it."""

    row: PutSession
    dot: Dot


class Standing(NamedTuple):
    """Under which epoch a session goes on, and where it is at home."""

    epoch: Stamp
    home: int


@dataclass(frozen=True, slots=True)
class Subscription:
    """`options` is None where it has ended: the row stays until nobody can bring an older one."""

    stamp: Stamp
    dot: Dot
    options: int | None
    subscription_id: int


@dataclass(frozen=True, slots=True)
class Retained:
    """`message` is None where nothing is retained any more: the row stays as that of a subscription does."""

    id: Stamp
    dot: Dot
    message: bytes | None


@dataclass(frozen=True, slots=True)
class End:
    """The session of the CONNECT with this epoch has ended, as have those before: with what `seen` covers of
    its rows, unless a CONNECT that does not know of it has a higher epoch. `over`: the newest CONNECT that it
    ended, with the session's record.

    `known`: of each node its first record that has something for the client, and knows of the end and of a
    session that came after it; what is before that, or of a node that is not among these, went with the
    session, too. None: that is not so, for who ended it did not know that there was any. `after`: of each
    node its first record of a session that came after it.
    """

    epoch: Stamp
    seen: Vector
    over: tuple[Stamp, Dot] | None
    known: Mapping[int, int] | None
    after: Mapping[int, int] = field(default_factory=dict)

    def hides(self, dot: Dot) -> bool:
        """Whether what this record has made of the session's rows went with it."""
        if has_seen(self.seen, dot):
            return True
        if self.known is None:
            return False
        first = self.known.get(dot.incarnation)
        return first is None or dot.number < first


@dataclass(frozen=True, slots=True)
class Payload:
    """A message, once for all queues that have it."""

    message: bytes
    references: int


class Table(Protocol[A, B, V]):
    """Rows by two keys; all with one first key can be had together. What is put is seen at once."""

    def get(self, first: A, second: B) -> V | None:
        """A row; None: there is none."""

    def put(self, first: A, second: B, new: V | None) -> None:
        """Replaces a row; None removes it."""

    def of(self, first: A) -> list[tuple[B, V]]:
        """All with this first key, as they are now."""

    def has(self, first: A) -> bool:
        """Whether there is any with this first key."""

    def all(self) -> Iterator[tuple[A, B, V]]:
        """Every row, as of the call."""


@dataclass
class Rows(ABC):
    """All tables of one node, and what they say together."""

    sessions: Table[str, None, Session]
    ends: Table[str, Dot, End]
    entries: Table[Owner, Stamp, Entry]
    removed: Table[Owner, Stamp, tuple[Dot, ...]]
    payloads: Table[Stamp, None, Payload]
    subscriptions: Table[str, str, Subscription]
    retained: Table[str, None, Retained]
    # which subscriptions and retained messages are only remembered as gone: client or topic, and filter
    gone: Table[str, str | None, Dot]
    log: Table[int, int, bytes]  # incarnation, number: records
    applied: Table[int, None, tuple[int, bytes]]  # number, its digest
    members: Table[int, None, str]  # their names
    struck: Table[int, None, tuple[str, int]]  # who is none any more: the name, and which node said so
    boots: Table[None, None, int]  # how often the node was started
    clock: Table[None, None, int]
    format: Table[None, None, int]  # that is written, once it is known

    def do_run(
        self, run: Run, dot: Dot, seen: Vector, apart: Container[str], added: list[tuple[Owner, Stamp]]
    ) -> Iterator[bytes]:
        """Does what the operations of a run do, as far as it can be done together. Gives those that cannot,
        each to be done before the next is asked for. `dot`: its record; with number 0 it is of none, and what
        it removes is not remembered. `seen`: what the record knew of, itself included. Of clients who are
        `apart` new entries go to `added`, too, and what changes entries is given.
        """
        yield run.text

    @abstractmethod
    def take_changes(self) -> Sequence[object]:
        """What was changed since the last time: one batch."""

    @property
    @abstractmethod
    def has_changes(self) -> bool:
        """Whether `take_changes` would give any."""

    @property
    def vector(self) -> dict[int, int]:
        return {incarnation: number for incarnation, _, (number, _) in self.applied.all()}

    @property
    def written_format(self) -> int:
        """Of records and of all else that this node sends; 0: none yet."""
        return self.format.get(None, None) or 0

    def homes(self) -> Iterator[tuple[str, int]]:
        """All clients that have sessions, and where these are at home."""
        return ((client, session.row.home) for client, _, session in self.sessions.all())

    def count_at(self, home: int) -> int:
        """How many sessions are at home there."""
        return sum(its == home for _, its in self.homes())

    def standing(self, client: str) -> Standing | None:
        """Of a client's session, without a look at the rest of it; None: there is none."""
        session = self.sessions.get(client, None)
        return None if session is None else Standing(session.row.epoch, session.row.home)

    def drop_removed(
        self, stable: Vector, moving: Container[str], after: bytes, at_most: int
    ) -> tuple[bytes, bool]:
        """Forgets removals that are `stable`, but for those of sessions that are `moving`, and says whether
        there were such. Looks at so many behind a place, and gives the next place; empty: it has come to the
        end, or is to begin.
        """
        return b"", self._drop_each(self.removed.all(), stable, moving)

    def _drop_each(
        self, removed: Iterable[tuple[Owner, Stamp, tuple[Dot, ...]]], stable: Vector, moving: Container[str]
    ) -> bool:
        """The same one by one, of these; whether there were any of sessions that are moving."""
        held = False
        for owner, message_id, removals in removed:
            if not all(has_seen(stable, dot) for dot in removals):
                continue
            if owner.kind == SESSION and owner.name in moving:
                held = True
            else:
                self.removed.put(owner, message_id, None)
        return held

    def log_sizes(self, incarnation: int) -> Iterator[tuple[int, int]]:
        """The records of a log and their bytes, in order; one by one, for it may be larger than memory."""
        return ((number, len(text)) for number, text in sorted(self.log.of(incarnation)))

    def is_hidden(self, client: str, dot: Dot) -> bool:
        """Whether a row that this record made went with the end of a session."""
        return any(end.hides(dot) for _, end in self.ends.of(client))

    def shown(self, owner: Owner, entry: Entry) -> tuple[Added, ...]:
        """What of an entry is there."""
        if owner.kind == GROUP or not self.ends.of(owner.name):
            return entry.adds
        return tuple(each for each in entry.adds if not self.is_hidden(owner.name, each.dot))

    def queue(self, owner: Owner) -> list[tuple[Stamp, Entry]]:
        """What waits or is in flight, in the order of ids; nothing where the session has ended."""
        if owner.kind == SESSION and self.standing(owner.name) is None:
            return []
        every = sorted(self.entries.of(owner), key=lambda each: each[0])
        return [(id_, entry) for id_, entry in every if self.shown(owner, entry)]

    def entries_after(self, owner: Owner, after: Stamp) -> Iterator[tuple[Stamp, Entry]]:
        """Those with higher ids, in their order, read as they are asked for."""
        return iter(sorted(each for each in self.entries.of(owner) if each[0] > after))

    def in_flight(self, client: str) -> list[tuple[Stamp, Entry]]:
        """What is in flight to a client."""
        return [each for each in self.entries.of(Owner(SESSION, client)) if each[1].sequence >= 0]

    def subscription(self, client: str, topic_filter: str) -> Subscription | None:
        """One that a client has."""
        row = self.subscriptions.get(client, topic_filter)
        return row if row is not None and self._has(client, row) else None

    def _has(self, client: str, row: Subscription) -> bool:
        """Whether a client has a subscription; else it has ended it, or the session of it is over."""
        return row.options is not None and not self.is_hidden(client, row.dot)

    def filters(self, client: str) -> list[tuple[str, Subscription]]:
        """The subscriptions that a client has."""
        if self.standing(client) is None:
            return []
        every = sorted(self.subscriptions.of(client))
        return [(topic_filter, each) for topic_filter, each in every if self._has(client, each)]

    def digest(self) -> str:
        """Equal on nodes that have applied the same records, whatever of them can be forgotten already."""
        text = hashlib.blake2b(digest_size=16)
        for line in self.lines():
            text.update(line.encode() + b"\n")
        return text.hexdigest()

    def lines(self) -> Iterator[str]:
        """What `digest` is about, in order."""
        for client, _, session in sorted(self.sessions.all(), key=lambda each: each[0]):
            yield f"session {client} {session.row}"
            for topic_filter, each in self.filters(client):
                yield (
                    f"subscription {client} {topic_filter} {each.stamp} {each.options} {each.subscription_id}"
                )
        for owner in sorted({owner for owner, _, _ in self.entries.all()}):
            for id_, entry in self.queue(owner):
                payload = self.payloads.get(id_, None)
                yield (
                    f"entry {owner} {id_} {self.shown(owner, entry)} {entry.sequence} {entry.released}"
                    f" {payload and payload.message!r}"
                )
        for topic, _, retained in sorted(self.retained.all(), key=lambda each: each[0]):
            if retained.message is not None:
                yield f"retained {topic} {retained.id} {retained.message!r}"
        for incarnation, _, (name, _) in sorted(self.struck.all()):
            yield f"struck {incarnation:016x} {name}"
