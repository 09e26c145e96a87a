"""No turn takes more steps than what it was given to do allows, with 100,000 of what there can be many of.

In a build of its own, which ends the process otherwise; `make steps` runs more of the tests in it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = [
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests/adversity").glob("test_steps_*.py")),
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests/durable").glob("test_steps_*.py")),
    "tests/durable/test_many_at_once.py",
    "tests/durable/test_clock.py::test_very_many_sessions_have_new_dates",
]

pytestmark = pytest.mark.timeout(1500)


def run_counted(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Python on the build that counts steps, which is made first where it is not up to date."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(
        ["tools/variant.sh", "steps", *arguments],
        cwd=ROOT,
        env={**environment, "PYTHON": sys.executable},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.parametrize(("count", "status"), [(20_000, 0), (20_001, -signal.SIGABRT)])
def test_a_turn_with_too_many_steps_ends_the_process(count: int, status: int) -> None:
    done = run_counted("-c", f"from tidemq.engine.steps import try_turn; try_turn({count})")
    assert done.returncode == status
    assert ("a turn took 20001 steps, and 20000 were allowed" in done.stdout) == bool(status)


def test_many_of_everything() -> None:
    assert len(TESTS) > 2
    done = run_counted("-m", "pytest", "--capture=sys", "-p", "no:cacheprovider", *TESTS)
    assert done.returncode == 0, done.stdout[-6000:]
    assert " passed" in done.stdout
