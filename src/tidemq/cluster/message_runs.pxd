"""Runs of operations in a record: how they are read, and made of what an engine did."""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libcpp.string cimport string

cdef enum:
    # kinds of operations; the last three are of a session under an epoch
    PAYLOAD = 1
    ADD = 2
    REMOVE = 3
    SEND = 4
    RELEASE = 5
    RETURN = 6
    ID_BYTES = 16
    FIELDS_BYTES = 14            # flags, QoS, bytes of the message, expiry

cdef struct Change:              # of what is in a queue; where its fields are in the text
    uint8_t kind
    const uint8_t* owner         # kind, size and name
    size_t owner_size
    const uint8_t* epoch         # of a session, but for REMOVE
    const uint8_t* id
    uint64_t place               # SEND
    size_t end

cdef struct Addition:
    const uint8_t* owner
    size_t owner_size
    const uint8_t* id
    const uint8_t* fields
    const uint8_t* ids           # how many subscription identifiers, and these
    size_t ids_size
    bint shared                  # another node may add it
    Change sent                  # that follows, if `is_sent`
    bint is_sent
    size_t end

cdef struct Group:               # a message and all queues that get it
    const uint8_t* id
    const uint8_t* message
    uint32_t message_size
    uint32_t count               # operations, the message's own too
    uint32_t additions
    size_t first                 # of these
    size_t end

cdef inline uint32_t read_u32(const uint8_t* at) noexcept nogil:
    return <uint32_t>at[0] << 24 | <uint32_t>at[1] << 16 | <uint32_t>at[2] << 8 | at[3]

cdef inline uint64_t read_u64(const uint8_t* at) noexcept nogil:
    return <uint64_t>read_u32(at) << 32 | read_u32(at + 4)

cdef inline void put_u32(uint8_t* at, uint32_t value) noexcept nogil:
    at[0] = value >> 24
    at[1] = value >> 16 & 0xFF
    at[2] = value >> 8 & 0xFF
    at[3] = value & 0xFF

cdef inline void put_u64(uint8_t* at, uint64_t value) noexcept nogil:
    put_u32(at, <uint32_t>(value >> 32))
    put_u32(at + 4, <uint32_t>value)

cdef bint read_addition(const uint8_t* data, size_t at, size_t size, Addition* found) noexcept nogil
cdef bint read_change(const uint8_t* data, size_t at, size_t size, Change* found) noexcept nogil
cdef bint read_group(const uint8_t* data, size_t at, size_t size, uint32_t most, Group* found) noexcept nogil

# of this module alone
cdef class Owners:
    cdef dict owners
    cdef dict found              # by queue

    cdef tuple find(self, number)
    cdef tuple _spell(self, owner)

cdef size_t _plain_owner(const uint8_t* data, size_t at, size_t size) noexcept nogil
cdef object _append_u32(string* text, uint32_t value)
cdef object _append_u64(string* text, uint64_t value)
cdef object _append_head(string* text, uint8_t kind, bytes owner)
cdef bint _append_group(string* text, list described, size_t* at, uint32_t* count, Owners owners, dict epochs, set shared, set gone, set brought)
cdef uint32_t _append_addition(string* text, tuple row, Owners owners, dict epochs, set shared, set gone)
cdef bint _append_change(string* text, uint8_t kind, Owners owners, number, bytes key, place, dict epochs)
