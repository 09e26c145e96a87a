from libc.stdint cimport int64_t, uint64_t

from tidemq.bench.load.client_socket cimport Address
from tidemq.bench.load.histogram cimport Histogram
from tidemq.bench.load.loop cimport Loop

cdef class Generator(Loop):
    cdef readonly object workload, target, share
    cdef Histogram before                 # the latencies as of the last interval's end
    cdef uint64_t sent_before, arrived_before
    cdef int64_t interval_began_ns        # when the running interval began
    cdef int64_t cpu_ns
    cdef double ready_share               # of the run, in which the thread ran or waited for a core
    cdef list intervals

# of this module alone
cdef object latency_in(const Histogram* histogram)
cdef object set_address(Address* address, bytes packed)
