"""What happens to one outgoing message; what is not public is for the modules of the client."""
from libc.stdint cimport uint16_t, uint64_t, uint8_t

cdef enum State:
    WAITING = 0    # for a connection, for room in the window, for the disk
    WRITTEN = 1    # in the output, or gone out; QoS 1 and 2: unacknowledged
    RECEIVED = 2   # QoS 2: PUBREC came
    DONE = 3       # acknowledged, refused or given up; QoS 0: written

# How far the output of a client has come, in bytes since the client was made.
cdef class Progress:
    cdef readonly uint64_t written   # appended to the output
    cdef uint64_t gone               # handed to the operating system, or lost
    cdef list lost                   # pairs (from, to): written, but the connection ended before they were gone
    cdef list asked                  # receipts with somebody waiting for `sent`

    cdef bint was_lost(self, uint64_t offset)
    cdef void advance(self)        # all that was written has gone
    cdef void lose(self)           # the connection ended
    cdef void settle(self, object error)

cdef class Receipt

# Messages of one call, counted down as they are done.
cdef class Group:
    cdef public Py_ssize_t count
    cdef public Py_ssize_t remaining
    cdef public object first_error
    cdef public object waiter       # of one who waits until
    cdef public Py_ssize_t wake_at  # so many remain
    cdef readonly Receipt roomless  # the next, which found no room; None: it has not come yet

cdef class Receipt:
    cdef readonly str topic
    cdef readonly uint8_t qos
    cdef bint retain
    cdef uint8_t state
    cdef bint given_up          # nobody waits: it is not to be sent to a session that does not have it
    cdef bint storing           # nothing of it is sent until the outbox on disk has its state
    cdef uint16_t packet_id     # 0: none yet
    cdef int reason_code        # -1: none yet
    cdef bytes payload
    cdef bytes block            # properties without their length; None: no properties
    cdef uint64_t serial        # ascending in the order of sending
    cdef uint64_t offset        # where it ends in the output; 0: not written
    cdef long long row          # in the outbox on disk; 0: none
    cdef object error
    cdef list waiters           # for `acknowledged`
    cdef list sent_waiters
    cdef list stored_waiters
    cdef bint on_disk
    cdef Group group
    cdef Progress progress

    cpdef void notify_acknowledged(self, waiter)
    cdef Py_ssize_t size(self) noexcept
    cdef void finish(self, int reason, object error)
    cdef void tell_stored(self)
    cdef void settle_stored(self, object error)

cdef Receipt make_receipt(Progress progress, topic, payload, int qos, bint retain, bytes block)
cdef int check_size(Receipt receipt, Py_ssize_t bytes_max) except? -1
cdef Receipt receipt_of(Progress progress, item, int qos, bint retain, bytes block)

# of this module alone
cdef void settle_future(waiter, value, error)
cdef str checked_topic(topic)
