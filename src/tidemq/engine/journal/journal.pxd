from libc.stdint cimport uint32_t, uint64_t, uint8_t
from libcpp cimport bool
from libcpp.string cimport string

from tidemq.engine.base.message cimport Message, MessageId
from tidemq.engine.state.client cimport Session
from tidemq.engine.state.queue cimport Entry
from tidemq.engine.state.reactor cimport Reactor
from tidemq.engine.state.section cimport SECTION_BYTES, SECTION_RECORDS, Record, Section
from tidemq.engine.base.system cimport RELAXED, load_int
from tidemq.wire.protocol cimport Span

cdef enum:
    NO_RECORD = 0xFFFFFFFF        # what an entry's row was last changed by is not in the open section any more
    STORE_FAILED = 0x83           # the reason of what could not be stored; that a queue was full has another
    # of a section that is stored here and nowhere else, where the answer is not to be given then; and between
    # reactors, of a message in one. No client is told it: no packet has this reason code
    UNCOPIED = 0xFF
    MESSAGES_ONLY = 0x100         # beside the reason in `store_refuses`: sessions and subscriptions are taken

# Whether the last write failed and none has succeeded since.
cdef inline bint store_fails(Reactor* r) noexcept nogil:
    return load_int(&r.common.store_refuses, RELAXED) == STORE_FAILED

# Whether so much is large enough for a batch of its own.
cdef inline bint is_batch(size_t records, uint64_t bytes) noexcept nogil:
    return records >= SECTION_RECORDS or bytes >= SECTION_BYTES

cdef void open_journal(Reactor* r) noexcept nogil
cdef void free_section(Reactor* r, Section* section) noexcept nogil
cdef void spend_section(Reactor* r, Section* section) noexcept nogil
cdef bint free_spent(Reactor* r) noexcept nogil
cdef MessageId next_id(Reactor* r) noexcept nogil
cdef bint precedes(const MessageId* a, const MessageId* b) noexcept nogil

cdef uint32_t add_row(
    Reactor* r, uint64_t queue, Message* message, uint64_t place, uint8_t status, uint8_t qos, bint retain,
    const uint32_t* ids, uint32_t ids_count,
) noexcept nogil
cdef void add_elsewhere(
    Reactor* r, Span client_id, Message* message, uint8_t qos, bint retain, const uint32_t* ids, uint32_t ids_count
) noexcept nogil
cdef void note_returned(Reactor* r, Entry* entry) noexcept nogil
cdef bint is_committed(const Reactor* r, const Entry* entry) noexcept nogil
cdef void note_sent(Reactor* r, Session* s, Entry* entry, uint64_t place) noexcept nogil
cdef void record_sent(Reactor* r, Session* s, Entry* entry, uint64_t place) noexcept nogil
cdef void note_released(Reactor* r, Session* s, Entry* entry, uint64_t place) noexcept nogil
cdef uint8_t void_change(Reactor* r, Entry* entry) noexcept nogil
cdef void remove_row(Reactor* r, Session* s, Entry* entry) noexcept nogil
cdef void remove_stored(Reactor* r, uint64_t queue, Message* message) noexcept nogil
cdef void note_retained(Reactor* r, Message* message) noexcept nogil
cdef Record* put_value(Reactor* r, uint8_t family, const string* key, const string* value) noexcept nogil
cdef bint change_value(Reactor* r, uint64_t section, uint32_t record, const string* value) noexcept nogil
cdef void delete_value(Reactor* r, uint8_t family, const string* key) noexcept nogil
cdef Record* ask_store(Reactor* r, uint8_t kind, uint64_t queue) noexcept nogil
cdef Record* tell_store(Reactor* r, uint8_t kind, const string* name) noexcept nogil
cdef uint64_t last_section(const Reactor* r) noexcept nogil
cdef bint is_late(const Reactor* r) noexcept nogil
cdef void give_section(Reactor* r) noexcept nogil
cdef bint hand_over(Reactor* r) noexcept nogil

# of this module alone
cdef void _clear_record(Reactor* r, Record* record) noexcept nogil
cdef void _free_records(Reactor* r, Section* section, size_t count) noexcept nogil
cdef void _weigh(Section* section, Record* record) noexcept nogil
cdef Record* _append_record(Reactor* r, uint8_t kind, Message* message) noexcept nogil
cdef Record* _open_record(Reactor* r, Entry* entry) noexcept nogil
cdef void _change_row(Reactor* r, uint64_t queue, Entry* entry, uint8_t kind, uint64_t place) noexcept nogil
cdef uint64_t _row_queue(const Session* s, const Entry* entry) noexcept nogil
cdef bint _may_be_added_elsewhere(const Session* s, const Entry* entry) noexcept nogil
cdef void _remove_row(Reactor* r, Session* s, Entry* entry) noexcept nogil
cdef string* _copy_of(const string* text) noexcept nogil
