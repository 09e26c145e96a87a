"""Who receives a topic, as a reactor remembers it. Layout only.
Owner: the reactor."""
from libc.stdint cimport uint16_t, uint32_t, uint64_t, uint8_t
from libcpp cimport bool
from libcpp.string cimport string
from libcpp.vector cimport vector

from tidemq.engine.index.marks cimport MARKS_OF_TOPIC
from tidemq.engine.index.rules cimport Judgement
from tidemq.engine.state.client cimport LocalGroup, Session

cdef enum:
    CACHE_WAYS = 4
    JUDGEMENTS = 4               # of a topic that are remembered

cdef enum:   # what plugins want of a topic's messages
    PLUGIN_PUBLISH = 1           # to decide on them: see holding
    PLUGIN_DELIVERED = 2         # to know who has acknowledged them

cdef struct Receiver:            # a session of this reactor that a topic goes to, overlapping subscriptions merged
    Session* session
    uint8_t qos
    uint8_t own_qos              # for messages that it published itself: of its subscriptions without no-local
    bool takes_own               # has such a subscription
    bool retain_as_published
    uint32_t ids_at              # its subscription identifiers: CacheEntry.ids[ids_at : ids_at + ids_count]
    uint32_t ids_count
    uint32_t own_ids_count       # the first so many are of subscriptions without no-local

cdef struct GroupShare:          # of a shared group: its members on another reactor whose clients are there
    uint16_t reactor
    uint32_t members

cdef struct NodeShare:           # and on another node
    uint8_t node
    uint32_t members

cdef cppclass Group:             # a shared group that a topic goes to
    uint64_t number
    bool stored                  # has a member whose session is stored
    LocalGroup* here
    vector[GroupShare] elsewhere # as the cache saw them
    uint32_t elsewhere_count     # members in all of them
    bool local                   # it has sessions of this node, online or not
    vector[NodeShare] nodes      # other nodes that have sessions in it
    uint32_t nodes_count         # members online in all of them
    string text                  # where there are such: `$share/group/filter`

cdef cppclass CacheEntry:
    uint64_t version             # of the index when it was matched, or since found to hold
    uint16_t marks[MARKS_OF_TOPIC]
    string topic
    uint64_t reactors            # bit mask of the other reactors that have plain subscribers
    uint64_t stored_reactors     # those among them with subscribers that the store holds
    uint64_t streams             # bit mask of the streams that keep it
    uint32_t nodes               # bit mask of the other nodes that have subscribers
    bool stored                  # the store holds a receiver of it, here or elsewhere, or a group's
    uint8_t plugins              # PLUGIN_*
    vector[Receiver] receivers
    vector[uint32_t] ids
    vector[Group] groups
    Judgement judgements[JUDGEMENTS]
    uint8_t next_judgement       # that makes room
    uint16_t rewrite, lifetime   # topic rules that are about it, see topic_rules; 0: none is

cdef struct CacheSlot:
    uint64_t hash                # of the topic
    CacheEntry* entry            # NULL: free

cdef cppclass TopicCache:
    vector[CacheSlot] slots      # in sets of CACHE_WAYS, a set is one line of memory
    uint32_t count
    uint64_t weight              # receivers, identifiers and shares of groups of all entries
    size_t hand                  # the slot that is looked at next for room
    uint64_t seed
