from libc.stdint cimport int64_t
from libcpp.string cimport string

from tidemq.engine.base.hashing cimport SeededHash
from tidemq.engine.door.engine cimport Engine
from tidemq.engine.door.node_batches cimport BatchFormats
from tidemq.engine.state.nodes cimport NodeHub

cdef class NodeAccess:
    cdef Engine engine
    cdef NodeHub* hub                # the engine's
    cdef bint closed
    cdef size_t batch_bytes_max
    cdef BatchFormats formats
    cdef unsigned int format         # that is written
    cdef SeededHash hash             # of topics, to reactors
    cdef unsigned char marks[16]     # the address of one stands for the node in the subscription index
    cdef long long filters[16]       # how many each node has
    cdef list groups                 # by node: a set of those that it has members of
    cdef unsigned long long origins[16]      # incarnations of those that have passed something on
    cdef unsigned long long given[64]        # bytes of messages and answers, by reactor, since the start
    cdef unsigned long long taken[1024]      # by node, 64 each, and reactor: the last id that came of it
    cdef object _check_node(self, object node)
    cdef object _check_filters(self, object filters)
    cdef object _batches(self, unsigned int node, string* records)

# of this module alone
cdef void _wait(NodeHub* hub, int64_t timeout_ns) noexcept nogil
