"""Memory of the topic structures: counted, so that tests can tell that all of it was given back.

Running out of memory ends the process, see `net/exhaustion.pxd`.
"""

import cython
from cython.cimports.libc.stdint import int64_t
from cython.cimports.libc.stdlib import calloc, free, malloc, realloc
from cython.cimports.tidemq.engine.base.allocation import HUGE_PAGE_BYTES
from cython.cimports.tidemq.engine.base.asserting import holds
from cython.cimports.tidemq.engine.base.system import (
    MADV_HUGEPAGE,
    MAP_ANONYMOUS,
    MAP_FAILED,
    MAP_NORESERVE,
    MAP_PRIVATE,
    PROT_READ,
    PROT_WRITE,
    RELAXED,
    add_i64,
    load_i64,
    madvise,
    mmap,
    munmap,
)
from cython.cimports.tidemq.net.exhaustion import out_of_memory

_live_blocks = cython.declare(int64_t, 0)


def allocate(size):
    """Zeroed memory, counted; ends the process where there is none left. Any thread."""
    block: cython.p_void = calloc(1, size)
    if block == cython.NULL:
        out_of_memory()
    add_i64(cython.address(_live_blocks), 1, RELAXED)
    return block


def obtain(size):
    """``malloc`` that ends the process instead of returning NULL. Any thread."""
    block: cython.p_void = malloc(size)
    if block == cython.NULL and size:
        out_of_memory()
    return block


def enlarge(block, size):
    """``realloc`` that ends the process instead of returning NULL. Any thread."""
    block = realloc(block, size)
    if block == cython.NULL and size:
        out_of_memory()
    return block


def release(block):
    """Frees what ``allocate`` gave; NULL is ignored. Any thread."""
    if block != cython.NULL:
        left: int64_t = add_i64(cython.address(_live_blocks), -1, RELAXED)
        holds(left >= 0, b"allocation: what is released was allocated")
        free(block)


def map_pages(size, ordinary):
    """Zeroed memory for a large table, which takes real memory only where it is touched.

    ``size`` and ``ordinary`` are multiples of a huge page. The first ``ordinary`` bytes come in ordinary
    pages, the rest in huge ones where the system gives them: a small table stays small, and random access to
    a large one does not pay for address translation. Any thread.
    """
    holds(
        size % HUGE_PAGE_BYTES == 0 and ordinary % HUGE_PAGE_BYTES == 0 and ordinary <= size,
        b"allocation: a table and its first part are of whole huge pages",
    )
    whole: cython.size_t = size + HUGE_PAGE_BYTES
    flags: cython.int = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE
    base: cython.p_char = cython.cast(
        cython.p_char, mmap(cython.NULL, whole, PROT_READ | PROT_WRITE, flags, -1, 0)
    )
    if cython.cast(cython.p_void, base) == MAP_FAILED:
        out_of_memory()
    skipped: cython.size_t = -cython.cast(cython.size_t, base) % HUGE_PAGE_BYTES
    if skipped > 0:
        munmap(base, skipped)
    munmap(base + skipped + size, HUGE_PAGE_BYTES - skipped)
    if ordinary < size:
        madvise(base + skipped + ordinary, size - ordinary, MADV_HUGEPAGE)
    add_i64(cython.address(_live_blocks), 1, RELAXED)
    return base + skipped


def unmap_pages(block, size):
    """Gives back what ``map_pages`` gave. Any thread."""
    left: int64_t = add_i64(cython.address(_live_blocks), -1, RELAXED)
    holds(left >= 0, b"allocation: pages that are given back were mapped")
    munmap(block, size)


def live_blocks():
    """Blocks allocated and not released, in the whole process. Any thread."""
    return load_i64(cython.address(_live_blocks), RELAXED)


def count_live_blocks() -> int:
    """Blocks of memory that trees, indexes and walks of this process hold: 0 when all of them are freed."""
    return live_blocks()
