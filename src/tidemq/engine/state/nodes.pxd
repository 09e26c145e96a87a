"""What this node and others of its cluster pass on to each other: how it lies in a batch, and what waits. Layout only.
Owner of a NodeSide: the reactor; of the NodeHub: its lock."""
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libcpp cimport bool
from libcpp.map cimport map as ordered_map
from libcpp.string cimport string
from libcpp.vector cimport vector

from tidemq.engine.base.system cimport pthread_cond_t, pthread_mutex_t

cdef enum:
    NODES_MAX = 16               # slots for other nodes
    NODE_BATCH_MAGIC = 0x424E4D54    # "TMNB", on machines with the byte order that all have

cdef enum:   # the kind of a NodeRecord
    NODE_MESSAGE = 1             # then, if it is for a shared group, `$share/group/filter`; topic, properties with their length before them, payload
    NODE_ANSWER = 2              # to the question `clock`: `reason`; then, as payload, who takes what was offered

cdef enum:   # flags of a NODE_MESSAGE
    NODE_RETAIN = 1              # as it was published
    NODE_ASKS = 2                # somebody waits for the answer
    NODE_OFFERED = 4             # whose rows at QoS 2 are written where it was published, see offers

cdef struct NodeBatchHead:       # 16 bytes, before the records
    uint32_t magic
    uint32_t format
    uint64_t origin              # the sender's incarnation

cdef struct NodeRecord:          # 32 bytes
    uint8_t kind
    uint8_t qos
    uint8_t flags
    uint8_t reason
    uint16_t topic_size
    uint16_t group_size          # 0: it is for plain subscribers
    uint32_t properties_size     # 0: none
    uint32_t payload_size
    uint64_t clock               # of the message's id, by which it is answered; 0: it has none
    int64_t left_ms              # until it expires; 0: it never does

cdef cppclass NodeSide:          # what one reactor has with one node
    string out                   # records that were written in this turn
    ordered_map[uint64_t, uint64_t] asked   # tokens of promises by the clock of the message, oldest first
    vector[uint64_t] held        # publishers that wait until less is under way
    int64_t since_ms             # when the first of them began to, and less has not been under way since; 0: it is
    uint64_t settled             # questions up to this clock are answered with `reason`, some in each turn
    uint8_t reason

cdef cppclass NodeBatch:         # records that have come from a node, for one reactor
    uint8_t node
    uint64_t origin              # its incarnation
    size_t at                    # those before this byte were acted on
    string records

cdef cppclass NodeHub:
    pthread_mutex_t lock
    pthread_cond_t ready
    string pending[16]           # by node: handed over, not yet taken; under lock
    int64_t under_way[16]        # atomic: bytes that are written and have not left
    bool waiting                 # somebody waits to take them; under lock
    bool poked                   # and is to look about; under lock
    bool closed                  # nothing more goes out; under lock
    bool offers                  # the keeper writes rows for sessions of other nodes; constant
    bool prefers_own             # a shared group's members here get its messages, as long as there are any; constant
