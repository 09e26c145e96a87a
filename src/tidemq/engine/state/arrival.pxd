"""A session as the store has it, on its way into an engine. Layout only.
Owner: who reads the rows, until it is posted; then the reactor that installs it."""
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t, uint8_t
from libcpp cimport bool
from libcpp.string cimport string
from libcpp.vector cimport vector

from tidemq.engine.base.message cimport Message, MessageId
from tidemq.engine.state.client cimport Session

cdef cppclass StoredSession:     # its own row
    string client_id
    uint64_t number              # of its queue
    uint32_t expiry_s
    int64_t ends_ms              # 0: it was online, or never ends
    bool stays                   # its client may be connected elsewhere: it expires when it is told to
    Message* will                # held; NULL: none
    uint32_t will_delay_s
    int64_t will_expiry_s
    int64_t will_ms              # 0: it was online

cdef cppclass StoredSubscription:
    string filter                # whole
    uint8_t options
    uint32_t subscription_id
    bool replayed                # of what a stream keeps, at QoS 1:
    uint64_t epoch
    int64_t start

cdef struct StoredEntry:         # a row in flight
    Message* message             # held
    uint32_t* subscription_ids   # a count, then so many; NULL: none
    uint64_t place
    uint8_t qos
    bool retain
    bool released

cdef struct Taken:               # what a session's old home has taken of one reactor of a node
    uint64_t origin              # the node's incarnation
    uint64_t reactor
    uint64_t clock               # of the last message's id

cdef cppclass Arrival:
    StoredSession row
    vector[StoredSubscription] subscriptions
    vector[uint64_t] received
    vector[StoredEntry] entries  # in the order of their places
    uint64_t next_place          # no place below it is given to a message
    uint64_t waiting             # idle rows, and
    uint64_t bytes               # of their messages, and
    uint64_t oldest              # the clock of the first one's id
    int64_t doubles_ms           # for so long messages may come twice
    vector[Taken] taken
    vector[MessageId] recent     # of idle rows: their messages may come once more
    bool doubtful                # what waits may have been sent
    bool unasked                 # its client may hold packet identifiers of messages that are not known here
    bool older_may_come          # rows of messages that go before what waits or comes here
    Session* session             # in the registry, but nobody's yet; NULL: not even that
    size_t subscribed, entered   # so many subscriptions and entries are installed
