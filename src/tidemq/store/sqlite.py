"""The store on SQLite, for where RocksDB cannot run: one table per family, in one file."""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from tidemq.config import Config
from tidemq.errors import StoreError
from tidemq.store.directory import DataDirectory, explain, sync_directory
from tidemq.store.interface import DAMAGE_COUNTERS, FAMILIES, FORMAT, Row, Write, check_format, prefix_end
from tidemq.store.sqlite_log import Frames, judge_log, read_index
from tidemq.store.sqlite_pages import read_rows
from tidemq.store.sync_note import SyncNote

ENGINE = "sqlite"
FILE = "tidemq.db"
PAGE_ROWS = 512  # that a scan reads at once; between two pages it holds no transaction
PAGE_BYTES = 1 << 20
CACHE_KIB = 32 << 10
LOG_PIECE_BYTES = 1 << 20
KEYS_MAX = 500  # of one SELECT

log = logging.getLogger("tidemq.store")

T = TypeVar("T")


class FrozenSQLite:
    """As `Frozen`: a connection in a transaction that only reads."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database: sqlite3.Connection | None = database
        self._lock = threading.Lock()  # over each read: who closes waits for it

    @property
    def is_open(self) -> bool:
        """Whether it can be read."""
        return self._database is not None

    def get(self, family: str, key: bytes) -> bytes | None:
        """As in `Store`."""
        return self.get_many(family, [key])[0]

    def get_many(self, family: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """As in `Store`."""
        return _get_many(self._read, family, keys)

    def scan(self, family: str, prefix: bytes = b"", after: bytes = b"") -> Iterator[Row]:
        """As in `Store`."""
        return _scan(self._read, family, prefix, after)

    def close(self) -> None:
        """As in `Frozen`."""
        with self._lock:
            if self._database is not None:
                self._database.close()
            self._database = None

    def _read(self, read: Callable[[sqlite3.Connection], T]) -> T:
        with self._lock:
            if self._database is None:
                raise StoreError("the store was closed, or what was frozen of it")
            try:
                return read(self._database)
            except sqlite3.Error as error:
                raise explain("the store cannot be read", error) from error


class SQLiteStore:
    """Keeps rows in a SQLite file below a data directory. `strict` refuses to open what is damaged;
    `formats` are those of rows that it opens.
    """

    def __init__(self, path: Path, *, strict: bool = False, formats: Collection[bytes] = (FORMAT,)) -> None:
        self._directory = DataDirectory(path, ENGINE)
        self._strict = strict
        self._formats = formats
        self._database: sqlite3.Connection | None = None
        self._note = SyncNote(self._directory.files / "synced")
        self._index = -1  # descriptor of the log's
        self._synced = Frames()  # of the log
        self.counts = Counter(dict.fromkeys(DAMAGE_COUNTERS, 0))  # among the broker's
        self._failure: StoreError | None = None  # of the last write: the database must be opened anew
        self._frozen: list[FrozenSQLite] = []  # some may be closed
        self._damaged = False  # the file has a page that could not be read
        self._unmended = False  # and what can be read of it could not be copied

    def open(self) -> list[str]:
        """Locks the directory and opens the file; gives a line for each thing set aside."""
        self._directory.acquire()
        try:
            lines = self._open_mending()
            check_format(self, self._directory.path, self._formats)
        except StoreError:
            self.close()
            raise
        return lines

    def write(self, batch: Sequence[Write], *, sync: bool) -> None:
        """Applies the batch; KeyError on an unknown family before anything is changed."""
        if self._failure is not None:
            self._repair()
        database = self._opened()
        rows = _group(batch)
        try:
            # of commits only: in the other mode the file is forced to the disk by checkpoints alone
            database.execute(f"PRAGMA synchronous={'FULL' if sync else 'NORMAL'}")
            database.execute("BEGIN IMMEDIATE")
            _apply(database, rows)
            database.execute("COMMIT")
            self._note_written(synced=sync)
        except sqlite3.Error as error:
            with suppress(sqlite3.Error):  # reads must not see what was not committed
                database.rollback()
            self._failure = self._explain("the store cannot be written", error)
            raise self._failure from error

    def sync(self) -> None:
        """Forces the write-ahead log to the disk."""
        if self._failure is not None:
            self._repair()
        self._opened()
        try:
            self._sync_log()
        except OSError as error:
            self._failure = explain("the store cannot be written", error)
            raise self._failure from error

    def get(self, family: str, key: bytes) -> bytes | None:
        """The value of a key; None when there is none."""
        return self.get_many(family, [key])[0]

    def get_many(self, family: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of many keys, in their order."""
        return _get_many(self._read, family, keys)

    def scan(self, family: str, prefix: bytes = b"", after: bytes = b"") -> Iterator[Row]:
        """Keys that start with `prefix` and come after `after`, in order."""
        return _scan(self._read, family, prefix, after)

    def size_bytes(self) -> int:
        """The sizes of the file and its log."""
        return self._directory.size_bytes()

    def copy_to(self, folder: Path) -> None:
        """A whole new file, without free pages."""
        target = folder / ENGINE
        try:
            target.mkdir(mode=0o700)
            self._opened().execute("VACUUM INTO ?", (str(target / FILE),))
            descriptor = os.open(target / FILE, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
            sync_directory(target)
            self._directory.copy_names_to(folder)
        except sqlite3.Error as error:
            raise self._explain("the store cannot be copied", error) from error
        except OSError as error:
            raise explain("the store cannot be copied", error) from error

    def freeze(self) -> FrozenSQLite:
        """The log keeps what is written meanwhile, and is copied into the file later."""
        self._opened()
        try:
            database = sqlite3.connect(self._file, isolation_level=None, check_same_thread=False)
            database.execute("PRAGMA query_only=1")
            database.execute("BEGIN")
            database.execute(f"SELECT 1 FROM {_table(FAMILIES[0])} LIMIT 1").fetchone()  # it begins with this
        except sqlite3.Error as error:
            raise self._explain("the store cannot be read", error) from error
        frozen = FrozenSQLite(database)
        self._frozen = [*(each for each in self._frozen if each.is_open), frozen]
        return frozen

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
        self._note.close()
        self._damaged = self._unmended = False
        self._directory.release()

    @property
    def _file(self) -> Path:
        return self._directory.files / FILE

    @property
    def _mended(self) -> Path:
        """All that could be read of a damaged file, to take its place."""
        return self._directory.files / "mended.db"

    def _opened(self) -> sqlite3.Connection:
        if self._database is None:
            raise self._failure or StoreError(f"the store in {self._directory.path} is not open")
        return self._database

    def _read(self, read: Callable[[sqlite3.Connection], T]) -> T:
        """What `read` gives. A damaged file is replaced by one with what can be read of it, and it is tried
        again."""
        while True:
            try:
                return read(self._opened())
            except sqlite3.Error as error:
                failure = self._explain("the store cannot be read", error)
                if self._strict or not self._damaged or self._unmended:
                    raise failure from error
            self._open_anew()

    def _sync_log(self) -> None:
        written = read_index(self._index)
        descriptor = os.open(f"{self._file}-wal", os.O_RDONLY)
        try:
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
        self._note_frames(written, synced=True)

    def _note_written(self, *, synced: bool) -> None:
        """Notes how far the log is on the disk, which with `synced` is all of it."""
        if self._index >= 0:  # else nothing is written
            self._note_frames(read_index(self._index), synced=synced)

    def _note_frames(self, written: Frames, *, synced: bool) -> None:
        # after a crash SQLite knows no more what of the log is in the file: what was known of it stays true
        before = self._synced if self._synced.salts == written.salts else Frames()
        count = written.count if synced else before.count
        self._synced = Frames(written.salts, count, max(written.copied, before.copied))
        self._note.write(self._synced.copied, {written.salts: count})

    def _explain(self, what: str, error: sqlite3.Error) -> StoreError:
        """The StoreError for an error of SQLite's; that the file is damaged is remembered."""
        self._damaged = self._damaged or _is_damage(error)
        return explain(what, error)

    def _open_mending(self) -> list[str]:
        """Opens the file; where it is damaged, a new one with what can be read of it."""
        lines = []
        try:
            if self._damaged:
                self._damaged = False
                if not self._mended.exists():
                    lines.append(self._save_rows())
            if self._mended.exists():  # a crash may have come in between
                lines += self._replace_file()
            else:
                lines += self._read_log()
            self._write_log_again()
        except OSError as error:
            raise explain(f"the store in {self._directory.path} cannot be opened", error) from error
        try:
            self._open_file()
        except StoreError:
            if self._strict or not self._damaged:
                raise
            return lines + self._open_mending()
        self._failure = None
        self._unmended = False
        self.counts["store_damaged"] += len(lines)
        return lines

    def _open_file(self) -> None:
        self._database = self._connect(self._file)
        try:
            self._index = os.open(f"{self._file}-shm", os.O_RDONLY | os.O_CLOEXEC)
            self._note.open(self._synced.copied, {self._synced.salts: 0})
            self._sync_log()
        except OSError as error:
            self._close_database()
            raise explain(f"the store in {self._directory.path} cannot be opened", error) from error

    def _read_log(self) -> list[str]:
        """What is wrong with the log, of which SQLite says nothing; StoreError where the store is strict."""
        path = Path(f"{self._file}-wal")
        try:
            noted = self._note.read()
            verdict = judge_log(path, noted)
            self._synced = Frames(next(iter(noted.lengths), 0), 0, noted.position)
        except StoreError as error:
            if self._strict:
                raise
            return [str(error)]
        if not verdict.line:
            return []
        lost = f"at least {verdict.lost} pages are lost"
        if self._strict:
            raise StoreError(f"{verdict.line}; {lost}")
        self.counts["store_log_lost"] += verdict.lost
        if not path.exists():
            return [f"{verdict.line}; {lost}"]
        place = self._directory.set_aside(path, keep=not verdict.drop)
        return [f"{verdict.line}; {'moved' if verdict.drop else 'copied'} to {place}; {lost}"]

    def _write_log_again(self) -> None:
        """Makes what can be read of the log durable, so that no later page stands behind one that is not.

        The bytes of a sync that failed are in the system's memory, where they look as if they were on the
        disk: a later sync that succeeds does not bring them there (Rebello et al., "Can Applications Recover
        from fsync Failures?", USENIX ATC 2020).
        """
        with suppress(FileNotFoundError), Path(f"{self._file}-wal").open("r+b", buffering=0) as file:
            at = 0
            while piece := os.pread(file.fileno(), LOG_PIECE_BYTES, at):
                at += os.pwrite(file.fileno(), piece, at)
            os.fdatasync(file.fileno())

    def _save_rows(self) -> str:
        """Makes a file of what can be read of the damaged one."""
        unfinished = self._file.with_name("unfinished")
        unfinished.unlink(missing_ok=True)
        try:
            saved = _make_file(unfinished, read_rows(self._file, self._find_roots()))
            unfinished.rename(self._mended)
        except sqlite3.Error as error:
            raise self._explain("the store cannot be written", error) from error
        finally:
            unfinished.unlink(missing_ok=True)  # it may have taken the last room there was
        sync_directory(self._directory.files)
        return f"{self._file} was damaged: {saved} rows of it could be read"

    def _find_roots(self) -> dict[str, int]:
        """Brings the log into the damaged file; gives the first pages of its tables.

        Where the file's own first page is damaged they are where every file has them, and what is in the log
        alone cannot be had.
        """
        database = sqlite3.connect(self._file, isolation_level=None)
        try:
            query = "SELECT name, rootpage FROM sqlite_master WHERE type = 'table'"
            roots = {name: page for name, page in database.execute(query) if name in FAMILIES}
            busy, frames, copied = database.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            if busy or frames != copied:
                raise StoreError(f"{self._file} is damaged, and in use by another program")
            self._note.remove()  # closing may remove the log, of which nothing is needed now
            return roots
        except sqlite3.DatabaseError as error:
            if not _is_damage(error):
                raise
            return {family: number for number, family in enumerate(FAMILIES, 2)}
        finally:
            database.close()

    def _replace_file(self) -> list[str]:
        lines = []
        if self._file.exists():
            place = self._directory.set_aside(self._file)
            lines.append(f"{self._file} is set aside as {place}")
            for suffix in ("-wal", "-shm"):  # SQLite looks for them under the file's name
                if (path := Path(f"{self._file}{suffix}")).exists():
                    path.rename(f"{place}{suffix}")
        self._mended.rename(self._file)
        sync_directory(self._directory.files)
        return lines

    def _connect(self, path: Path) -> sqlite3.Connection:
        database = None
        try:
            # used from one thread at a time, but not always from the same one
            database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            database.execute(f"PRAGMA cache_size=-{CACHE_KIB}")
            database.execute("PRAGMA journal_mode=WAL")
            _make_tables(database)
            return database
        except sqlite3.Error as error:
            if database is not None:
                database.close()
            raise self._explain(f"the store in {self._directory.path} cannot be opened", error) from error

    def _close_database(self) -> None:
        for frozen in self._frozen:
            frozen.close()
        self._frozen.clear()
        database, self._database = self._database, None
        if database is None:
            return
        try:
            if self._failure is not None:  # what is brought into the file must be whole in the log
                self._write_log_again()
            # closing removes the log: by then it must be noted that nothing in it is needed
            database.execute("PRAGMA wal_checkpoint(PASSIVE)")
            self._note_written(synced=False)
        except (OSError, sqlite3.Error) as error:  # nothing is lost: it is in the log
            log.warning("the store's log cannot be brought into its file: %s", error)
        if self._index >= 0:
            os.close(self._index)
            self._index = -1
        try:
            database.close()
        except sqlite3.Error as error:
            log.warning("the store was not closed well: %s", error)

    def _repair(self) -> None:
        """Opens the file anew, which rolls back what was not committed."""
        self._open_anew()
        log.info("the store in %s is opened anew after a failed write", self._directory.path)

    def _open_anew(self) -> None:
        """Opens the file again, or one with what can be read of it where it is known to be damaged."""
        if self._damaged and self._strict:
            raise StoreError(f"the store in {self._directory.path} is damaged: {self._file}")
        damaged = self._damaged
        self._close_database()
        try:
            lines = self._open_mending()
        except StoreError as error:
            self._failure = error
            if damaged or self._damaged:
                self._read_on()
            raise
        for line in lines:
            log.warning("%s", line)

    def _read_on(self) -> None:
        """Opens a damaged file as it is, only to be read: the next write tries again to mend it."""
        self._damaged = self._unmended = True
        if not self._mended.exists():
            with suppress(StoreError):
                self._open_file()


def make_sqlite_store(config: Config, _: Mapping[str, Any]) -> SQLiteStore:
    """The entry point `sqlite`."""
    return SQLiteStore(config.data, strict=config.store_strict)


def _is_damage(error: sqlite3.Error) -> bool:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _table(family: str) -> str:
    """The family's table, quoted because "reference" is a word of SQL's; KeyError when there is none."""
    if family not in FAMILIES:
        raise KeyError(family)
    return f'"{family}"'


def _make_tables(database: sqlite3.Connection) -> None:
    for family in FAMILIES:
        columns = "key BLOB PRIMARY KEY, value BLOB NOT NULL"
        database.execute(f"CREATE TABLE IF NOT EXISTS {_table(family)} ({columns}) WITHOUT ROWID")


def _group(batch: Iterable[Write]) -> dict[str, dict[bytes, bytes | None]]:
    """The last write to each key, by family; KeyError on an unknown one."""
    last: dict[str, dict[bytes, bytes | None]] = {family: {} for family in FAMILIES}
    for family, key, value in batch:
        last[family][key] = value
    return last


def _apply(database: sqlite3.Connection, written: Mapping[str, Mapping[bytes, bytes | None]]) -> None:
    for family, rows in written.items():
        table = _table(family)
        deleted = [(key,) for key, value in rows.items() if value is None]
        put = [(key, value) for key, value in rows.items() if value is not None]
        if deleted:
            database.executemany(f"DELETE FROM {table} WHERE key = ?", deleted)
        if put:
            database.executemany(f"INSERT OR REPLACE INTO {table} VALUES (?, ?)", put)


def _fetch_all(database: sqlite3.Connection, query: str, values: Sequence[bytes]) -> list[Row]:
    return database.execute(query, values).fetchall()


Reads = Callable[[Callable[[sqlite3.Connection], Any]], Any]


def _get_many(read: Reads, family: str, keys: Sequence[bytes]) -> list[bytes | None]:
    table = _table(family)
    found: dict[bytes, bytes] = {}
    for start in range(0, len(keys), KEYS_MAX):
        some = keys[start : start + KEYS_MAX]
        query = f"SELECT key, value FROM {table} WHERE key IN ({','.join('?' * len(some))})"
        found.update(read(partial(_fetch_all, query=query, values=some)))
    return [found.get(key) for key in keys]


def _scan(read: Reads, family: str, prefix: bytes, after: bytes) -> Iterator[Row]:
    end = prefix_end(prefix)
    bounds = [] if end is None else [end]
    before_end = "AND key < ?" if bounds else ""
    query = f"SELECT key, value FROM {_table(family)} WHERE key >= ? {before_end} ORDER BY key"
    start = max(prefix, after + b"\0") if after else prefix
    whole = False
    while not whole:
        page, whole = read(partial(_fetch_page, query=query, values=[start, *bounds]))
        if page:
            start = page[-1][0] + b"\0"
        yield from page


def _fetch_page(database: sqlite3.Connection, query: str, values: Sequence[bytes]) -> tuple[list[Row], bool]:
    """The rows that a query finds, up to a page; and whether that is all of them."""
    rows: list[Row] = []
    size = 0
    for row in database.execute(query, values):
        if len(rows) == PAGE_ROWS or size >= PAGE_BYTES:
            return rows, False
        rows.append(row)
        size += len(row[1])
    return rows, True


def _make_file(path: Path, rows: Iterator[Write]) -> int:
    """Makes a file of these rows, durably, and without a log; how many they are."""
    database = sqlite3.connect(path, isolation_level=None)
    count = 0
    try:
        database.execute("PRAGMA journal_mode=OFF")
        database.execute("PRAGMA synchronous=OFF")
        _make_tables(database)
        while batch := list(islice(rows, PAGE_ROWS)):
            database.execute("BEGIN")
            _apply(database, _group(batch))
            database.execute("COMMIT")
            count += len(batch)
    finally:
        database.close()
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return count
