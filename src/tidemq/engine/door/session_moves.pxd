from libc.stdint cimport int64_t, uint64_t

from tidemq.engine.state.arrival cimport Arrival
from tidemq.engine.state.reactor cimport Common

cdef Arrival* make_arrival(
    Common* common, bytes client_id, bytes value, subscriptions, received, inflight, uint64_t next_place,
    list unreadable,
) except? NULL

cdef object expect_doubles(Arrival* arrival, int64_t doubles_ms, taken, recent)

# of this module alone
cdef object _add_subscriptions(Common* common, Arrival* arrival, bytes client_id, rows, list unreadable)
cdef object _add_received(Arrival* arrival, bytes queue, keys, list unreadable)
cdef object _add_entries(Common* common, Arrival* arrival, bytes queue, rows, list unreadable)
