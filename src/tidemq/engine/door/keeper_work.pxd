from libc.stdint cimport int64_t, uint64_t, uint8_t
from libcpp.string cimport string
from libcpp.vector cimport vector

from tidemq.engine.state.state cimport Message, MessageId, Record, Section, Shared

cdef class StoreWork:
    cdef Shared* shared
    cdef vector[Section*] sections
    cdef readonly list writes
    cdef readonly list references
    cdef readonly list reads
    cdef readonly list trims
    cdef readonly list expired
    cdef readonly list purges
    cdef readonly bint adds
    cdef readonly bint outdated
    cdef readonly unsigned long long streams

cdef object init_journal(Shared* shared)
cdef StoreWork wait_for_work(Shared* shared, double timeout_s)
cdef StoreWork rest_of_work(StoreWork work)
cdef void answer_work(StoreWork work, int reason)
cdef void poke_journal(Shared* shared) noexcept nogil
cdef void close_journal(Shared* shared) noexcept nogil

# of this module alone
cdef void _wait(Shared* shared, int64_t timeout_ns) noexcept nogil
cdef bytes _purged(Record* record)
cdef bytes _queue_key(Record* record, uint8_t status)
cdef bytes _queue_value(Shared* shared, Record* record, bint released)
cdef bytes _expiry_key(Shared* shared, Record* record)
cdef bytes _id_bytes(MessageId* id)
cdef bytes _message_value(Shared* shared, Message* message)
cdef uint64_t _convert_section(StoreWork work, Section* section)
cdef object _convert_added(StoreWork work, Record* record, bint again)
cdef bytes _text(string* text)
cdef object _convert_change(Shared* shared, Record* record, list writes, list references)
cdef object _convert_removed(Shared* shared, Record* record, list writes, list references)
cdef tuple _retained_write(Shared* shared, Message* changed)
