"""What comes in at one side of a bridge goes out at the other."""
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint8_t
from libcpp cimport bool
from libcpp.string cimport string
from libcpp.vector cimport vector

from tidemq.wire.packets cimport Publish
from tidemq.wire.protocol cimport Fault, Span

cdef enum Outcome:           # of looking at a packet
    PASSED = 0               # or, at the end, no whole packet is left
    OTHER = 1                # it is neither message nor acknowledgement
    HELD = 2                 # the other side has no room for it now
    REFUSED = 3              # it says that the other side does not take a message now
    FAULTY = 4

cdef cppclass Mapping:       # of topics
    string filter            # of those that come in
    string prefix            # with which they go out
    uint32_t strip           # bytes at their beginning, in whose place it comes

cdef class Counts:           # of one bridge, as long as it is there
    cdef readonly int64_t messages_out
    cdef readonly int64_t messages_in
    cdef readonly int64_t bytes_out       # PUBLISH packets, whole
    cdef readonly int64_t bytes_in
    cdef readonly int64_t dropped_hops
    cdef readonly int64_t dropped_unmatched
    cdef readonly int64_t dropped_unfit
    cdef readonly int64_t dropped_refused

cdef class Half:
    cdef Half other                       # where what comes in goes
    cdef Counts counts
    cdef readonly bint is_local
    cdef public uint8_t version
    cdef bytearray buffer                 # [start, end) is not looked at yet
    cdef size_t start
    cdef size_t end
    cdef size_t wanted                    # of the packet of which a part is there
    cdef string output
    cdef vector[Mapping] mappings         # of what comes in
    cdef readonly bint held               # what came last waits until the other side has answered
    cdef uint8_t reason                   # with which the peer has refused a message
    cdef uint16_t refused_id              # that message's packet identifier
    cdef Fault fault
    cdef uint32_t packet_bytes_max        # that may come in
    # what the peer takes
    cdef public uint32_t peer_bytes_max   # of a packet
    cdef public uint32_t topic_bytes_max
    cdef public uint32_t topic_levels_max
    cdef public uint8_t qos_max           # 1 or 2
    cdef public bint keeps_retain         # of messages to it; else RETAIN is cleared
    # messages to the peer of QoS 1 and 2
    cdef readonly uint32_t under_way      # whose PUBACK or PUBREC is awaited
    cdef readonly int64_t answered        # for which it has come
    cdef readonly uint16_t last_id        # packet identifier of the last
    cdef public uint32_t careful          # so many go one at a time
    cdef public uint16_t skip             # of one that is passed by when it comes; 0: none
    cdef public uint32_t releases         # PUBREL packets of the bridge's own that are not answered yet
    cdef public uint32_t hops_max
    cdef uint8_t[8192] lowered            # a bit for each QoS 2 message that goes on at QoS 1
    cdef string topic                     # scratch: of the message that goes out, and its properties
    cdef string properties

    cdef int run(self, const uint8_t* data) noexcept nogil
    cdef int take_publish(self, uint8_t first, const uint8_t* body, uint32_t size) noexcept nogil
    cdef int take_ack(self, uint8_t first, const uint8_t* body, uint32_t size) noexcept nogil
    cdef bint map_topic(self, Span topic) noexcept nogil
    cdef uint32_t keep_properties(self, Span raw) noexcept nogil
    cdef bint fits(self) noexcept nogil
    cdef void send(self, const Publish* p) noexcept nogil
    cdef int drop(self, const Publish* p, int64_t* counter) noexcept nogil
    cdef void send_ack(self, uint8_t packet_type, uint16_t packet_id, uint8_t reason) noexcept nogil
    cdef bint lower(self, uint16_t packet_id, bint lowers) noexcept nogil

# of this module alone
cdef bint matches(const string* filter, Span topic) noexcept nogil
cdef uint32_t number_of(Span text) noexcept nogil
cdef bint is_final(uint8_t reason) noexcept nogil
