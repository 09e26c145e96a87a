"""What is remembered of a receiver whose publishers have had to wait, and of what was dropped. Layout only."""
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libcpp cimport bool
from libcpp.string cimport string
from libcpp.unordered_set cimport unordered_set

ctypedef unordered_set[uint64_t] Feeders   # publishers: handles of connections

cdef cppclass Strain:            # of a session, see backpressure
    Feeders* feeders             # who waits now; NULL: nobody
    bool waited_for              # in Reactor.strained
    bool slow                    # patience has run out: publishers go on
    size_t place                 # in Reactor.strained
    int64_t patience_ms          # that is left
    int64_t since_ms             # when it was last seen to take enough, or when the wait began or ended
    uint64_t taken_messages      # as of then
    uint64_t taken_bytes

cdef cppclass Drop:              # messages of a client that were dropped and not yet reported, see drops
    uint8_t counter              # that counts them
    uint64_t messages
    string client_id             # of a shared group: its whole filter; empty: not known
