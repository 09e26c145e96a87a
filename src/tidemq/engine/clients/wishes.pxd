from libc.stdint cimport uint32_t
from libcpp.string cimport string

from tidemq.engine.state.state cimport Connection, Reactor, Session
from tidemq.wire.packets cimport Connect

cdef uint32_t wanted_expiry_s(const Connect* connect) noexcept nogil
cdef void apply_wishes(Reactor* r, Connection* c, Session* s, Connect* connect, string* properties) noexcept nogil
cdef void keep_will(Reactor* r, Session* s, Connect* connect) noexcept nogil
