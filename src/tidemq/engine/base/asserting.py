"""What ends the process where an invariant does not hold, in a build that checks them (``make assert``).

An invariant is what a module relies on and no input may break: ``holds(box.head <= box.tail, b"...")``.
What a client or the operator can bring about is no invariant: it is refused and counted. For each invariant
``tests/assertions/breaks.py`` has a change that breaks it, which the build then finds.
"""

import cython
from cython.cimports.libc.stdio import fprintf, stderr
from cython.cimports.libc.stdlib import abort
from cython.cimports.tidemq.engine.base.asserting import ASSERTS, holds, own_thread
from cython.cimports.tidemq.engine.base.system import backtrace, backtrace_symbols_fd


def end_process():
    """With a trace of the way there: ``addr2line -fe FILE OFFSET`` names a line of it."""
    frames: cython.p_void[40]
    backtrace_symbols_fd(frames, backtrace(frames, 40), 2)
    abort()


def report_broken(invariant):
    """Names the invariant, and ends the process."""
    fprintf(stderr, "invariant broken: %s\n", invariant)
    end_process()


def set_reactor(index):
    own_thread()[0] = 1 + index


def may_touch(index):
    """Whether the calling thread may touch what that reactor owns: it is that reactor's, or no reactor's at
    all (before reactors run, and after, others act in their place).
    """
    return own_thread()[0] == 0 or own_thread()[0] == 1 + index


def checks_invariants() -> bool:
    """Whether this is a build that checks them."""
    return ASSERTS


def try_invariant(holding: bool) -> None:
    """One that holds or does not, for the test of this module."""
    holds(holding, b"what try_invariant was given is true")
