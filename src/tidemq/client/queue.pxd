"""Received messages on their way to the program."""
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint8_t

from tidemq.client.message cimport Message
from tidemq.client.outgoing cimport Outgoing

# What all queues of a client share: how much they hold, and how messages are acknowledged.
cdef class Intake:
    cdef Outgoing outgoing
    cdef readonly bint manual           # the program acknowledges
    cdef uint32_t connection            # the number of the present connection
    cdef uint32_t session_began         # the number of the connection that the server's session began with
    cdef readonly int64_t messages
    cdef readonly int64_t size_bytes
    cdef int64_t messages_max
    cdef int64_t bytes_max
    cdef public object on_room          # called when the queues have room again; None: nobody waits
    cdef readonly uint32_t unacknowledged   # QoS 1 and 2, towards our Receive Maximum
    cdef uint8_t[8192] received         # a bit for each packet identifier of QoS 2: PUBLISH came
    cdef uint8_t[8192] answered         # the same: PUBREC went
    cdef object loop                    # the event loop that the connection belongs to; None: none yet
    cdef object takers                  # queues and loops over them, as long as they are there

    cdef void answer(self, Message message, uint8_t reason)
    cdef void forget(self, uint16_t packet_id)
    cdef void taken(self, Message message)
    cdef void done(self, Message message)
    cdef bint is_half_empty(self) noexcept

cdef class MessageQueue:
    cdef Intake intake
    cdef list messages      # from `head` on
    cdef Py_ssize_t head
    cdef object waiter      # of one who waits for a message
    cdef readonly bint ended
    cdef bint dropped       # nobody has it any more
    cdef object error       # what iterating raises at the end; None: it just ends
    cdef list given         # to the program, which has not asked for more since
    cdef readonly object task   # that took them
    cdef object __weakref__

    cdef void keep(self, Message message, object task)
    cdef void put(self, Message message)
    cdef Message pop(self)
    cdef void compact(self)
    cdef void wake(self)
    cdef void drop(self)

cdef class MessageIterator:
    cdef MessageQueue queue
    cdef Message given      # to the program, which has not asked for the next; None: none, or it acknowledges
    cdef readonly object task   # whose loop it is
    cdef object __weakref__

cdef bint has_bit(uint8_t* bits, uint16_t packet_id) noexcept
cdef void set_bit(uint8_t* bits, uint16_t packet_id, bint value) noexcept

# of this module alone
cdef object this_task()
cdef object this_loop()
