"""What somebody who looks after the broker wants to see of its clients: a question on its way down, and the answer on
its way up, in one. Layout only.
Owner: the façade until it is posted, then the reactor, then the façade again."""
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t, uint8_t
from libcpp cimport bool
from libcpp.string cimport string
from libcpp.vector cimport vector

cdef enum:   # where a walk through a reactor's clients is
    ROSTER_CONNECTED             # `at`: slot of a connection
    ROSTER_AWAY                  # `at`: bucket of the table of sessions, times 256, and place in it
    ROSTER_DONE

cdef struct ListedFilter:
    string topic_filter
    uint8_t options              # as SUBSCRIBE has them (5.0 section 3.8.3.1)
    uint32_t subscription_id     # 0: none

cdef cppclass ListedClient:
    string client_id
    string username
    string peer                  # "host:port"; of a client that is away empty
    string listener
    bool has_username
    bool connected
    bool paused                  # it is not read from now: a receiver of its messages, or memory, is full
    bool slow                    # publishers do not wait for it any more
    bool has_will
    bool left_by_itself              # its last connection ended by its own DISCONNECT
    uint8_t version
    uint8_t left_reason, left_fault   # of the last connection that has ended
    uint16_t reactor
    uint16_t send_max
    uint32_t keep_alive_s
    uint32_t expiry_s
    uint32_t inflight
    uint64_t subscriptions
    uint64_t queued_messages, queued_bytes
    uint64_t bytes_received, bytes_sent, messages_received   # on this connection
    uint64_t output_bytes        # that wait to be taken by the socket
    int64_t since_ms             # wall clock: of CONNACK; 0: it is away
    int64_t left_ms              # wall clock: when the last connection ended; 0: not known
    int64_t ends_ms              # wall clock: when the session expires; 0: not, or the client is there
    int64_t oldest_ms            # age of the first message in the queue; -1: it is empty

cdef cppclass Roster:
    uint64_t number              # of the question
    uint8_t phase                # where to go on; after the walk where the next one does
    uint64_t at
    uint64_t buckets             # of the table of sessions when its walk began
    uint32_t rows_max
    uint64_t bytes               # about, of the rows and filters
    int64_t until_ns             # of the turn that works on it, and
    uint64_t looked_at           # so many clients in it
    bool survey                  # only how long messages wait: no row is made
    int64_t oldest_ms            # of a survey: age of the oldest message in a queue; -1: all are empty
    string oldest_client         # whose
    bool one                     # the client whose identifier is `client_id`, with its filters
    string client_id             # that, or how identifiers begin
    string address               # host of the peer; empty: any
    string listener              # name; empty: any
    string username
    bool by_username
    uint8_t wanted               # bit 0: clients that are connected; bit 1: those that are away
    vector[ListedClient] rows
    vector[ListedFilter] filters
    bool more_filters            # than FILTERS_MAX
