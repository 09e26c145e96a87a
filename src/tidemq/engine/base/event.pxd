"""What a reactor tells the control plane: layout only. See `reports`, which make them, and `events`, which take them."""
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libcpp cimport bool
from libcpp.string cimport string

from tidemq.engine.base.inquiry cimport Inquiry
from tidemq.engine.base.message cimport Message
from tidemq.engine.base.roster cimport Roster

cdef enum:   # the kind of an Event
    EVENT_CONNECT
    EVENT_AUTH
    EVENT_SESSION                # before the session of a CONNECT is found or made: `flag`: clean start; `number`: expiry in s
    EVENT_SUBSCRIBE
    EVENT_UNSUBSCRIBE            # of what a stream keeps
    EVENT_REPLAY                 # a replay at QoS 1 begins, or goes on: `text`: filter; `flag`: it was asked for just now
    EVENT_FED                    # there is room for more of the replay of `text`; `flag`: the connection has gone instead
    EVENT_JUDGED                 # `data`: of each filter that was asked about; `flag`: the connection has gone instead
    EVENT_DELIVERED              # replayed messages are out; `flag`: the connection has gone instead
    EVENT_PUBLISH
    EVENT_HELD                   # a PUBLISH that waits for plugins: `offset`: its number; or a will, `message`, whose
                                 # expiry in seconds is `offset`; of no connection
    EVENT_CONNECTED
    EVENT_DISCONNECTED
    EVENT_RECEIVED
    EVENT_ACKNOWLEDGED           # `message`, by its receiver: `client_id`; `reason`: QoS
    EVENT_REVOKED                # the rules ended subscriptions: `packet_bytes_max`: how many, `text`: one of them
    EVENT_ROSTER                 # `roster`: answered
    EVENT_INQUIRY                # `inquiry`: answered
    EVENT_DROPPED                # `reason`: the counter; `packet_bytes_max`: how many; `client_id`: whose, if known
    EVENT_PACKET                 # of a client that is traced: `packet`: first byte and a body's beginning; `flag`: it goes
                                 # out; `packet_bytes_max`: the body's size. No packet: the connection has ended
    EVENT_SPAN                   # of a message with `traceparent`, which is `data`: `version`: SPAN_*; `packet`: its own
                                 # identifier, empty where any will do; `text`: topic; `fault`: QoS; `offset`, `epoch`:
                                 # wall clock at begin and end; `packet_bytes_max`: of the payload
    EVENT_STOPPED

cdef enum:
    SPAN_RECEIVE, SPAN_COMMIT, SPAN_DELIVER

cdef cppclass Event:
    uint8_t kind
    uint64_t connection          # or the receiver's number
    uint8_t reason
    uint8_t fault
    uint8_t version
    bool flag                    # clean start, session present
    bool has_username
    uint16_t keep_alive_s
    uint32_t packet_bytes_max
    string client_id
    string username
    string peer
    string packet                # the whole packet that a decision is about; events.py parses it again
    string data                  # auth data, filters
    string text                  # auth method, topic
    uint64_t epoch               # of a stream, and; of a connection that has ended: bytes, both ways
    int64_t offset               # in it; ns that it lasted from its CONNECT
    uint32_t number              # subscription identifier
    string listener              # name of the one where a client came in that wants to be authenticated
    Message* message
    Roster* roster
    Inquiry* inquiry
