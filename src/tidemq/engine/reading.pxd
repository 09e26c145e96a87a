from tidemq.engine.state cimport Connection, Reactor

cdef void read_connection(Reactor* r, Connection* c) noexcept nogil
cdef void parse_kept(Reactor* r, Connection* c) noexcept nogil
# Whether what is kept begins with a whole packet, or with what cannot become one.
cdef bint begins_whole(const Connection* c) noexcept nogil
