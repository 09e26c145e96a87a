"""A soak: `python tests/soak --minutes 60 --seed 1`. Loads of 20 seconds, a rest after each.

All the while it is looked at as operators do, and one client measures how long its messages take. Fails when
the engine does not come back to what it held at first, when memory, files, threads, the data directory or
that time grow from the first third of the rounds to the last, when clients see what no broker may do, when an
operator is refused, when something is logged as an error, and when the store is damaged at the end.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from soak.run import soak

LOAD_S = 20.0
ROUND_S = 33.0  # with its rest


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--store", choices=("rocksdb", "sqlite", "memory"), default="rocksdb")
    given = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        rounds = max(4, round(given.minutes * 60 / ROUND_S))
        outcome = soak(Path(folder), rounds=rounds, load_s=LOAD_S, seed=given.seed, store=given.store)
    print("\n".join(outcome.problems))
    counts = ", ".join(f"{outcome.seen[name]} {name}" for name in ("published", "acknowledged", "resumed"))
    took_s = time.monotonic() - began
    p99 = ", ".join(f"{each * 1e3:.0f}" for each in outcome.p99_s)
    print(f"soak: {len(outcome.samples)} of {rounds} rounds, {took_s:.0f} s, {counts}; p99 in ms: {p99}")
    return 1 if outcome.problems else 0


if __name__ == "__main__":
    sys.exit(main())
