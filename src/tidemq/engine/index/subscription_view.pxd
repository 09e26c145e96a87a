from libc.stdint cimport uint64_t
from libcpp.vector cimport vector

from tidemq.engine.index.subscriptions cimport SubscriptionIndex
from tidemq.wire.protocol cimport Span

cdef struct Tally:                     # of a benchmark's matches
    uint64_t total
    uint64_t fewest                    # for one topic
    uint64_t most

# of this module alone
cdef void match_spans(SubscriptionIndex* index, vector[Span]* topics, Tally* tally) noexcept nogil
