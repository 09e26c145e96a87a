"""A client's queue: the part in memory, and what is known of the part in the store. Layout only.
Owner: the reactor of the session, or of the shard."""
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t, uint8_t
from libcpp cimport bool
from libcpp.map cimport map as ordered_map
from libcpp.set cimport set as ordered_set
from libcpp.utility cimport pair

from tidemq.engine.base.message cimport Message, MessageId

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
    uint16_t replay              # number of the session's Replay that it is of, see replayed; 0: of none
    uint8_t row                  # status of its row in the store, committed or on its way; ROW_NONE: it has none
    bool reported                # a plugin wants to know that it is acknowledged
    uint32_t since_ms            # when it came, or was first sent (3.1: last): low bits of the monotonic clock
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

# What comes twice to a session that has just arrived from another node, see doubles.
cdef cppclass Doubles:
    int64_t until_ms             # nothing does any more
    ordered_map[pair[uint64_t, uint64_t], uint64_t] taken   # by node and its reactor: the last id that the old home took
    ordered_set[pair[uint64_t, uint64_t]] ids   # clock and origin of messages that are in the queue, or were

# Packet identifiers that the client is asked to release, see clearing.
cdef cppclass Clearing:
    uint64_t connection          # handle of the one on which it was asked; 0: none
    uint64_t cleared             # places before this one have identifiers that it does not hold
    uint64_t asked               # and places before this one it has been asked for
    uint64_t until               # when `cleared` comes to this place it holds none at all; 0: not begun
    uint64_t awaited             # places from `cleared` on of which it has not said so: a bit for each
    int64_t since_ms             # when it was asked
    uint8_t tries                # connections that ended before it answered
    bool given_up                # it is not waited for any more

# The part of a session's queue that is only in the store. All those rows have an id above `edge`, and everything
# in the outbox is older for its publisher than they are.
cdef struct StoredQueue:
    uint64_t waiting             # rows
    uint64_t bytes               # of their messages
    uint64_t oldest              # no row of these came before: the clock of an id
    MessageId edge
    MessageId late               # while `reading`: rows from here on came or changed too late for the read
    uint64_t leaving             # of a shard that is to move: the section that holds its last rows; 0: it is not
    uint64_t unmarked            # before this place of the outbox some may be sent, and yet idle in the store
    uint32_t doubtful            # after a crash: so many rows may have been sent, and go out with DUP
    uint32_t trims               # rows to be dropped once the window that is being read is there
    uint32_t offered             # rows of offers that are open, see offers
    uint32_t unrecorded          # the first promise to it that was not looked at for an offer to record; 0: none
    uint64_t severed             # the connection that was ended because the store failed; 0: none was
    Doubles* doubles             # NULL: nothing comes twice
    Clearing* clearing           # NULL: the client holds no packet identifier that is not known here
    ordered_map[uint16_t, uint64_t]* fingerprints   # of messages that wait for PUBREL, by identifier; NULL: none is known
    bool reading                 # a window is on its way from the store
    bool older_may_come          # from elsewhere, as rows: nothing that waits is sent before
