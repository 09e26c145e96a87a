from libc.stdint cimport uint64_t

cdef struct Tally:                     # of a benchmark's matches
    uint64_t total
    uint64_t fewest                    # for one topic
    uint64_t most
