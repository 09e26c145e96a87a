"""A consistent copy of a running store, with the messages of its streams.

Made on the keeper's thread, between two commits, so it has all that was acknowledged before and nothing by
halves. Files that never change are linked, not copied: a copy takes little room until the store has rewritten
them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tidemq.errors import StoreError, UsageError
from tidemq.store import CopyableStore, Store
from tidemq.store.directory import explain, sync_directory
from tidemq.stream import Streams

FOLDER = "backups"  # in the data directory: links do not go beyond a file system
BACKUPS_MAX = 20
_UNFINISHED = ".unfinished"


@dataclass(frozen=True, slots=True)
class Backup:
    """A copy; `size_bytes` counts what it shares with the store, too."""

    name: str
    path: Path
    made: datetime
    size_bytes: int


def backups_in(data: Path) -> list[Backup]:
    """Those of a data directory, the newest last."""
    folder = data / FOLDER
    if not folder.is_dir():
        return []
    found = [_described(each) for each in folder.iterdir() if each.suffix != _UNFINISHED]
    return sorted(found, key=lambda each: each.made)


def make_backup(store: Store, streams: Streams | None, data: Path, name: str) -> Backup:
    """To be called on the thread that uses the store. UsageError where there is one of this name, or too
    many; StoreError where it cannot be made, and then nothing of it is left.
    """
    if not isinstance(store, CopyableStore):
        raise UsageError("this store has no files that could be copied")
    final = data / FOLDER / name
    if final.exists():
        raise UsageError(f"there is a backup {name!r} already; accepted: another name")
    if len(backups_in(data)) >= BACKUPS_MAX:
        raise UsageError(f"there are {BACKUPS_MAX} backups in {data / FOLDER}; accepted: one less")
    unfinished = final.with_suffix(_UNFINISHED)
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        unfinished.mkdir(mode=0o700, parents=True)
        store.copy_to(unfinished)
        for log_folder, segments in _segments(streams):
            _link(log_folder, segments, unfinished / "streams" / log_folder.name)
        sync_directory(unfinished)
        unfinished.rename(final)
        sync_directory(final.parent)
        sync_directory(data)
    except (OSError, StoreError) as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise explain("the backup cannot be made", error) from error
    return _described(final)


def _segments(streams: Streams | None) -> Iterator[tuple[Path, list[Path]]]:
    """The files in which the streams' messages are, by folder."""
    for stream in streams.all.values() if streams is not None else ():
        log = stream.log
        yield log.folder, [log.segment_path(number) for number in sorted({e.segment for e in log.extents})]


def _link(folder: Path, files: list[Path], to: Path) -> None:
    """What is appended to a file later is in nobody's way: the store's rows say how far its messages go."""
    to.mkdir(parents=True, mode=0o700)
    for file in files:
        os.link(folder / file, to / file.name)
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    sync_directory(to)


def _described(path: Path) -> Backup:
    files = [each.stat() for each in path.rglob("*") if each.is_file()]
    made = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    return Backup(path.name, path, made, sum(each.st_size for each in files))
