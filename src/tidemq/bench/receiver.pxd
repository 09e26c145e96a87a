from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from tidemq.bench.connection cimport Connection
from tidemq.bench.histogram cimport Histogram

cdef struct Load:              # the workload, as far as a received message is checked against it
    int version
    int qos
    bint pairs
    bint paced                 # messages carry the time that they were due
    bint acks_timed            # one message in flight at a time
    uint32_t heard             # publishers that a subscriber hears
    uint32_t payload_size
    uint64_t messages          # of each publisher

cdef struct Tally:
    int64_t now_ns             # when the bytes that are parsed were read
    uint64_t arrived           # messages, repeated ones too
    uint64_t duplicates
    uint64_t disordered
    uint64_t foreign
    uint64_t ack_errors
    int refusal                # the CONNACK or SUBACK code that refused us; 0: none
    Histogram latency          # ns, where paced
    Histogram ack_latency      # ns, where acks are timed

cdef size_t parse(const Load* load, Tally* tally, Connection* c, const uint8_t* data, size_t size) noexcept nogil
cdef void take_publish(const Load* load, Tally* tally, Connection* c, uint8_t first, const uint8_t* body, size_t size) noexcept nogil
cdef void take_unexpected(const Load* load, Tally* tally, Connection* c, uint32_t slot, uint64_t sequence) noexcept nogil
cdef void take_packet(const Load* load, Tally* tally, Connection* c, uint8_t first, const uint8_t* body, size_t size) noexcept nogil
cdef void take_ack(const Load* load, Tally* tally, Connection* c, uint8_t packet_type, uint16_t packet_id) noexcept nogil
