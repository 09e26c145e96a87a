from libc.stdint cimport int64_t, uint64_t
from libcpp.string cimport string

from tidemq.engine.state.client cimport Connection, Session
from tidemq.engine.base.roster cimport ListedClient, Roster
from tidemq.engine.state.mail cimport Mail
from tidemq.engine.state.reactor cimport Reactor

cdef void call_roll(Reactor* r, Mail* mail) noexcept nogil

# of this module alone
cdef bint _is_over(Roster* roster) noexcept nogil
cdef void _walk_connected(Reactor* r, Roster* roster) noexcept nogil
cdef void _walk_away(Reactor* r, Roster* roster) noexcept nogil
cdef bint _look_into(Reactor* r, Roster* roster, uint64_t bucket) noexcept nogil
cdef bint _is_wanted(Reactor* r, const Roster* roster, Session* s) noexcept nogil
cdef bint _is_at(Connection* c, const Roster* roster) noexcept nogil
cdef string _peer_of(Connection* c) noexcept nogil
cdef int64_t _oldest_ms(Reactor* r, Session* s) noexcept nogil
cdef void _add(Reactor* r, Roster* roster, Session* s) noexcept nogil
cdef ListedClient _row_of(Reactor* r, Session* s) noexcept nogil
cdef bint _find_one(Reactor* r, Mail* mail, Roster* roster) noexcept nogil
