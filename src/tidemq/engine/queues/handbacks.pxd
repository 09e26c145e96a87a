from libc.stdint cimport uint64_t

from tidemq.engine.state.client cimport Handback, Session
from tidemq.engine.state.queue cimport Entry, Outbox
from tidemq.engine.state.reactor cimport Reactor

cdef enum:
    HANDBACK_SLICE = 4096        # entries a turn

cdef void return_held(Reactor* r, Session* s) noexcept nogil
cdef void keep_held(Reactor* r, Session* s) noexcept nogil
cdef void dispose_outbox(Reactor* r, Session* s, bint ends) noexcept nogil
cdef void continue_handbacks(Reactor* r) noexcept nogil
cdef void end_handbacks(Reactor* r) noexcept nogil

# of this module alone
cdef Session* _shard_for(Reactor* r, const Entry* entry) noexcept nogil
cdef void _return_to_shard(Reactor* r, Session* shard, Outbox* box, Entry* entry) noexcept nogil
cdef void _drop(Reactor* r, Outbox* box, Entry* entry) noexcept nogil
cdef bint _take_apart(Reactor* r, Outbox* box, uint64_t* place, bint ended, uint64_t* dropped) noexcept nogil
cdef Handback* _begin(Reactor* r, Session* s, uint64_t place) noexcept nogil
cdef void _let_groups_go_on(Reactor* r, Handback* rest) noexcept nogil
