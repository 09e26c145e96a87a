from libc.stdint cimport uint8_t

# Compiled because of this file; nothing in the module is for other compiled modules.

# of this module alone
cdef bint holds_any(properties)
cdef bytes properties_block(properties, int version)
cdef int require_5(int version) except -1
cdef bytes whole(uint8_t first, bytes head, properties, int version, bytes tail)
cdef int require_size(Py_ssize_t size) except -1
cdef bytes field(bytes data)
cdef bytes u16(str name, value)
cdef bytes u8(str name, value)
cdef int require_reason(packet, int version)
cdef bytes write_will(will, int version)
cdef bytes forwarded_block(properties, int version)
cdef unsigned int topic_alias_of(properties)
cdef long long message_expiry_of(properties)
cdef bytes write_ack(uint8_t packet_type, packet, int version)
cdef bytes write_reason_only(uint8_t packet_type, packet, int version)
