from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from tidemq.bench.load.client_socket cimport Connection
from tidemq.bench.load.histogram cimport Histogram
from tidemq.bench.load.publisher cimport Publishing

cdef struct Load:              # the workload, as far as a received message is checked against it
    int version
    int qos
    bint acks_timed            # one message in flight at a time
    uint32_t heard             # publishers that a subscriber hears
    uint32_t payload_size
    const uint64_t* sent_by    # by publisher: what it has sent bounds what can come
    uint32_t near_start, near_end  # publishers of this process; of others it is known late
    uint64_t messages          # of each publisher, at most

cdef enum Refusal:
    ACCEPTED_ALL = 0
    BY_CONNACK = 1             # code: its return or reason code
    BY_SUBACK = 2              # code: the reason code
    BY_MAXIMUM_QOS = 3         # code: of CONNACK
    BY_NONSENSE = 4            # code: the first byte of what came instead of CONNACK or SUBACK

cdef struct Tally:
    int64_t now_ns             # when the bytes that are parsed were read
    uint64_t arrived           # messages, repeated ones too
    uint64_t duplicates
    uint64_t disordered
    uint64_t foreign
    uint64_t ack_errors
    Refusal refusal
    int code                   # of the refusal
    uint32_t keep_alive_s      # of a 5.0 broker's CONNACK, the least; 0: it demands none
    int farewell               # reason code of a DISCONNECT; -1: none came
    Histogram latency          # ns
    Histogram ack_latency      # ns, where acks are timed
    Histogram connect_latency  # ns, from SYN to CONNACK

cdef size_t parse(const Load* load, Tally* tally, Publishing* publishing, Connection* c, const uint8_t* data, size_t size) noexcept nogil
cdef void take_publish(const Load* load, Tally* tally, Publishing* publishing, Connection* c, uint8_t first, const uint8_t* body, size_t size) noexcept nogil
cdef bint take_number(const Load* load, Tally* tally, Connection* c, uint32_t slot, uint64_t sequence) noexcept nogil
cdef uint64_t sent_at_most(const Load* load, uint32_t publisher) noexcept nogil
cdef void mark_skipped(Connection* c, uint32_t slot, uint64_t sequence) noexcept nogil
cdef void take_packet(const Load* load, Tally* tally, Connection* c, uint8_t first, const uint8_t* body, size_t size) noexcept nogil
cdef void take_connack(const Load* load, Tally* tally, Connection* c, const uint8_t* body, size_t size) noexcept nogil
cdef void take_suback(const Load* load, Tally* tally, Connection* c, const uint8_t* body, size_t size) noexcept nogil
cdef void take_ack(const Load* load, Tally* tally, Connection* c, uint8_t packet_type, uint16_t packet_id) noexcept nogil
cdef size_t varint(const uint8_t* data, size_t size, size_t* value) noexcept nogil
cdef size_t property_size(const uint8_t* data, size_t size) noexcept nogil
