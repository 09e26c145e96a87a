"""Retained messages by topic name: found exactly, and by topic filter in slices.

A ``RetainedWalk`` is a look-up by filter that stops and goes on, so that a huge result neither holds the lock
for long nor fills a connection's buffers. It goes through the tree depth first, into matching branches only,
and stands on the node that it will visit next. While it waits between two slices it is in the index's list,
and who removes the node under it first moves it on. So:

- a topic that holds a message during the whole walk is reported exactly once, with the message that it holds
  at that moment;
- a topic that gains or loses its message meanwhile may be reported or not;
- no removed message is ever reported.

Messages are the caller's: the index holds pointers and never looks at what they point to.
"""

import cython
from cython.cimports.libc.stdint import uint8_t, uint32_t, uint64_t
from cython.cimports.libc.string import memcmp, memcpy
from cython.cimports.libcpp.memory import make_unique, unique_ptr
from cython.cimports.libcpp.vector import vector
from cython.cimports.tidemq.engine.base.allocation import allocate, release
from cython.cimports.tidemq.engine.base.asserting import holds
from cython.cimports.tidemq.engine.base.locks import (
    OUTER,
    lock_inner,
    lock_to_read,
    lock_to_write,
    unlock_inner,
    unlock_rwlock,
)
from cython.cimports.tidemq.engine.base.steps import count_steps
from cython.cimports.tidemq.engine.base.system import (
    init_rwlock,
    pthread_mutex_destroy,
    pthread_mutex_init,
    pthread_rwlock_destroy,
)
from cython.cimports.tidemq.engine.index.levels import (
    NO_NODE,
    ROOT,
    LevelNode,
    LevelReader,
    LevelTree,
    append_path,
    find_child,
    find_path,
    free_level_tree,
    insert_path,
    is_bare,
    new_level_tree,
    next_level,
    node_at,
    node_text,
    read_levels,
    remove_leaf,
)
from cython.cimports.tidemq.engine.index.retained_index import VISITS_PER_MESSAGE, RetainedIndex, RetainedWalk
from cython.cimports.tidemq.wire.protocol import Span, span_of

# --- the index -------------------------------------------------------------------------------------


def new_retained_index():
    """An empty index; free it with ``free_retained_index``."""
    owner: unique_ptr[RetainedIndex] = make_unique[RetainedIndex]()
    index: cython.pointer[RetainedIndex] = owner.release()
    init_rwlock(cython.address(index.lock))
    pthread_mutex_init(cython.address(index.walks_mutex), cython.NULL)
    index.count = 0
    index.topics = new_level_tree()
    index.walks = cython.NULL
    return index


def free_retained_index(index):
    """Frees an index that no thread uses any more and no walk is open on. Messages are not touched."""
    free_level_tree(index.topics)
    pthread_mutex_destroy(cython.address(index.walks_mutex))
    pthread_rwlock_destroy(cython.address(index.lock))
    del index


def lock_shared(index):
    """Waits until no thread writes or waits to write. Never take it twice in one thread."""
    lock_to_read(cython.address(index.lock), OUTER)


def unlock_shared(index):
    """Ends what ``lock_shared`` began."""
    unlock_rwlock(cython.address(index.lock), OUTER)


def lock_exclusive(index):
    """Waits until no other thread reads or writes; new readers wait meanwhile."""
    lock_to_write(cython.address(index.lock), OUTER)


def unlock_exclusive(index):
    """Ends what ``lock_exclusive`` began."""
    unlock_rwlock(cython.address(index.lock), OUTER)


def put_retained(index, topic, message):
    """Retains a message (not NULL) for a topic name and returns the one before it, or NULL [MQTT-3.3.1-5].

    The exclusive lock must be held. What is returned is the caller's to release.
    """
    node: cython.pointer[LevelNode] = node_at(index.topics, insert_path(index.topics, ROOT, topic))
    before: cython.p_void = node.value
    node.value = message
    if before == cython.NULL:
        index.count += 1
    return before


def remove_retained(index, topic):
    """Removes a topic's message and returns it, NULL when there is none [MQTT-3.3.1-6].

    The exclusive lock must be held. Where a walk stands on the topic: a comparison for each that waits.
    """
    node: uint32_t = find_path(index.topics, ROOT, topic)
    if node == NO_NODE or node_at(index.topics, node).value == cython.NULL:
        return cython.NULL
    message: cython.p_void = node_at(index.topics, node).value
    holds(index.count > 0, b"retained: what is removed was counted")
    node_at(index.topics, node).value = cython.NULL
    index.count -= 1
    while is_bare(index.topics, node):
        if node_at(index.topics, node).detail:
            move_walks(index, node)
        node = remove_leaf(index.topics, node)
    return message


def find_retained(index, topic):
    """The message of a topic name, or NULL. The shared or the exclusive lock must be held."""
    node: uint32_t = find_path(index.topics, ROOT, topic)
    return cython.NULL if node == NO_NODE else node_at(index.topics, node).value


# --- walks -----------------------------------------------------------------------------------------


def count_levels(text):
    """How many levels a filter has."""
    reader: LevelReader = read_levels(text)
    level = cython.declare(Span)
    count: uint32_t = 0
    while next_level(cython.address(reader), cython.address(level)):
        count += 1
    return count


def open_walk(index, filter):
    """A walk over all messages whose topic matches a filter, before its first slice.

    It keeps a copy of the filter. Close it with ``close_walk``, before the index is freed. Needs no lock.
    """
    count: uint32_t = count_levels(filter)
    levels_bytes: cython.size_t = count * cython.sizeof(Span)
    block: cython.pointer[uint8_t] = cython.cast(
        cython.pointer[uint8_t], allocate(cython.sizeof(RetainedWalk) + levels_bytes + filter.size)
    )
    walk: cython.pointer[RetainedWalk] = cython.cast(cython.pointer[RetainedWalk], block)
    walk.index = index
    walk.node = ROOT
    walk.levels = cython.cast(cython.pointer[Span], block + cython.sizeof(RetainedWalk))
    copy: Span = filter
    copy.data = block + cython.sizeof(RetainedWalk) + levels_bytes
    memcpy(block + cython.sizeof(RetainedWalk) + levels_bytes, filter.data, filter.size)
    reader: LevelReader = read_levels(copy)
    while next_level(cython.address(reader), walk.levels + walk.level_count):
        walk.level_count += 1
    walk.multi_level = is_wildcard(walk.levels[count - 1], 0x23)  # '#'
    if walk.multi_level:
        walk.level_count -= 1
    return walk


def is_wildcard(level, byte):
    """Whether a level is this wildcard."""
    return level.size == 1 and level.data[0] == byte


def takes_all(walk, depth):
    """Whether the filter's level at this depth matches every level: ``+``, or within ``#``."""
    return depth >= walk.level_count or is_wildcard(walk.levels[depth], 0x2B)  # '+'


def skip_reserved(walk, node, depth):
    """The first of a node and its next siblings that a wildcard at this depth may match, or NO_NODE."""
    if depth > 0:
        return node
    topics: cython.pointer[LevelTree] = walk.index.topics
    while node != NO_NODE:
        text: Span = node_text(node_at(topics, node))
        if text.size == 0 or text.data[0] != 0x24:  # '$' [MQTT-4.7.2-1]
            break
        node = node_at(topics, node).next_sibling
    return node


def first_below(walk):
    """The first child of the walk's node that the filter leads to, or NO_NODE."""
    topics: cython.pointer[LevelTree] = walk.index.topics
    if walk.depth >= walk.level_count and not walk.multi_level:
        return NO_NODE
    if takes_all(walk, walk.depth):
        return skip_reserved(walk, node_at(topics, walk.node).first_child, walk.depth)
    return find_child(topics, walk.node, walk.levels[walk.depth])


def step_over(walk):
    """Goes on to the next node that is not below the walk's node, or ends the walk."""
    topics: cython.pointer[LevelTree] = walk.index.topics
    while walk.node != ROOT:
        node: cython.pointer[LevelNode] = node_at(topics, walk.node)
        walk.depth -= 1
        if takes_all(walk, walk.depth):
            sibling: uint32_t = skip_reserved(walk, node.next_sibling, walk.depth)
            if sibling != NO_NODE:
                walk.node = sibling
                walk.depth += 1
                return
        walk.node = node.parent
    walk.done = True


def step(walk):
    """Goes on to the next node: below the walk's node if the filter leads there, else past it."""
    child: uint32_t = first_below(walk)
    if child != NO_NODE:
        walk.node = child
        walk.depth += 1
    else:
        step_over(walk)


def continue_walk(walk, messages_max, messages):
    """Appends up to ``messages_max`` (at least 1) further messages; returns whether more may follow.

    Visits at most ``VISITS_PER_MESSAGE`` nodes for each, so a slice may find nothing before the walk's end.
    One thread at a time uses a walk. The shared or the exclusive lock must be held; take references to the
    messages before it is released.
    """
    topics: cython.pointer[LevelTree] = walk.index.topics
    stand(walk, -1)
    visits: uint64_t = cython.cast(uint64_t, messages_max) * VISITS_PER_MESSAGE
    left: uint32_t = messages_max
    while left > 0 and visits > 0 and not walk.done:
        if walk.depth >= walk.level_count and node_at(topics, walk.node).value != cython.NULL:
            messages.push_back(node_at(topics, walk.node).value)
            left -= 1
        step(walk)
        visits -= 1
        count_steps(1)
    if walk.done:
        stop_waiting(walk)
    else:
        start_waiting(walk)
        stand(walk, 1)
    return not walk.done


def walk_place(walk, place):
    """Where a walk stands that is not done, as a text for ``resume_walk``. A lock must be held."""
    append_path(walk.index.topics, node_at(walk.index.topics, walk.node), place)


def _leads_to(walk, level, depth):
    """Whether the filter leads to a node with this text at this depth, 0: below the root."""
    if depth >= walk.level_count and not walk.multi_level:
        return False
    if takes_all(walk, depth):
        return depth > 0 or level.size == 0 or level.data[0] != 0x24  # '$' [MQTT-4.7.2-1]
    wanted: Span = walk.levels[depth]
    return wanted.size == level.size and memcmp(wanted.data, level.data, level.size) == 0


def resume_walk(walk, place):
    """Has a walk that has not begun go on from where one with the same filter stood. A lock must be held.

    False for a place that is none of such a walk's. What has gone meanwhile is left out: the walk goes on at
    the last level that is there, and may report messages below it a second time.
    """
    if place.size == 0:
        return True
    if place.data[0] != 0x2F:  # '/'
        return False
    place.data += 1
    place.size -= 1
    reader: LevelReader = read_levels(place)
    level = cython.declare(Span)
    node: uint32_t = ROOT
    there: cython.bint = True
    depth: uint32_t = 0
    while next_level(cython.address(reader), cython.address(level)):
        if not _leads_to(walk, level, depth):
            return False
        depth += 1
        if there:
            node = find_child(walk.index.topics, node, level)
            there = node != NO_NODE
        if there:
            walk.node = node
            walk.depth = depth
    return True


def close_walk(walk):
    """Frees a walk, ended or not. No lock of the index may be held."""
    if walk.waiting:
        lock_shared(walk.index)
        stand(walk, -1)
        unlock_shared(walk.index)
    stop_waiting(walk)
    release(walk)


def stand(walk, change):
    """Counts at its node that a waiting walk stands there, or no more. A lock of the index is held."""
    index: cython.pointer[RetainedIndex] = walk.index
    if walk.waiting and not walk.done:
        lock_inner(cython.address(index.walks_mutex))
        node: cython.pointer[LevelNode] = node_at(index.topics, walk.node)
        holds(change > 0 or node.detail > 0, b"retained: a walk that goes on was counted at its node")
        node.detail += change
        unlock_inner(cython.address(index.walks_mutex))


def start_waiting(walk):
    """Puts a walk into the index's list, if it is not there: removals will move it on."""
    index: cython.pointer[RetainedIndex] = walk.index
    if walk.waiting:
        return
    lock_inner(cython.address(index.walks_mutex))
    walk.waiting = True
    walk.next_walk = index.walks
    if index.walks != cython.NULL:
        index.walks.previous_walk = walk
    index.walks = walk
    unlock_inner(cython.address(index.walks_mutex))


def stop_waiting(walk):
    """Takes a walk out of the index's list, if it is there."""
    index: cython.pointer[RetainedIndex] = walk.index
    if not walk.waiting:
        return
    lock_inner(cython.address(index.walks_mutex))
    walk.waiting = False
    holds(
        (walk.previous_walk == cython.NULL) == (index.walks == walk),
        b"retained: a walk with none before it is the first",
    )
    if walk.previous_walk == cython.NULL:
        index.walks = walk.next_walk
    else:
        walk.previous_walk.next_walk = walk.next_walk
    if walk.next_walk != cython.NULL:
        walk.next_walk.previous_walk = walk.previous_walk
    walk.next_walk = walk.previous_walk = cython.NULL
    unlock_inner(cython.address(index.walks_mutex))


def move_walks(index, node):
    """Moves the waiting walks off a node that is about to be removed. The exclusive lock is held."""
    lock_inner(cython.address(index.walks_mutex))
    moved: uint64_t = 0
    walk: cython.pointer[RetainedWalk] = index.walks
    while walk != cython.NULL:
        count_steps(1)
        if walk.node == node and not walk.done:
            moved += 1
            step_over(walk)
            if not walk.done:
                node_at(index.topics, walk.node).detail += 1
        walk = walk.next_walk
    holds(moved == node_at(index.topics, node).detail, b"retained: a node counts the walks that stand there")
    unlock_inner(cython.address(index.walks_mutex))


# --- Python's door ---------------------------------------------------------------------------------


@cython.cclass
class RetainedIndexView:
    """A retained index of its own for tests and tools: messages are numbers above 0. Any thread."""

    index: cython.pointer[RetainedIndex]

    def __cinit__(self) -> None:
        self.index = new_retained_index()

    def __dealloc__(self) -> None:
        free_retained_index(self.index)

    def __len__(self) -> int:
        return self.index.count

    def put(self, topic: bytes, message: int) -> int:
        """Retains a message; returns the one before it, 0 for none."""
        assert message > 0
        topic_span: Span = span_of(topic)
        pointer: cython.p_void = cython.cast(cython.p_void, cython.cast(cython.size_t, message))
        with cython.nogil:
            lock_exclusive(self.index)
            pointer = put_retained(self.index, topic_span, pointer)
            unlock_exclusive(self.index)
        return cython.cast(cython.size_t, pointer)

    def remove(self, topic: bytes) -> int:
        """Removes a topic's message and returns it, 0 for none."""
        topic_span: Span = span_of(topic)
        pointer: cython.p_void
        with cython.nogil:
            lock_exclusive(self.index)
            pointer = remove_retained(self.index, topic_span)
            unlock_exclusive(self.index)
        return cython.cast(cython.size_t, pointer)

    def find(self, topic: bytes) -> int:
        """The message of a topic, 0 for none."""
        topic_span: Span = span_of(topic)
        pointer: cython.p_void
        with cython.nogil:
            lock_shared(self.index)
            pointer = find_retained(self.index, topic_span)
            unlock_shared(self.index)
        return cython.cast(cython.size_t, pointer)

    def node_count(self) -> int:
        """Nodes of the tree, the root included."""
        return self.index.topics.node_count


@cython.no_gc  # the collector would clear `view` before the walk is closed; no cycle can pass through here
@cython.cclass
class RetainedWalkView:
    """A look-up by filter in a ``RetainedIndexView``. One thread at a time."""

    view: RetainedIndexView
    walk: cython.pointer[RetainedWalk]
    more = cython.declare(cython.bint, visibility="readonly")  # whether another slice may report messages

    def __cinit__(self, view: RetainedIndexView, filter: bytes) -> None:
        self.view = view
        self.walk = open_walk(view.index, span_of(filter))
        self.more = True

    def __dealloc__(self) -> None:
        if self.walk != cython.NULL:
            close_walk(self.walk)

    def next_slice(self, messages_max: int) -> list[int]:
        """The next messages, at most so many."""
        found = cython.declare(vector[cython.p_void])
        limit: uint32_t = messages_max
        with cython.nogil:
            lock_shared(self.view.index)
            self.more = continue_walk(self.walk, limit, cython.address(found))
            unlock_shared(self.view.index)
        return [cython.cast(cython.size_t, found[at]) for at in range(found.size())]
