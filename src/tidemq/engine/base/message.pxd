from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libcpp cimport bool

from tidemq.engine.base.system cimport RELAXED, add_int
from tidemq.wire.protocol cimport Span

cdef struct MessageId:           # unique in a cluster; the order of ids is the order of every queue in the store
    uint64_t clock               # wall clock in ns, never the same or less than before; low 6 bits: the reactor
    uint64_t origin              # the server's incarnation

cdef struct Message:             # one allocation: this, then topic, properties, payload
    int references               # atomic
    uint8_t qos                  # the publisher's
    bool retain                  # the publisher's
    bool counted                 # more than one queue entry in the store may refer to its payload
    uint32_t topic_size
    uint32_t properties_size     # 5.0 properties as they are forwarded
    uint32_t payload_size
    uint64_t publisher           # session number, for no-local; 0: the broker itself
    uint64_t feeder              # connection to pause when a receiver is slow; 0: none
    int64_t expires_ms           # on the monotonic clock; 0: never
    MessageId id                 # all 0: none, nobody keeps it

# A message on its way through one reactor. It points into the read buffer or into a Message, and becomes a
# Message only when somebody has to keep it.
cdef struct Passage:
    Span topic
    Span properties              # as forwarded
    Span payload
    uint8_t qos
    bool retain
    uint64_t publisher
    uint64_t feeder
    int64_t expires_ms
    const uint8_t* frame         # the packet as it came, where it can be passed on as it is: QoS 0, no properties
    uint32_t frame_size
    bool frame_is_5              # which protocol's form the frame has
    Message* message             # NULL until made
    uint32_t heads_ready         # bit per variant in Reactor.heads
    uint32_t receivers           # how many sessions and reactors took it
    uint64_t only_reactors       # bit mask of the other reactors that took it; 0 where a session here took it too
    MessageId id
    uint32_t places              # sessions here, and other reactors, that may keep it in the store
    uint16_t answers             # other reactors that will say when they have kept it
    uint64_t token               # what they say it with; 0: nobody waits for it
    bool offered                 # rows at QoS 2 are written when all reactors have answered
    bool kept                    # something of it is in this reactor's open section
    uint64_t shard               # it is for a member of the group that this shard is of; 0: for a session itself
    bool shard_stored
    bool attended                # it is for the queue of a shared group that has a member online
    uint8_t refused              # the reason, where a queue was full; 0: none was
    bool dup                     # as it was published
    uint16_t packet_id           # 0: QoS 0, or it is no client's
    bool reported                # plugins want to know who has acknowledged it
    void* entry                  # CacheEntry of its topic, where that was looked up a moment ago; NULL

cdef Message* new_message(const Passage* passage, int64_t* tally) noexcept nogil
cdef void release_message(Message* message, int64_t* tally) noexcept nogil
cdef Span topic_of(const Message* message) noexcept nogil
cdef Span properties_of(const Message* message) noexcept nogil
cdef Span payload_of(const Message* message) noexcept nogil
cdef uint8_t* bytes_of(const Message* message) noexcept nogil
cdef Message* passage_message(Passage* passage, int64_t* tally) noexcept nogil
cdef Passage copy_passage(const Passage* passage, MessageId id) noexcept nogil
cdef void empty_passage(Passage* passage) noexcept nogil
cdef void open_passage(Passage* passage, Message* message) noexcept nogil
cdef void close_passage(Passage* passage, int64_t* tally) noexcept nogil

# Inline, as what is done for every message and smaller than its call:

# What a message takes in memory, in bytes.
cdef inline int64_t message_bytes(const Message* message) noexcept nogil:
    return sizeof(Message) + message.topic_size + message.properties_size + message.payload_size

# Of these, what a publisher has sent.
cdef inline uint64_t payload_bytes(const Message* message) noexcept nogil:
    return <uint64_t>message.topic_size + message.properties_size + message.payload_size

# One more holder.
cdef inline void hold_message(Message* message) noexcept nogil:
    add_int(&message.references, 1, RELAXED)

cdef uint32_t* copy_identifiers(const uint32_t* ids, uint32_t count) noexcept nogil
