"""What a client sends: messages, their acknowledgement, and the bytes of both."""
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libcpp.string cimport string

from tidemq.client.identifiers cimport Identifiers
from tidemq.client.receipt cimport Group, Progress, Receipt
from tidemq.wire.packets cimport PublishHead

cdef class Outgoing:
    cdef string output              # bytes for the connection
    cdef readonly bint connected    # from CONNACK to the connection's end
    cdef bint paused                # the transport takes no more
    cdef readonly uint8_t version
    cdef readonly uint32_t inflight
    cdef readonly uint32_t inflight_max   # the server's Receive Maximum, or less
    cdef uint32_t packet_bytes_max        # what the server accepts
    cdef uint8_t qos_max
    cdef bint retain_available
    cdef Identifiers identifiers
    cdef uint64_t serial
    # messages that are not written yet
    cdef object waiting             # QoS 1 and 2
    cdef object waiting_qos0
    # messages that are held, written or not, until they are done
    cdef readonly int64_t held_messages
    cdef readonly int64_t held_bytes
    cdef int64_t held_messages_max
    cdef int64_t held_bytes_max
    cdef int64_t promised_messages  # room for what threads have published and the loop has not taken yet
    cdef int64_t promised_bytes
    cdef bint drops_oldest
    cdef readonly uint64_t dropped
    # topic aliases that this connection has set
    cdef dict aliases
    cdef uint32_t alias_max         # the server's Topic Alias Maximum, or less
    cdef uint32_t alias_limit
    cdef readonly Progress progress
    cdef object on_output           # called when there is output where there was none
    cdef object on_full             # called when there is much
    cdef readonly object room_waiters     # futures of those who wait for room
    cdef readonly object closed_error        # not None: nothing is accepted any more
    cdef public list journal        # steps for the outbox on disk: name, receipt, values; None: there is none
    cdef long long rows             # the last number of a row in the outbox
    cdef public object on_journal   # called when there is a step where there was none
    cdef object last_properties
    cdef bytes last_block

    cdef void append(self, const uint8_t* data, size_t size)
    cdef void acknowledge(self, uint8_t packet_type, uint16_t packet_id, uint8_t reason)
    cdef void apply_ack(self, uint8_t packet_type, uint16_t packet_id, uint8_t reason)
    cpdef void refill(self)

    cdef int admit(self, Receipt receipt) except? -1
    cdef bint admit_next(self, Receipt receipt, Group group) except? -1
    cpdef bint has_room(self, Py_ssize_t size) noexcept
    cpdef bint has_room_for(self, Receipt receipt) noexcept
    cdef int make_room(self, Receipt receipt) except? -1
    cdef int objection(self, Receipt receipt) except? -1
    cdef Py_ssize_t packet_size(self, Receipt receipt) except? -1
    cdef void queue(self, Receipt receipt)
    cdef bint may_send(self) noexcept
    cdef void send_qos0(self, Receipt receipt)
    cdef void send(self, Receipt receipt)
    cdef void refuse(self, Receipt receipt, int reason)
    cdef PublishHead head_of(self, Receipt receipt, bint dup)
    cdef void set_alias(self, str topic, PublishHead* head)
    cdef void write_publish(self, Receipt receipt, bint dup)
    cdef void release(self, Receipt receipt)
    cdef void finish(self, Receipt receipt, int reason, object error)
    cdef bint is_half_empty(self) noexcept
    cdef void wake_room_waiters(self)
    cdef void record(self, str step, Receipt receipt)
