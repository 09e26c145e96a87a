from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t, uint8_t
from libcpp cimport bool
from libcpp.string cimport string

from tidemq.engine.state.client cimport Connection, Held, HeldPublish, Session
from tidemq.engine.state.mail cimport Mail
from tidemq.engine.state.reactor cimport Reactor
from tidemq.wire.packets cimport Publish

# `asks`: plugins are asked about it; else it only waits for those before it.
cdef void hold_publish(
    Reactor* r, Connection* c, const Publish* publish, uint8_t first, const uint8_t* body, uint32_t size, bint asks,
    int64_t came_ms,
) noexcept nogil
cdef void hold_verdict(Reactor* r, Connection* c, const Publish* publish, uint8_t verdict, uint8_t reason) noexcept nogil
cdef void answer_held(Reactor* r, Connection* c, const Mail* mail) noexcept nogil
cdef bint has_answered(const Held* held) noexcept nogil
cdef HeldPublish take_held(Reactor* r, Connection* c) noexcept nogil
cdef void free_held(Reactor* r, HeldPublish* item) noexcept nogil
cdef void continue_later(Reactor* r, Connection* c) noexcept nogil
cdef void end_release(Reactor* r, Connection* c) noexcept nogil
cdef void drop_held(Reactor* r, Connection* c) noexcept nogil
cdef bint hand_over_will(Reactor* r, const Session* s) noexcept nogil

# of this module alone
cdef uint64_t _bytes(const HeldPublish* item) noexcept nogil
cdef void _add(Reactor* r, Connection* c, HeldPublish* item) noexcept nogil
cdef bint _is_full(const Reactor* r, const Held* held) noexcept nogil
cdef void _ask(Reactor* r, Connection* c, const Publish* publish) noexcept nogil
