from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libcpp.string cimport string

from tidemq.engine.base.message cimport Passage
from tidemq.engine.state.nodes cimport NodeRecord
from tidemq.engine.state.reactor cimport Reactor
from tidemq.engine.state.routing cimport Group

cdef void forward(Reactor* r, Passage* p, uint32_t nodes) noexcept nogil   # `nodes`: bit mask
cdef void forward_to_group(Reactor* r, Passage* p, const Group* group) noexcept nogil
cdef void answer_node(Reactor* r, uint8_t node, uint64_t asked, uint8_t reason, const string* takers) noexcept nogil
cdef void hand_to_nodes(Reactor* r) noexcept nogil
cdef void release_held_back(Reactor* r) noexcept nogil

# of this module alone
cdef void _fill(Reactor* r, const Passage* p, NodeRecord* record) noexcept nogil
cdef uint8_t _choose_node(Reactor* r, const Group* group) noexcept nogil
cdef void _forward_to(Reactor* r, Passage* p, uint8_t node, NodeRecord* record, const string* group) noexcept nogil
cdef bint _reserve(Reactor* r, Passage* p, uint8_t node, int64_t size) noexcept nogil
cdef bint _is_slow(Reactor* r, uint8_t node) noexcept nogil
cdef void _append(Reactor* r, uint8_t node, const NodeRecord* record) noexcept nogil
cdef void _hold_back(Reactor* r, uint8_t node, uint64_t feeder) noexcept nogil
