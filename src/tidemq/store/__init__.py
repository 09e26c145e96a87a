"""Durable state behind one small interface: RocksDB, SQLite, and a model of both in memory.

The engines are modules of their own, `rocksdb` and `sqlite`, so that only the one in use is loaded.
"""

from tidemq.store.interface import (
    FAMILIES,
    FORMAT,
    FORMAT_KEY,
    CopyableStore,
    FreezableStore,
    Frozen,
    Row,
    Store,
    Write,
)
from tidemq.store.memory import MemoryStore, make_memory_store

__all__ = [
    "FAMILIES",
    "FORMAT",
    "FORMAT_KEY",
    "CopyableStore",
    "FreezableStore",
    "Frozen",
    "MemoryStore",
    "Row",
    "Store",
    "Write",
    "make_memory_store",
]
