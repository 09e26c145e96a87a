"""What it takes to look for one row in a store of millions, in CPU time of a `get`.

python benchmarks/store_reads.py --rows 8000000

Half of the rows lie in each of two families, as with messages in queues of a cluster's node. Each look is at
another random key, in the one family and in the other by turns, some for rows that are not there.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path

from tidemq.store.rocksdb import RocksDBStore

BATCH_ROWS = 20_000
LOOKS = 1000
FAMILIES = ("cluster", "payload")


def key_of(family: str, number: int) -> bytes:
    """As long as those of queue entries, and of messages."""
    return (b"q-device-%06d" % (number % 1000) if family == "cluster" else b"") + number.to_bytes(16)


def fill(store: RocksDBStore, rows: int) -> None:
    """So many rows in each family."""
    for first in range(0, rows, BATCH_ROWS):
        numbers = range(first, min(first + BATCH_ROWS, rows))
        store.write(
            [(family, key_of(family, each), bytes(60)) for family in FAMILIES for each in numbers], sync=False
        )


def look_us(store: RocksDBStore, numbers: list[int]) -> float:
    """CPU of one look, in µs; half of them in each family."""
    began = time.process_time()
    for at, number in enumerate(numbers):
        store.get(FAMILIES[at % 2], key_of(FAMILIES[at % 2], number))
    return (time.process_time() - began) / len(numbers) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=8_000_000, help="in both families together")
    rows = parser.parse_args().rows // 2
    choose = random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        store = RocksDBStore(Path(folder))
        store.open()
        fill(store, rows)
        time.sleep(5.0)  # tables are merged
        there = [choose.randrange(rows) for _ in range(LOOKS)]
        absent = [rows + each for each in there]
        for what, numbers in (("that are there", there), ("that are not", absent)):
            print(f"rows {what}: {look_us(store, numbers):.0f} µs")
        store.close()


if __name__ == "__main__":
    main()
