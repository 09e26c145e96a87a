"""One thread, and what all threads of an engine have in common. Layout only.
A Reactor alone touches its connections, its sessions, its cache and its timers. Between reactors go only Mail (under the
receiver's `inbox_lock`) and Messages (constant once made, counted by reference). Each part of `Common` names its lock."""
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t, uint8_t
from libcpp cimport bool
from libcpp.deque cimport deque
from libcpp.memory cimport unique_ptr
from libcpp.string cimport string
from libcpp.string_view cimport string_view
from libcpp.unordered_map cimport unordered_map
from libcpp.vector cimport vector

from tidemq.engine.base.counters cimport COUNTER_COUNT
from tidemq.engine.base.engine_limits cimport EngineLimits
from tidemq.engine.base.event cimport Event
from tidemq.engine.base.guarding cimport Guard
from tidemq.engine.base.hashing cimport SeededHash
from tidemq.engine.base.histograms cimport HISTOGRAM_COUNT, Histogram
from tidemq.engine.base.listener cimport Listener, ListeningSocket
from tidemq.engine.base.system cimport pthread_cond_t, pthread_mutex_t
from tidemq.engine.index.retained_index cimport RetainedIndex, RetainedWalk
from tidemq.engine.index.rules cimport Policy
from tidemq.engine.index.topic_rules cimport TopicRules
from tidemq.engine.index.subscriptions cimport Matches, SubscriptionIndex
from tidemq.engine.state.arrival cimport Arrival
from tidemq.engine.state.client cimport Connection, Handback, LocalGroup, Removal, Session, SessionPointer
from tidemq.engine.state.mail cimport Mail, Timer
from tidemq.engine.state.nodes cimport NodeBatch, NodeHub, NodeSide
from tidemq.engine.state.promise cimport Committing, Ledger, Promise
from tidemq.engine.state.routing cimport TopicCache
from tidemq.engine.state.section cimport Offer, Section, Unmarked
from tidemq.engine.state.strain cimport Drop, Feeders
from tidemq.engine.state.turning cimport Gathering, Lingering, Review
from tidemq.net.buffer cimport Buffer

cdef enum:
    REACTORS_MAX = 64            # a bit mask of reactors is one word
    VARIANTS = 16                # encoded heads of one message: QoS (2 bits), retain, 5.0

cdef cppclass Reactor:
    uint16_t index
    Common* common
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
    bool follows                 # the store has what is done now: somebody else has done it
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
    unordered_map[uint64_t, Session*] sessions   # by number: those that a timer or receiver number names, the store holds, or whose client is away
    unordered_map[uint64_t, LocalGroup*] groups   # by number; those with a member, a shard or a cache entry here
    vector[LocalGroup*] group_list   # the same
    size_t group_at              # of these: where the next slice that is tended begins
    deque[LocalGroup*] due_groups   # with a queue of which something may go out
    deque[Handback*] handbacks
    uint32_t handback_left       # entries that this turn may still hand back
    uint32_t give_left           # messages of groups' queues that may still go out now
    vector[Timer] timers         # a binary heap, earliest first
    TopicCache cache
    uint32_t group_turn          # the state of the draw among the members of shared groups
    int inbox_count              # atomic: mails in the inbox, for senders that should wait
    vector[uint64_t] flooding    # publishers that wait for another reactor's inbox
    Policy* policy               # all rules, held; NULL: there are none, and everything is allowed
    TopicRules* topic_rules      # held; NULL: there are none
    string rewritten             # scratch: the new name of a topic that such a rule is about
    uint64_t fingerprint         # scratch: of the PUBLISH that is handled, see received_identifiers; 0: it is not known
    uint32_t delay_s             # scratch: of the PUBLISH that is handled, until it is due; 0: now
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
    deque[string] releasing      # client ids of sessions that leave once nothing of them is open, see leaving
    deque[Arrival*] arrivals     # sessions that are being installed, the first of them now
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
    vector[NodeSide] nodes       # by node, NODES_MAX of them
    uint32_t nodes_written       # bit masks of nodes: with records of this turn,
    uint32_t nodes_holding       # with publishers that wait,
    uint32_t nodes_settled       # with questions that are answered for them
    deque[NodeBatch] arrived     # from other nodes
    int64_t arrived_bytes        # atomic: of these, and on their way here
    bool arrived_ready           # some of them can be acted on now
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
    int64_t traced_s             # the second in which
    uint32_t traced_packets      # so many packets were reported
    int64_t spans_s              # the second in which
    uint32_t spans               # so many spans were reported
    unordered_map[uint32_t, Committing] committing   # by the slot of the ledger
    uint32_t publishers_left     # promises to publishers that this turn may still keep
    uint32_t others_left         # and others
    bool keeping                 # there is more of these to be done at once
    deque[Unmarked] unmarked     # oldest first; it may be acknowledged by now, or its session be elsewhere
    unordered_map[uint64_t, Offer] offers   # by the clock of the message's id
    int64_t answered[2]          # publishers in this turn, of the messages read in it: PUBACK, PUBREC
    int64_t tally[COUNTER_COUNT]
    int64_t published[COUNTER_COUNT]   # atomic
    Histogram histograms[HISTOGRAM_COUNT]

cdef enum:
    WATCHES_MAX = 100            # topic filters whose messages are counted

cdef struct WatchCount:          # of one such filter
    int64_t messages, payload_bytes

cdef cppclass Common:
    EngineLimits limits
    bool ask_connect, ask_subscribe, ask_publish, report_connections
    bool ask_sessions            # a CONNECT waits until its session may be found or made; set before the reactors run
    uint8_t plugins              # atomic; 1: they want some messages: the index has their filters
    int64_t held                 # atomic: PUBLISH packets that wait for them
    int64_t judged               # atomic: the last number of a set of rules, or of whom an authoriser was asked about
    vector[Reactor*] reactors
    vector[Listener*] listeners
    SubscriptionIndex* subscriptions   # its own lock
    RetainedIndex* retained            # its own lock
    pthread_mutex_t registry_lock
    unordered_map[string_view, SessionPointer, SeededHash] registry   # by the session's own client id
    uint64_t next_session        # under registry_lock
    unordered_map[string, Removal, SeededHash] removals    # by client id, while under way; under registry_lock
    unordered_map[string, uint64_t, SeededHash] exclusives   # number of the session that has a filter to itself; under registry_lock
    int64_t exclusive_count      # atomic: of these
    int64_t delayed_count, delayed_bytes   # atomic: messages that wait for their time
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
    unique_ptr[NodeHub] nodes    # its own lock; NULL: there are no other nodes; made before the reactors run
    pthread_mutex_t events_lock
    vector[Event*] events        # under events_lock
    int event_wake               # eventfd
    WatchCount watched[WATCHES_MAX]   # written by the reactor of receivers alone; each figure atomic
    int trace_number             # atomic: of the trace that goes on; 0: none
    string trace_client, trace_address   # whom it is about; under events_lock
    int64_t tally[COUNTER_COUNT] # of what the façade's thread makes and frees
    int64_t published[COUNTER_COUNT]   # atomic: the same, for the reactors
