from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t, uint8_t
from libcpp.string cimport string

from tidemq.engine.base.message cimport Message, MessageId
from tidemq.engine.state.client cimport Session, SessionSubscription
from tidemq.engine.state.reactor cimport Common, Reactor
from tidemq.engine.state.section cimport Record
from tidemq.wire.protocol cimport Span

cdef void append_u16(string* out, uint16_t value) noexcept nogil
cdef void append_u32(string* out, uint32_t value) noexcept nogil
cdef void append_u64(string* out, uint64_t value) noexcept nogil
cdef void append_id(string* out, const MessageId* id) noexcept nogil
cdef uint32_t read_u32(const uint8_t* at) noexcept nogil
cdef uint64_t read_u64(const uint8_t* at) noexcept nogil
cdef MessageId read_id(const uint8_t* at) noexcept nogil
cdef int64_t wall_ms(const Common* common, int64_t monotonic_ms) noexcept nogil
cdef int64_t monotonic_ms(const Common* common, int64_t wall) noexcept nogil
cdef void append_message(const Common* common, const Message* message, string* out) noexcept nogil
cdef void append_queue_key(uint64_t queue, uint8_t status, const MessageId* id, string* out) noexcept nogil
cdef void append_queue_value(const Common* common, const Record* record, bint released, string* out) noexcept nogil
cdef void append_session(const Common* common, const Session* s, string* out) noexcept nogil
cdef void append_subscription_key(const string* client_id, const string* filter, string* out) noexcept nogil
cdef void append_subscription(const SessionSubscription* subscription, string* out) noexcept nogil
cdef Message* read_message(
    Common* common, const uint8_t* data, size_t size, const MessageId* id, int64_t* tally
) noexcept nogil

cdef enum:
    ROW_FLAG_RETAIN = 1
    ROW_FLAG_RELEASED = 2
    ROW_FLAG_COUNTED = 4
    ROW_FLAG_WAS_SENT = 8
    QUEUE_KEY_BYTES = 25
    QUEUE_VALUE_BYTES = 22        # before the subscription identifiers
    MESSAGE_HEAD_BYTES = 22
    SESSION_BYTES = 44            # before the will
    SUBSCRIPTION_BYTES = 5
    REPLAY_BYTES = 21             # of a subscription at QoS 1 to what a stream keeps

# of this module alone
cdef void _append_number(string* out, uint64_t value, int size) noexcept nogil
cdef void _append_span(string* out, Span span) noexcept nogil
