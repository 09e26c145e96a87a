from tidemq.engine.state cimport Connection, Reactor

cdef void read_connection(Reactor* r, Connection* c) noexcept nogil
cdef void parse_kept(Reactor* r, Connection* c) noexcept nogil
