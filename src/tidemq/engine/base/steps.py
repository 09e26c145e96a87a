"""How many steps a reactor's turn takes: the test for loops that nothing bounds.

A step is one round of a loop over things of which there can be many: members of a group, entries of a queue,
filters under a wildcard, retained messages, sessions that end. In a build that checks invariants
(``make assert``) a turn may take ``STEPS_MAX``, ``STEPS_PER_PACKET`` for each packet or mail that it handles,
and ``STEPS_PER_RECEIVER`` for each receiver of these. One that takes more ends the process with a trace:
``addr2line -fe FILE OFFSET`` names the loop. So a turn that is given much to do may be long, and one that
does much for little may not; and any test may find one.

Not counted are the rules of a policy, of which there are as many as who runs the broker wants, nor what is
bounded by the protocol (65,535 packet identifiers) or by ``output_high_bytes``.
"""

import cython
from cython.cimports.libc.stdint import uint64_t
from cython.cimports.libc.stdio import fprintf, stderr
from cython.cimports.tidemq.engine.base.asserting import end_process
from cython.cimports.tidemq.engine.base.steps import (
    STEPS_MAX,
    StepCount,
    begin_turn,
    count_steps,
    end_turn,
    own_step_count,
)


def begin_counting():
    """Counting begins, from 0; the reactor's thread."""
    steps: cython.pointer[StepCount] = own_step_count()
    steps.in_turn = True
    steps.taken = 0
    steps.allowed = STEPS_MAX


def end_counting():
    """What comes before the next turn is not counted: loading, and the end of an engine."""
    own_step_count().in_turn = False


def grant_steps(count):
    """The turn is given more to do."""
    own_step_count().allowed += count


def take_steps(count):
    """Counts; ends the process where the turn has taken too many."""
    steps: cython.pointer[StepCount] = own_step_count()
    steps.taken += count
    if not steps.in_turn or steps.taken <= steps.allowed:
        return
    fprintf(
        stderr,
        "a turn took %llu steps, and %llu were allowed: what bounds this loop?\n",
        cython.cast(cython.ulonglong, steps.taken),
        cython.cast(cython.ulonglong, steps.allowed),
    )
    end_process()


def try_turn(count: uint64_t) -> None:
    """A turn of so many steps with nothing to do: too many end the process, in a build that counts."""
    begin_turn()
    count_steps(count)
    end_turn()
