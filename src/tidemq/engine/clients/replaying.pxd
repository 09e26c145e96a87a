from libc.stdint cimport uint8_t, uint32_t

from tidemq.engine.state.client cimport Connection, Replay
from tidemq.engine.state.mail cimport Mail
from tidemq.engine.state.reactor cimport Reactor
from tidemq.wire.protocol cimport Span

cdef bint names_stream(Span filter) noexcept nogil
cdef bint asks_for_stream(Span filters) noexcept nogil
cdef void report_unsubscribed(Reactor* r, Connection* c, Span filter) noexcept nogil
cdef void deliver_replayed(Reactor* r, Mail* mail) noexcept nogil
cdef uint8_t apply_replay(
    Reactor* r, Connection* c, Span filter, uint8_t options, uint32_t subscription_id, Span start, bint fails,
) noexcept nogil
cdef void resume_replays(Reactor* r, Connection* c) noexcept nogil
cdef void feed_replay(Reactor* r, Mail* mail) noexcept nogil
cdef void revoke_replay(Reactor* r, Mail* mail) noexcept nogil
cdef void report_delivered(Reactor* r, Connection* c, bint gone) noexcept nogil

cdef enum:
    START_BYTES = 17             # of a filter below $stream/ that is granted: QoS (1), epoch (8), offset (8)

# of this module alone
cdef void _report_replay(Reactor* r, Connection* c, Replay* replay, bint asked) noexcept nogil
