from libc.stdint cimport int64_t, uint8_t, uint32_t
from libcpp cimport bool
from libcpp.string cimport string

from tidemq.engine.base.event cimport Event
from tidemq.engine.base.message cimport Passage
from tidemq.engine.state.client cimport Connection
from tidemq.engine.state.reactor cimport Reactor
from tidemq.wire.trace_parent cimport TRACE_PARENT_BYTES

cdef struct Received:            # the span of a message that comes in
    bool begun
    uint8_t parent[TRACE_PARENT_BYTES]   # `traceparent` as it came
    uint8_t own[TRACE_PARENT_BYTES]      # and as it goes on

# Whether messages are looked through for `traceparent`.
cdef inline bint makes_spans(const Reactor* r) noexcept nogil:
    return r.common.limits.spans_per_s != 0

cdef void begin_received(Reactor* r, Received* span, string* properties) noexcept nogil
cdef void end_received(Reactor* r, Connection* c, const Received* span, const Passage* p) noexcept nogil
cdef void begin_commit(Reactor* r, const Received* span, const Passage* p, uint32_t slot) noexcept nogil
cdef void end_commit(Reactor* r, Connection* c, uint32_t slot, uint8_t reason) noexcept nogil
cdef void report_delivered(Reactor* r, Connection* c, const Passage* p, int64_t waited_ns) noexcept nogil

# of this module alone
cdef bint _may_report(Reactor* r) noexcept nogil
cdef void _draw_span_id(uint8_t* digits) noexcept nogil
cdef Event* _span_event(Reactor* r, Connection* c, uint8_t step, const uint8_t* parent) noexcept nogil
cdef void _post_span(Reactor* r, Event* event, const Passage* p, int64_t began_ns) noexcept nogil
