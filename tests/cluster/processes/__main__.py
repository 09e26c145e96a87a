"""Nodes as processes, by seed: `python tests/cluster/processes --seed 1 --runs 100`.

Ends with one line of summary, and with status 1 where a run has failed; a failure is printed at once, with
the command that repeats it.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from cluster.processes.run import Choice, play
from crash.__main__ import summary

PROGRAMS = ("gcc", "mosquitto_pub", "mosquitto_sub")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Nodes as processes, by seed.")
    parser.add_argument("--seed", type=int, default=1, help="of the first run")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--nodes", type=int, default=0)
    parser.add_argument("--faults", default="", help="one for each act, with commas")
    parser.add_argument("--acts", type=int, default=0, help="faults that are drawn, instead of two to four")
    parser.add_argument("--splits", action="store_true", help="faults that are not named are mostly splits")
    parser.add_argument("--trace", action="store_true", help="keeps what nodes did (tracing.py)")
    parser.add_argument("--suspect-s", type=float, default=Choice(seed=0).suspect_s)
    return parser.parse_args()


def main() -> int:
    given = parse_arguments()
    for program in PROGRAMS:
        if not shutil.which(program):
            sys.exit(f"there is no {program}, which the runs need")
    faults = tuple(given.faults.split(",")) if given.faults else ()
    choices = [
        Choice(
            seed=seed,
            nodes=given.nodes,
            faults=faults,
            acts=given.acts,
            splits=given.splits,
            suspect_s=given.suspect_s,
            traced=given.trace,
        )
        for seed in range(given.seed, given.seed + given.runs)
    ]
    started_s = time.monotonic()
    outcomes = []
    with ProcessPoolExecutor(given.jobs) as pool:
        for outcome in pool.map(play, choices):
            outcomes.append(outcome)
            ok = f"ok: {outcome.choice.arguments()} ({outcome.took_s:.1f} s)"
            print(outcome.report if outcome.kinds else ok, flush=True)
    print(summary(outcomes, time.monotonic() - started_s, "cluster"))
    excused = sum((each.excused for each in outcomes), Counter())
    for sentence, count in excused.items():
        print(f"  {count} failures have a cause that docs/cluster.md names: {sentence}")
    return 1 if any(each.kinds for each in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
