"""Crash tests by seed: `python tests/crash --seed 1 --runs 300`; with wills that are due when the broker is
killed: `python tests/crash --wills 300 --seed 1 --runs 20`.

Ends with one line of summary, and with status 1 where a run has failed; a failure is printed at once, with
the command that repeats it.
"""

from __future__ import annotations

import argparse
import collections
import shutil
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from crash.chaos import FAULTS
from crash.disk import compile_layer
from crash.run import Choice, Outcome, play
from crash.wills import play_wills, summary_of_wills


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Crash tests by seed.")
    parser.add_argument("--seed", type=int, default=1, help="of the first run")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--faults", choices=(*FAULTS, "none"), default="", help="one kind only")
    parser.add_argument("--store", default="rocksdb")
    parser.add_argument("--durability", choices=("sync", "interval", "os"), default="")
    parser.add_argument("--reactors", type=int, default=0)
    parser.add_argument("--wills", type=int, default=0, help="kill while so many wills are due, instead")
    parser.add_argument("--kills", type=int, default=Choice(seed=0).kills, help="of each run with wills")
    return parser.parse_args()


def main() -> int:
    given = parse_arguments()
    if not given.wills and not shutil.which("gcc"):
        sys.exit("the disk layer needs gcc")
    library = None if given.wills else compile_layer(Path(tempfile.mkdtemp(prefix="tidemq-disk-")))
    names = ("faults", "store", "durability", "reactors", "wills", "kills")
    settings = {name: getattr(given, name) for name in names}
    choices = [Choice(seed=seed, **settings) for seed in range(given.seed, given.seed + given.runs)]
    started_s = time.monotonic()
    outcomes: list[Outcome] = []
    with ProcessPoolExecutor(given.jobs) as pool:
        played = pool.map(play_wills if given.wills else partial(play, library=library), choices)
        for outcome in played:
            outcomes.append(outcome)
            if outcome.kinds:
                print(outcome.report, flush=True)
            else:
                print(f"ok: {outcome.choice.arguments()} ({outcome.took_s:.1f} s)", flush=True)
    if library is not None:
        shutil.rmtree(library.parent)
    print((summary_of_wills if given.wills else summary)(outcomes, time.monotonic() - started_s))
    return 1 if any(each.kinds for each in outcomes) else 0


def summary(outcomes: list[Outcome], took_s: float, of: str = "crash") -> str:
    """One line: runs by kind of fault, how much was done, the seeds that failed."""
    by_faults = collections.Counter(name for each in outcomes for name in each.choice.names())
    failed = [each for each in outcomes if each.kinds]
    kinds = collections.Counter(kind for each in failed for kind in set(each.kinds))
    parts = [
        f"{len(outcomes)} runs ({', '.join(f'{count} {name}' for name, count in sorted(by_faults.items()))})",
        f"{sum(each.starts for each in outcomes)} starts",
        f"{sum(each.messages for each in outcomes)} messages",
        f"{sum(each.deliveries for each in outcomes)} deliveries",
        f"{took_s:.0f} s",
        f"{len(failed)} failed"
        + (f": seeds {[each.choice.seed for each in failed]}, {dict(kinds)}" if failed else ""),
    ]
    return f"{of}: " + ", ".join(parts)


if __name__ == "__main__":
    sys.exit(main())
