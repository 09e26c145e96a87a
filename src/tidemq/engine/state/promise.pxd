"""What is promised to be said once the store has what it is about, and the ledger of what publishers are owed."""
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libcpp cimport bool
from libcpp.deque cimport deque
from libcpp.string cimport string
from libcpp.vector cimport vector

from tidemq.engine.base.message cimport Message

cdef enum:   # the kind of a Promise
    PROMISE_PUBLISHED            # PUBACK or PUBREC; `packet_type` 0: of a will, to nobody
    PROMISE_ACK                  # PUBREL or PUBCOMP
    PROMISE_CONNACK              # a whole packet, before which the client is not read from
    PROMISE_PACKET               # a whole packet: SUBACK, UNSUBACK
    PROMISE_BACKLOG              # the retained messages of a subscription: `packet`: filter, `reason`: QoS,
                                 # `packet_id`: its turn
    PROMISE_SEND                 # what the connection's outbox has
    PROMISE_KEPT                 # MAIL_KEPT
    PROMISE_VOID                 # it was broken, and that was said; a free slot

cdef struct Promise:             # what is done when a section is committed
    uint8_t kind                 # PromiseKind
    uint8_t packet_type
    uint8_t reason
    bool kept                    # it is about something in the section, and fails with it
    bool again                   # PUBREC for a message that came before
    uint16_t packet_id
    uint16_t answers             # MAIL_KEPT that are still to come
    uint64_t section
    uint64_t connection
    uint64_t number              # session of the publisher; token of the message that is kept
    string* packet
    Message* message             # of an offer, held; NULL: it is none, or it is closed
    string* takers               # of the offer, on other reactors
    uint64_t reactors            # bit mask of those
    int64_t since_ns             # of a message: the turn that read it
    uint64_t early               # of an offer: the section that holds what was kept before the answers; 0: none
    bool undone                  # the store did not take it
    bool recorded                # of an offer: its rows are in `section`
    uint8_t node                 # 1 + the number of the node that is told, NODES_MAX: the keeper is; 0: none
    uint64_t asked               # the question that it is the answer to
    bool first                   # to a publisher: nothing that it is owed stands before this
    uint32_t next                # the slot of what it is owed next, or of a free slot the next free one; 0: none

cdef cppclass Committing:       # a message whose answer waits for the store, and that is in a trace
    string parent                # `traceparent` as the message goes on
    string topic
    int64_t began_ns             # on the monotonic clock
    uint8_t qos
    uint32_t payload_size

cdef struct Due:
    uint64_t section
    uint32_t slot

cdef cppclass Ledger:            # the promises to publishers, see ledger
    vector[Promise] slots        # slot N is slots[N - 1]
    uint32_t free                # the first that is free; 0: none
    uint32_t count               # of those that are taken
    uint32_t again               # of these, for messages that came before
    deque[Due] due               # slots that may be kept once a section is committed, in the order of sections
    vector[uint32_t] ready       # slots that may be kept now
