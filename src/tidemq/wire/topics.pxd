from libc.stdint cimport uint32_t, uint64_t, uint8_t

from tidemq.wire.protocol cimport Fault, Span

cdef enum:
    SLASH = 0x2F
    PLUS = 0x2B
    HASH = 0x23

cdef struct SharedFilter:   # $share/{group}/{filter}, or ours, $exclusive/{filter}
    bint shared
    bint exclusive
    Span group              # empty when not shared
    Span filter             # the filter that matches topics

cdef Fault check_topic_text(const Span* name) noexcept nogil    # UTF-8 and no wildcards, in one pass
cdef Fault check_topic_levels(const Span* name, uint32_t levels_max) noexcept nogil
cdef Fault check_topic_name(Span name, uint32_t levels_max) noexcept nogil    # UTF-8 is checked already
cdef Fault check_topic_filter(Span filter, uint32_t levels_max) noexcept nogil  # also what follows $share
cdef uint64_t wildcard_ways(Span filter) noexcept nogil         # in how many its `+` could stand, see there
cdef SharedFilter split_shared(Span filter) noexcept nogil

# of this module alone
cdef uint64_t repeat(uint8_t byte) noexcept nogil
cdef uint64_t zero_bytes(uint64_t word) noexcept nogil
cdef bint plain_word(const uint8_t* at) noexcept nogil
cdef bint all_plain(Span name) noexcept nogil
cdef bint is_plain(uint8_t byte) noexcept nogil
cdef Fault check_topic_slowly(Span name) noexcept nogil
cdef bint has_wildcard(Span name) noexcept nogil
cdef bint exceeds(Span name, uint32_t levels_max) noexcept nogil
cdef bint stands_alone(Span filter, uint32_t i) noexcept nogil
cdef bint is_shared(Span filter) noexcept nogil
cdef bint is_exclusive(Span filter) noexcept nogil
cdef int utf8_fault(bytes text)
