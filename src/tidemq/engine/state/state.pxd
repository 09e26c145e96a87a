"""What the data plane holds, and who owns it. Layout only; no code.
A Reactor is one thread. It alone touches its connections, its sessions, its cache and its timers. Between
reactors go only Mail (under the receiver's `inbox_lock`) and Messages (constant once made, counted by reference).
`Shared` is one engine's common state; each part of it names its lock.
"""
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libcpp cimport bool
from libcpp.deque cimport deque
from libcpp.string cimport string
from libcpp.string_view cimport string_view
from libcpp.unordered_map cimport unordered_map
from libcpp.vector cimport vector

from tidemq.engine.base.counters cimport COUNTER_COUNT
from tidemq.engine.base.engine_limits cimport EngineLimits, Usage
from tidemq.engine.base.event cimport (
    EVENT_CONNECT, EVENT_AUTH, EVENT_SUBSCRIBE, EVENT_UNSUBSCRIBE, EVENT_DELIVERED, EVENT_PUBLISH, EVENT_CONNECTED,
    EVENT_DISCONNECTED, EVENT_RECEIVED, EVENT_REVOKED, EVENT_DROPPED, EVENT_STOPPED, Event,
)
from tidemq.engine.base.guarding cimport Guard
from tidemq.engine.base.hashing cimport SeededHash
from tidemq.engine.base.listener cimport Listener, ListeningSocket
from tidemq.engine.index.marks cimport MARKS_OF_TOPIC
from tidemq.engine.base.message cimport Message, MessageId, Passage
from tidemq.engine.state.promise cimport (
    PROMISE_ACK, PROMISE_BACKLOG, PROMISE_CONNACK, PROMISE_KEPT, PROMISE_PACKET, PROMISE_PUBLISHED, PROMISE_SEND,
    PROMISE_VOID, Due, Ledger, Promise,
)
from tidemq.engine.index.retained_index cimport RetainedIndex, RetainedWalk
from tidemq.engine.index.rules cimport Judgement, Policy, RuleSet
from tidemq.engine.state.strain cimport Drop, Feeders, Strain
from tidemq.engine.index.subscriptions cimport Matches, SubscriptionIndex
from tidemq.engine.base.system cimport pthread_cond_t, pthread_mutex_t
from tidemq.engine.state.turning cimport Gathering, Lingering, Review
from tidemq.net.buffer cimport Buffer
from tidemq.net.transport cimport Transport
from tidemq.wire.protocol cimport Span

cdef enum:
    FOR_EVER = 0xFFFFFFFF        # a session expiry that never comes (5.0 section 3.1.2.11.2)
    CACHE_WAYS = 4
    JUDGEMENTS = 4               # of a topic that are remembered
    REACTORS_MAX = 64            # a bit mask of reactors is one word
    VARIANTS = 16                # encoded heads of one message: QoS (2 bits), retain, 5.0
    OUTPUT_BLOCK = 65536         # bytes gathered for one connection before they are sent within a turn
    LARGE_PAYLOAD = 32768        # from here on a payload is sent from its message and not copied

# ---------------------------------------------------------------- a session

ctypedef unordered_map[string, Backlog, SeededHash] BacklogMap
ctypedef unordered_map[string, SessionSubscription, SeededHash] SubscriptionMap
ctypedef unordered_map[string, uint16_t, SeededHash] AliasMap
ctypedef Session* SessionPointer

cdef enum:   # the state of an Entry
    WAITING                      # not sent since the client connected
    SENT                         # PUBLISH sent: waits for PUBACK or PUBREC
    RELEASED                     # PUBREC came: waits for PUBCOMP
    DONE                         # acknowledged out of order, dropped or expired: a hole until the head passes it

cdef struct Entry:
    Message* message             # NULL when RELEASED or DONE
    uint32_t* subscription_ids   # a count, then so many; or NULL
    uint8_t state                # EntryState
    uint8_t qos                  # 1 or 2
    bool retain
    bool was_sent                # on an earlier connection: goes out with DUP, or as PUBREL
    uint8_t row                  # status of its row in the store, committed or on its way; ROW_NONE: it has none
    uint32_t sent_s              # when, in seconds of the monotonic clock, for the acknowledgement time-out
    uint32_t record              # of its row in the section: it can still be taken back
    uint64_t section             # that its row is in, or was last changed in
    uint64_t queue               # the shard of a shared group that its row is under; 0: the session's own

# QoS 1 and 2 messages towards one client, oldest first, in a ring. Entry `sequence` carries packet identifier
# sequence % 65535 + 1. head <= next <= tail: [head, next) is in flight, [next, tail) waits.
cdef struct Outbox:
    Entry* entries
    uint32_t capacity            # a power of two
    uint64_t head, next, tail
    uint64_t unsent              # no place before it holds a message that was never sent and may be dropped
    uint32_t inflight            # entries SENT or RELEASED
    uint32_t waiting             # entries WAITING
    uint64_t bytes               # of the messages held

cdef enum:   # the status in a queue row's key
    ROW_NONE, ROW_IDLE, ROW_INFLIGHT

# The part of a session's queue that is only in the store. All those rows have an id above `edge`, and everything
# in the outbox is older for its publisher than they are.
cdef struct StoredQueue:
    uint64_t waiting             # rows
    uint64_t bytes               # of their messages
    MessageId edge
    MessageId late               # while `reading`: rows from here on came or changed too late for the read
    uint64_t leaving             # of a shard that is to move: the section that holds its last rows; 0: it is not
    uint32_t doubtful            # after a crash: so many rows may have been sent, and go out with DUP
    uint32_t trims               # rows to be dropped once the window that is being read is there
    uint32_t offered             # rows of offers that are open, see offers
    uint32_t unrecorded          # the first promise to it that was not looked at for an offer to record; 0: none
    uint64_t severed             # the connection that was ended because the store failed; 0: none was
    bool reading                 # a window is on its way from the store

cdef struct SessionSubscription:
    uint32_t subscription_id
    uint16_t turn                # of the SUBSCRIBE that it is from, among those to its filter: what was promised before is void
    uint8_t options

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
    uint16_t reactor             # the owner; written under Shared.registry_lock
    uint64_t group               # of a shard: the shared group whose queue it is part of; 0: a client's session
    bool internal                # a receiver of the embedding program: what it gets goes up as events
    bool moving                  # on its way to `reactor` with its connection; under Shared.registry_lock
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
    uint32_t last_owed           # the last promise to this publisher, see ledger; it may be kept by now
    BacklogMap* backlog          # by filter; NULL: none
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
    vector[uint64_t] groups      # they wait for it

# ---------------------------------------------------------------- a connection

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
    Policy* own_rules            # of this client alone, asked before all others; held; NULL: it has none

cdef cppclass ClientUsage:        # of a client whose listener bounds it
    Usage buckets
    int64_t throttled_ms         # since when it waits for one

cdef enum:   # the state of a Connection
    CONNECTING                   # no CONNECT yet
    DECIDING                     # the control plane was asked about the CONNECT
    AUTHENTICATING               # AUTH packets go to and fro
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
    bool asked                   # a request to the control plane is open: read nothing more
    bool touched                 # in Reactor.touched
    bool doomed
    uint8_t doom_reason, doom_fault
    bool backlogged              # in Reactor.backlogged
    bool stalled                 # reads none of the answers to what it sends: not read from until it does
    bool leaving                 # goes to another reactor at the end of the turn
    bool clean_disconnect        # the will is not wanted any more
    bool overloaded              # in Reactor.overloaded
    bool refused                 # held by the memory ceiling for too long: its messages are refused meanwhile
    bool throttled               # waits for a bucket, see rates
    bool placed                  # counted in Guard.addresses
    bool in_debt                 # it is owed so many that it is not read from
    uint8_t reviewing            # 1: in Reactor.reviews; 2: and under rules that came since
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
    int unsent                   # bytes in the socket, at the last look
    int64_t deadline_ms          # of CONNECT, and of the next step of an authentication
    int64_t packet_ms            # when the packet began that has not come whole
    int64_t output_ms            # when the client was last seen to take output that waits
    int64_t last_read_ms
    int64_t timer_ms             # when its timer is due; another timer of it is stale; 0: none
    int64_t overloaded_ms        # since when
    ClientUsage* usage           # NULL: nothing bounds it
    uint64_t resumes             # the last section whose commitment lets its outbox go on
    uint64_t address             # as a number, see guarding; 0: not known
    uint64_t visitor             # in Guard.clients; 0: it is not counted
    string* connect_packet       # first byte and body, kept while the CONNECT is decided
    string* pending_packet       # the SUBSCRIBE or PUBLISH that waits for authorisation: first byte and body
    Identity* identity           # NULL: nothing of it is known, or nobody asks
    RuleSet* rules               # that are about it, held; NULL: there are no rules
    uint64_t rules_number        # what is found by them is remembered under it
    uint64_t asker_number        # and what an authoriser has answered under this; 0: nothing yet
    vector[string]* aliases_in   # topic by alias
    AliasMap* aliases_out
    string* peer                 # "host:port"; NULL: nobody has asked for it yet

cdef cppclass Backlog:            # retained messages that a new subscription still has to get
    RetainedWalk* walk           # NULL while the client is away
    uint32_t subscription_id
    uint8_t qos

# ---------------------------------------------------------------- routing

cdef struct Receiver:            # a session of this reactor that a topic goes to, overlapping subscriptions merged
    Session* session
    uint8_t qos
    uint8_t own_qos              # for messages that it published itself: of its subscriptions without no-local
    bool takes_own               # has such a subscription
    bool retain_as_published
    uint32_t ids_at              # its subscription identifiers: CacheEntry.ids[ids_at : ids_at + ids_count]
    uint32_t ids_count
    uint32_t own_ids_count       # the first so many are of subscriptions without no-local

cdef struct GroupShare:          # of a shared group: its members on another reactor whose clients are there
    uint16_t reactor
    uint32_t members

cdef cppclass Group:             # a shared group that a topic goes to
    uint64_t number
    bool stored                  # has a member whose session is stored
    LocalGroup* here
    vector[GroupShare] elsewhere # as the cache saw them
    uint32_t elsewhere_count     # members in all of them

cdef cppclass CacheEntry:
    uint64_t version             # of the index when it was matched, or since found to hold
    uint16_t marks[MARKS_OF_TOPIC]
    string topic
    uint64_t reactors            # bit mask of the other reactors that have plain subscribers
    uint64_t stored_reactors     # those among them with subscribers that the store holds
    uint64_t streams             # bit mask of the streams that keep it
    bool stored                  # the store holds a receiver of it, here or elsewhere, or a group's
    vector[Receiver] receivers
    vector[uint32_t] ids
    vector[Group] groups
    Judgement judgements[JUDGEMENTS]
    uint8_t next_judgement       # that makes room

cdef struct CacheSlot:
    uint64_t hash                # of the topic
    CacheEntry* entry            # NULL: free

cdef cppclass TopicCache:
    vector[CacheSlot] slots      # in sets of CACHE_WAYS, a set is one line of memory
    uint32_t count
    uint64_t weight              # receivers, identifiers and shares of groups of all entries
    size_t hand                  # the slot that is looked at next for room
    uint64_t seed

# ---------------------------------------------------------------- mail, timers

cdef enum:   # the kind of a Mail
    MAIL_MESSAGE                 # for this reactor's plain subscribers
    MAIL_GROUP                   # for one member here of group `number`
    MAIL_PUBLISH                 # from the control plane: route it
    MAIL_CONNECTION              # `pointer`: a Connection whose CONNECT is to be applied here
    MAIL_MOVED                   # `pointer`: a Connection that comes with its session; `number`: Reactor.clock
    MAIL_PAUSE, MAIL_RESUME      # `number`: connection that feeds a slow receiver
    MAIL_ANSWER_CONNECT          # `number`: connection; `reason`; `text`: client id, `data`: auth data, and the user
    MAIL_ANSWER_AUTH
    MAIL_ANSWER_SUBSCRIBE        # `data`: a reason for each filter
    MAIL_ANSWER_PUBLISH          # `token`: for how many ms the answer holds
    MAIL_REPLAYED                # `number`: connection; `token`: how many messages; `data`: their packets
    MAIL_DISCONNECT              # `text`: client id; `reason`
    MAIL_SUBSCRIBE               # an internal receiver: `number`, `text`: filter, `reason`: QoS
    MAIL_UNSUBSCRIBE
    MAIL_KEPT                    # `number`: token of a message that its receiver has kept; `reason`: or not
    MAIL_SHARD                   # `pointer`: a shard that goes on here
    MAIL_GO                      # `number`: clock of an offered message's id; `reason`: or nobody takes it
    MAIL_COMMITTED               # `pointer`: a Section that the store has, or with `reason` has not
    MAIL_FAILED                  # `number`: of failures of the store so far; all sections in them are answered
    MAIL_ROWS                    # `number`: queue; `pointer`: StoredRows that were read for it
    MAIL_EXPIRED                 # `number`: queue; `pointer`: StoredRows whose time is over
    MAIL_REMOVED                 # `number`: queue; `pointer`: StoredRows, their bytes, that RECORD_EXPIRE has removed
    MAIL_RULES                   # `pointer`: the Policy that counts from now on, held
    MAIL_STOP

cdef cppclass Letter:             # what comes with the rare kinds
    string* text
    string* data
    string* username             # in place of the client's own; NULL: that
    string* groups               # see Connection
    Policy* own_rules            # likewise

cdef struct Mail:
    uint8_t kind                 # MailKind
    uint8_t reason, hops
    bool offered                 # a message, see offers
    uint64_t number
    uint64_t token               # of a message whose publisher waits until it is kept, see ledger; 0: nobody waits
    Message* message
    void* pointer
    Letter* letter

cdef enum:   # the kind of a Timer
    TIMER_CONNECTION             # CONNECT time-out, keep alive, acknowledgement time-out
    TIMER_THROTTLED              # a client that is read again; `key` is a connection handle, as above
    TIMER_LISTENING              # a listening socket that is watched again; `key` is that of its events
    TIMER_SESSION                # expiry and delayed will; `key` is the session's number

cdef cppclass Timer:
    int64_t due_ms
    uint64_t key                 # connection handle or session number
    uint8_t kind

# ---------------------------------------------------------------- the journal

cdef enum:   # the kind of a Record
    RECORD_VOID                  # taken back
    RECORD_ADD                   # a queue row, and the payload
    RECORD_SEND                  # the row goes from idle to in flight
    RECORD_RETURN                # the row goes from in flight to idle
    RECORD_RELEASE               # PUBREC came for the row
    RECORD_REMOVE                # the row goes, and the payload with the last of its rows
    RECORD_RETAIN                # whatever is retained now for the message's topic
    RECORD_PUT, RECORD_DELETE    # `status`: family; key and value
    RECORD_READ                  # `sequence` rows of the queue after `id`, once all before is in the store
    RECORD_TRIM                  # `sequence` oldest idle rows of the queue after `id` go
    RECORD_EXPIRE                # the idle row of the queue with `id` goes, if it is still there
    RECORD_PURGE                 # everything that the store has of the queue
    RECORD_CAPTURED              # the section has messages for streams

cdef enum:   # families that RECORD_PUT and RECORD_DELETE name, in the order of the façade's names
    FAMILY_SESSION, FAMILY_SUBSCRIPTION, FAMILY_RECEIVED, FAMILY_SHARED

cdef struct Record:
    uint8_t kind                 # RecordKind
    uint8_t status               # of the row before (REMOVE) or now; family
    uint8_t qos
    bool retain
    bool offered                 # ADD: of an offer, in no queue yet
    bool moved                   # ADD: it comes from another queue, and is no new message
    bool spilled                 # ADD: the message is in the store alone
    uint64_t queue
    uint64_t sequence            # the entry's place
    MessageId id
    Message* message             # held; NULL: none
    uint32_t* subscription_ids   # own copy: a count, then so many; NULL: none
    string* key
    string* value

cdef cppclass Section:            # what one reactor wants to have in the store, in order; committed as a whole
    uint64_t number
    uint16_t reactor
    uint32_t live                # records that were not taken back
    int64_t began_ms             # when the first record came
    uint64_t failures            # of the store, of which the reactor knew then
    vector[Record] records
    string captured              # messages for streams, see captured.pxd
    uint64_t captured_streams    # bit mask of those
    bool captured_waits          # publishers wait for one of these messages

cdef struct StoredRow:           # a queue row as it was read
    Message* message             # held
    uint32_t* subscription_ids
    MessageId id
    uint8_t qos
    bool retain
    uint32_t bytes

cdef cppclass StoredRows:
    vector[StoredRow] rows
    bool more                    # rows were left

cdef struct Taker:               # of an offered message, see offers
    uint64_t queue
    uint8_t qos
    bool retain
    uint32_t* subscription_ids   # a count, then so many; NULL: none

cdef cppclass Offer:
    Message* message             # held
    vector[Taker] takers         # queues of this reactor: of sessions, and of shared groups
    size_t told                  # so many of them the publisher's reactor knows

cdef struct Unmarked:            # a QoS 1 message that was sent and whose row still says idle
    uint64_t queue
    uint64_t place               # in the outbox
    int64_t sent_ms

# ---------------------------------------------------------------- a reactor, an engine

cdef cppclass Reactor:
    uint16_t index
    Shared* shared
    int epoll
    int wake                     # eventfd
    int sleeping                 # atomic: waits in epoll with an empty inbox
    int64_t now_ms               # of this turn
    int64_t now_ns
    int64_t tick_ms              # when the slow work was last done
    int64_t captured_bytes       # for streams, in the open section and in those that the store has not yet
    string spare_captured        # empty: memory for the next section's
    Gathering gathering
    int64_t unasked              # messages of QoS 0 from clients that subscribe to nothing: they wait for no answer
    int64_t busy_ns              # spent in turns since `load` was last worked out
    int64_t load_ns              # when that was
    int load                     # atomic: share of the time that it was busy lately, in percent
    bool stopping
    int64_t stop_ms              # when the last writes end
    vector[ListeningSocket] listening
    deque[Lingering] lingering   # oldest first; the oldest is open
    uint64_t lingering_first     # its number
    size_t lingering_count       # of those that are open
    vector[Connection*] connections
    vector[uint32_t] free_slots
    vector[uint32_t] generations
    vector[Connection*] touched  # has output, or is doomed
    vector[SessionPointer] strained   # receivers above their marks
    size_t strained_left         # of these, so many are still to be looked at
    vector[Feeders*] released    # publishers that need not wait any more, a set for each receiver
    unordered_map[uint64_t, Drop] drops   # by session and counter
    int64_t drops_ms             # when they were last reported
    vector[uint64_t] overloaded  # publishers stopped by the memory ceiling
    size_t overloaded_left       # of these, so many are still to be looked at
    vector[uint64_t] backlogged  # connections with retained messages still to be sent
    bool backlog_ready           # one of them can take more now
    size_t backlog_at            # the one that is looked at next
    size_t backlog_left          # so many are still looked at
    vector[uint64_t] resumed     # connections whose kept input is to be parsed again
    unordered_map[uint64_t, Session*] sessions   # by number: those that a timer or receiver number names or the store holds
    unordered_map[uint64_t, LocalGroup*] groups   # by number; those with a member, a shard or a cache entry here
    vector[LocalGroup*] group_list   # the same
    size_t group_at              # of these: where the next slice that is tended begins
    deque[LocalGroup*] due_groups   # with a queue of which something may go out
    deque[Handback*] handbacks
    uint32_t handback_left       # entries that this turn may still hand back
    vector[Timer] timers         # a binary heap, earliest first
    TopicCache cache
    uint32_t group_turn          # the state of the draw among the members of shared groups
    int inbox_count              # atomic: mails in the inbox, for senders that should wait
    vector[uint64_t] flooding    # publishers that wait for another reactor's inbox
    Policy* policy               # all rules, held; NULL: there are none, and everything is allowed
    int64_t wall_ns              # when the wall clock was last looked at
    int64_t clock_steps          # that this reactor has followed
    size_t dating_at             # after the clock was set: sessions in buckets below this one have dates of it
    size_t dating_buckets        # that `sessions` had then; no more than `dating_at`: all have
    size_t review_left           # connections in slots below this one may have the rules of before
    deque[Review] reviews        # of those with very many subscriptions
    Matches matches              # scratch for a look-up
    uint64_t searched            # nodes and subscriptions that look-ups have gone through
    uint64_t work                # these, and receivers that messages have gone to, see work.pxd
    uint64_t work_max            # where others come first
    vector[Session*] ending      # see Session.ending
    uint16_t subscribes          # the last SessionSubscription.turn
    vector[void*] found          # scratch for retained messages
    RetainedWalk* sweep          # in search of retained messages whose time is over; NULL: it rests
    int64_t swept_ms             # when it last came to its end
    uint8_t* read_buffer
    uint32_t read_capacity
    uint8_t* wrapped_buffer      # what is read from a connection with a transport
    Buffer spare_output          # memory for the next transport that has something to send
    vector[uint8_t*] spare_blocks
    vector[string] heads         # encoded heads of the message that is being routed, by variant
    uint32_t head_packet_id_at[VARIANTS]
    vector[vector[Mail]] outgoing   # by reactor
    vector[Mail] departing       # MAIL_CONNECTION and MAIL_MOVED: posted after everything else; `hops` is the target
    vector[Mail] reading         # the inbox as taken
    size_t mail_at               # of these, so many were acted on
    pthread_mutex_t inbox_lock
    vector[Mail] inbox           # under inbox_lock
    Section* section             # open: only this reactor knows it; NULL without a store
    uint64_t failures            # of the store, that have been answered here
    uint64_t doubted             # what a section up to here adds is likely to be undone, unless it is committed
    uint64_t committed           # the last section that the store has, with all before it
    int unhanded                 # atomic: the open section waits to be handed over
    deque[string] removed        # client ids of removals under way, in the order of their sections
    uint64_t clock               # the last that was given to a message
    Ledger ledger                # promises to publishers
    deque[Promise] promises      # all others, in the order of their sections
    deque[Section*] spent        # sections that the store has: they are freed a part at a time
    uint32_t keep_left           # promises that this turn may still keep
    bool keeping                 # there is more of these to be done at once
    deque[Unmarked] unmarked     # oldest first; it may be acknowledged by now, or its session be elsewhere
    unordered_map[uint64_t, Offer] offers   # by the clock of the message's id
    int64_t tally[COUNTER_COUNT]
    int64_t published[COUNTER_COUNT]   # atomic

cdef cppclass Shared:
    EngineLimits limits
    bool ask_connect, ask_subscribe, ask_publish, report_connections
    int64_t judged               # atomic: the last number of a set of rules, or of whom an authoriser was asked about
    vector[Reactor*] reactors
    vector[Listener*] listeners
    SubscriptionIndex* subscriptions   # its own lock
    RetainedIndex* retained            # its own lock
    pthread_mutex_t registry_lock
    unordered_map[string_view, SessionPointer, SeededHash] registry   # by the session's own client id
    uint64_t next_session        # under registry_lock
    unordered_map[string, Removal, SeededHash] removals    # by client id, while under way; under registry_lock
    unordered_map[uint64_t, uint16_t] queue_owners   # reactor of each stored session; under registry_lock
    pthread_mutex_t accept_lock
    int reserve                  # a descriptor to give up when none is left, to refuse with; under accept_lock
    int64_t connection_count, session_count, subscription_count   # atomic
    Guard guard                  # its own lock
    int overloaded               # atomic: the memory ceiling is passed
    bool durable                 # there is a store; set before the reactors run
    uint8_t queue_full           # FULL_*
    int store_refuses            # atomic: the reason that what would have to be stored is refused for; 0: none
    int64_t wall_offset_ns       # atomic: wall clock less monotonic clock
    int64_t id_offset_ns         # atomic: the same for ids, which never goes back
    int64_t clock_steps          # atomic: how often the wall clock was set
    uint64_t incarnation
    uint64_t failures            # of the store; the store's thread only
    uint64_t highest_clock       # of all ids that went to the store; the store's thread only
    pthread_mutex_t journal_lock
    pthread_cond_t journal_ready
    vector[Section*] journal     # handed over; under journal_lock
    int journal_idle             # atomic: the store waits for something to do
    bool journal_closed          # nothing more comes; under journal_lock
    bool journal_poked           # the store's thread is to look about it; under journal_lock
    pthread_mutex_t events_lock
    vector[Event*] events        # under events_lock
    int event_wake               # eventfd
    int64_t tally[COUNTER_COUNT] # of what the façade's thread makes and frees
    int64_t published[COUNTER_COUNT]   # atomic: the same, for the reactors
