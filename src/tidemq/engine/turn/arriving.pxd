from libc.stdint cimport uint8_t, uint32_t, uint64_t

from tidemq.engine.base.message cimport Passage
from tidemq.engine.state.mail cimport Mail
from tidemq.engine.state.nodes cimport NodeBatch, NodeRecord
from tidemq.engine.state.reactor cimport Reactor

cdef void accept_arrived(Reactor* r, Mail* mail) noexcept nogil
cdef void begin_settling(Reactor* r, uint64_t node, uint8_t reason) noexcept nogil
cdef void continue_nodes(Reactor* r) noexcept nogil

# of this module alone
cdef bint _is_flooding(Reactor* r) noexcept nogil
cdef void _continue_arrived(Reactor* r) noexcept nogil
cdef void _raise_ids(Reactor* r, uint64_t clock) noexcept nogil
cdef void _take_message(Reactor* r, const NodeBatch* batch, const NodeRecord* record, const uint8_t* at) noexcept nogil
cdef uint8_t _refusal(Reactor* r, const Passage* p) noexcept nogil
cdef void _take_answer(Reactor* r, uint8_t node, const NodeRecord* record, const uint8_t* at) noexcept nogil
cdef void _keep(Reactor* r, uint64_t token, uint8_t reason) noexcept nogil
cdef void _continue_settling(Reactor* r) noexcept nogil
