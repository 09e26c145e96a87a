"""Which locks a thread holds, in a build that checks invariants."""

import cython
from cython.cimports.tidemq.engine.base.asserting import holds
from cython.cimports.tidemq.engine.base.locks import INNER, OUTER, own_held


def note_taken(kind):
    """Before the thread waits for the lock."""
    held: cython.int = own_held()[0]
    holds(held == 0 or (kind == INNER and held == OUTER), b"a lock is taken alone, or INNER under OUTER")
    own_held()[0] = held | kind


def note_released(kind):
    """Before the lock is given up."""
    holds(own_held()[0] & kind != 0, b"a thread releases locks that it has taken")
    own_held()[0] &= ~kind


def check_none_held():
    """What may take long, or may take a lock itself, begins."""
    holds(own_held()[0] == 0, b"no message is delivered, sent or freed under a lock")
