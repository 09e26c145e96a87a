from libcpp.string cimport string

from tidemq.engine.base.engine_limits cimport EngineLimits
from tidemq.engine.base.event cimport Event
from tidemq.engine.base.listener cimport Listener
from tidemq.engine.state.reactor cimport Common
from tidemq.wire.protocol cimport Span

cdef string* string_of(object data) noexcept              # the caller frees it; NULL for None
cdef object event_of(Event* event)                        # a Python event; `event` stays the caller's
cdef object free_event(Common* common, Event* event)
cdef object set_limits(EngineLimits* own, object limits)  # from `limits.Limits`; may raise
cdef Listener* new_listener(object settings, object rates) except *     # from `listeners.ListenerSettings`
cdef object free_listener(Listener* listener)

# of this module alone
cdef object text_of(Span span)
cdef object _disconnected(Event* event)
cdef object _traced(Event* event)
cdef object _spanned(Event* event)
cdef object _connect_request(Event* event)
cdef object _session_request(Event* event)
cdef object _subscribe_request(Event* event)
cdef object _received(Event* event)
cdef object _acknowledged(Event* event)
cdef object _held(Event* event)
cdef object _replaying(Event* event)
