"""`make simulate`: many histories of a simulated cluster, each by its seed; a failure names it."""

from __future__ import annotations

import argparse
import gc
import os
import resource
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from cluster.simulation import moving, run

KINDS = {"logs": run.run, "moves": moving.run}
MOVES_EVERY = 10  # of seeds of both kinds one is of moves, which take longer
AT_ONCE = 10  # so that no process is left alone with much at the end
OBJECTS = 100_000  # between two looks for garbage, of which a history makes little


def play(kind: str, seed: int) -> list[str]:
    """The history of a seed, of a kind or, by the seed, of either."""
    return KINDS[kind or ("logs" if seed % MOVES_EVERY else "moves")](seed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--kind", choices=KINDS, default="", help="by default both, by the seed")
    given = parser.parse_args()
    begun, wrong = time.monotonic(), 0
    with ProcessPoolExecutor(os.cpu_count(), initializer=gc.set_threshold, initargs=(OBJECTS,)) as pool:
        seeds = range(given.first, given.first + given.seeds)
        for seed, found in zip(
            seeds, pool.map(partial(play, given.kind), seeds, chunksize=AT_ONCE), strict=True
        ):
            wrong += bool(found)
            for line in found:
                print(f"seed {seed}: {line}", flush=True)
    took_s = time.monotonic() - begun
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    each_ms = (used.ru_utime + used.ru_stime) / given.seeds * 1000
    print(
        f"{given.seeds} histories, {wrong} of them wrong, {given.seeds / took_s * 60:,.0f} a minute,"
        f" {each_ms:.0f} ms of CPU each"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
