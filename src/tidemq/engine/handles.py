"""Numbers that name a connection for as long as it lives: reactor (16 bits), generation (24), slot (24).

Other threads hold handles, never pointers; a stale one names nothing.
"""

import cython
from cython.cimports.libc.stdint import uint16_t, uint32_t, uint64_t
from cython.cimports.tidemq.engine.state import Connection, Reactor


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def reactor_of(handle: uint64_t) -> uint16_t:
    """The index of the reactor that the handle was made on."""
    return cython.cast(uint16_t, handle >> 48)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def connection_of(r: cython.pointer[cython.const[Reactor]], handle: uint64_t) -> cython.pointer[Connection]:
    """The connection of this reactor that the handle names, or NULL when it is gone."""
    slot: uint32_t = handle & 0xFFFFFF
    if slot >= r.connections.size():
        return cython.NULL
    c: cython.pointer[Connection] = r.connections[slot]
    if c == cython.NULL or c.generation & 0xFFFFFF != (handle >> 24 & 0xFFFFFF):
        return cython.NULL
    return c
