"""The data directory: who uses it, which engine it belongs to, and what was set aside as damaged.

lock        locked while a process uses the directory; its text is that process's id
engine      name of the engine whose files these are
families    ids of RocksDB's column families, without which its log cannot be read
rocksdb/    files of the engine `rocksdb`
sqlite/     files of the engine `sqlite`
corrupt/    damaged files, kept for whoever wants to look at them
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import stat
import time
from contextlib import suppress
from pathlib import Path

from tidemq.errors import StoreError, StoreFullError

ENGINES = ("rocksdb", "sqlite")

_log = logging.getLogger("tidemq.store")


class DataDirectory:
    """A directory that one store at a time uses; `acquire` takes it, `release` gives it back."""

    def __init__(self, path: Path, engine: str) -> None:
        self.path = path
        self.files = path / engine
        self._engine = engine
        self._lock: int | None = None

    def acquire(self) -> None:
        """Makes the directory if there is none, and locks it; StoreError when it cannot be used."""
        if self._lock is not None:
            raise StoreError(f"the store in {self.path} is open already")
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = _lock(self.path)
            self._claim()
            self.files.mkdir(mode=0o700, exist_ok=True)
            # what is synced in a folder is safe only once the folder itself is
            sync_directory(self.path)
            sync_directory(self.path.absolute().parent)
            if mode := stat.S_IMODE(self.path.stat().st_mode) & 0o077:
                text = "the data directory %s can be opened by others (mode %04o): chmod -R go= %s"
                _log.warning(text, self.path, 0o700 | mode, self.path)
        except OSError as error:
            self.release()
            raise explain(f"the data directory {self.path} cannot be used", error) from error
        except StoreError:
            self.release()
            raise

    def release(self) -> None:
        """Unlocks the directory; may be called twice."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def set_aside(self, path: Path, *, keep: bool = False) -> Path:
        """Moves (with `keep`, copies) a damaged file to `corrupt/`, under a new name; gives its place."""
        folder = self.path / "corrupt"
        folder.mkdir(mode=0o700, exist_ok=True)
        place = folder / f"{time.time_ns()}-{path.name}"
        if keep:
            shutil.copyfile(path, place)
        else:
            path.rename(place)
        return place

    def copy_names_to(self, folder: Path) -> None:
        """Writes what stands beside the engine's files into another data directory."""
        replace_file(folder / "engine", self._engine.encode())
        families = self.path / "families"
        if families.exists():
            replace_file(folder / "families", families.read_bytes())

    def size_bytes(self) -> int:
        """The sizes of the engine's files; StoreError when they cannot be read."""
        size = 0
        try:
            with os.scandir(self.files) as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):  # the engine has just deleted it
                        size += entry.stat().st_size
        except OSError as error:
            raise explain("the store cannot be read", error) from error
        return size

    def _claim(self) -> None:
        """Writes the engine's name into an empty directory; StoreError where another engine's is found."""
        found = find_engine(self.path)
        if found == self._engine:
            return
        if found is not None:
            raise StoreError(
                f"the data directory {self.path} belongs to the store {found!r}, not to {self._engine!r}; "
                "`tidemq store migrate` brings it from one to the other"
            )
        replace_file(self.path / "engine", self._engine.encode())


def find_engine(path: Path) -> str | None:
    """The engine that a data directory belongs to; None when it belongs to none yet.

    Where the file that says so is lost, the engine's own folder says it.
    """
    try:
        named = (path / "engine").read_text(errors="replace")
    except FileNotFoundError:
        named = ""
    if named in ENGINES:
        return named
    folders = [engine for engine in ENGINES if (path / engine).is_dir()]
    if not named and not folders:
        return None
    if len(folders) != 1:
        raise StoreError(f"{path / 'engine'} says {named[:40]!r}; this version knows {', '.join(ENGINES)}")
    return folders[0]


def explain(what: str, error: Exception) -> StoreError:
    """The StoreError for an engine's or the system's error."""
    text = str(error)
    full = ("No space left", "Disk quota exceeded", "disk is full")
    kind = StoreFullError if any(each in text for each in full) else StoreError
    return kind(f"{what}: {text}")


def replace_file(path: Path, content: bytes) -> None:
    """Writes a whole file, durably; after a crash it is as before or as meant."""
    written = path.with_name(f"{path.name}.new")
    with written.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    written.rename(path)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Makes new names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _lock(path: Path) -> int:
    descriptor = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(descriptor, 20).decode(errors="replace")
        os.close(descriptor)
        raise StoreError(f"the data directory {path} is in use by process {holder or '?'}") from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    return descriptor
