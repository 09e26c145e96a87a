"""Makes a store of another one in another directory: of an older format, or for another engine.

The old directory keeps all that it has, so it is the way back. The new one is refused by every broker until
it is whole: its format is `incomplete` until the messages of streams and all rows are on the disk.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tidemq.errors import StoreError, StoreFullError
from tidemq.store.directory import find_engine, sync_directory
from tidemq.store.engines import open_empty, open_existing
from tidemq.store.interface import FORMAT, FORMAT_KEY, Store
from tidemq.store.portable import Entry, fill_store, read_store

Step = Callable[[Iterator[Entry]], Iterator[Entry]]

# For each of `OLDER`: what makes the next format's rows of its rows. They come in the order of `FAMILIES`,
# without the one that names the format.
STEPS: Mapping[bytes, Step] = {}

# what a new store takes, measured with rows of 25 bytes to 60 kB (docs/store.md#upgrade)
ROW_BYTES = 64  # of a row beyond its key and value
ROW_BYTES_LARGE = 900  # from which on SQLite gives a row pages of its own
PAGE_BYTES = 4096
SPARE_BYTES = 16 << 20
TENTHS = 10  # lines of progress


@dataclass
class Size:
    """Rows of a store and the bytes of their keys and values; `large` are rows above `ROW_BYTES_LARGE`."""

    rows: int = 0
    bytes: int = 0
    large: int = 0

    def needed(self, engine: str) -> int:
        """Bytes that a store with these rows takes at most while it is filled."""
        if engine == "rocksdb":  # log and tables
            return 2 * self.bytes + ROW_BYTES * self.rows + SPARE_BYTES
        return self.bytes + ROW_BYTES * self.rows + PAGE_BYTES * self.large + SPARE_BYTES


def migrate_store(data: Path, to: Path, engine: str, say: Callable[[str], None]) -> int:
    """Fills `to`, which must be empty or missing; gives the number of rows. `engine` may be empty: the same.

    Reads everything twice, the first time to learn how much room it needs. `say` gets a line for what is
    found and for each tenth that is done. StoreError when the old store cannot be read or is of a format that
    nobody knows; StoreFullError, before anything is written, when there is not enough room.
    """
    engine = engine or find_engine(data) or ""
    with closing(open_existing(data, formats=(*STEPS, FORMAT))) as old:
        found = old.get("meta", FORMAT_KEY) or b""
        size = _measure(old)
        messages = data / "streams"
        needed = size.needed(engine) + _bytes_below(messages)
        free = shutil.disk_usage(_existing(to)).free
        say(f"{size.rows} rows of format {found.decode()}, up to {needed} bytes of {free} that are free")
        if needed > free:
            raise StoreFullError(f"{to} needs up to {needed} bytes, and {free} are free there")
        with closing(open_empty(to, engine)) as new:
            rows = upgrade(_counted(read_store(old), size.rows, say), found)
            return fill_store(new, rows, first=lambda: _copy_synced(messages, to / "streams"))


def upgrade(rows: Iterator[Entry], found: bytes) -> Iterator[Entry]:
    """Rows of the format `found` as those of this version's."""
    rows = (row for row in rows if row[:2] != ("meta", FORMAT_KEY))
    while found != FORMAT:
        rows = STEPS[found](rows)
        found = b"%d" % (int(found) + 1)
    yield from rows
    yield "meta", FORMAT_KEY, FORMAT


def _measure(store: Store) -> Size:
    size = Size()
    for _, key, value in read_store(store):
        size.rows += 1
        size.bytes += len(key) + len(value)
        size.large += len(key) + len(value) > ROW_BYTES_LARGE
    return size


def _counted(rows: Iterator[Entry], count: int, say: Callable[[str], None]) -> Iterator[Entry]:
    """The same rows; tells of each tenth of so many."""
    for number, row in enumerate(rows, 1):
        yield row
        if number * TENTHS // count > (number - 1) * TENTHS // count:
            say(f"{number} of {count} rows, {number * 100 // count} %")


def _existing(path: Path) -> Path:
    """The nearest folder above that is there."""
    path = path.absolute()
    return next(each for each in (path, *path.parents) if each.exists())


def _bytes_below(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _copy_synced(folder: Path, to: Path) -> None:
    """Copies a folder where there is one, durably."""
    if not folder.is_dir():
        return
    try:
        shutil.copytree(folder, to, copy_function=_copy_file)
        for made in (to, *(path for path in to.rglob("*") if path.is_dir())):
            sync_directory(made)
    except (OSError, shutil.Error) as error:
        raise StoreError(f"the messages of streams cannot be copied: {error}") from error


def _copy_file(source: str, target: str) -> str:
    shutil.copy2(source, target)
    descriptor = os.open(target, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return target
