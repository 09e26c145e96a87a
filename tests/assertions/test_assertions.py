"""The engine's invariants hold, in a build of its own that ends the process where one does not.

So does the bound of a turn's steps, with 100,000 of what there can be many of. `make assert` runs much
more in it.
"""

from __future__ import annotations

import signal

import pytest
from assertions.apart import TESTS
from assertions.breaks import PLANTED
from assertions.plant import said_of
from assertions.planted import Break
from assertions.variant import built, checked, pytest_arguments

pytestmark = pytest.mark.timeout(1500)

AT_THE_LIMIT = """
from tidemq.engine.base.steps import try_turn

try_turn(20_000)
print("within the limit", flush=True)
try_turn(20_001)
"""
ONE_HOLDS = """
from tidemq.engine.base.asserting import checks_invariants, try_invariant

assert checks_invariants()
try_invariant(True)
print("one holds", flush=True)
try_invariant(False)
"""


def test_a_turn_with_too_many_steps_ends_the_process() -> None:
    done = checked("-c", AT_THE_LIMIT)
    assert done.returncode == -signal.SIGABRT
    within, _, beyond = done.stdout.partition("within the limit\n")
    assert "steps" not in within
    assert "a turn took 20001 steps, and 20000 were allowed" in beyond


def test_an_invariant_that_does_not_hold_ends_the_process() -> None:
    done = checked("-c", ONE_HOLDS)
    assert done.returncode == -signal.SIGABRT
    before, _, after = done.stdout.partition("one holds\n")
    assert "invariant" not in before
    assert "invariant broken: what try_invariant was given is true" in after
    assert "asserting" in after.partition("\n")[2]  # the trace names the module


def test_many_of_everything() -> None:
    assert len(TESTS) > 2
    done = checked(*pytest_arguments(*TESTS))
    assert done.returncode == 0, done.stdout[-6000:]
    assert " passed" in done.stdout


@pytest.mark.parametrize("fuzzer", ["fuzz_connection", "fuzz_transport"])
def test_fuzzed_connections_break_no_invariant(fuzzer: str) -> None:
    done = checked(f"tests/fuzz/{fuzzer}.py", "--seconds", "4", "--seed", "1")
    assert done.returncode == 0, done.stdout[-6000:]
    assert "invariant broken" not in done.stdout


# one of each room, the first, and of three rooms: `python tests/assertions` plants all
@pytest.mark.parametrize("room", ["clients", "queues", "turn"])
def test_a_break_is_found(room: str) -> None:
    planted = next(each for each in PLANTED if each.file.startswith(f"{room}/"))
    assert built().returncode == 0, built().stdout[-6000:]
    assert f"invariant broken: {planted.invariant}\n" in said_of(planted)


def test_what_breaks_nothing_is_not_found() -> None:
    """The runner itself: a change that leaves the module as it is."""
    assert built().returncode == 0, built().stdout[-6000:]
    same = "def trim_outbox"
    said = said_of(Break("nothing", "queues/outbox.py", same, same, ("tests/conformance/test_qos1.py",)))
    assert "invariant broken" not in said
    assert " passed" in said
