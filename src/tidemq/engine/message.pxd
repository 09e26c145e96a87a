from libc.stdint cimport int64_t, uint8_t

from tidemq.engine.state cimport Message, Passage
from tidemq.wire.protocol cimport Span

cdef Message* new_message(const Passage* passage, int64_t* tally) noexcept nogil
cdef void hold_message(Message* message) noexcept nogil
cdef void release_message(Message* message, int64_t* tally) noexcept nogil
cdef Span topic_of(const Message* message) noexcept nogil
cdef Span properties_of(const Message* message) noexcept nogil
cdef Span payload_of(const Message* message) noexcept nogil
cdef uint8_t* bytes_of(const Message* message) noexcept nogil
cdef Message* passage_message(Passage* passage, int64_t* tally) noexcept nogil
cdef void open_passage(Passage* passage, Message* message) noexcept nogil
cdef void close_passage(Passage* passage, int64_t* tally) noexcept nogil
cdef int64_t message_bytes(const Message* message) noexcept nogil
