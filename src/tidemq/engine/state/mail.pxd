"""What reactors and the façade send each other, and timers. Layout only.
Owner: the sender until it is posted, then the receiver; in between, under the receiver's `inbox_lock`."""
from libc.stdint cimport int64_t, uint64_t, uint8_t
from libcpp cimport bool
from libcpp.string cimport string

from tidemq.engine.base.message cimport Message
from tidemq.engine.index.rules cimport Policy

cdef enum:   # the kind of a Mail
    MAIL_MESSAGE                 # for this reactor's plain subscribers
    MAIL_GROUP                   # for one member here of group `number`
    MAIL_PUBLISH                 # from the control plane: route it
    MAIL_CONNECTION              # `pointer`: a Connection whose CONNECT is to be applied here
    MAIL_MOVED                   # `pointer`: a Connection that comes with its session; `number`: Reactor.clock
    MAIL_PAUSE, MAIL_RESUME      # `number`: connection that feeds a slow receiver
    MAIL_ANSWER_CONNECT          # `number`: connection; `reason`; `text`: client id, `data`: auth data, and the user
    MAIL_ANSWER_AUTH
    MAIL_ANSWER_SESSION          # `number`: connection; `reason`: 0, or what it is refused with
    MAIL_ANSWER_SUBSCRIBE        # `data`: a reason for each filter; `text`: in words, why one is refused
    MAIL_ANSWER_PUBLISH          # `token`: for how many ms the answer holds
    MAIL_ANSWER_HELD             # `token`: number of the held PUBLISH; `reason`; `data`: a 5.0 PUBLISH in its place, or NULL
    MAIL_JUDGE                   # `number`: connection; `data`: filters of topics, each ends with a NUL
    MAIL_REPLAYED                # `number`: connection; `token`: how many messages; `data`: their packets
    MAIL_FED                     # `number`: connection; `text`: filter; `data`: messages of a stream; `token`: where they end
    MAIL_REVOKE                  # `number`: connection; `text`: filter below $stream/ that the client may have no more
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
    MAIL_ADDED                   # `number`: queue; `pointer`: StoredRows, ids and bytes, that somebody else has added
    MAIL_TAKEN                   # `number`: queue; `pointer`: StoredRows, ids and bytes, that somebody else has removed
    MAIL_SUBSCRIPTION            # `number`: queue; `text`: filter that the session has (`offered`) or has not, as somebody else says; `reason`: options, `token`: identifier
    MAIL_DOUBLES                 # `number`: queue; for `token` milliseconds its messages may come by another node, too
    MAIL_CLEARING                # `number`: queue, whose client may hold packet identifiers that are not known here
    MAIL_EXPIRING                # `number`: queue, whose session's client is connected nowhere else: its time begins
    MAIL_ALL_CAME                # `number`: queue; nothing comes any more that goes before what waits in it
    MAIL_RELEASE                 # `text`: client id of the session that leaves
    MAIL_ADOPT                   # `pointer`: Arrival
    MAIL_GIVE                    # a message for one member of the shared group `text`, as `number`
    MAIL_RULES                   # `pointer`: the Policy that counts from now on, held
    MAIL_TOPIC_RULES             # `pointer`: the TopicRules that count from now on, held
    MAIL_ROSTER                  # `pointer`: a Roster that is to be answered
    MAIL_NODE                    # `data`: records that node `number` has passed on
    MAIL_SETTLE                  # `number`: node, all of whose open questions are answered with `reason`
    MAIL_INQUIRY                 # `pointer`: an Inquiry that is to be answered
    MAIL_STOP

cdef cppclass Letter:             # what comes with the rare kinds
    string* text
    string* data
    string* username             # in place of the client's own; NULL: that
    string* groups               # see Connection
    string* starts               # of each filter below $stream/: granted QoS (1), and epoch and offset (8 each)
    Policy* own_rules            # likewise

cdef struct Mail:
    uint8_t kind                 # MailKind
    uint8_t reason, hops
    bool offered                 # a message, see offers
    uint64_t number
    uint64_t token               # of a receiver that only counts: its `watch`; of a message whose publisher waits until it is kept, see ledger; 0: nobody waits
    Message* message
    void* pointer
    Letter* letter

cdef enum:   # the kind of a Timer
    TIMER_CONNECTION             # CONNECT time-out, keep alive, acknowledgement time-out
    TIMER_THROTTLED              # a client that is read again; `key` is a connection handle, as above
    TIMER_LISTENING              # a listening socket that is watched again; `key` is that of its events
    TIMER_SESSION                # expiry and delayed will; `key` is the session's number
    TIMER_DOUBLES                # a session forgets what might have come twice; `key` is its number

cdef cppclass Timer:
    int64_t due_ms
    uint64_t key                 # connection handle or session number
    uint8_t kind
