from tidemq.engine.state.mail cimport Mail
from tidemq.engine.state.reactor cimport Common

cdef class Engine:
    cdef Common* common
    cdef bint started
    cdef bint stopped
    cdef bint closed
    cdef unsigned int running        # reactors that have not told their end yet
    cdef unsigned long long next_receiver
    cdef object threads
    cdef object sockets
    cdef object limits
    cdef int traces              # that there have been
    cdef object schemes              # of the listeners, by number
    cdef object final_counters
    cdef object _answer(self, object connection, Mail* mail)
    cdef object _check_open(self)
    cdef object _send(self, object connection, int kind, object text, object data, object token)
    cdef object _check_topic(self, object text, object qos, object check)
    cdef object _free(self)
    cdef object _publish_tally(self)
