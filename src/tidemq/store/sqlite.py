"""The store on SQLite, for where RocksDB cannot run: one table per family, in one file."""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from tidemq.config import Config
from tidemq.errors import StoreError
from tidemq.store.directory import DataDirectory, explain
from tidemq.store.interface import FAMILIES, FORMAT, FORMAT_KEY, Row, Write, prefix_end

ENGINE = "sqlite"
FILE = "tidemq.db"
PAGE_ROWS = 512  # that a scan reads at once; between two pages it holds no transaction
PAGE_BYTES = 1 << 20
CACHE_KIB = 32 << 10
KEYS_MAX = 500  # of one SELECT

log = logging.getLogger("tidemq")


class SQLiteStore:
    """Keeps rows in a SQLite file below a data directory. `strict` refuses to open what is damaged."""

    def __init__(self, path: Path, *, strict: bool = False) -> None:
        self._directory = DataDirectory(path, ENGINE)
        self._strict = strict
        self._database: sqlite3.Connection | None = None
        self._failure: StoreError | None = None  # of the last write: the database must be opened anew
        self._damaged = False  # the file has a page that could not be read

    def open(self) -> list[str]:
        """Locks the directory and opens the file; gives a line for each thing set aside."""
        if self._database is not None:
            return self._open_anew() if self._damaged else []
        self._directory.acquire()
        try:
            lines = self._open_mending()
            self._check_format()
        except StoreError:
            self.close()
            raise
        return lines

    def write(self, batch: Sequence[Write], *, sync: bool) -> None:
        """Applies the batch; KeyError on an unknown family before anything is changed."""
        if self._failure is not None:
            self._repair()
        database = self._opened()
        last: dict[str, dict[bytes, bytes | None]] = {family: {} for family in FAMILIES}
        for family, key, value in batch:
            last[family][key] = value
        try:
            # of commits only: in the other mode the file is forced to the disk by checkpoints alone
            database.execute(f"PRAGMA synchronous={'FULL' if sync else 'NORMAL'}")
            database.execute("BEGIN IMMEDIATE")
            for family, rows in last.items():
                if rows:
                    _apply(database, family, rows)
            database.execute("COMMIT")
        except sqlite3.Error as error:
            self._failure = self._explain("the store cannot be written", error)
            raise self._failure from error

    def sync(self) -> None:
        """Forces the write-ahead log to the disk."""
        if self._failure is not None:
            self._repair()
        self._opened()
        try:
            descriptor = os.open(f"{self._file}-wal", os.O_RDONLY)
            try:
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            self._failure = explain("the store cannot be written", error)
            raise self._failure from error

    def get(self, family: str, key: bytes) -> bytes | None:
        """The value of a key; None when there is none."""
        return self.get_many(family, [key])[0]

    def get_many(self, family: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of many keys, in their order."""
        database, table = self._opened(), _table(family)
        found: dict[bytes, bytes] = {}
        try:
            for start in range(0, len(keys), KEYS_MAX):
                some = keys[start : start + KEYS_MAX]
                marks = ",".join("?" * len(some))
                query = f"SELECT key, value FROM {table} WHERE key IN ({marks})"
                found.update(database.execute(query, some))
        except sqlite3.Error as error:
            raise self._explain("the store cannot be read", error) from error
        return [found.get(key) for key in keys]

    def scan(self, family: str, prefix: bytes = b"", after: bytes = b"") -> Iterator[Row]:
        """Keys that start with `prefix` and come after `after`, in order."""
        table, end = _table(family), prefix_end(prefix)
        query = f"SELECT key, value FROM {table} WHERE key >= ?"
        bounds = [] if end is None else [end]
        query += " ORDER BY key" if end is None else " AND key < ? ORDER BY key"
        start = max(prefix, after + b"\0") if after else prefix
        rows: list[Row] = []
        whole = False
        while not whole:
            try:
                whole = _read_page(self._opened().execute(query, [start, *bounds]), rows)
            except sqlite3.Error as error:
                raise self._explain("the store cannot be read", error) from error
            if rows:
                start = rows[-1][0] + b"\0"
            yield from rows
            rows.clear()

    def size_bytes(self) -> int:
        """The sizes of the file and its log."""
        try:
            return self._directory.size_bytes()
        except OSError as error:
            raise explain("the store cannot be read", error) from error

    def compact(self) -> None:
        """Rewrites the file without the room of deleted rows."""
        database = self._opened()
        try:
            database.execute("VACUUM")
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.Error as error:
            raise self._explain("the store cannot be compacted", error) from error

    def close(self) -> None:
        """Closes the file, unlocks the directory."""
        self._close_database()
        self._directory.release()

    @property
    def _file(self) -> Path:
        return self._directory.files / FILE

    def _opened(self) -> sqlite3.Connection:
        if self._database is None:
            raise self._failure or StoreError(f"the store in {self._directory.path} is not open")
        return self._database

    def _explain(self, what: str, error: sqlite3.Error) -> StoreError:
        """The StoreError for an error of SQLite's; that the file is damaged is remembered."""
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        self._damaged = self._damaged or code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
        return explain(what, error)

    def _open_mending(self) -> list[str]:
        """Opens the file; where it is damaged, a new one with what can be read of it."""
        if not self._damaged:
            try:
                self._open_database()
                return []
            except StoreError:
                if self._strict or not self._damaged:
                    raise
        self._damaged = False
        damaged = self._directory.set_aside(self._file)
        for suffix in ("-wal", "-shm"):  # SQLite looks for them under the file's name
            if (path := Path(f"{self._file}{suffix}")).exists():
                path.rename(f"{damaged}{suffix}")
        self._open_database()
        saved = 0
        rows = _read_damaged(damaged)
        while batch := list(islice(rows, PAGE_ROWS)):
            self.write(batch, sync=False)
            saved += len(batch)
        self.sync()
        return [f"{self._file} was damaged: {saved} rows of it could be read; set aside as {damaged}"]

    def _open_database(self) -> None:
        try:
            # used from one thread at a time, but not always from the same one
            self._database = sqlite3.connect(self._file, isolation_level=None, check_same_thread=False)
            self._database.execute(f"PRAGMA cache_size=-{CACHE_KIB}")
            self._database.execute("PRAGMA journal_mode=WAL")
            for family in FAMILIES:
                columns = "key BLOB PRIMARY KEY, value BLOB NOT NULL"
                self._database.execute(
                    f"CREATE TABLE IF NOT EXISTS {_table(family)} ({columns}) WITHOUT ROWID"
                )
        except sqlite3.Error as error:
            self._close_database()
            raise self._explain(f"the store in {self._directory.path} cannot be opened", error) from error
        self._failure = None

    def _close_database(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            try:
                database.close()
            except sqlite3.Error as error:
                log.warning("the store was not closed well: %s", error)

    def _repair(self) -> None:
        """Opens the file anew, which rolls back what was not committed."""
        for line in self._open_anew():
            log.warning("%s", line)
        log.info("the store in %s is opened anew after a failed write", self._directory.path)

    def _open_anew(self) -> list[str]:
        if self._damaged and self._strict:
            raise StoreError(f"the store in {self._directory.path} is damaged: {self._file}")
        self._close_database()
        return self._open_mending()

    def _check_format(self) -> None:
        found = self.get("meta", FORMAT_KEY)
        if found is None:
            self.write([("meta", FORMAT_KEY, FORMAT)], sync=True)
        elif found != FORMAT:
            raise StoreError(
                f"the store in {self._directory.path} has format {found!r}, this version reads {FORMAT!r}"
            )


def make_sqlite_store(config: Config) -> SQLiteStore:
    """The entry point `sqlite`."""
    return SQLiteStore(config.data, strict=config.store_strict)


def _table(family: str) -> str:
    """The family's table, quoted because "reference" is a word of SQL's; KeyError when there is none."""
    if family not in FAMILIES:
        raise KeyError(family)
    return f'"{family}"'


def _apply(database: sqlite3.Connection, family: str, rows: dict[bytes, bytes | None]) -> None:
    table = _table(family)
    deleted = [(key,) for key, value in rows.items() if value is None]
    database.executemany(f"DELETE FROM {table} WHERE key = ?", deleted)
    put = ((key, value) for key, value in rows.items() if value is not None)
    database.executemany(f"INSERT OR REPLACE INTO {table} VALUES (?, ?)", put)


def _read_page(found: sqlite3.Cursor, rows: list[Row]) -> bool:
    """Appends the rows that are found; True when there are no more."""
    size = 0
    try:
        for row in found:
            rows.append(row)
            size += len(row[1])
            if len(rows) == PAGE_ROWS or size >= PAGE_BYTES:
                return False
        return True
    finally:
        found.close()


def _read_damaged(path: Path) -> Iterator[Write]:
    """What can be read of a damaged file: each table from both ends up to its first damaged page."""
    database = sqlite3.connect(path, isolation_level=None)
    try:
        for family in FAMILIES:
            last = None
            for key, value in _read_until_damage(database, family, "ASC"):
                yield family, key, value
                last = key
            for key, value in _read_until_damage(database, family, "DESC"):
                if last is not None and key <= last:
                    break
                yield family, key, value
    finally:
        database.close()


def _read_until_damage(database: sqlite3.Connection, family: str, order: str) -> Iterator[Row]:
    try:
        for key, value in database.execute(f"SELECT key, value FROM {_table(family)} ORDER BY key {order}"):
            if isinstance(key, bytes) and isinstance(value, bytes):
                yield key, value
    except sqlite3.DatabaseError:
        return
