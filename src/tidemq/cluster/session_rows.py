"""Rows of sessions in a store: as the engine reads them, and what a cluster must know besides."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from tidemq.cluster.operations import SESSION, Owner, PutSession
from tidemq.cluster.owners import Owners
from tidemq.cluster.pending import Readable
from tidemq.cluster.rows import Session, Standing
from tidemq.cluster.stored_tables import tuple_layout
from tidemq.store import Write
from tidemq.store.rows import FINGERPRINT_BYTES, parse_session

_SESSION_ROW = struct.Struct(">QIqqIqI")


def mark_of(key: bytes, value: bytes) -> int:
    """Of a row in `received`, as `Receive` has it."""
    return int.from_bytes(value + key[8:])


def received_row(number: int, mark: int) -> tuple[bytes, bytes]:
    """In the queue of this number."""
    text = mark.to_bytes(FINGERPRINT_BYTES + 2)
    value = text[:FINGERPRINT_BYTES]
    return number.to_bytes(8) + text[FINGERPRINT_BYTES:], value if any(value) else b""


class SessionLayout:
    """`session` and `received`; `s` client -> epoch, home, whether it began, next place, record,
    epoch of the last CONNECT, whether it was ever taken without a word of its home.
    """

    def __init__(self, store: Readable, owners: Owners) -> None:
        self._store = store
        self._owners = owners
        self._counts: Counter[int] | None = None  # of sessions in the store, by home; None: not yet
        self._moved: dict[str, tuple[int, int]] = {}  # that are written: homes before and now, 0: none
        self._beside = tuple_layout(store, b"s", ("text", "", "stamp Q ? Q dot stamp ?"))

    def load(self, client: str, _: None) -> Session | None:
        """As in `Layout`."""
        key = client.encode()
        beside, text = self._beside.load(client, None), self._store.get("session", key)
        if beside is None or text is None:
            return None
        epoch, home, begins, next_sequence, dot, connected, unasked = beside
        row = parse_session(key, text)
        received = tuple(sorted(mark_of(*each) for each in self._received(row.queue).items()))
        timed = (row.expiry_s, row.ends_at_ms, row.will_due_at_ms, row.will_delay_s, row.will_expiry_s)
        will = text[_SESSION_ROW.size :]
        put = PutSession(client, epoch, home, begins, next_sequence, *timed, will, received)
        return Session(replace(put, connected=connected, unasked=unasked), dot)

    def standing(self, client: str) -> Standing | None:
        """As in `Rows`."""
        beside = self._beside.load(client, None)
        if beside is None or self._store.get("session", client.encode()) is None:
            return None
        epoch, home, *_ = beside
        return Standing(epoch, home)

    def _received(self, number: int) -> dict[bytes, bytes]:
        return dict(self._store.scan("received", number.to_bytes(8)))

    def load_each(self, client: str) -> Iterator[tuple[None, Session]]:
        """As in `Layout`."""
        session = self.load(client, None)
        if session is not None:
            yield None, session

    def homes(self) -> Iterator[tuple[str, int]]:
        """Clients, and where their sessions are at home."""
        return ((client, home) for client, _, (_, home, *_) in self._beside.load_all())

    def count_at(self, home: int) -> int:
        """How many there are, of those that the store has. They are counted once."""
        if self._counts is None:
            self._counts = Counter(its for _, its in self.homes())
        return self._counts[home]

    def confirm(self) -> None:
        """The store has what `writes` gave."""
        if self._counts is not None:
            self._counts.subtract(before for before, _ in self._moved.values())
            self._counts.update(now for _, now in self._moved.values())
        self._moved.clear()

    def discard(self) -> None:
        """The store is not to have it."""
        self._moved.clear()

    def read_again(self) -> None:
        """The store may have it all the same."""
        self._counts = None

    def load_all(self) -> Iterator[tuple[str, None, Session]]:
        """As in `Layout`."""
        for client, _, _ in self._beside.load_all():
            for _, session in self.load_each(client):
                yield client, None, session

    def writes(self, client: str, _: None, value: Session | None) -> Iterator[Write]:
        """As in `Layout`. A session that begins gets a queue of its own."""
        key, owner = client.encode(), Owner(SESSION, client)
        beside, text = self._beside.load(client, None), self._store.get("session", key)
        number = int.from_bytes(text[:8]) if text is not None else 0
        self._moved[client] = beside[1] if beside else 0, value.row.home if value is not None else 0
        if value is None:
            yield from self._beside.writes(client, None, None)
            yield "session", key, None
            yield from self._write_received(number, ())
            return
        row = value.row
        if not number or beside is None or (row.begins and beside[0] != row.epoch):
            yield from self._write_received(number, ())
            number = self._owners.begin(owner)
        whose = (row.epoch, row.home, row.begins, row.next_sequence, value.dot, row.connected, row.unasked)
        yield from self._beside.writes(client, None, whose)
        timed = (row.expiry_s, row.ends_at_ms, row.will_due_at_ms, row.will_delay_s, row.will_expiry_s)
        yield "session", key, _SESSION_ROW.pack(number, *timed, len(row.will)) + row.will
        yield from self._write_received(number, row.received)

    def _write_received(self, number: int, received: tuple[int, ...]) -> Iterator[Write]:
        wanted = dict(received_row(number, mark) for mark in received)
        there = self._received(number) if number else {}
        for key in there.keys() - wanted.keys():
            yield "received", key, None
        for key, value in wanted.items() - there.items():
            yield "received", key, value
