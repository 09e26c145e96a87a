from libc.stdint cimport int64_t, uint8_t

from tidemq.engine.state cimport Message, MessageId, Passage
from tidemq.engine.system cimport RELAXED, add_int
from tidemq.wire.protocol cimport Span

cdef Message* new_message(const Passage* passage, int64_t* tally) noexcept nogil
cdef void release_message(Message* message, int64_t* tally) noexcept nogil
cdef Span topic_of(const Message* message) noexcept nogil
cdef Span properties_of(const Message* message) noexcept nogil
cdef Span payload_of(const Message* message) noexcept nogil
cdef uint8_t* bytes_of(const Message* message) noexcept nogil
cdef Message* passage_message(Passage* passage, int64_t* tally) noexcept nogil
cdef Passage copy_passage(const Passage* passage, MessageId id) noexcept nogil
cdef void empty_passage(Passage* passage) noexcept nogil
cdef void open_passage(Passage* passage, Message* message) noexcept nogil
cdef void close_passage(Passage* passage, int64_t* tally) noexcept nogil

# Inline, as what is done for every message and smaller than its call:

# What a message takes in memory, in bytes.
cdef inline int64_t message_bytes(const Message* message) noexcept nogil:
    return sizeof(Message) + message.topic_size + message.properties_size + message.payload_size

# One more holder.
cdef inline void hold_message(Message* message) noexcept nogil:
    add_int(&message.references, 1, RELAXED)
