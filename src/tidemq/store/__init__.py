"""Durable state behind one small interface; `memory` is the engine that comes with it."""

from tidemq.store.interface import FAMILIES, Store, Write
from tidemq.store.memory import MemoryStore, make_memory_store

__all__ = ["FAMILIES", "MemoryStore", "Store", "Write", "make_memory_store"]
