from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t, uint8_t
from libcpp.string cimport string

from tidemq.engine.state.client cimport Replay, Session
from tidemq.engine.state.reactor cimport Reactor
from tidemq.wire.protocol cimport Span

cdef Replay* find_replay(Session* s, Span filter) noexcept nogil   # NULL: there is none
cdef Replay* begin_replay(
    Reactor* r, Session* s, Span filter, uint8_t options, uint32_t subscription_id, uint64_t epoch, int64_t start,
) noexcept nogil
cdef void restore_replay(
    Reactor* r, Session* s, Span filter, uint8_t options, uint32_t subscription_id, uint64_t epoch, int64_t start,
) noexcept nogil
cdef bint drop_replay(Reactor* r, Session* s, Span filter) noexcept nogil
cdef void append_replayed(Reactor* r, Session* s, Replay* replay, Span messages, int64_t end) noexcept nogil
cdef void note_replayed(Reactor* r, Session* s, uint16_t number, uint64_t place) noexcept nogil
cdef void evict_replayed(Reactor* r, Session* s) noexcept nogil
cdef void unstore_replays(Reactor* r, Session* s) noexcept nogil
cdef void free_replays(Reactor* r, Session* s) noexcept nogil

# of this module alone
cdef void _record(Reactor* r, Session* s, Replay* replay) noexcept nogil
cdef void _delete(Reactor* r, Session* s, Replay* replay) noexcept nogil
cdef void _append(Reactor* r, Session* s, Replay* replay, int64_t offset, Span topic, Span properties, Span payload) noexcept nogil
cdef void _settle(Reactor* r, Session* s, Replay* replay) noexcept nogil
cdef void _evict(Reactor* r, Session* s, Replay* replay) noexcept nogil
