"""From threads to the event loop."""
from libc.stdint cimport int64_t

from tidemq.client.outgoing cimport Outgoing

cdef class Handover:
    cdef Outgoing outgoing
    cdef object wake            # called by any thread where there was nothing; None: not open yet
    cdef int64_t messages_max
    cdef bint drops_oldest
    cdef object receipts
    cdef bint woken
