"""From threads to the event loop."""
from tidemq.client.outgoing cimport Outgoing
from tidemq.client.receipt cimport Receipt

cdef class Handover:
    cdef Outgoing outgoing
    cdef object wake            # called by any thread where there was nothing; None: not open yet
    cdef object receipts
    cdef bint woken

    cdef void promise(self, Receipt receipt, int sign)
