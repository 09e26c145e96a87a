"""Numbers that name a connection for as long as it lives: reactor (8 bits, of which the first is never set),
generation (32), slot (24).

Other threads hold handles, never pointers; a stale one names nothing: a slot would have to be used four
billion times more, which takes days at the rate at which a reactor accepts, while somebody still holds it.
"""

import cython
from cython.cimports.libc.stdint import uint16_t, uint32_t
from cython.cimports.tidemq.engine.base.asserting import ASSERTS, holds, may_touch
from cython.cimports.tidemq.engine.state.client import Connection


def reactor_of(handle):
    """The index of the reactor that the handle was made on."""
    return cython.cast(uint16_t, handle >> 56)


def connection_of(r, handle):
    """The connection of this reactor that the handle names, or NULL when it is gone."""
    slot: uint32_t = handle & 0xFFFFFF
    if ASSERTS:
        holds(may_touch(r.index), b"handles: a reactor alone looks up its connections")
    if slot >= r.connections.size():
        return cython.NULL
    c: cython.pointer[Connection] = r.connections[slot]
    if c == cython.NULL or c.generation != cython.cast(uint32_t, handle >> 24):
        return cython.NULL
    holds(c.slot == slot and reactor_of(handle) == r.index, b"handles: one names what it was made for")
    return c
