from libc.stdint cimport uint32_t, uint8_t
from libcpp.string cimport string

from tidemq.wire.properties cimport Properties
from tidemq.wire.protocol cimport Span

# The Python `Properties` of what read_properties read; the shared NO_PROPERTIES where it read none.
cdef object make_properties(const Properties* p)
# Values from Python that must fit their field, or UsageError names the field.
cdef unsigned int as_uint(str name, object value, unsigned int value_max) except? 0xFFFFFFFF
cdef bytes as_text(str name, object value)     # a str, as UTF-8 of at most 65,535 bytes
cdef bytes as_binary(str name, object value)   # bytes-like, at most 65,535
cdef bytes with_length(bytes block)           # a block with its length in front

# of this module alone
cdef bytes limited(str name, bytes data)
cdef int append_properties(properties, string* out) except -1
cdef int append_single(str name, uint8_t property_id, value, kind, string* out) except -1
cdef str text(Span span)
cdef bytes content(Span span)
cdef void find_numbers(const Properties* p, dict found)
cdef void find_flags(const Properties* p, dict found)
cdef void find_fields(const Properties* p, dict found)
cdef void find_repeatable(const Properties* p, dict found)
cdef int parse_block(bytes block, uint32_t packet_type, Properties* out) except -1
