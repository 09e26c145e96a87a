"""Runs of new messages in a record, and their rows."""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libcpp.string cimport string
from libcpp.vector cimport vector

cdef struct Newest:              # of the ids that one source has given
    uint64_t incarnation
    uint8_t source
    uint64_t clock
    bint changed                 # and the store does not have that

cdef struct Addition:            # where the fields of an operation are in the text
    const uint8_t* owner         # kind, size and name
    size_t owner_size
    const uint8_t* id
    const uint8_t* fields        # flags, QoS, bytes of the message, expiry
    const uint8_t* ids           # how many subscription identifiers, and these
    size_t ids_size
    size_t end

cdef struct Group:               # a message and all queues that get it
    const uint8_t* id
    const uint8_t* message
    uint32_t message_size
    uint32_t count               # operations, the message's own too
    size_t first                 # of its additions
    size_t end

cdef class NewestIds:
    cdef vector[Newest] sources
    cdef Newest* _find(self, uint64_t incarnation, uint8_t source)
    cdef bint _is_new(self, const uint8_t* id)
    cdef object _note(self, const uint8_t* id)

# of this module alone
cdef uint32_t _u32(const uint8_t* at) noexcept nogil
cdef uint64_t _u64(const uint8_t* at) noexcept nogil
cdef void _put_u32(uint8_t* at, uint32_t value) noexcept nogil
cdef object _append_u32(string* text, uint32_t value)
cdef bint _read_addition(const uint8_t* data, size_t at, size_t size, Addition* found) noexcept nogil
cdef bint _read_group(const uint8_t* data, size_t at, size_t size, uint32_t most, Group* found) noexcept nogil
cdef bytes _bytes(const uint8_t* data, size_t size)
cdef bint _append_group(string* text, list described, size_t* at, uint32_t* count, dict owners, set apart, set brought)
cdef bint _append_addition(string* text, tuple row, dict owners, set apart)
cdef bytes _reference(uint32_t count)
cdef list _places(const uint8_t* data, Group* group, dict known, place)
cdef object _write_addition(Addition* found, bytes number, const uint8_t* dot, list writes)
