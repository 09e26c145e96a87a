"""How long things took: how many fell into each power of two of nanoseconds, and the sum of all.

A reactor alone counts into its own, and never looks at another's; readers see whatever is there by then.
`histograms.py` holds the public names in the same order."""
from libc.stdint cimport int64_t, uint64_t

from tidemq.engine.base.system cimport RELAXED, bits_of, store_i64

cdef enum:
    HISTOGRAM_BUCKETS = 64       # bucket N: less than 2**N ns, and at least half of that

cdef enum:
    H_TURN                       # a reactor's turn, without its wait
    H_PUBLISH_QOS_1              # from the turn that reads a PUBLISH to that in which PUBACK is written
    H_PUBLISH_QOS_2              # to PUBREC
    H_QUEUED                     # from when an entry comes into a queue until it is first sent
    H_CONNECT                    # from the turn that reads a CONNECT to that in which CONNACK is written
    HISTOGRAM_COUNT

cdef struct Histogram:
    int64_t counts[HISTOGRAM_BUCKETS]   # atomic
    int64_t sum_ns                      # atomic

# So many took so long each.
cdef inline void observe(Histogram* histogram, int64_t ns, int64_t count) noexcept nogil:
    cdef int bucket = bits_of(<uint64_t>ns) if ns > 0 else 0
    store_i64(&histogram.counts[bucket], histogram.counts[bucket] + count, RELAXED)
    if ns > 0:
        store_i64(&histogram.sum_ns, histogram.sum_ns + ns * count, RELAXED)
