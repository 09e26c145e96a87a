"""The packet identifiers that a client has in use, and by whom."""
from libc.stdint cimport uint16_t, uint32_t

from tidemq.client.receipt cimport Receipt

cdef enum:
    IDENTIFIERS_MAX = 0xFFFF

# Slot (identifier & mask) has its owner: a Receipt, or another object with a `packet_id`. No two identifiers in use
# fall into one slot; the table grows until that is so.
cdef class Identifiers:
    cdef list slots
    cdef uint32_t mask
    cdef uint16_t last
    cdef readonly uint32_t used

    cdef uint16_t assign(self, object owner)       # one that is free; fewer than IDENTIFIERS_MAX may be in use
    cdef bint occupy(self, uint16_t packet_id, object owner)   # that one; False if it is in use
    cdef object owner(self, uint16_t packet_id)    # None where nobody has it
    cdef void free(self, uint16_t packet_id)
    cdef list receipts(self)                       # in the order of sending
    cdef void enlarge(self)

# of this module alone
cdef uint16_t id_of(owner)
