from tidemq.engine.state cimport Reactor

cdef void post_departing(Reactor* r) noexcept nogil
