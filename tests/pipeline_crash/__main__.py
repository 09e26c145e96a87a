"""Crash tests of the pipeline by seed: `python tests/pipeline_crash --seed 1 --kills 6 --runs 10`.

Ends with one line of summary, and with status 1 where a run has failed; a failure is printed at once, with
the command that repeats it.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pipeline_crash.run import Choice, Outcome, play


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1, help="of the first run")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--kills", type=int, default=8, help="of one run, at least 3")
    parser.add_argument(
        "--forgetful", action="store_true", help="with tables that take a batch again: must fail"
    )
    parser.add_argument("--format", choices=["delta", "iceberg"], default="delta", help="of the tables")
    parser.add_argument("--keep", action="store_true", help="keep the files of runs that are well, too")
    return parser.parse_args()


def main() -> int:
    given = parse_arguments()
    logging.getLogger("tidemq.client").setLevel(logging.ERROR)  # devices lose their connections all the time
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends what a run has started
    started_s = time.monotonic()
    outcomes: list[Outcome] = []
    for seed in range(given.seed, given.seed + given.runs):
        choice = Choice(seed=seed, kills=given.kills, format=given.format, forgetful=given.forgetful)
        outcome = play(choice, keep=given.keep)
        outcomes.append(outcome)
        print(outcome.report or f"ok: {figures(outcome)}", flush=True)
    failed = [each.choice.seed for each in outcomes if each.failures]
    took_s = time.monotonic() - started_s
    parts = [
        f"{len(outcomes)} runs",
        f"{sum(each.kills for each in outcomes)} kills",
        f"{sum(len(each.sent) for each in outcomes)} messages",
        f"{took_s:.0f} s",
        f"{len(failed)} failed" + (f": seeds {failed}" if failed else ""),
    ]
    print("pipeline crash: " + ", ".join(parts))
    return 1 if failed else 0


def figures(outcome: Outcome) -> str:
    """One run in a line."""
    return (
        f"{outcome.choice.arguments()} ({outcome.took_s:.0f} s, {len(outcome.sent)} messages, "
        f"{outcome.found.repeated} came again)"
    )


if __name__ == "__main__":
    sys.exit(main())
