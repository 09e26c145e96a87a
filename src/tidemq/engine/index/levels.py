"""A tree over the levels of topic names and topic filters, for subscriptions and retained messages.

Each level is a node; a node's id is its place in an array that grows by chunks and never moves. A step from
a node to the child of a given level costs one probe of a hash table, whatever the number of children; the
children ``+`` and ``#`` come first in their parent's list and need no probe. Nodes with neither value nor
children are not kept.

The hash table is one for all nodes, split into segments of fixed size (extendible hashing): growing it splits
one segment at a time, so no insertion ever moves more than one segment's edges. What a tree has grown to is
used again and given back when the tree is freed.

The hash is keyed with a secret from the system, fresh for each tree: who chooses topics cannot choose
collisions.

Nothing here locks. Concurrent readers are safe with one another; a writer must be alone.
"""

import cython
from cython.cimports.libc.stdint import uint8_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import abort
from cython.cimports.libc.string import memcmp, memcpy, memset
from cython.cimports.libcpp.memory import make_unique, unique_ptr
from cython.cimports.libcpp.vector import vector
from cython.cimports.tidemq.engine.base.allocation import (
    HUGE_PAGE_BYTES,
    allocate,
    map_pages,
    release,
    unmap_pages,
)
from cython.cimports.tidemq.engine.base.asserting import holds
from cython.cimports.tidemq.engine.base.system import getrandom
from cython.cimports.tidemq.engine.index.levels import (
    CHUNK_BITS,
    CHUNK_BYTES,
    CHUNK_NODES,
    HAS_HASH,
    HAS_PLUS,
    NO_NODE,
    NODES_MAX,
    ROOT,
    SEGMENT_FILL_MAX,
    SEGMENT_SLOTS,
    SLAB_SEGMENTS,
    TEXT_INLINE_BYTES,
    EdgeSegment,
    EdgeSlot,
    LevelNode,
    LevelReader,
    LevelTree,
    fold_multiply,
    load_u32,
    load_u64,
)
from cython.cimports.tidemq.wire.protocol import Span

# --- levels of a text -----------------------------------------------------------------------------


def read_levels(text):
    """A reader that stands before the first level. It points into ``text``."""
    reader = cython.declare(LevelReader)
    reader.at = text.data
    reader.end = text.data + text.size
    reader.done = False
    return reader


def next_level(reader, level):
    """Reads one level; false when none is left [MQTT-4.7.1-1]."""
    if reader.done:
        return False
    at: cython.pointer[cython.const[uint8_t]] = reader.at
    while at < reader.end and at[0] != 0x2F:  # '/'
        at += 1
    level.data = reader.at
    level.size = cython.cast(uint32_t, at - reader.at)
    reader.done = at == reader.end
    reader.at = at + 1
    return True


def is_byte(level, byte):
    """Whether a level is this one byte."""
    return level.size == 1 and level.data[0] == byte


# --- nodes ----------------------------------------------------------------------------------------


def text_bytes(node):
    """Where a node's level is stored."""
    if node.text_size <= TEXT_INLINE_BYTES:
        return node.text
    return cython.cast(cython.pointer[cython.pointer[uint8_t]], node.text)[0]


def node_at(tree, node):
    """A node by its id. The pointer is valid until the node is removed."""
    return tree.chunks[node >> CHUNK_BITS] + (node & (CHUNK_NODES - 1))


def node_text(node):
    """A node's level; valid until the node is removed."""
    text = cython.declare(Span)
    text.data = text_bytes(node)
    text.size = node.text_size
    return text


def append_path(tree, node, path):
    """Appends all levels from the root down to a node, each after a ``/``."""
    way: vector[cython.pointer[LevelNode]]
    while node != node_at(tree, ROOT):
        way.push_back(node)
        node = node_at(tree, node.parent)
    while not way.empty():
        text: Span = node_text(way.back())
        path.push_back(0x2F)  # '/'
        path.append(cython.cast(cython.p_char, text.data), text.size)
        way.pop_back()


def hash_child(node):
    """The child ``#``."""
    return node.first_child if node.flags & HAS_HASH else NO_NODE


def plus_child(tree, node):
    """The child ``+``."""
    if not node.flags & HAS_PLUS:
        return NO_NODE
    return node_at(tree, node.first_child).next_sibling if node.flags & HAS_HASH else node.first_child


def take_id(tree):
    """A free node's id; the node's memory is zero."""
    node: uint32_t = tree.free_node
    if node != NO_NODE:
        tree.free_node = node_at(tree, node).next_sibling
        node_at(tree, node).next_sibling = NO_NODE
    else:
        if tree.node_end == NODES_MAX:
            abort()
        node = tree.node_end
        tree.node_end += 1
        if node & (CHUNK_NODES - 1) == 0:
            ordinary: cython.size_t = HUGE_PAGE_BYTES if node == 0 else 0
            tree.chunks.push_back(cython.cast(cython.pointer[LevelNode], map_pages(CHUNK_BYTES, ordinary)))
    tree.node_count += 1
    holds(tree.node_count <= tree.node_end, b"levels: nodes in use are among those handed out")
    return node


def store_text(node, level):
    """Copies a level into a new node."""
    node.text_size = level.size
    if level.size > TEXT_INLINE_BYTES:
        cython.cast(cython.pointer[cython.p_void], node.text)[0] = allocate(level.size)
    memcpy(text_bytes(node), level.data, level.size)


def link_child(tree, parent_id, child_id):
    """Puts a new node into its parent's list: ``#`` first, ``+`` next, any other right after these."""
    parent: cython.pointer[LevelNode] = node_at(tree, parent_id)
    child: cython.pointer[LevelNode] = node_at(tree, child_id)
    text: Span = node_text(child)
    before: uint32_t = NO_NODE
    if is_byte(text, 0x23):  # '#'
        parent.flags |= HAS_HASH
    elif is_byte(text, 0x2B):  # '+'
        before = hash_child(parent)
        parent.flags |= HAS_PLUS
    else:
        before = plus_child(tree, parent)
        if before == NO_NODE:
            before = hash_child(parent)
    child.parent = parent_id
    child.previous_sibling = before
    child.next_sibling = parent.first_child if before == NO_NODE else node_at(tree, before).next_sibling
    if before == NO_NODE:
        parent.first_child = child_id
    else:
        node_at(tree, before).next_sibling = child_id
    if child.next_sibling != NO_NODE:
        node_at(tree, child.next_sibling).previous_sibling = child_id


def unlink_child(tree, child):
    """Takes a node out of its parent's list."""
    parent: cython.pointer[LevelNode] = node_at(tree, child.parent)
    holds(
        (child.previous_sibling == NO_NODE) == (node_at(tree, parent.first_child) == child),
        b"levels: a child with none before it is its parent's first",
    )
    if is_byte(node_text(child), 0x23):
        parent.flags &= ~HAS_HASH
    elif is_byte(node_text(child), 0x2B):
        parent.flags &= ~HAS_PLUS
    if child.previous_sibling == NO_NODE:
        parent.first_child = child.next_sibling
    else:
        node_at(tree, child.previous_sibling).next_sibling = child.next_sibling
    if child.next_sibling != NO_NODE:
        node_at(tree, child.next_sibling).previous_sibling = child.previous_sibling


# --- edges ----------------------------------------------------------------------------------------


def hash_level(tree, level):
    """A keyed hash of a level's bytes; every step multiplies two values that both depend on the secret."""
    at: cython.pointer[cython.const[uint8_t]] = level.data
    left: uint32_t = level.size
    state: uint64_t = tree.secret[0] ^ (level.size * cython.cast(uint64_t, 0x9E3779B97F4A7C15))
    first: uint64_t = 0
    last: uint64_t = 0
    while left > 16:
        state = fold_multiply(load_u64(at) ^ tree.secret[1], load_u64(at + 8) ^ state)
        at += 16
        left -= 16
    if left >= 8:
        first = load_u64(at)
        last = load_u64(at + left - 8)
    elif left >= 4:
        first = load_u32(at)
        last = load_u32(at + left - 4)
    elif left > 0:
        first = cython.cast(uint64_t, at[0]) << 16 | cython.cast(uint64_t, at[left >> 1]) << 8 | at[left - 1]
    return fold_multiply(first ^ tree.secret[1], last ^ state)


def edge_tag(tree, parent, level_hash):
    """The hash of an edge: its first bits choose the segment, its last ones the slot."""
    mixed: uint64_t = fold_multiply(level_hash ^ parent, tree.secret[2])
    return cython.cast(uint32_t, mixed ^ (mixed >> 32))


def segment_of(tree, tag):
    """The segment that an edge belongs to."""
    return tree.directory[cython.cast(uint64_t, tag) >> (32 - tree.depth)]


def is_edge(tree, child_id, parent, level):
    """Whether a node is the child of ``parent`` for a level."""
    child: cython.pointer[LevelNode] = node_at(tree, child_id)
    if child.parent != parent or child.text_size != level.size:
        return False
    return memcmp(text_bytes(child), level.data, level.size) == 0


def find_edge(tree, parent, level, level_hash):
    """The child of ``parent`` for a level without wildcard, or NO_NODE."""
    tag: uint32_t = edge_tag(tree, parent, level_hash)
    segment: cython.pointer[EdgeSegment] = segment_of(tree, tag)
    at: uint32_t = tag & (SEGMENT_SLOTS - 1)
    while segment.slots[at].child != NO_NODE:
        if segment.slots[at].tag == tag and is_edge(tree, segment.slots[at].child, parent, level):
            return segment.slots[at].child
        at = (at + 1) & (SEGMENT_SLOTS - 1)
    return NO_NODE


def place_edge(segment, slot):
    """Puts an edge into a segment that has room."""
    at: uint32_t = slot.tag & (SEGMENT_SLOTS - 1)
    while segment.slots[at].child != NO_NODE:
        at = (at + 1) & (SEGMENT_SLOTS - 1)
    segment.slots[at] = slot
    segment.count += 1


def new_segment(tree, depth):
    """An empty segment, kept until the tree is freed."""
    place: uint32_t = tree.segment_count % SLAB_SEGMENTS
    tree.segment_count += 1
    if place == 0:
        ordinary: cython.size_t = HUGE_PAGE_BYTES if tree.slabs.empty() else 0
        tree.slabs.push_back(cython.cast(cython.pointer[EdgeSegment], map_pages(HUGE_PAGE_BYTES, ordinary)))
    segment: cython.pointer[EdgeSegment] = tree.slabs.back() + place
    segment.depth = depth
    return segment


def double_directory(tree):
    """Lets the directory tell segments apart by one more bit."""
    at: cython.size_t = tree.directory.size()
    tree.directory.resize(at * 2)
    while at > 0:
        at -= 1
        tree.directory[2 * at + 1] = tree.directory[at]
        tree.directory[2 * at] = tree.directory[at]
    tree.depth += 1


def split_segment(tree, tag):
    """Parts a full segment into two by the next bit of its tags. About 20 microseconds."""
    full: cython.pointer[EdgeSegment] = segment_of(tree, tag)
    if full.depth == tree.depth:
        double_directory(tree)
    old: EdgeSegment = full[0]
    memset(full, 0, cython.sizeof(EdgeSegment))
    full.depth = old.depth + 1
    other: cython.pointer[EdgeSegment] = new_segment(tree, full.depth)
    at: cython.size_t
    for at in range(cython.cast(cython.size_t, SEGMENT_SLOTS)):
        if old.slots[at].child != NO_NODE:
            place_edge(other if (old.slots[at].tag >> (31 - old.depth)) & 1 else full, old.slots[at])
    entries: cython.size_t = cython.cast(cython.size_t, 1) << (tree.depth - old.depth)  # those of `full`
    first: cython.size_t = cython.cast(uint64_t, tag) >> (32 - tree.depth)
    first &= ~(entries - 1)
    for at in range(entries // 2, entries):
        tree.directory[first + at] = other


def add_edge(tree, child, tag):
    """Makes a new node findable from its parent."""
    slot = cython.declare(EdgeSlot)
    slot.tag = tag
    slot.child = child
    while segment_of(tree, tag).count >= SEGMENT_FILL_MAX:
        split_segment(tree, tag)
    place_edge(segment_of(tree, tag), slot)


def remove_edge(tree, child, tag):
    """Takes out an edge and moves those behind it up, so that no probe ends early at the gap."""
    segment: cython.pointer[EdgeSegment] = segment_of(tree, tag)
    gap: uint32_t = tag & (SEGMENT_SLOTS - 1)
    while segment.slots[gap].child != child:
        holds(segment.slots[gap].child != NO_NODE, b"levels: a node without wildcard has an edge")
        gap = (gap + 1) & (SEGMENT_SLOTS - 1)
    at: uint32_t = (gap + 1) & (SEGMENT_SLOTS - 1)
    while segment.slots[at].child != NO_NODE:
        displaced: uint32_t = (at - segment.slots[at].tag) & (SEGMENT_SLOTS - 1)
        if displaced >= (at - gap) & (SEGMENT_SLOTS - 1):
            segment.slots[gap] = segment.slots[at]
            gap = at
        at = (at + 1) & (SEGMENT_SLOTS - 1)
    segment.slots[gap].child = NO_NODE
    segment.count -= 1


# --- the tree -------------------------------------------------------------------------------------


def draw_secret(tree):
    """Fills the tree's secret from the system's random numbers; ends the process where it has none."""
    size: cython.Py_ssize_t = cython.sizeof(uint64_t) * 3
    if getrandom(tree.secret, size, 0) != size:  # so few bytes are never cut short by a signal
        abort()
    tree.secret[2] |= 1


def new_level_tree():
    """An empty tree; free it with ``free_level_tree``."""
    owner: unique_ptr[LevelTree] = make_unique[LevelTree]()
    tree: cython.pointer[LevelTree] = owner.release()
    draw_secret(tree)
    tree.depth = 0
    tree.segment_count = 0
    tree.directory.push_back(new_segment(tree, 0))
    tree.node_count = 0
    tree.node_end = 0
    tree.free_node = NO_NODE
    take_id(tree)  # the root
    return tree


def free_level_tree(tree):
    """Frees a tree with all its nodes. What the values point to is the caller's to free before."""
    node: uint32_t
    for node in range(tree.node_end):
        if node_at(tree, node).text_size > TEXT_INLINE_BYTES:
            release(text_bytes(node_at(tree, node)))
    at: cython.size_t
    for at in range(tree.chunks.size()):
        unmap_pages(tree.chunks[at], CHUNK_BYTES)
    for at in range(tree.slabs.size()):
        unmap_pages(tree.slabs[at], HUGE_PAGE_BYTES)
    del tree


def find_child(tree, parent, level):
    """The child for a level, wildcards taken literally, or NO_NODE. One probe."""
    if is_byte(level, 0x23):
        return hash_child(node_at(tree, parent))
    if is_byte(level, 0x2B):
        return plus_child(tree, node_at(tree, parent))
    return find_edge(tree, parent, level, hash_level(tree, level))


def find_path(tree, start, path):
    """The node that a path leads to from ``start``, wildcards taken literally, or NO_NODE."""
    reader: LevelReader = read_levels(path)
    level = cython.declare(Span)
    node: uint32_t = start
    while next_level(cython.address(reader), cython.address(level)):
        node = find_child(tree, node, level)
        if node == NO_NODE:
            break
    return node


def insert_path(tree, start, path):
    """The node that a path leads to from ``start``; missing nodes are made. Give it a value, or prune it."""
    reader: LevelReader = read_levels(path)
    level = cython.declare(Span)
    node: uint32_t = start
    while next_level(cython.address(reader), cython.address(level)):
        child: uint32_t = find_child(tree, node, level)
        if child == NO_NODE:
            child = take_id(tree)
            store_text(node_at(tree, child), level)
            link_child(tree, node, child)
            if not is_byte(level, 0x23) and not is_byte(level, 0x2B):
                add_edge(tree, child, edge_tag(tree, node, hash_level(tree, level)))
        node = child
    return node


def is_bare(tree, node):
    """Whether a node holds neither value nor children and is not the root: it must go."""
    at: cython.pointer[LevelNode] = node_at(tree, node)
    return node != ROOT and at.value == cython.NULL and at.first_child == NO_NODE


def remove_leaf(tree, node):
    """Removes a bare node, whose id may be used again, and returns its parent."""
    leaf: cython.pointer[LevelNode] = node_at(tree, node)
    text: Span = node_text(leaf)
    parent: uint32_t = leaf.parent
    holds(leaf.value == cython.NULL and leaf.first_child == NO_NODE, b"levels: a node that goes is bare")
    unlink_child(tree, leaf)
    if not is_byte(text, 0x23) and not is_byte(text, 0x2B):
        remove_edge(tree, node, edge_tag(tree, parent, hash_level(tree, text)))
    if leaf.text_size > TEXT_INLINE_BYTES:
        release(text_bytes(leaf))
    memset(leaf, 0, cython.sizeof(LevelNode))
    leaf.next_sibling = tree.free_node
    tree.free_node = node
    tree.node_count -= 1
    return parent


def prune(tree, node):
    """Removes a node and those above it, as far as they are bare."""
    while is_bare(tree, node):
        node = remove_leaf(tree, node)


# --- matching -------------------------------------------------------------------------------------


def add_node(tree, node_id, found):
    """Appends a node, if there is one and it has a value."""
    if node_id != NO_NODE:
        node: cython.pointer[LevelNode] = node_at(tree, node_id)
        if node.value != cython.NULL:
            found.push_back(node)


def match_filters(tree, topic, frontier, found):
    """Appends the nodes of all stored filters that match a topic name (5.0 section 4.7).

    Goes down level by level; ``frontier`` collects the nodes whose path matches the levels so far. A path
    leads to one node only, so no node is visited twice, whatever the filters: the cost is that of the stored
    prefixes that match.
    """
    reader: LevelReader = read_levels(topic)
    level = cython.declare(Span)
    begin: cython.size_t = 0
    end: cython.size_t = 1
    at: cython.size_t
    wild: cython.bint = topic.size == 0 or topic.data[0] != 0x24  # '$' [MQTT-4.7.2-1]
    frontier.clear()
    frontier.push_back(ROOT)
    while begin < end and next_level(cython.address(reader), cython.address(level)):
        level_hash: uint64_t = hash_level(tree, level)
        for at in range(begin, end):
            node_id: uint32_t = frontier[0][at]
            child: uint32_t = find_edge(tree, node_id, level, level_hash)
            if child != NO_NODE:
                frontier.push_back(child)
            node: cython.pointer[LevelNode] = node_at(tree, node_id)
            if node.flags and wild:
                add_node(tree, hash_child(node), found)
                child = plus_child(tree, node)
                if child != NO_NODE:
                    frontier.push_back(child)
        wild = True
        begin = end
        end = frontier.size()
    for at in range(begin, end):
        add_node(tree, frontier[0][at], found)
        add_node(tree, hash_child(node_at(tree, frontier[0][at])), found)  # "a/#" matches "a"
