from tidemq.engine.state.state cimport Reactor

cdef void post_departing(Reactor* r) noexcept nogil
