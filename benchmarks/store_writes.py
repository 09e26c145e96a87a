"""What a synced batch costs the store's thread, in CPU time, and what a start reads its log with.

python benchmarks/store_writes.py --batches 3000 --rows 10
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from tidemq.store import Store
from tidemq.store.rocksdb import RocksDBStore
from tidemq.store.sqlite import SQLiteStore

ROUNDS = 5


def fill(store: Store, batches: int, rows: int) -> float:
    """CPU time of one batch, in µs; the least of some rounds, for others use the machine as well."""
    value = bytes(100)
    rounds = []
    for _ in range(ROUNDS):
        began = time.thread_time()
        for index in range(batches // ROUNDS):
            store.write([("queue", b"%08d%08d" % (index, row), value) for row in range(rows)], sync=True)
        rounds.append((time.thread_time() - began) / (batches // ROUNDS) * 1e6)
    return min(rounds)


def measure(kind: type[RocksDBStore] | type[SQLiteStore], batches: int, rows: int) -> None:
    """Fills a store, copies it as a crash would leave it, and opens the copy."""
    with tempfile.TemporaryDirectory() as folder:
        data, copy = Path(folder, "data"), Path(folder, "copy")
        store = kind(data)
        store.open()
        per_batch_us = fill(store, batches, rows)
        shutil.copytree(data, copy)
        store.close()
        log_bytes = max(
            (path.stat().st_size for each in ("*/*.log", "*/*-wal") for path in copy.glob(each)), default=0
        )
        starts = []
        for _ in range(ROUNDS):
            again = Path(shutil.copytree(copy, Path(folder, "again")))
            began = time.process_time()
            opened = kind(again)
            opened.open()
            starts.append(time.process_time() - began)
            opened.close()
            shutil.rmtree(again)
        start_ms = statistics.median(starts) * 1000
        print(f"{kind.__name__}: {per_batch_us:.1f} µs a batch; {start_ms:.0f} ms for {log_bytes >> 10} KiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=3000)
    parser.add_argument("--rows", type=int, default=10, help="of 100 bytes, in each batch")
    arguments = parser.parse_args()
    for kind in (RocksDBStore, SQLiteStore):
        measure(kind, arguments.batches, arguments.rows)


if __name__ == "__main__":
    main()
