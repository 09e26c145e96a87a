from libcpp.string cimport string

from tidemq.engine.state.client cimport Connection
from tidemq.engine.state.reactor cimport Reactor
from tidemq.wire.packets cimport Connect

cdef void ask_for_session(
    Reactor* r, Connection* c, const string* client_id, const Connect* connect, const string* auth_data,
) noexcept nogil

# of this module alone
cdef void _keep(Connection* c, const string* client_id, const string* auth_data) noexcept nogil
