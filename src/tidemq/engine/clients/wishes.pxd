from libc.stdint cimport uint32_t
from libcpp.string cimport string

from tidemq.engine.state.client cimport Connection, Session
from tidemq.engine.state.reactor cimport Reactor
from tidemq.wire.packets cimport Connect

cdef uint32_t wanted_expiry_s(const Connect* connect) noexcept nogil
cdef void apply_wishes(Reactor* r, Connection* c, Session* s, Connect* connect, string* properties) noexcept nogil
cdef void keep_will(Reactor* r, Session* s, Connect* connect) noexcept nogil
