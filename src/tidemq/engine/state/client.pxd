"""A session, its connection, and its part in shared groups. Layout only; one file, because each names the other.
Owner: one reactor. Others hold a connection's handle, and look at a session under `Common.registry_lock` alone."""
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t, uint8_t
from libcpp cimport bool
from libcpp.deque cimport deque
from libcpp.string cimport string
from libcpp.unordered_map cimport unordered_map
from libcpp.vector cimport vector

from tidemq.engine.base.engine_limits cimport Usage
from tidemq.engine.base.hashing cimport SeededHash
from tidemq.engine.base.listener cimport Listener
from tidemq.engine.base.message cimport Message
from tidemq.engine.index.retained_index cimport RetainedWalk
from tidemq.engine.index.rules cimport Policy, RuleSet
from tidemq.engine.state.queue cimport Outbox, StoredQueue
from tidemq.engine.state.strain cimport Strain
from tidemq.net.transport cimport Transport

cdef enum:
    FOR_EVER = 0xFFFFFFFF        # a session expiry that never comes (5.0 section 3.1.2.11.2)
    OUTPUT_BLOCK = 65536         # bytes gathered for one connection before they are sent within a turn
    LARGE_PAYLOAD = 32768        # from here on a payload is sent from its message and not copied

ctypedef unordered_map[string, SessionSubscription, SeededHash] SubscriptionMap

ctypedef unordered_map[string, uint16_t, SeededHash] AliasMap

ctypedef Session* SessionPointer

ctypedef Replay* ReplayPointer

cdef struct Backlog:             # retained messages that a new subscription still has to get
    uint32_t subscription_id
    uint8_t qos

cdef cppclass Backlogs:          # of one session, at least one
    unordered_map[string, Backlog, SeededHash] by_filter
    RetainedWalk* walk           # through what is under `filter`; NULL: none is open
    string filter

cdef struct SessionSubscription:
    uint32_t subscription_id
    uint16_t turn                # of the SUBSCRIBE that it is from, among those to its filter: what was promised before is void
    uint8_t options

cdef struct Replayed:            # a message of a stream, in the outbox
    uint64_t place
    int64_t offset
    bool done                    # acknowledged, or too large for the client

cdef cppclass Replay:            # a subscription at QoS 1 to what a stream keeps, see replayed
    string filter                # as the client wrote it
    uint16_t number              # in the session
    uint8_t options
    uint32_t subscription_id
    uint64_t epoch               # of the stream
    int64_t end                  # offset of the first message that has not come here
    int64_t recorded             # all before it are acknowledged, as far as the store knows, or is about to
    uint64_t section             # that this was last recorded in, and
    uint32_t record              # where in it
    uint32_t doubtful            # so many that come may have been sent before the broker ended
    bool due                     # the control plane waits for room to give more
    deque[Replayed] pending      # messages that are not acknowledged, and some that are, in their order

cdef cppclass Replays:           # of one session, at least one
    unordered_map[uint16_t, ReplayPointer] by_number
    unordered_map[string, ReplayPointer, SeededHash] by_filter
    uint16_t last                # number that was given

cdef struct Removal:             # of a session that has ended, from the store
    uint16_t reactor
    uint64_t section             # of that reactor, which has to be committed

cdef cppclass Will:
    Message* message
    uint32_t delay_s
    int64_t expiry_s             # of the message, from its publication; -1: none
    uint64_t token               # it is published, and goes when that is kept, see wills; 0: it is not
    bool recorded                # the session's row without it is in a section

cdef cppclass Session:
    string client_id
    uint64_t number              # unique in this engine
    uint16_t reactor             # the owner; written under Common.registry_lock
    uint64_t group               # of a shard: the shared group whose queue it is part of; 0: a client's session
    bool internal                # a receiver of the embedding program: what it gets goes up as events
    bool moving                  # on its way to `reactor`, with its connection or from the store; under Common.registry_lock
    bool handed                  # another node has it from now on, or is about to: no client gets it here
    bool ending                  # over and nobody's, in Reactor.ending: the index still has some of its subscriptions
    uint32_t receiver            # scratch of a look-up: its place among the entry's receivers, if it is that one's
    uint32_t expiry_s            # 0: ends with its connection; 0xFFFFFFFF: never
    int64_t ends_ms              # while offline: when it expires; 0: not
    int64_t will_ms              # while offline: when the will is due; 0: not
    int64_t timer_ms             # when its timer is due; another timer of it is stale; 0: none
    Connection* connection       # NULL while offline; written atomically, for the façade looks whether there is one
    Will* will
    Outbox outbox
    Strain* strain               # NULL: nobody has ever had to wait for it
    StoredQueue* stored          # of a session that outlives its connection; NULL: nothing of it is stored
    uint64_t* received           # bit per packet identifier of a QoS 2 message that waits for PUBREL; NULL: none
    uint32_t received_count
    uint32_t offers              # QoS 2 messages from this client that are offered and not closed
    Memberships* memberships     # NULL: it never had a shared subscription
    int64_t left_ms              # wall clock: when its last connection ended; 0: not known
    uint8_t left_reason, left_fault   # why
    bool left_by_itself          # the client said DISCONNECT
    uint8_t watch                # of a receiver that only counts: 1 + its place in Common.watched; 0: of no such
    uint32_t last_owed           # the last promise to this publisher, see ledger; it may be kept by now
    uint32_t delayed_bytes       # of a message that waits for its time, as the will of this session; 0: a client's
    Replays* replays             # NULL: none
    Backlogs* backlogs           # NULL: it has got all that is retained
    SubscriptionMap* subscriptions   # by whole filter, $share included; NULL: none

cdef cppclass Membership:        # a session's subscription in a shared group, see groups
    Session* session
    LocalGroup* group
    uint32_t subscription_id
    uint8_t qos
    bool retain_as_published
    bool present                 # its client is there: it is in LocalGroup.members
    bool full                    # found to take no more: it is in Memberships.full
    uint32_t at, full_at         # its places in LocalGroup.members and in Memberships.full

cdef cppclass Memberships:       # of one session
    unordered_map[uint64_t, Membership*] by_group
    vector[Membership*] full     # those that were found to take no more
    Handback* handback           # of what it held; NULL: none is under way

cdef cppclass LocalGroup:        # what a reactor has of a shared group: its members that are there, and shards
    uint64_t number
    vector[Membership*] members
    uint32_t ready               # so many of them, the first, may take a message; all others were found full
    vector[Session*] shards
    uint32_t handbacks           # that are under way: nothing of its queue goes out meanwhile
    bool due                     # in Reactor.due_groups

cdef cppclass Handback:          # an outbox that is taken apart, from its newest entry on, see handbacks
    Session* session             # whose outbox it is; NULL: it has ended, or this is void
    Outbox box                   # what a session that has ended has left
    uint64_t place               # what is below it is still to be looked at
    uint64_t number              # of the session that has ended, and `owner`, its name, for what is dropped
    string owner
    uint8_t counter              # of that
    bool ends                    # with the session; else it goes on elsewhere
    vector[uint64_t] groups      # they wait for it

cdef struct LargePayload:        # goes out after `at` bytes of the buffer's stream, from the message itself
    uint64_t at
    Message* message
    uint32_t sent

cdef cppclass LargePayloads:      # of one connection, from the first one on
    vector[LargePayload] parts   # not yet sent
    uint64_t bytes               # of these
    uint64_t streamed            # bytes of the buffer that were sent since

cdef struct Output:
    uint8_t* data
    uint32_t start               # data[start:end] is to be sent
    uint32_t end
    uint32_t capacity
    uint64_t taken               # bytes that the socket has ever taken
    uint32_t usual               # bytes that a turn wrote lately: chooses the next buffer's size
    LargePayloads* large         # NULL: there never was one

cdef cppclass Identity:           # of a client about whom somebody decides
    string* auth_method
    string* username             # NULL: it has named none, or nobody asks
    string* groups               # that its authenticator put it in, each ends with a NUL; NULL: none
    string* session_name         # while FINDING: the client identifier that it was let in as
    string* session_data         # while FINDING: authentication data for its CONNACK; NULL: none
    Policy* own_rules            # of this client alone, asked before all others; held; NULL: it has none

cdef cppclass ClientUsage:        # of a client whose listener bounds it
    Usage buckets
    int64_t throttled_ms         # since when it waits for one

cdef enum:   # what is known of a held PUBLISH
    HELD_WAITS                   # plugins have not answered yet
    HELD_PASSES
    HELD_DENIED                  # it may not be published: `reason`
    HELD_REFUSED                 # there is no room for it: `reason`

cdef cppclass HeldPublish:
    string* packet               # first byte and body; NULL: it was denied or refused when it came
    string* changed              # a 5.0 packet whose message goes on in its place; NULL: the message as it came
    string topic                 # that an alias stood for, or topic rules want; empty: the packet has it
    uint8_t verdict, reason      # HELD_*
    uint8_t qos
    bool dup
    uint16_t packet_id
    uint32_t delay_s             # it is to wait for so long afterwards (`$delayed/`)
    int64_t came_ms

cdef cppclass Held:              # of one connection, at least one, in the order in which they came; see holding
    deque[HeldPublish] messages
    uint64_t first               # number of the first of these
    uint64_t bytes               # of their packets and topics
    uint32_t owed                # of QoS 1 and 2
    bool paused                  # one of Connection.pause_count
    bool behind                  # what is no PUBLISH has come after them, and waits until they have gone
    bool due                     # in Reactor.resumed: the first need not wait any more

cdef enum:   # the state of a Connection
    CONNECTING                   # no CONNECT yet
    DECIDING                     # the control plane was asked about the CONNECT
    AUTHENTICATING               # AUTH packets go to and fro
    FINDING                      # the control plane was asked where its session is
    CONNECTED
    CLOSING                      # doomed: nothing more is read; freed at the end of the turn

# There may be a million: fields are in an order that leaves no gaps, what few have is behind a pointer.
cdef cppclass Connection:
    int fd
    uint32_t slot                # in Reactor.connections
    uint32_t generation          # of the slot
    uint32_t interest            # epoll events asked for
    Listener* listener           # where it came in
    Transport* transport         # what its bytes are wrapped in; NULL: nothing, MQTT as it is
    int64_t transport_bytes      # of the transport's buffers, as they were last counted
    Session* session
    uint8_t* input               # the start of a packet that has not come whole, or what a pause left unread
    uint32_t input_size, input_capacity
    Output output
    uint8_t state                # ConnectionState
    uint8_t version              # 3, 4 or 5
    uint8_t qos_max              # that it may publish at, and is granted
    bool retain_available        # it may have messages retained
    bool asked                   # a request to the control plane is open: read nothing more
    bool touched                 # in Reactor.touched
    bool doomed
    uint8_t doom_reason, doom_fault
    bool backlogged              # in Reactor.backlogged
    bool stalled                 # reads none of the answers to what it sends: not read from until it does
    bool leaving                 # goes to another reactor at the end of the turn
    bool clean_disconnect        # the will is not wanted any more
    bool departed                # it has said DISCONNECT: Session.left_reason has why
    bool overloaded              # in Reactor.overloaded
    bool refused                 # held by the memory ceiling for too long: its messages are refused meanwhile
    bool throttled               # waits for a bucket, see rates
    bool placed                  # counted in Guard.addresses
    bool in_debt                 # it is owed so many that it is not read from
    uint8_t reviewing            # 1: in Reactor.reviews; 2: and under rules that came since
    bool terse                   # wants no reason strings (Request Problem Information)
    bool automatic               # the SUBSCRIBE that is handled or waits is not the client's: it gets no SUBACK
    bool released_elsewhere      # what waited for PUBREL when it connected may have been released at another node
    bool replays                 # has asked for what a stream keeps: it stays on this reactor
    bool delivered               # replayed messages are in its output: the control plane waits until they are out
    uint8_t homing               # 1 + the reactor that it moves to once it is owed nothing; 0: none
    uint8_t moves                # how often it has moved to another reactor
    uint16_t away_to
    uint32_t away                # messages in a row that went to reactor `away_to` and to nobody else
    uint32_t owed                # acknowledgements of its messages that wait for the store
    uint32_t pause_count         # receivers (and the memory ceiling) that want this publisher not to be read
    uint32_t packet_bytes_max    # the largest packet that the client takes
    uint16_t send_max            # messages in flight that the client takes
    uint16_t alias_max           # aliases that the client takes
    uint32_t keep_alive_ms       # 0: none
    int trace                    # number of the trace that is about it; 0: none
    uint32_t traced_bytes        # of its output, from the first that waits on, that were reported
    int unsent                   # bytes in the socket, at the last look
    int64_t deadline_ms          # of CONNECT, and of the next step of an authentication
    int64_t packet_ms            # when the packet began that has not come whole
    int64_t output_ms            # when the client was last seen to take output that waits
    int64_t last_read_ms
    int64_t timer_ms             # when its timer is due; another timer of it is stale; 0: none
    int64_t overloaded_ms        # since when
    uint64_t bytes_received, bytes_sent   # counted a read and a flush, for whoever looks at it
    uint64_t messages_received
    int64_t since_ns             # when its CONNECT came; from CONNACK on, when that was written
    ClientUsage* usage           # NULL: nothing bounds it
    uint64_t resumes             # the last section whose commitment lets its outbox go on
    uint64_t address             # as a number, see guarding; 0: not known
    uint64_t visitor             # in Guard.clients; 0: it is not counted
    string* connect_packet       # first byte and body, kept while the CONNECT is decided
    string* pending_packet       # the SUBSCRIBE or PUBLISH that waits for authorisation: first byte and body; see publishing.Meant
    Held* held                   # PUBLISH packets that wait for plugins; NULL: none
    Identity* identity           # NULL: nothing of it is known, or nobody asks
    RuleSet* rules               # that are about it, held; NULL: there are no rules
    uint64_t rules_number        # what is found by them is remembered under it
    uint64_t asker_number        # and what an authoriser has answered under this; 0: nothing yet
    vector[string]* aliases_in   # topic by alias
    AliasMap* aliases_out
    string* peer                 # "host:port"; NULL: nobody has asked for it yet
