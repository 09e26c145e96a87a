from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from tidemq.bench.load.client_socket cimport Connection

cdef struct Form:              # of the frames that publishers send
    int qos
    bint random                # payloads
    size_t size                # of a frame
    size_t payload_at
    size_t payload_size
    size_t packet_id_at
    size_t topic_digits_at
    uint32_t topics, topics_used   # of each publisher

cdef struct Pace:              # when messages are due: the publishers that begin take turns
    int64_t started_ns
    int64_t interval_ns        # between two messages of all; 0: not paced
    uint64_t messages          # of all; no more come due
    uint32_t publishers

cdef struct Publishing:
    Form form
    Pace pace
    int64_t asked_ns           # when a message was encoded last
    uint64_t sent              # messages, of all publishers
    uint64_t* sent_by          # the same by publisher, of the whole workload
    int64_t offset_ns          # from this machine's clock to that of the stamps, common to all machines
    uint64_t noise             # state of the random numbers in payloads

cdef void append_messages(Publishing* publishing, Connection* c, uint64_t count, int64_t now_ns) noexcept nogil
cdef void append_message(Publishing* publishing, Connection* c, int64_t stamp_ns) noexcept nogil
cdef uint64_t due_messages(const Pace* pace, uint32_t place, int64_t now_ns) noexcept nogil
cdef int64_t due_ns(const Pace* pace, uint32_t place, uint64_t message) noexcept nogil
