from libc.stdint cimport uint32_t

from tidemq.wire.protocol cimport Fault, Span

cdef struct SharedFilter:   # $share/{group}/{filter}
    bint shared
    Span group              # empty when not shared
    Span filter             # the filter that matches topics

cdef Fault check_topic_name(Span name, uint32_t levels_max) noexcept nogil    # UTF-8 is checked already
cdef Fault check_topic_filter(Span filter, uint32_t levels_max) noexcept nogil  # also what follows $share
cdef SharedFilter split_shared(Span filter) noexcept nogil
