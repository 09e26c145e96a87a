from tidemq.engine.state cimport Reactor, Session

cdef enum:
    HANDBACK_SLICE = 4096        # entries a turn

cdef void return_held(Reactor* r, Session* s) noexcept nogil
cdef void keep_held(Reactor* r, Session* s) noexcept nogil
cdef void dispose_outbox(Reactor* r, Session* s) noexcept nogil
cdef void continue_handbacks(Reactor* r) noexcept nogil
cdef void end_handbacks(Reactor* r) noexcept nogil
