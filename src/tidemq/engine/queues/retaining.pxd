from tidemq.engine.base.message cimport Message, Passage
from tidemq.engine.state.reactor cimport Reactor

cdef void retain_passage(Reactor* r, Passage* p) noexcept nogil
cdef bint has_retained(Reactor* r) noexcept nogil
cdef void sweep_retained(Reactor* r) noexcept nogil
cdef void end_sweep(Reactor* r) noexcept nogil
cdef void forget_expired(Reactor* r, Message* message) noexcept nogil
cdef bint remove_if_same(Reactor* r, Message* message) noexcept nogil
cdef bint is_over(Reactor* r, Message* message) noexcept nogil

# of this module alone
cdef bint _shorten(Reactor* r, Passage* p, Passage* short) noexcept nogil
cdef void _retain(Reactor* r, Passage* p) noexcept nogil
