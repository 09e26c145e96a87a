from tidemq.engine.state.reactor cimport Reactor

cdef void post_departing(Reactor* r) noexcept nogil

# of this module alone
cdef void _check_departing(const Reactor* r) noexcept nogil
cdef bint _is_about_these(const Reactor* r) noexcept nogil
