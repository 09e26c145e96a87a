from libc.stdint cimport uint16_t, uint32_t, uint64_t, uint8_t
from libcpp.string cimport string
from libcpp.vector cimport vector

from tidemq.wire.protocol cimport Span

cdef extern from * nogil:
    """
    #include <string.h>
    static inline uint64_t fold_multiply(uint64_t a, uint64_t b) {
        unsigned __int128 product = (unsigned __int128)a * b;
        return (uint64_t)product ^ (uint64_t)(product >> 64);
    }
    static inline uint64_t load_u64(const uint8_t* at) { uint64_t v; memcpy(&v, at, 8); return v; }
    static inline uint64_t load_u32(const uint8_t* at) { uint32_t v; memcpy(&v, at, 4); return v; }
    """
    uint64_t fold_multiply(uint64_t a, uint64_t b)   # the 128-bit product, its halves combined
    uint64_t load_u64(const uint8_t* at)
    uint64_t load_u32(const uint8_t* at)

cdef enum:
    ROOT = 0                # the node that every path starts at
    NO_NODE = 0             # no child, no sibling, not found: the root is nobody's child
    TEXT_INLINE_BYTES = 13
    SEGMENT_SLOTS = 4096
    SEGMENT_FILL_MAX = 3072 # edges in a segment before it is split: three quarters
    CHUNK_NODES = 131072    # 1 << CHUNK_BITS
    CHUNK_BITS = 17
    CHUNK_BYTES = 6291456   # CHUNK_NODES nodes: three huge pages
    SLAB_SEGMENTS = 63      # as many as fit into a huge page
    NODES_MAX = 0x7FFFFFFF

cdef enum NodeFlag:
    HAS_HASH = 1            # the first child is `#`
    HAS_PLUS = 2            # the first child, or the next after `#`, is `+`

cdef struct LevelNode:      # 48 bytes; what a match touches comes first, so that it seldom lies in two cache lines
    uint8_t text[13]        # the level's bytes; where they do not fit, a pointer to them in the first eight
    uint8_t flags           # NodeFlag
    uint16_t text_size
    uint32_t parent
    uint32_t first_child    # children in the order: `#`, `+`, the others from newest to oldest
    void* value             # the caller's; NULL: none
    uint64_t detail         # the caller's, beside the value
    uint32_t next_sibling   # of a free node: the next free one
    uint32_t previous_sibling

cdef struct EdgeSlot:       # from (parent, level) to child
    uint32_t tag            # the edge's hash
    uint32_t child          # NO_NODE: empty

cdef struct EdgeSegment:    # a linear-probing table of its own, for the edges whose tags share their first `depth` bits
    uint32_t count
    uint32_t depth
    EdgeSlot slots[4096]

cdef cppclass LevelTree:
    vector[LevelNode*] chunks
    vector[EdgeSegment*] slabs
    vector[EdgeSegment*] directory   # by the tag's first `depth` bits
    uint32_t segment_count
    uint32_t depth
    uint32_t node_count              # in use, root included
    uint32_t node_end                # ids below this were handed out at least once
    uint32_t free_node               # NO_NODE: none
    uint64_t secret[3]

# One level of a topic name or filter at a time: `while next_level(&rest, &level)`. "a//b" is "a", "", "b"; the empty
# string is one empty level.
cdef struct LevelReader:
    const uint8_t* at
    const uint8_t* end
    bint done

cdef LevelReader read_levels(Span text) noexcept nogil
cdef bint next_level(LevelReader* reader, Span* level) noexcept nogil

cdef LevelTree* new_level_tree() noexcept nogil
cdef void free_level_tree(LevelTree* tree) noexcept nogil   # the values are the caller's

cdef LevelNode* node_at(LevelTree* tree, uint32_t node) noexcept nogil   # stays valid until the node is removed
cdef Span node_text(LevelNode* node) noexcept nogil
# Appends the path to a node (not the root): each of its levels after a `/`.
cdef void append_path(LevelTree* tree, LevelNode* node, string* path) noexcept nogil
cdef uint32_t find_child(LevelTree* tree, uint32_t parent, Span level) noexcept nogil       # or NO_NODE
cdef uint32_t find_path(LevelTree* tree, uint32_t start, Span path) noexcept nogil          # or NO_NODE
cdef uint32_t insert_path(LevelTree* tree, uint32_t start, Span path) noexcept nogil        # found or made
cdef bint is_bare(LevelTree* tree, uint32_t node) noexcept nogil                            # no value, no children, not the root
cdef uint32_t remove_leaf(LevelTree* tree, uint32_t node) noexcept nogil                    # a bare node; returns its parent
cdef void prune(LevelTree* tree, uint32_t node) noexcept nogil                              # removes bare nodes up the path
# Appends the nodes of all stored filters that match a topic name. `frontier` is scratch space.
cdef void match_filters(LevelTree* tree, Span topic, vector[uint32_t]* frontier, vector[LevelNode*]* found) noexcept nogil

# of this module alone
cdef bint is_byte(Span level, uint8_t byte) noexcept nogil
cdef uint8_t* text_bytes(LevelNode* node) noexcept nogil
cdef uint32_t hash_child(LevelNode* node) noexcept nogil
cdef uint32_t plus_child(LevelTree* tree, LevelNode* node) noexcept nogil
cdef uint32_t take_id(LevelTree* tree) noexcept nogil
cdef void store_text(LevelNode* node, Span level) noexcept nogil
cdef void link_child(LevelTree* tree, uint32_t parent_id, uint32_t child_id) noexcept nogil
cdef void unlink_child(LevelTree* tree, LevelNode* child) noexcept nogil
cdef uint64_t hash_level(LevelTree* tree, Span level) noexcept nogil
cdef uint32_t edge_tag(LevelTree* tree, uint32_t parent, uint64_t level_hash) noexcept nogil
cdef EdgeSegment* segment_of(LevelTree* tree, uint32_t tag) noexcept nogil
cdef bint is_edge(LevelTree* tree, uint32_t child_id, uint32_t parent, Span level) noexcept nogil
cdef uint32_t find_edge(LevelTree* tree, uint32_t parent, Span level, uint64_t level_hash) noexcept nogil
cdef void place_edge(EdgeSegment* segment, EdgeSlot slot) noexcept nogil
cdef EdgeSegment* new_segment(LevelTree* tree, uint32_t depth) noexcept nogil
cdef void double_directory(LevelTree* tree) noexcept nogil
cdef void split_segment(LevelTree* tree, uint32_t tag) noexcept nogil
cdef void add_edge(LevelTree* tree, uint32_t child, uint32_t tag) noexcept nogil
cdef void remove_edge(LevelTree* tree, uint32_t child, uint32_t tag) noexcept nogil
cdef void draw_secret(LevelTree* tree) noexcept nogil
cdef void add_node(LevelTree* tree, uint32_t node_id, vector[LevelNode*]* found) noexcept nogil
