from libc.stdint cimport int64_t, uint16_t, uint64_t

from tidemq.engine.state.client cimport Connection
from tidemq.engine.state.mail cimport Mail
from tidemq.engine.state.reactor cimport Reactor

cdef void consider_moving(Reactor* r, Connection* c, uint64_t reactors) noexcept nogil
cdef void welcome(Reactor* r, const Mail* mail) noexcept nogil
cdef void work_out_load(Reactor* r, int64_t now_ns) noexcept nogil
cdef void go_home(Reactor* r, Connection* c) noexcept nogil

# of this module alone
cdef bint _may_move(Reactor* r, Connection* c) noexcept nogil
cdef void _move(Reactor* r, Connection* c, uint16_t target) noexcept nogil
