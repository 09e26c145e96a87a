"""Nothing acknowledged is ever lost: a few seeds of the crash runs, and proof that the runs find a loss.

`make crash` plays hundreds of seeds; `TIDEMQ_TEST_CRASH_SEED` moves the few that are played here.
"""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from crash.chaos import FAULTS
from crash.disk import compile_layer
from crash.run import Choice, Outcome, play
from crash.wills import play_wills

pytestmark = pytest.mark.timeout(600)

SEED = int(os.environ.get("TIDEMQ_TEST_CRASH_SEED", "1"))
JOBS = 2
FINDING_MAX = 6  # seeds until a loss that must come has come


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not shutil.which("gcc"):
        pytest.skip("the disk layer needs gcc")
    return compile_layer(tmp_path_factory.mktemp("layer"))


def played(choices: list[Choice], library: Path | None) -> list[Outcome]:
    with ProcessPoolExecutor(JOBS) as pool:
        return list(pool.map(play, choices, [library] * len(choices)))


def found(choice: Choice, library: Path | None, wanted: set[str]) -> set[str]:
    """The kinds of failure of seeds, until all have come that are wanted; files of such runs are removed."""
    kinds: set[str] = set()
    for seed in range(SEED, SEED + FINDING_MAX):
        outcome = play(replace(choice, seed=seed), library)
        kinds |= set(outcome.kinds)
        if outcome.folder is not None:
            shutil.rmtree(outcome.folder)
        if kinds and wanted <= kinds:
            break
    return kinds


def test_nothing_acknowledged_is_lost(library: Path) -> None:
    """Every kind of fault once, one and two reactors in turns."""
    choices = [
        Choice(seed=SEED + place, faults=faults, reactors=1 + place % 2)
        for place, faults in enumerate(FAULTS)
    ]
    outcomes = played(choices, library)
    assert not any(each.kinds for each in outcomes), "\n".join(each.report for each in outcomes)
    assert sum(each.starts for each in outcomes) > 2 * len(outcomes)
    assert all(each.deliveries > 100 for each in outcomes)


def test_wills_that_are_due_when_the_broker_is_killed_come_once() -> None:
    outcome = play_wills(Choice(seed=SEED, wills=60, kills=1))
    assert not outcome.kinds, outcome.report
    assert outcome.starts == 2
    assert outcome.deliveries >= 360


def test_a_broker_that_forgets_is_found_out() -> None:
    """Without a store a killed broker loses sessions and messages: if that passed, nothing would be shown."""
    wanted = {"lost", "session lost"}  # whether a kill meets queued messages is the machine's choice
    assert wanted <= found(Choice(seed=SEED, faults="kill", store="memory"), None, wanted)


def test_power_loss_is_found_out_where_nothing_is_synced(library: Path) -> None:
    """`os` leaves it to the system when bytes reach the disk, and so promises nothing on loss of power."""
    assert found(Choice(seed=SEED, faults="power", durability="os"), library, set())
