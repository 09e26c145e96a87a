from tidemq.wire.properties cimport Properties
from tidemq.wire.protocol cimport Span

# The Python `Properties` of what read_properties read; the shared NO_PROPERTIES where it read none.
cdef object make_properties(const Properties* p)
# Values from Python that must fit their field, or UsageError names the field.
cdef unsigned int as_uint(str name, object value, unsigned int value_max) except? 0xFFFFFFFF
cdef bytes as_text(str name, object value)     # a str, as UTF-8 of at most 65,535 bytes
cdef bytes as_binary(str name, object value)   # bytes-like, at most 65,535
cdef bytes with_length(bytes block)           # a block with its length in front
