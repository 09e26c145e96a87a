from libc.stdint cimport uint32_t, uint64_t

from tidemq.wire.protocol cimport Fault, Span

cdef enum:
    SLASH = 0x2F
    PLUS = 0x2B
    HASH = 0x23

cdef struct SharedFilter:   # $share/{group}/{filter}
    bint shared
    Span group              # empty when not shared
    Span filter             # the filter that matches topics

cdef Fault check_topic_text(const Span* name) noexcept nogil    # UTF-8 and no wildcards, in one pass
cdef Fault check_topic_levels(const Span* name, uint32_t levels_max) noexcept nogil
cdef Fault check_topic_name(Span name, uint32_t levels_max) noexcept nogil    # UTF-8 is checked already
cdef Fault check_topic_filter(Span filter, uint32_t levels_max) noexcept nogil  # also what follows $share
cdef uint64_t wildcard_ways(Span filter) noexcept nogil         # in how many its `+` could stand, see there
cdef SharedFilter split_shared(Span filter) noexcept nogil
