from libc.stdint cimport uint64_t

cdef enum:
    HISTOGRAM_BUCKETS = 3776

cdef struct Histogram:
    uint64_t counts[3776]   # 64 buckets for each power of two, so a bucket is at most 1/64 wide

cdef void record(Histogram* histogram, uint64_t value) noexcept nogil
cdef uint64_t percentile(const Histogram* histogram, double share) noexcept nogil
