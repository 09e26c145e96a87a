"""What a client receives: bytes to messages, acknowledgements and other packets."""
from libc.stdint cimport uint16_t, uint32_t, uint64_t, uint8_t

from tidemq.client.message cimport Message
from tidemq.client.outgoing cimport Outgoing
from tidemq.client.queue cimport Intake, MessageQueue
from tidemq.wire.packets cimport Publish
from tidemq.wire.protocol cimport Fault, Span

cdef class Incoming:
    cdef Outgoing outgoing
    cdef Intake intake
    cdef MessageQueue queue     # of all messages that no route has
    cdef public dict routes     # topic: tuple of queues; None: there is one queue
    cdef public object find_routes   # finds the tuple for a topic that is not in `routes`
    cdef uint8_t version
    cdef bint accepted          # CONNACK came
    cdef uint32_t packet_bytes_max
    cdef uint32_t receive_max
    # bytes [start, end) of the buffer are not parsed yet
    cdef bytearray buffer
    cdef size_t start
    cdef size_t end
    cdef list aliases           # topics by alias; 5.0
    cdef list topics            # the last topic of each hash value, to be shared by messages

    cdef void enlarge(self, size_t size)
    cdef void reserve(self, size_t size)
    cdef other(self, uint8_t packet_type, bytes data)
    cdef int take_ack(self, uint8_t first, const uint8_t* body, uint32_t size) except? -1
    cdef int take_publish(self, uint8_t first, const uint8_t* body, uint32_t size) except? -1
    cdef bint admits(self, Publish* p) except? -1
    cdef int deliver(self, Message message) except? -1
    cdef str topic_of(self, Publish* p)
    cdef str shared_topic(self, Span topic)

# of this module alone
cdef uint64_t hash_of(Span topic) noexcept
