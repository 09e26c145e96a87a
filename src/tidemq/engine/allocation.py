"""Memory of the topic structures: counted, so that tests can tell that all of it was given back.

Running out of memory ends the process: a broker that cannot keep a subscription has no state to go on from.
"""

import cython
from cython.cimports.libc.stdint import int64_t
from cython.cimports.libc.stdlib import abort, calloc, free
from cython.cimports.tidemq.engine.rwlock import __ATOMIC_RELAXED, atomic_add_i64, atomic_load_i64

_live_blocks = cython.declare(int64_t, 0)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def allocate(size: cython.size_t) -> cython.p_void:
    """Zeroed memory, counted; ends the process where there is none left. Any thread."""
    block: cython.p_void = calloc(1, size)
    if block == cython.NULL:
        abort()
    atomic_add_i64(cython.address(_live_blocks), 1, __ATOMIC_RELAXED)
    return block


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def release(block: cython.p_void) -> cython.void:
    """Frees what ``allocate`` gave; NULL is ignored. Any thread."""
    if block != cython.NULL:
        atomic_add_i64(cython.address(_live_blocks), -1, __ATOMIC_RELAXED)
        free(block)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def live_blocks() -> int64_t:
    """Blocks allocated and not released, in the whole process. Any thread."""
    return atomic_load_i64(cython.address(_live_blocks), __ATOMIC_RELAXED)


def count_live_blocks() -> int:
    """Blocks of memory that trees, indexes and walks of this process hold: 0 when all of them are freed."""
    return live_blocks()
