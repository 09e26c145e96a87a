"""No turn takes more steps than what it was given to do allows, with 100,000 of what there can be many of.

In a build of its own, which ends the process otherwise; `make steps` runs more of the tests in it.
"""

from __future__ import annotations

import signal

import pytest
from assertions.apart import TESTS
from assertions.variant import checked, pytest_arguments

pytestmark = pytest.mark.timeout(1500)


AT_THE_LIMIT = """
from tidemq.engine.base.steps import try_turn

try_turn(20_000)
print("within the limit", flush=True)
try_turn(20_001)
"""


def test_a_turn_with_too_many_steps_ends_the_process() -> None:
    done = checked("-c", AT_THE_LIMIT)
    assert done.returncode == -signal.SIGABRT
    within, _, beyond = done.stdout.partition("within the limit\n")
    assert "steps" not in within
    assert "a turn took 20001 steps, and 20000 were allowed" in beyond


def test_many_of_everything() -> None:
    assert len(TESTS) > 2
    done = checked(*pytest_arguments(*TESTS))
    assert done.returncode == 0, done.stdout[-6000:]
    assert " passed" in done.stdout
