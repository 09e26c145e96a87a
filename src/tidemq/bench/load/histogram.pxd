from libc.stdint cimport uint64_t

cdef extern from *:
    int leading_zeros "__builtin_clzll"(unsigned long long value) noexcept nogil

cdef enum:
    HISTOGRAM_BUCKETS = 3776

cdef struct Histogram:
    uint64_t counts[3776]   # 64 buckets for each power of two, so a bucket is at most 1/64 wide
    uint64_t max            # exact

cdef struct Quantiles:      # upper bounds of buckets; all 0 where nothing was counted
    uint64_t p50
    uint64_t p99
    uint64_t most

cdef void record(Histogram* histogram, uint64_t value) noexcept nogil
cdef uint64_t upper_bound(unsigned int bucket) noexcept nogil
cdef Quantiles quantiles_since(const Histogram* histogram, const Histogram* before) noexcept nogil
cdef object buckets_of(const Histogram* histogram)
