from libc.stdint cimport int64_t, uint64_t, uint8_t
from libcpp.string cimport string
from libcpp.vector cimport vector

from tidemq.engine.base.message cimport Message, MessageId
from tidemq.engine.state.reactor cimport Common
from tidemq.engine.state.section cimport Record, Section

cdef class StoreWork:
    cdef Common* common
    cdef vector[Section*] sections
    cdef readonly object described
    cdef readonly list writes
    cdef readonly list references
    cdef readonly list reads
    cdef readonly list trims
    cdef readonly list expired
    cdef readonly list purges
    cdef readonly list left
    cdef readonly list arrived
    cdef readonly set elsewhere
    cdef readonly list given
    cdef readonly list let_go
    cdef readonly bint adds
    cdef readonly bint outdated
    cdef readonly bint more
    cdef readonly unsigned long long streams

cdef object init_journal(Common* common)
cdef StoreWork wait_for_work(Common* common, double timeout_s, bint described)
cdef StoreWork rest_of_work(StoreWork work)
cdef void answer_work(StoreWork work, int reason)
cdef void poke_journal(Common* common) noexcept nogil
cdef void close_journal(Common* common) noexcept nogil

# of this module alone
cdef void _wait(Common* common, int64_t timeout_ns) noexcept nogil
cdef void _take_sections(Common* common, vector[Section*]* taken) noexcept nogil
cdef bytes _purged(Record* record)
cdef bytes _queue_key(Record* record, uint8_t status)
cdef bytes _queue_value(Common* common, Record* record, bint released)
cdef bytes _expiry_key(Common* common, Record* record)
cdef bytes _id_bytes(MessageId* id)
cdef bytes _message_value(Common* common, Message* message)
cdef uint64_t _convert_section(StoreWork work, Section* section)
cdef object _convert_added(StoreWork work, Record* record, bint again)
cdef tuple _describe_added(Common* common, Record* record, bint again)
cdef object _describe_record(Common* common, Record* record, list described)
cdef bytes _text(string* text)
cdef tuple _left(Record* record)
cdef object _convert_change(Common* common, Record* record, list writes, list references)
cdef object _convert_removed(Common* common, Record* record, list writes, list references)
cdef tuple _retained_write(Common* common, Message* changed)
