"""Latency histogram of log-linear buckets (HDR): any 64-bit value, at most 1.6 % off, no memory beyond the
struct.

Values below 128 have a bucket of their own; above, each power of two is cut into 64 buckets.
"""

import cython
from cython.cimports.libc.stdint import uint64_t
from cython.cimports.tidemq.bench.load.histogram import (
    HISTOGRAM_BUCKETS,
    Quantiles,
    leading_zeros,
)

from tidemq.bench.result import Bucket

if not cython.compiled:
    raise ImportError("tidemq.bench.load.histogram is compiled code: run `make build`")

BUCKETS = cython.declare(cython.uint, HISTOGRAM_BUCKETS)


def record(histogram, value):
    """Count one value. Any thread that owns the histogram; no GIL."""
    shift: cython.uint = 57 - leading_zeros(value | 64)  # so many low bits share a bucket
    histogram.counts[shift * 64 + (value >> shift)] += 1
    if value > histogram.max:
        histogram.max = value


def upper_bound(bucket):
    """The greatest value of a bucket."""
    shift: cython.uint = 0 if bucket < 128 else bucket // 64 - 1
    return ((cython.cast(uint64_t, bucket) - shift * 64 + 1) << shift) - 1


def quantiles_since(histogram, before):
    """Of what was counted since the copy `before`; some microseconds, for the loop stands still meanwhile."""
    found = cython.declare(Quantiles)
    total: uint64_t = 0
    passed: uint64_t = 0
    count: uint64_t
    bucket: cython.uint
    found.p50 = found.p99 = found.most = 0
    for bucket in range(BUCKETS):
        total += histogram.counts[bucket] - before.counts[bucket]
    for bucket in range(BUCKETS):
        count = histogram.counts[bucket] - before.counts[bucket]
        if count:
            if passed * 2 < total:
                found.p50 = upper_bound(bucket)
            if passed * 100 < total * 99:
                found.p99 = upper_bound(bucket)
            found.most = upper_bound(bucket)
        passed += count
    return found


def buckets_of(histogram):
    """All that was counted, as a tuple of `Bucket`."""
    found = []
    bucket: cython.uint
    for bucket in range(BUCKETS):
        if histogram.counts[bucket]:
            low = upper_bound(bucket - 1) + 1 if bucket else 0
            found.append(Bucket(low, upper_bound(bucket), histogram.counts[bucket]))
    return tuple(found)
