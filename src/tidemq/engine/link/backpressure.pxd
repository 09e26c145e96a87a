from libc.stdint cimport int64_t, uint16_t, uint64_t

from tidemq.engine.state.client cimport Connection, Session
from tidemq.engine.state.reactor cimport Common, Reactor
from tidemq.engine.state.strain cimport Strain

cdef void pause_feeder(Reactor* r, uint64_t feeder) noexcept nogil
cdef void resume_feeder(Reactor* r, uint64_t feeder) noexcept nogil
cdef bint may_overfill(const Reactor* r, const Session* s, uint64_t feeder, bint attended) noexcept nogil
cdef void wait_for(Reactor* r, Session* s, uint64_t feeder) noexcept nogil
cdef void wait_for_queue(Reactor* r, Session* s, uint64_t feeder, bint attended) noexcept nogil
cdef void relieve(Reactor* r, Session* s) noexcept nogil
cdef void stop_waiting(Reactor* r, Session* s) noexcept nogil
cdef void end_strain(Reactor* r, Session* s) noexcept nogil
cdef void continue_released(Reactor* r) noexcept nogil
cdef void free_released(Reactor* r) noexcept nogil
cdef void check_strained(Reactor* r) noexcept nogil
cdef void continue_strained(Reactor* r) noexcept nogil
cdef void wait_for_inbox(Reactor* r, uint16_t target, uint64_t feeder) noexcept nogil
cdef void hold_feeder(Reactor* r, uint64_t feeder) noexcept nogil
cdef void pause_held(Reactor* r, Connection* c) noexcept nogil
cdef void wait_behind(Reactor* r, Connection* c) noexcept nogil
cdef void check_flooding(Reactor* r) noexcept nogil

# Inline, as what is done for every message and smaller than its call:

# Whether publishers wait for this receiver, or have waited too long.
cdef inline bint is_waited_for(const Session* s) noexcept nogil:
    return s.strain != NULL and s.strain.waited_for

# What is in a session's queue, in memory and in the store.
cdef inline uint64_t queued_messages(const Session* s) noexcept nogil:
    cdef uint64_t count = s.outbox.inflight + s.outbox.waiting
    return count if s.stored == NULL else count + s.stored.waiting

cdef inline uint64_t queued_bytes(const Session* s) noexcept nogil:
    return s.outbox.bytes if s.stored == NULL else s.outbox.bytes + s.stored.bytes

# Of a queue that may hold so much: from here on publishers wait.
cdef inline uint64_t high_mark(uint64_t limit) noexcept nogil:
    return limit - limit // 8

# Whether what waits for this receiver, in memory and in the store, is at one of its marks.
cdef inline bint queue_is_high(const Reactor* r, const Session* s) noexcept nogil:
    if s.outbox.bytes > r.common.limits.output_high_bytes:
        return True
    if queued_messages(s) >= high_mark(r.common.limits.queued_messages_max):
        return True
    return queued_bytes(s) >= high_mark(r.common.limits.queued_bytes_max)

# of this module alone
cdef bint _queue_is_low(const Reactor* r, const Session* s) noexcept nogil
cdef uint64_t _bytes_taken(Session* s) noexcept nogil
cdef void _note_taken(Reactor* r, Session* s) noexcept nogil
cdef bint _has_taken(Reactor* r, Session* s) noexcept nogil
cdef void _charge(Reactor* r, Strain* strain) noexcept nogil
cdef void _recover(Reactor* r, Strain* strain) noexcept nogil
cdef void _begin_wait(Reactor* r, Session* s) noexcept nogil
cdef void _release_feeders(Reactor* r, Strain* strain) noexcept nogil
cdef void _look_at(Reactor* r, Session* s) noexcept nogil
