"""What somebody who looks after the broker wants to know, or have done, of one client's queue, of subscriptions or of
retained messages: a question on its way down, and the answer on its way up, in one. Layout only.
Owner: the façade until it is posted, then the reactor, then the façade again."""
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t, uint8_t
from libcpp cimport bool
from libcpp.string cimport string
from libcpp.vector cimport vector

cdef enum:   # the kind of an Inquiry, and what its `text` is
    INQUIRY_RETAINED             # topic filter: retained messages; with `clears` they go
    INQUIRY_SUBSCRIBED           # topic filter, $share included: who has subscribed to it
    INQUIRY_MATCHING             # topic name: whose subscriptions match it
    INQUIRY_QUEUE                # client identifier: messages for it that are in memory
    INQUIRY_PURGE                # client identifier: what was never sent to it goes
    INQUIRY_END                  # client identifier: its session ends
    INQUIRY_TRACE                # client identifier: what it sends and gets is reported from now on

cdef struct ListedMessage:
    string topic
    string payload               # its beginning
    uint32_t payload_size
    uint8_t qos
    bool retain
    bool in_flight
    int64_t came_ms              # wall clock; 0: not known
    int64_t expires_ms           # wall clock; 0: never

cdef struct ListedSubscriber:
    string client_id             # empty: the broker's own program, or a stream
    string topic_filter
    string group                 # of a shared subscription
    uint8_t options              # as SUBSCRIBE has them (5.0 section 3.8.3.1)
    uint32_t subscription_id     # 0: none
    bool connected
    bool stream                  # it is a stream that keeps the messages

cdef cppclass Inquiry:
    uint64_t number              # of the question
    uint8_t kind
    string text
    string place                 # of retained messages: where to go on, see walk_place; empty: at the beginning
    uint64_t skip                # subscribers before those that are wanted; place in the outbox to go on at
    uint32_t rows_max
    uint32_t payload_bytes_max   # of each message
    bool clears
    int64_t until_ns             # of the turn that works on it
    uint64_t bytes               # about, of the rows
    uint64_t position            # subscribers seen
    bool found                   # there is such a client
    bool more                    # than the rows; then `place` or `skip` say where to go on
    uint64_t count               # messages that went, or are there; their payloads' bytes:
    uint64_t count_bytes
    uint64_t queue               # number of the client's queue in the store; 0: it has none
    uint64_t stored              # messages that are in the store alone, with ids above
    uint64_t edge_clock, edge_origin
    vector[ListedMessage] messages
    vector[ListedSubscriber] subscribers
