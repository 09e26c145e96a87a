"""The user property `traceparent` of a message (W3C Trace Context, level 1): which trace it belongs to."""
from libc.stdint cimport uint8_t, uint32_t

from tidemq.wire.protocol cimport Span

cdef enum:   # of its value: "00-", 32 hexadecimal digits of the trace, "-", 16 of the parent, "-", 2 of flags
    TRACE_PARENT_BYTES = 55
    TRACE_PARENT_SPAN_AT = 36
    SPAN_ID_BYTES = 8

# The value, in a block of properties that was checked; NULL: there is none, it is malformed, or not to be recorded.
cdef const uint8_t* find_trace_parent(Span properties) noexcept nogil

# of this module alone
cdef bint is_sampled(const uint8_t* value) noexcept nogil
cdef bint is_identifier(const uint8_t* digits, uint32_t size) noexcept nogil
