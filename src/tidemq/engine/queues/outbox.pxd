from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t

from tidemq.engine.state.queue cimport Entry, Outbox

cdef Entry* append_entry(Outbox* box, int64_t now_ms, int64_t* tally) noexcept nogil
cdef Entry* prepend_entry(Outbox* box, int64_t now_ms, int64_t* tally) noexcept nogil
cdef Entry* find_entry(const Outbox* box, uint16_t packet_id) noexcept nogil
cdef uint64_t place_of(const Outbox* box, uint16_t packet_id) noexcept nogil
cdef void forget_entry(Outbox* box, Entry* entry, int64_t* tally) noexcept nogil
cdef void release_payload(Outbox* box, Entry* entry, int64_t* tally) noexcept nogil
cdef void trim_outbox(Outbox* box) noexcept nogil
cdef void rewind_outbox(Outbox* box) noexcept nogil
cdef void free_outbox(Outbox* box, int64_t* tally) noexcept nogil

# Inline, as what is done for every message and smaller than its call:

# The entry of a sequence number in [head, tail).
cdef inline Entry* entry_at(const Outbox* box, uint64_t sequence) noexcept nogil:
    return &box.entries[sequence & (box.capacity - 1)]

# The packet identifier of a place: 1 to 65,535.
cdef inline uint16_t packet_id_of(uint64_t sequence) noexcept nogil:
    return <uint16_t>(sequence % 65535 + 1)

# How long ago that was, by the low bits of the clock: up to 49 days. It may have been noted on another reactor, whose
# turn began a little later.
cdef inline uint32_t ms_since(uint32_t since_ms, int64_t now_ms) noexcept nogil:
    cdef uint32_t ms = <uint32_t>now_ms - since_ms
    return 0 if ms >= <uint32_t>0xFFFF0000 else ms

# of this module alone
cdef void _check_outbox(const Outbox* box) noexcept nogil
cdef void _grow(Outbox* box, int64_t* tally) noexcept nogil
cdef Entry* _new_entry(Outbox* box, uint64_t place, int64_t now_ms, int64_t* tally) noexcept nogil
