"""What is on its way to the store and back. Layout only.
Owner: the reactor; of a Section that was handed over, the keeper until it answers by mail."""
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t, uint8_t
from libcpp cimport bool
from libcpp.string cimport string
from libcpp.vector cimport vector

from tidemq.engine.base.message cimport Message, MessageId

cdef enum:   # the kind of a Record
    RECORD_VOID                  # taken back
    RECORD_ADD                   # a queue row, and the payload
    RECORD_ELSEWHERE             # the same, for the session of `key`, which is at home on another node
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
    RECORD_LEFT                  # the session of `key` has left: no row of it comes after; `status`: it was here;
                                 # `sequence`: the next place of its outbox
    RECORD_ARRIVED               # the session of `key` is here; `status` 0: it was refused
    RECORD_GIVEN                 # the message that was given as `sequence` is kept; `status`: or a reason code, why not
    RECORD_LET_GO                # `queue` of a shared group is the engine's no more: no row of it comes after

cdef enum:   # families that RECORD_PUT and RECORD_DELETE name, in the order of the façade's names
    FAMILY_SESSION, FAMILY_SUBSCRIPTION, FAMILY_RECEIVED, FAMILY_SHARED

cdef enum:
    SECTION_RECORDS = 32768      # so many are a batch of their own,
    SECTION_BYTES = 16 << 20     # and so many bytes: a cluster sends what it stores, and a slow disk takes its time

cdef struct Record:
    uint8_t kind                 # RecordKind
    uint8_t status               # of the row before (REMOVE) or now; family
    uint8_t qos
    bool retain
    bool offered                 # ADD: of an offer, in no queue yet
    bool moved                   # ADD: it comes from another queue, and is no new message
    bool spilled                 # ADD: the message is in the store alone
    bool served                  # PUT: a subscription of before, to which all that was retained has been sent
    bool weighs                  # ADD, ELSEWHERE: its message is in Section.bytes, for this record alone
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
    uint64_t bytes               # of messages and values that it writes; of what was taken back some may count still
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
