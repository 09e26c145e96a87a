"""Stores by the name of their engine, for tools; the broker finds its own by entry point.

Tools open strictly: it is the broker that sets damaged files aside.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path

from tidemq.errors import StoreError
from tidemq.store.directory import ENGINES, find_engine
from tidemq.store.interface import FORMAT, Store


def open_existing(path: Path, formats: Collection[bytes] = (FORMAT,)) -> Store:
    """Opens the store of a data directory; StoreError when there is none, it cannot be opened, or has another
    format than these.
    """
    engine = find_engine(path)
    if engine is None:
        raise StoreError(f"there is no store in {path}")
    store = _make(engine, path, formats)
    store.open()
    return store


def open_empty(path: Path, engine: str) -> Store:
    """Makes a store in a directory that is empty or does not exist yet; StoreError when it is neither."""
    if engine not in ENGINES:
        raise StoreError(f"the store {engine!r} is unknown; accepted: {', '.join(ENGINES)}")
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise StoreError(f"{path} is not an empty directory")
    store = _make(engine, path, (FORMAT,))
    store.open()
    return store


def restore_copy(copy: Path, path: Path) -> Store:
    """Opens a copy of a copied data directory, in one that is empty or does not exist yet. StoreError where
    it is none, or cannot be opened.
    """
    engine = find_engine(copy)
    if engine is None:
        raise StoreError(f"there is no copy of a store in {copy}")
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise StoreError(f"{path} is not an empty directory")
    # under its name it is whole
    unfinished = path.with_name(f"{path.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    shutil.copytree(copy, unfinished, ignore=shutil.ignore_patterns("lock", "backups"))
    if path.exists():
        path.rmdir()
    unfinished.rename(path)
    return open_existing(path)


def _make(engine: str, path: Path, formats: Collection[bytes]) -> Store:
    if engine == "rocksdb":
        from tidemq.store.rocksdb import RocksDBStore

        return RocksDBStore(path, strict=True, formats=formats)
    from tidemq.store.sqlite import SQLiteStore

    return SQLiteStore(path, strict=True, formats=formats)
