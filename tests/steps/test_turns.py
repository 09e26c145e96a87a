"""No turn takes more steps than what it was given to do allows, with 100,000 of what there can be many of.

In a build of its own, which ends the process otherwise; `make steps` runs more of the tests in it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from steps.counted import ROOT, TESTS

pytestmark = pytest.mark.timeout(1500)


def variant(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Python on the build that counts steps, which is made first where it is not up to date; without
    arguments, only that."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(
        ["tools/variant.sh", "steps", *arguments],
        cwd=ROOT,
        env={**environment, "PYTHON": sys.executable},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


AT_THE_LIMIT = """
from tidemq.engine.base.steps import try_turn

try_turn(20_000)
print("within the limit", flush=True)
try_turn(20_001)
"""


def test_a_turn_with_too_many_steps_ends_the_process() -> None:
    done = variant("-c", AT_THE_LIMIT)
    assert done.returncode == -signal.SIGABRT
    within, _, beyond = done.stdout.partition("within the limit\n")
    assert "steps" not in within
    assert "a turn took 20001 steps, and 20000 were allowed" in beyond


def test_many_of_everything() -> None:
    assert len(TESTS) > 2
    done = variant("-m", "pytest", "--capture=sys", "-p", "no:cacheprovider", *TESTS)
    assert done.returncode == 0, done.stdout[-6000:]
    assert " passed" in done.stdout
