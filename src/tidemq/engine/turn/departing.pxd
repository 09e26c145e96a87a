from tidemq.engine.state.reactor cimport Reactor

cdef void post_departing(Reactor* r) noexcept nogil
