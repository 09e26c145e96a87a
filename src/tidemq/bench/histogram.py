"""Latency histogram of log-linear buckets: any 64-bit value, at most 1.6 % off, no memory beyond the struct.

Values below 128 have a bucket of their own; above, each power of two is cut into 64 buckets.
"""

import cython
from cython.cimports.libc.stdint import uint64_t
from cython.cimports.tidemq.bench.histogram import HISTOGRAM_BUCKETS, Histogram

if not cython.compiled:
    raise ImportError("tidemq.bench.histogram is compiled code: run `make build`")

BUCKETS = cython.declare(cython.uint, HISTOGRAM_BUCKETS)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def record(histogram: cython.pointer[Histogram], value: uint64_t) -> cython.void:
    """Count one value. Any thread that owns the histogram; no GIL."""
    shift: cython.uint = 0
    while (value >> shift) >= 128:
        shift += 1
    histogram.counts[shift * 64 + (value >> shift)] += 1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def percentile(histogram: cython.pointer[cython.const[Histogram]], share: cython.double) -> uint64_t:
    """Upper edge of the bucket up to which `share` (0 to 1) of the values lie; 0 when empty."""
    total: uint64_t = 0
    passed: uint64_t = 0
    index: cython.uint
    shift: cython.uint
    for index in range(BUCKETS):
        total += histogram.counts[index]
    for index in range(BUCKETS):
        passed += histogram.counts[index]
        if passed > 0 and passed >= share * total:
            shift = 0 if index < 128 else index // 64 - 1
            return ((cython.cast(uint64_t, index) - shift * 64 + 1) << shift) - 1
    return 0
