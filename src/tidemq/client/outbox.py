"""Messages of QoS 1 and 2 on disk until they are acknowledged, so that they survive the end of their process.

One thread writes what the event loop hands it, as one transaction at a time; what comes meanwhile is the
next. A message is sent only after it was written. At QoS 2 its packet identifier is on disk before it goes
out, and that the server has it before PUBREL does: so it is delivered once even over a crash, as long as the
server keeps the session.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tidemq.client.outgoing import Outgoing
from tidemq.errors import StoreError

if TYPE_CHECKING:
    from tidemq.client.outgoing import Step

FORMAT = 1
LOCK_WAIT_S = 0.5  # for another process that has the file
T = TypeVar("T")

_TABLES = """
CREATE TABLE IF NOT EXISTS message (
    number INTEGER PRIMARY KEY, topic TEXT NOT NULL, payload BLOB NOT NULL, properties BLOB,
    qos INTEGER NOT NULL, retain INTEGER NOT NULL, packet_id INTEGER NOT NULL, received INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS client (client_id TEXT NOT NULL);
"""
_LOAD = (
    "SELECT number, topic, payload, properties, qos, retain, packet_id, received FROM message ORDER BY number"
)
_WRITES = {
    "insert": "INSERT INTO message VALUES (?, ?, ?, ?, ?, ?, 0, 0)",
    "assign": "UPDATE message SET packet_id = ?2, received = 0 WHERE number = ?1",
    "release": "UPDATE message SET received = 1 WHERE number = ?1",
    "delete": "DELETE FROM message WHERE number = ?1",
}


class Outbox:
    """A file of one client at a time. `StoreError` where it cannot be read or written."""

    def __init__(self, path: Path, outgoing: Outgoing, on_failure: Callable[[StoreError], None]) -> None:
        self._path, self._outgoing, self._on_failure = path, outgoing, on_failure
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tidemq-outbox")
        self._database: sqlite3.Connection | None = None
        self._writer: asyncio.Task[None] | None = None

    async def open(self, client_id: str) -> str:
        """Loads what was left; returns the client identifier that it was left by, or keeps this one."""
        client_id, rows = await self._work(self._load, client_id)
        self._outgoing.restore(rows)
        self._outgoing.journal = []
        self._outgoing.on_journal = self._start_writer
        return client_id

    def _load(self, client_id: str) -> tuple[str, list[tuple[object, ...]]]:
        database = sqlite3.connect(
            self._path, isolation_level=None, check_same_thread=False, timeout=LOCK_WAIT_S
        )
        self._database = database
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        version = database.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, FORMAT):
            raise StoreError(f"the outbox {self._path} has format {version}; accepted: {FORMAT}")
        database.executescript(_TABLES)
        database.execute(f"PRAGMA user_version = {FORMAT}")
        found = database.execute("SELECT client_id FROM client").fetchone()
        if found is None:
            database.execute("INSERT INTO client VALUES (?)", (client_id,))
        return client_id if found is None else found[0], database.execute(_LOAD).fetchall()

    def _start_writer(self) -> None:
        if self._writer is None:
            self._writer = asyncio.get_running_loop().create_task(self._write(), name="tidemq-outbox")

    async def _write(self) -> None:
        while steps := self._outgoing.take_journal():
            try:
                await self._work(self._commit, steps)
            except StoreError as error:
                self._on_failure(error)
            self._outgoing.stored(steps)
        self._writer = None

    def _commit(self, steps: Sequence[Step]) -> None:
        assert self._database is not None
        self._database.execute("BEGIN")
        try:
            for name, _, values in steps:
                self._database.execute(_WRITES[name], values)
            self._database.execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise

    async def _work(self, function: Callable[..., T], *arguments: object) -> T:
        """In the outbox's thread, to its end even if the waiting is cancelled."""
        loop = asyncio.get_running_loop()
        try:
            return await asyncio.shield(loop.run_in_executor(self._thread, function, *arguments))
        except sqlite3.Error as error:
            raise StoreError(f"the outbox {self._path}: {error}") from error

    async def close(self) -> None:
        """After everything that was handed over is on disk."""
        if self._writer is not None:
            await asyncio.wait([self._writer])
        if self._database is not None:
            await self._work(self._database.close)
            self._database = None
        self._thread.shutdown()
