from tidemq.engine.state cimport Connection, Reactor

cdef void read_connection(Reactor* r, Connection* c) noexcept nogil
cdef void parse_kept(Reactor* r, Connection* c) noexcept nogil
# Whether what is kept begins with a whole packet, or with what cannot become one. What does not is at most half of
# the reactor's buffer, or has a buffer of its own.
cdef bint begins_whole(const Reactor* r, const Connection* c) noexcept nogil
