"""The store on RocksDB, by the package `rocksdict`: one column family per family, one write-ahead log.

The batch is written without `sync`, and then the log is forced to the disk through a descriptor of our own:
`rocksdict` keeps the GIL over every call, and a disk may take milliseconds.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from rocksdict import (
    BlockBasedIndexType,
    BlockBasedOptions,
    Cache,
    Checkpoint,
    ColumnFamily,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    RdictIter,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from tidemq.config import Config
from tidemq.errors import StoreError, StoreFullError
from tidemq.store.damage import (
    HELD,
    copy_logs,
    defuse_logs,
    drop_table,
    find_tables,
    is_damage,
    is_log_damage,
    is_new,
    mend_manifest,
    record_families,
)
from tidemq.store.directory import DataDirectory, explain, replace_file, sync_directory
from tidemq.store.interface import DAMAGE_COUNTERS, FAMILIES, FORMAT, Row, Write, check_format, prefix_end
from tidemq.store.log_reading import judge_logs
from tidemq.store.sync_note import Synced, SyncNote

ENGINE = "rocksdb"
PAGE_ROWS = 512  # that a scan reads at once; between two pages it holds nothing of the database
PAGE_BYTES = 1 << 20
FROZEN_PAGE_ROWS = 128  # 0.1 ms: who reads beside the broker lets it go on in between
STALL_S = 0.001  # between two tries while RocksDB wants to flush or compact first
ROOM_BYTES = 8 << 20  # beyond the log's size: what reopening writes

# memory: 64 MiB of memtables and 32 MiB of blocks, indexes and filters; what is being flushed comes on top
MEMTABLES_BYTES = 64 << 20
MEMTABLE_BYTES = 16 << 20
CACHE_BYTES = 32 << 20
WAL_BYTES_MAX = 96 << 20  # replayed at a start after a crash, about a second
OPEN_FILES_MAX = 256
LOG_CUT_OFF = "the write-ahead log ends in the middle of a write, as after a power failure; it is left out"
L0_FILES_MAX = 36
TOLERANT = DBRecoveryMode.tolerate_corrupted_tail_records()
SKIPPING = DBRecoveryMode.skip_any_corrupted_record()

log = logging.getLogger("tidemq.store")

T = TypeVar("T")


class FrozenRocksDB:
    """As `Frozen`: an iterator over each family, all made at one moment, which is what they show. (That of a
    `Snapshot` of `rocksdict` 0.3.29 shows what is there when it is made.) Tables and memtables of that moment
    stay meanwhile. The iterators keep the database open, so nothing may refer to them after `close`.
    """

    def __init__(self, families: Mapping[str, RdictIter]) -> None:
        self._families = dict(families)
        self._lock = threading.Lock()  # over each read: who closes waits for it

    @property
    def is_open(self) -> bool:
        """Whether it can be read."""
        return bool(self._families)

    def get(self, family: str, key: bytes) -> bytes | None:
        """As in `Store`."""
        return self.get_many(family, [key])[0]

    def get_many(self, family: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """As in `Store`."""
        return self._read(family, partial(_find_each, keys=keys))

    def scan(self, family: str, prefix: bytes = b"", after: bytes = b"") -> Iterator[Row]:
        """As in `Store`."""
        end = prefix_end(prefix)
        return _scan(lambda start: self._read(family, partial(_go_on, start=start, end=end)), prefix, after)

    def close(self) -> None:
        """As in `Frozen`."""
        with self._lock:
            self._families.clear()

    def _read(self, family: str, read: Callable[[RdictIter], T]) -> T:
        with self._lock:
            if not self._families:
                raise StoreError("the store was closed, or what was frozen of it")
            try:
                return read(self._families[family])
            except Exception as error:  # noqa: BLE001 - rocksdict has no class of its own
                failure = explain("the store cannot be read", error)
        raise failure  # without the error, whose traceback refers to the iterator


class RocksDBStore:
    """Keeps rows in RocksDB below a data directory. `strict` refuses to open what is damaged;
    `formats` are those of rows that it opens.
    """

    def __init__(self, path: Path, *, strict: bool = False, formats: Collection[bytes] = (FORMAT,)) -> None:
        self._directory = DataDirectory(path, ENGINE)
        self._strict = strict
        self._formats = formats
        self._cache = Cache(CACHE_BYTES)
        self._unsynced = WriteOptions()
        self._unsynced.no_slowdown = True  # "incomplete" rather than sleep with the GIL
        self._database: Rdict | None = None
        self._families: dict[str, Rdict] = {}
        self._handles: dict[str, ColumnFamily] = {}
        self._ended_logs: set[str] = set()  # on the disk, and not written any more
        self._newest_log = ""  # its name is on the disk
        self._note = SyncNote(self._directory.files / "synced")
        self._lengths: dict[int, int] = {}  # of logs, by number: as far as they are on the disk
        self._failure: StoreError | None = None  # of the last write: the database must be opened anew
        self._damaged: set[int] = set()  # numbers of tables that could not be read
        self._frozen: list[FrozenRocksDB] = []  # some may be closed
        self.counts = Counter(dict.fromkeys(DAMAGE_COUNTERS, 0))  # among the broker's

    def open(self) -> list[str]:
        """Locks the directory and opens the database; gives a line for each thing set aside."""
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
        try:
            prepared = self._prepare(batch)
            while not _apply(database, prepared, self._unsynced):
                time.sleep(STALL_S)  # without the GIL, which RocksDB would keep while it waits
                prepared = self._prepare(batch)
            if sync:
                self._sync_logs()
        except KeyError:
            raise
        except Exception as error:
            self._failure = self._explain("the store cannot be written", error)
            raise self._failure from error

    def sync(self) -> None:
        """Forces the write-ahead log to the disk."""
        if self._failure is not None:
            self._repair()
        self._opened()
        try:
            self._sync_logs()
        except Exception as error:
            self._failure = explain("the store cannot be written", error)
            raise self._failure from error

    def get(self, family: str, key: bytes) -> bytes | None:
        """The value of a key; None when there is none."""
        value: bytes | None = self._read(family, lambda rows: rows.get(key))
        return value

    def get_many(self, family: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of many keys, in their order."""
        wanted: list[Any] = list(keys)
        values: Any = self._read(family, lambda rows: rows.get(wanted))
        return list(values)

    def scan(self, family: str, prefix: bytes = b"", after: bytes = b"") -> Iterator[Row]:
        """Keys that start with `prefix` and come after `after`, in order."""
        options = ReadOptions()
        if (end := prefix_end(prefix)) is not None:
            options.set_iterate_upper_bound(end)
        read = partial(_read_page, options=options)
        return _scan(lambda start: self._read(family, partial(read, start=start)), prefix, after)

    def size_bytes(self) -> int:
        """The sizes of tables and logs."""
        return self._directory.size_bytes()

    def copy_to(self, folder: Path) -> None:
        """A checkpoint: RocksDB writes its memtables into tables and links them, and keeps the GIL."""
        database = self._opened()
        target = folder / ENGINE
        try:
            Checkpoint(database).create_checkpoint(str(target))
            target.chmod(0o700)
            settings = self._directory.files / "rocksdict-config.json"
            replace_file(target / settings.name, settings.read_bytes())
            self._directory.copy_names_to(folder)
        except Exception as error:
            raise self._explain("the store cannot be copied", error) from error

    def freeze(self) -> FrozenRocksDB:
        """An iterator over each family; nobody writes meanwhile, so they show one moment."""
        self._opened()
        options = ReadOptions()
        options.fill_cache(False)  # type: ignore[call-arg]  # the stub has no argument
        try:
            frozen = FrozenRocksDB({name: each.iter(options) for name, each in self._families.items()})
        except Exception as error:
            raise self._explain("the store cannot be read", error) from error
        self._frozen = [*(each for each in self._frozen if each.is_open), frozen]
        return frozen

    def compact(self) -> None:
        """Rewrites every table without deleted rows; holds the GIL meanwhile."""
        self._opened()
        try:
            for family in self._families.values():
                family.flush()
                family.compact_range(None, None)
        except Exception as error:
            raise self._explain("the store cannot be compacted", error) from error

    def close(self) -> None:
        """Flushes, closes the database, unlocks the directory."""
        self._close_database()
        self._note.close()
        self._damaged.clear()
        self._directory.release()

    def _opened(self) -> Rdict:
        if self._database is None:
            raise self._failure or StoreError(f"the store in {self._directory.path} is not open")
        return self._database

    def _read(self, family: str, read: Callable[[Rdict], T]) -> T:
        """What `read` gives of a family; a damaged table that it meets is set aside, and it tries again."""
        while True:
            self._opened()
            rows = self._families[family]
            try:
                return read(rows)
            except Exception as error:
                failure = self._explain("the store cannot be read", error)
                if self._strict or not self._damaged:
                    raise failure from error
            del rows  # it keeps the database open
            self._open_anew()

    def _explain(self, what: str, error: Exception) -> StoreError:
        """The StoreError for an error of RocksDB's; a damaged table that it names is remembered."""
        self._damaged.update(find_tables(str(error)))
        return explain(what, error)

    def _open_mending(self) -> list[str]:
        """Opens the database, without what is damaged; gives a line for each thing taken out."""
        try:
            return self._mend_until_open()
        except OSError as error:
            raise explain(f"the store in {self._directory.path} cannot be opened", error) from error

    def _mend_until_open(self) -> list[str]:
        """Opens the database, taking out one damaged thing after the other until that succeeds."""
        lines = defuse_logs(self._directory, strict=self._strict)
        interrupted = (self._directory.files / HELD).exists()
        read, recovery = ([], TOLERANT) if interrupted else self._read_logs()
        lines += read
        if interrupted:
            lines += mend_manifest(self._directory)
        else:
            lines += [drop_table(self._directory, number) for number in sorted(self._damaged)]
        mended: set[str] = set()
        while True:
            self._damaged.clear()
            try:
                self._open_database(recovery)
            except StoreError as error:
                text = str(error)
                if self._strict or text in mended or not is_damage(text):
                    raise
                mended.add(text)
            else:
                self._note.open()
                self.counts["store_damaged"] += len([line for line in lines if line != LOG_CUT_OFF])
                return lines
            if is_log_damage(text):
                lines.append(copy_logs(self._directory))
                recovery = SKIPPING
            elif tables := find_tables(text):
                lines += [drop_table(self._directory, number) for number in tables]
            else:
                lines += mend_manifest(self._directory)

    def _read_logs(self) -> tuple[list[str], DBRecoveryMode]:
        """What is wrong with the logs, a line for each, and how RocksDB is to read them: of zeros, and of an
        end that is missing, it says nothing itself. StoreError when rows are lost and the store is strict.
        """
        try:
            synced, lines = self._note.read(), []
        except StoreError as error:
            if self._strict:
                raise
            synced, lines = Synced(), [str(error)]
        verdict = judge_logs(self._directory.files, synced)
        if not verdict.lines:
            cut_off = [LOG_CUT_OFF] if verdict.cut_off else []
            return lines + cut_off, SKIPPING if cut_off else TOLERANT
        lost = f"at least {verdict.lost} rows are lost"
        if self._strict:
            raise StoreError(f"{'; '.join(verdict.lines)}; {lost}")
        self.counts["store_log_lost"] += verdict.lost
        return [*lines, *verdict.lines, f"{copy_logs(self._directory)}; {lost}"], SKIPPING

    def _open_database(self, recovery: DBRecoveryMode) -> None:
        options = self._make_options(recovery)
        options.create_if_missing(is_new(self._directory.files))  # not where CURRENT alone is missing
        families = dict.fromkeys(FAMILIES, options)
        try:
            self._database = Rdict(str(self._directory.files), options, column_families=families)
            self._families = {name: self._database.get_column_family(name) for name in FAMILIES}
            self._handles = {name: self._database.get_column_family_handle(name) for name in FAMILIES}
            record_families(self._directory, FAMILIES)
        except Exception as error:
            self._close_database()
            raise explain(f"the store in {self._directory.path} cannot be opened", error) from error
        self._failure = None

    def _close_database(self) -> None:
        """Each family keeps the database open, and the traceback of an error may keep a family."""
        for frozen in self._frozen:
            frozen.close()
        self._frozen.clear()
        opened = [*self._families.values(), *([] if self._database is None else [self._database])]
        self._database = None
        self._families.clear()
        self._handles.clear()
        self._ended_logs.clear()
        self._lengths.clear()
        self._newest_log = ""
        for each in opened:
            try:
                each.close()
            except Exception as error:  # noqa: BLE001 - what cannot be flushed is in the log
                if self._failure is None:
                    log.warning("the store was not closed well: %s", error)

    def _repair(self) -> None:
        """RocksDB takes no write after one that failed until it is opened again, which reads its log."""
        assert self._failure is not None
        if isinstance(self._failure, StoreFullError):
            self._require_room()
        self._open_anew()
        log.info("the store in %s takes writes again", self._directory.path)

    def _open_anew(self) -> None:
        """Opens the database again, without tables that are known to be damaged."""
        if self._damaged and self._strict:
            tables = ", ".join(f"{number:06}.sst" for number in sorted(self._damaged))
            raise StoreError(f"the store in {self._directory.path} is damaged: {tables}")
        self._close_database()
        try:
            lines = self._open_mending()
        except StoreError as error:
            self._failure = error
            raise
        for line in lines:
            log.warning("%s", line)

    def _require_room(self) -> None:
        """StoreFullError without room to open the database again: failing in it would end reading as well."""
        logs = sum((self._directory.files / name).stat().st_size for name in self._list_logs())
        found = os.statvfs(self._directory.files)
        free, needed = found.f_bavail * found.f_frsize, logs + ROOM_BYTES
        if free < needed:
            raise StoreFullError(f"{self._failure} ({free} bytes are free, {needed} are needed to go on)")

    def _prepare(self, batch: Sequence[Write]) -> WriteBatch:
        """RocksDB's form of a batch.

        A put costs 0.12 µs here and 0.53 µs in RocksDB's log and memtable (keys of 16 bytes, values of 60).
        Its options change that by no more than noise: unordered_write 0.61, pipelined_write 0.57,
        allow_concurrent_memtable_write off 0.54, memtable_insert_hint_per_batch 0.55.
        """
        handles = self._handles
        prepared = WriteBatch(raw_mode=True)
        put, delete = prepared.put, prepared.delete
        for family, key, value in batch:
            if value is None:
                delete(key, handles[family])
            else:
                put(key, value, handles[family])
        return prepared

    def _sync_logs(self) -> None:
        """Forces to the disk every log that may hold something which is not, and notes how much it holds;
        RocksDB may delete old ones.
        """
        last_row = self._opened().latest_sequence_number()
        logs = self._list_logs()
        if logs[-1] != self._newest_log:
            sync_directory(self._directory.files)
            self._newest_log = logs[-1]
        for name in logs:
            if name not in self._ended_logs:
                self._lengths[_number(name)] = _sync_file(self._directory.files / name)
        self._ended_logs = set(logs[:-1])
        self._lengths = {number: self._lengths[number] for number in map(_number, logs)}
        self._note.write(last_row, self._lengths)

    def _list_logs(self) -> list[str]:
        """The write-ahead logs, oldest first; only the last one is written."""
        names = os.listdir(self._directory.files)
        return sorted((name for name in names if name.endswith(".log")), key=_number)

    def _make_options(self, recovery: DBRecoveryMode) -> Options:
        tables = BlockBasedOptions()
        tables.set_block_cache(self._cache)
        tables.set_cache_index_and_filter_blocks(True)
        tables.set_pin_l0_filter_and_index_blocks_in_cache(True)
        tables.set_bloom_filter(10, False)
        tables.set_block_size(16 << 10)
        # in parts: a filter of millions of rows is larger than the cache, and would be read for each get
        tables.set_index_type(BlockBasedIndexType.two_level_index_search())
        tables.set_partition_filters(True)
        tables.set_metadata_block_size(4 << 10)
        tables.set_pin_top_level_index_and_filter(True)
        options = Options(raw_mode=True)
        options.set_block_based_table_factory(tables)
        options.create_missing_column_families(True)
        options.set_wal_recovery_mode(recovery)
        options.set_max_total_wal_size(WAL_BYTES_MAX)
        options.set_db_write_buffer_size(MEMTABLES_BYTES)
        options.set_write_buffer_size(MEMTABLE_BYTES)
        options.set_max_write_buffer_number(3)
        options.set_allow_concurrent_memtable_write(False)  # one writer
        # RocksDB stops writers or does not; slowing them down is the limits' work
        options.set_level_zero_slowdown_writes_trigger(L0_FILES_MAX)
        options.set_level_zero_stop_writes_trigger(L0_FILES_MAX)
        options.set_soft_pending_compaction_bytes_limit(0)
        options.set_hard_pending_compaction_bytes_limit(0)
        options.set_compression_type(DBCompressionType.lz4())
        options.set_bottommost_compression_type(DBCompressionType.zstd())
        # a table in which half of some 4096 rows in succession are deletions is compacted first: queues that
        # were emptied leave such, and each read from a queue's beginning has to pass them
        options.add_compact_on_deletion_collector_factory(4096, 2048, 0.5)
        options.set_bytes_per_sync(1 << 20)
        options.set_max_open_files(OPEN_FILES_MAX)
        options.set_max_background_jobs(2)
        options.set_keep_log_file_num(3)  # of RocksDB's own text log
        options.set_max_log_file_size(4 << 20)
        options.set_max_manifest_file_size(16 << 20)
        options.set_stats_dump_period_sec(0)
        return options


def make_rocksdb_store(config: Config, _: Mapping[str, Any]) -> RocksDBStore:
    """The entry point `rocksdb`."""
    return RocksDBStore(config.data, strict=config.store_strict)


def _read_page(family: Rdict, start: bytes, options: ReadOptions) -> tuple[list[Row], bool]:
    """Rows from `start` on, and whether that is all of them.

    `Rdict.items` is faster, but ends at a damaged block as if there were no more. The iterator must not be
    reachable from an exception's traceback, for it keeps the database open.
    """
    found = family.iter(options)
    try:
        valid, key, value, step = found.valid, found.key, found.value, found.next
        rows: list[Row] = []
        size = 0
        found.seek(start)
        while valid():
            if len(rows) == PAGE_ROWS or size >= PAGE_BYTES:
                return rows, False
            rows.append((key(), value()))
            size += len(rows[-1][1])
            step()
        found.status()
        return rows, True
    finally:
        del found, valid, key, value, step


def _scan(read: Callable[[bytes], tuple[list[Row], bool]], prefix: bytes, after: bytes) -> Iterator[Row]:
    """All rows, as `read` gives those from a key on, and whether that is all of them."""
    start = max(prefix, after + b"\0") if after else prefix
    whole = False
    while not whole:
        page, whole = read(start)
        if page:
            start = page[-1][0] + b"\0"
        yield from page


def _go_on(found: RdictIter, start: bytes, end: bytes | None) -> tuple[list[Row], bool]:
    """Rows from `start` on and before `end`, and whether that is all of them."""
    key, value, step = found.key, found.value, found.next
    rows: list[Row] = []
    size = 0
    found.seek(start)
    while (name := key()) is not None:
        if end is not None and name >= end:
            return rows, True
        if len(rows) == FROZEN_PAGE_ROWS or size >= PAGE_BYTES:
            return rows, False
        text = value()
        rows.append((name, text))
        size += len(text)
        step()
    found.status()
    return rows, True


def _find_each(found: RdictIter, keys: Sequence[bytes]) -> list[bytes | None]:
    values: list[bytes | None] = []
    for key in keys:
        found.seek(key)
        there = found.valid() and found.key() == key
        values.append(found.value() if there else None)
        if not there:
            found.status()
    return values


def _apply(database: Rdict, prepared: WriteBatch, options: WriteOptions) -> bool:
    """Writes the batch, which can be used once; False when RocksDB wants to flush or compact first."""
    try:
        database.write(prepared, options)
    except Exception as error:
        if "Write stall" in str(error):
            return False
        raise
    return True


def _number(name: str) -> int:
    return int(name.partition(".")[0])


def _sync_file(path: Path) -> int:
    """How many bytes of the file are on the disk now."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return 0  # all of it is in tables by now
    try:
        size = os.fstat(descriptor).st_size
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)
    return size
