"""Messages on the driver's disk, from before they are acknowledged to the broker until Spark has committed
them: a SQLite file, for one query at a time.

Messages have ascending offsets. An epoch is drawn when the file is made: another one, and offsets mean other
messages.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from tidemq.client import Message
from tidemq.client.settings import random_client_id
from tidemq.errors import StoreError

FORMAT = 1
LOCK_WAIT_S = 5.0  # for another query that has the file: this one's last run may be about to end
_OVERHEAD = 128  # bytes of a message beside its payload, about
_PAIRS = pa.list_(pa.struct([("name", pa.string()), ("value", pa.string())]))
SCHEMA = pa.schema(
    [
        ("epoch", pa.int64()),
        ("offset", pa.int64()),
        ("topic", pa.string()),
        ("payload", pa.binary()),
        ("qos", pa.int8()),
        ("retain", pa.bool_()),
        ("dup", pa.bool_()),
        ("received", pa.timestamp("us", tz="UTC")),
        ("content_type", pa.string()),
        ("response_topic", pa.string()),
        ("correlation_data", pa.binary()),
        ("user_properties", _PAIRS),
    ]
)
_TABLES = """
CREATE TABLE IF NOT EXISTS message (
    offset INTEGER PRIMARY KEY, topic TEXT NOT NULL, payload BLOB NOT NULL, qos INTEGER NOT NULL,
    retain INTEGER NOT NULL, dup INTEGER NOT NULL, received INTEGER NOT NULL, content_type TEXT,
    response_topic TEXT, correlation_data BLOB, user_properties TEXT
);
CREATE TABLE IF NOT EXISTS spool (
    epoch INTEGER NOT NULL, client_id TEXT NOT NULL, filters TEXT NOT NULL, next INTEGER NOT NULL
);
"""
_INSERT = "INSERT INTO message VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_SIZE = f"SELECT coalesce(sum(length(payload) + {_OVERHEAD}), 0) FROM message"
_RANGE = "FROM message WHERE offset >= ? AND offset < ? ORDER BY offset"
_LENGTHS = f"SELECT offset, length(payload) {_RANGE}"
_SELECT = f"SELECT * {_RANGE}"


class Spool:
    """One file, used by several threads. StoreError where it cannot be read or written, or another has it.

    `bytes_max`: beyond it `append` waits until messages are released.
    """

    def __init__(self, folder: Path, bytes_max: int) -> None:
        self.path = folder / "spool.db"
        self._bytes_max = bytes_max
        self._changed = threading.Condition()
        self._closed = False
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"the spool {folder} cannot be made: {error}") from error
        with self._failing():
            self._database = sqlite3.connect(
                self.path, isolation_level=None, check_same_thread=False, timeout=LOCK_WAIT_S
            )
            self._open()

    def _open(self) -> None:
        database = self._database
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        version = database.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, FORMAT):
            raise StoreError(f"the spool {self.path} has format {version}; accepted: {FORMAT}")
        database.executescript(_TABLES)
        database.execute(f"PRAGMA user_version = {FORMAT}")
        self.is_new = database.execute("SELECT count(*) FROM spool").fetchone()[0] == 0
        if self.is_new:
            drawn = (secrets.randbits(62), random_client_id(), "[]", 0)
            database.execute("INSERT INTO spool VALUES (?, ?, ?, ?)", drawn)
        self.epoch: int
        self.client_id: str  # drawn with the file
        self.next_offset: int
        self.epoch, self.client_id, filters, self.next_offset = database.execute(
            "SELECT * FROM spool"
        ).fetchone()
        self.filters: list[str] = json.loads(filters)
        first = database.execute("SELECT min(offset) FROM message").fetchone()[0]
        self.first_offset: int = self.next_offset if first is None else first
        self._bytes: int = database.execute(_SIZE).fetchone()[0]

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            text = "another query has it" if "locked" in str(error) else str(error)
            raise StoreError(f"the spool {self.path}: {text}") from error
        except sqlite3.Error as error:
            raise StoreError(f"the spool {self.path}: {error}") from error

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All of it, synced, or nothing."""
        with self._failing():
            self._database.execute("BEGIN")
            try:
                yield
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise

    def keep_filters(self, filters: Sequence[str]) -> None:
        """What the broker's session has been subscribed to."""
        with self._changed, self._transaction():
            self._database.execute("UPDATE spool SET filters = ?", (json.dumps(list(filters)),))

    def append(self, messages: Sequence[Message]) -> None:
        """Keeps them: they are on the disk when it returns. Waits while the spool is full."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not self.is_full)
            if self._closed:
                raise StoreError(f"the spool {self.path} is closed")
            received = time.time_ns() // 1000
            first = self.next_offset
            rows = [_row(first + place, message, received) for place, message in enumerate(messages)]
            with self._transaction():
                self._database.executemany(_INSERT, rows)
                self._database.execute("UPDATE spool SET next = ?", (first + len(rows),))
            self.next_offset += len(rows)
            self._bytes += sum(len(message.payload) + _OVERHEAD for message in messages)
            self._changed.notify_all()

    @property
    def is_full(self) -> bool:
        return self._bytes >= self._bytes_max

    def wait(self, beyond: int, wait_s: float) -> int:
        """The next message's offset, once it is larger than this, or after so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self.next_offset > beyond, wait_s)
            return self.next_offset

    def wake(self) -> None:
        """Ends all waiting for good."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def release(self, before: int) -> None:
        """Removes the messages below this offset."""
        with self._changed:
            if before <= self.first_offset:
                return
            with self._transaction():
                freed = self._database.execute(f"{_SIZE} WHERE offset < ?", (before,)).fetchone()[0]
                self._database.execute("DELETE FROM message WHERE offset < ?", (before,))
            self.first_offset = before
            self._bytes -= freed
            self._changed.notify_all()

    def read(self, start: int, end: int, rows_max: int, bytes_max: int) -> Iterator[pa.RecordBatch]:
        """The messages of these offsets, in batches of at most so many rows, and about so many bytes."""
        with self._changed, self._failing():
            cursor = self._database.execute(_SELECT, (start, end))
            rows: list[tuple[object, ...]] = []
            size = 0
            for row in cursor:
                rows.append(row)
                size += len(row[2]) + _OVERHEAD
                if len(rows) >= rows_max or size >= bytes_max:
                    yield self._batch(rows)
                    rows, size = [], 0
            if rows:
                yield self._batch(rows)

    def end_within(self, start: int, end: int, bytes_max: int) -> int:
        """Where so many bytes end that begin at `start`, at least one message of them; at most `end`."""
        with self._changed, self._failing():
            size = 0
            for offset, length in self._database.execute(_LENGTHS, (start, end)):
                size += length + _OVERHEAD
                if size > bytes_max and offset > start:
                    return int(offset)
            return end

    def _batch(self, rows: list[tuple[object, ...]]) -> pa.RecordBatch:
        columns = list(zip(*rows, strict=True))
        pairs = [json.loads(text) if isinstance(text, str) else [] for text in columns[-1]]
        named = [[{"name": name, "value": value} for name, value in each] for each in pairs]
        flags = ([bool(value) for value in column] for column in columns[4:6])
        values = [[self.epoch] * len(rows), *columns[:4], *flags, *columns[6:-1], named]
        arrays = [pa.array(each, field.type) for each, field in zip(values, SCHEMA, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)

    def close(self) -> None:
        self.wake()
        with self._changed:
            self._database.close()


def _row(offset: int, message: Message, received_us: int) -> tuple[object, ...]:
    properties = message.properties
    pairs = json.dumps(properties.user_properties) if properties.user_properties else None
    return (
        offset,
        message.topic,
        message.payload,
        message.qos,
        message.retain,
        message.dup,
        received_us,
        properties.content_type,
        properties.response_topic,
        properties.correlation_data,
        pairs,
    )
