from tidemq.engine.state.reactor cimport Reactor

cdef void follow_clock(Reactor* r) noexcept nogil
cdef void continue_dating(Reactor* r) noexcept nogil
cdef void _begin_dating(Reactor* r) noexcept nogil
cdef void _date_next(Reactor* r) noexcept nogil
