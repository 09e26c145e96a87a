from libc.stdint cimport uint16_t, uint64_t, uint8_t

from tidemq.engine.base.message cimport Message, Passage
from tidemq.engine.state.client cimport Connection, LocalGroup, Membership, Session
from tidemq.engine.state.reactor cimport Reactor
from tidemq.engine.state.routing cimport CacheEntry, Group
from tidemq.wire.protocol cimport Span

cdef void route(Reactor* r, Passage* p) noexcept nogil
cdef void route_arrived(Reactor* r, Passage* p) noexcept nogil
cdef void route_to_group(Reactor* r, Passage* p, Span filter, Span group, bint anywhere) noexcept nogil
cdef void route_message(Reactor* r, Message* message) noexcept nogil
cdef void deliver_mailed(Reactor* r, Message* message, uint64_t token, bint offered) noexcept nogil
cdef void deliver_to_group(
    Reactor* r, Message* message, uint64_t group, uint64_t token, bint offered
) noexcept nogil

# of this module alone
cdef void _deliver_plain(Reactor* r, Passage* p, CacheEntry* entry) noexcept nogil
cdef void _mail_to_reactors(Reactor* r, Passage* p, CacheEntry* entry) noexcept nogil
cdef Membership* _choose_here(Reactor* r, LocalGroup* group, uint8_t qos) noexcept nogil
cdef uint16_t _choose_reactor(Reactor* r, Group* group) noexcept nogil
cdef void _mail_to_group(Reactor* r, Passage* p, Group* group) noexcept nogil
cdef void _deliver_to_group(Reactor* r, Passage* p, Group* group) noexcept nogil
cdef bint _goes_to_node(Reactor* r, const Group* group) noexcept nogil
cdef void _deliver_locally(Reactor* r, Passage* p, Group* group) noexcept nogil
cdef void _deliver_here(Reactor* r, Passage* p, Group* group, Membership* member) noexcept nogil
