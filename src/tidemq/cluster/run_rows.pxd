"""What runs of operations do to the rows of a store."""
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libcpp.vector cimport vector

from tidemq.cluster.message_runs cimport Addition, Change, Group

cdef struct Newest:              # of the ids that one source has given
    uint64_t incarnation
    uint8_t source
    uint64_t clock
    bint changed                 # and the store does not have that

cdef struct Beside:              # what lies beside an entry that one record has added
    const uint8_t* queue
    bint shared
    const uint8_t* fields
    const uint8_t* ids           # of subscriptions
    size_t ids_size

cdef class NewestIds:
    cdef vector[Newest] sources
    cdef NewestIds _copy(self)
    cdef Newest* _find(self, uint64_t incarnation, uint8_t source)
    cdef bint _is_new(self, const uint8_t* id)
    cdef object _note(self, const uint8_t* id)

cdef class Client:               # of a run, as far as it was asked for
    cdef str name
    cdef object place            # the queue where new messages go, as keys have it; empty: not for a run
    cdef bint is_apart           # what is added for it is told; known with its place
    cdef object has_changed      # whether any of its entries was changed in this batch, not by a run
    cdef object left_alone       # whether none of its entries may be changed by a run
    cdef bint is_known           # what is below was read
    cdef bytes queue             # the only one that it has, where a run may send; else empty
    cdef bytes session           # what lies beside its session
    cdef uint64_t next_sequence
    cdef bint changed

cdef class RunRows:
    cdef bytes text
    cdef bytes dot
    cdef object seen             # by incarnation, the last record
    cdef size_t at
    cdef NewestIds newest
    cdef object pending          # of the store
    cdef list writes
    cdef object around
    cdef dict clients
    cdef dict beside             # by key of the family, as it is now; of the run's entries
    cdef dict references         # by message id, as they are now; None: one, or none
    cdef dict held               # message ids that are not new: whether any queue has the message now
    cdef set removed             # keys in `beside` of entries whose removal is remembered
    cdef object _read(self)
    cdef bint _act(self, const uint8_t* data, size_t* end)
    cdef Client _client(self, const uint8_t* owner, size_t owner_size)
    cdef bint _may_send(self, Client client, const uint8_t* epoch)
    cdef object _raise_next(self, Client client, uint64_t place)
    cdef object _put_sessions(self)
    cdef bint _add(self, const uint8_t* data, Group* group)
    cdef bint _is_held(self, bytes id)
    cdef bint _is_absent(self, const uint8_t* data, Group* group)
    cdef object _ask_for(self, const uint8_t* data, Group* group, dict removed)
    cdef list _places(self, const uint8_t* data, Group* group)
    cdef object _write_addition(self, Addition* found, bytes number)
    cdef bint _change(self, Change* change)
    cdef bint _has_seen(self, const uint8_t* dot)
    cdef bint _remove(self, Change* change, bytes key, Beside* beside)
    cdef bint _put_in_flight(self, Change* change, bytes key, bytes text, Beside* beside, Client client)
    cdef bint _release(self, Change* change, Beside* beside)
    cdef bint _return(self, Change* change, bytes key, bytes text, Beside* beside)

# of this module alone
cdef bytes _bytes(const uint8_t* data, size_t size)
cdef const uint8_t* _data(bytes text)
cdef size_t _size(bytes text)
cdef bytes _entry_key(uint8_t letter, const uint8_t* owner, size_t owner_size, const uint8_t* id)
cdef bytes _queue_key(const uint8_t* number, uint8_t status, const uint8_t* id)
cdef bytes _queue_value(const uint8_t* fields, uint8_t flags, uint64_t place, const uint8_t* ids, size_t ids_size)
cdef bytes _expiry_key(const uint8_t* fields, const uint8_t* number, const uint8_t* id)
cdef bytes _count_bytes(uint32_t count)
cdef bytes _under_epoch(bytes text, const uint8_t* epoch)
cdef bint _read_beside(bytes text, Beside* found)
