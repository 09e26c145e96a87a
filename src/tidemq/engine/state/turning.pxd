"""What a reactor has to go on with from turn to turn. Layout only."""
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libcpp cimport bool
from libcpp.string cimport string

cdef struct Lingering:           # a socket of a connection that is over, see lingering
    int fd                       # -1: closed already
    int64_t until_ms

cdef struct Gathering:           # whether turns wait a little before they read, see gathering
    bool on
    int spans                    # so many in a row spoke for it; or since it is on
    int slower                   # of these, the last so many in a row brought less than before
    double before                # messages a nanosecond, when it was off
    int64_t began_ns             # of the span that is counted now
    int64_t busy_ns              # of it that went by in turns
    int64_t messages, packets, turns   # counts as they were at its beginning
    int64_t rests_until_ns       # it has slowed the inflow: not again before then

cdef cppclass Review:             # under new rules, of a client's very many subscriptions, see authorising
    uint64_t connection
    size_t at                    # those in buckets below this one were looked at
    size_t buckets               # of their table, then
    uint32_t revoked
    string first                 # of these
