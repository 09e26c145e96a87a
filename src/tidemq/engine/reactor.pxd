from tidemq.engine.state cimport Reactor, Shared

cdef Reactor* new_reactor(Shared* shared, unsigned short index) noexcept nogil
cdef void free_reactor(Reactor* r) noexcept nogil
cdef void run_reactor(Reactor* r) noexcept nogil
