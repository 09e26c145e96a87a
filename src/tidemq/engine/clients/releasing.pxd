from tidemq.engine.state.client cimport Connection, HeldPublish
from tidemq.engine.state.reactor cimport Reactor
from tidemq.wire.packets cimport Publish

cdef void release_held(Reactor* r, Connection* c) noexcept nogil

# of this module alone
cdef void _settle_held(Reactor* r, Connection* c, HeldPublish* item) noexcept nogil
cdef bint _change(Publish* publish, const HeldPublish* item) noexcept nogil
