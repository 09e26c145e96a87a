"""To other nodes of a cluster: a node is what another reactor is.

A message whose topic's cache entry has a node's bit is written once for that node, as bytes, and handed over
at the end of the turn together with all else for it. That node matches it again. At QoS 1 and 2 it answers
when everybody there has kept it, and until then the publisher's promise waits, as it does for a reactor. What
has come from a node goes to no node.

The answer names the message's id, by its clock, which is of this life of the process alone, and
``NodeSide.asked`` knows which promise that is about. So an answer that comes twice, or late, or to nothing,
is counted and has no other effect.

What is under way to a node is bounded by ``node_bytes_max``. Above half of it, who publishes to that node is
not read from until it is below a quarter: nothing of theirs is lost, and nobody else waits. Who publishes at
QoS 0 does not wait beyond ``backpressure_s``, as for a receiver that stalls. At the limit a message of QoS 0
is dropped for that node, and one of QoS 1 or 2 that nobody could hold back, of a will above all, is refused,
as where a queue is full. One that is larger than the limit goes alone.

No-local needs nothing here: it is about a publisher's own subscriptions, and a client is on one node.

At QoS 2, where the publisher's session is stored, nodes are only asked who takes a message, as other reactors
are (``offers``): so if this process dies, or one of them, all have it or nobody. What goes to a shared group
is not offered: it has an id of its own, and a node that has it may get it a second time.
"""

import cython
from cython.cimports.libc.stdint import int64_t, uint8_t, uint32_t
from cython.cimports.libc.string import memset
from cython.cimports.libcpp.string import string
from cython.cimports.tidemq.engine.base.asserting import holds
from cython.cimports.tidemq.engine.base.counters import C_DROPPED_NODE_FULL, C_MESSAGES_TO_NODES
from cython.cimports.tidemq.engine.base.locks import lock, unlock
from cython.cimports.tidemq.engine.base.steps import count_steps
from cython.cimports.tidemq.engine.base.system import RELAXED, add_i64, load_i64, pthread_cond_signal
from cython.cimports.tidemq.engine.journal.journal import next_id
from cython.cimports.tidemq.engine.link.backpressure import pause_feeder, resume_feeder
from cython.cimports.tidemq.engine.link.drops import note_drop
from cython.cimports.tidemq.engine.queues.groups import draw
from cython.cimports.tidemq.engine.state.client import Connection
from cython.cimports.tidemq.engine.state.handles import connection_of, reactor_of
from cython.cimports.tidemq.engine.state.nodes import (
    NODE_ANSWER,
    NODE_ASKS,
    NODE_MESSAGE,
    NODE_OFFERED,
    NODE_RETAIN,
    NODES_MAX,
    NodeHub,
    NodeRecord,
    NodeSide,
)
from cython.cimports.tidemq.wire.cursor import varint_size, write_varint
from cython.cimports.tidemq.wire.protocol import RC_UNSPECIFIED_ERROR

_SLICE = cython.declare(cython.size_t, 4096)  # publishers that go on in one turn
_TAKERS_BYTES_MAX = cython.declare(cython.size_t, 0x0FFFFFFF)  # in one answer; a session's is 16 and its name


def _fill(r, p, record):
    """What a record says of a message."""
    memset(record, 0, cython.sizeof(NodeRecord))
    record.kind = NODE_MESSAGE
    record.qos = p.qos
    record.flags = NODE_RETAIN if p.retain else 0
    record.topic_size = cython.cast(cython.ushort, p.topic.size)
    record.payload_size = p.payload.size
    if p.properties.size:
        record.properties_size = p.properties.size + varint_size(p.properties.size)
    record.clock = p.id.clock
    if p.token:
        record.flags |= NODE_ASKS
        if p.offered and r.common.nodes.get().offers:
            record.flags |= NODE_OFFERED
        if record.clock == 0:
            record.clock = next_id(r).clock  # without a store nobody else needs one
    if p.expires_ms:
        record.left_ms = max(p.expires_ms - r.now_ms, cython.cast(int64_t, 1))


def forward(r, p, nodes):
    """Writes a message for each of these nodes. Who waits for its answer is told by ``p.answers``."""
    record: NodeRecord
    _fill(r, p, cython.address(record))
    node: uint8_t = 0
    while nodes:
        if nodes & 1:
            _forward_to(r, p, node, cython.address(record), cython.NULL)
        nodes >>= 1
        node += 1


def forward_to_group(r, p, group):
    """Writes a message for one of the nodes that have members of a shared group. It has an id of its own: the
    node may get it for others, too.
    """
    record: NodeRecord
    _fill(r, p, cython.address(record))
    record.group_size = cython.cast(cython.ushort, group.text.size())
    record.flags &= ~NODE_OFFERED
    if record.clock:
        record.clock = next_id(r).clock
    _forward_to(r, p, _choose_node(r, group), cython.address(record), cython.address(group.text))


def _choose_node(r, group):
    """Each as often as it has members online; where none has, the first: the message waits there."""
    index: cython.size_t = 0
    if group.nodes_count:
        at: uint32_t = draw(r) % group.nodes_count
        while at >= group.nodes[index].members:
            at -= group.nodes[index].members
            index += 1
            holds(index < group.nodes.size(), b"forwarding: the shares of nodes sum up to their count")
    return group.nodes[index].node


def _forward_to(r, p, node, record, group):
    length: uint8_t[4]
    size: int64_t = cython.sizeof(NodeRecord)
    size += record.group_size
    size += record.topic_size
    size += record.properties_size
    size += record.payload_size
    if not _reserve(r, p, node, size):
        note_drop(r, cython.NULL, C_DROPPED_NODE_FULL, 1)
        if p.qos:
            p.refused = RC_UNSPECIFIED_ERROR  # 0x97 says of a queue that it is full
        return
    side: cython.pointer[NodeSide] = cython.address(r.nodes[node])
    before: cython.size_t = side.out.size()
    _append(r, node, record)
    into: cython.pointer[string] = cython.address(side.out)
    if group != cython.NULL:
        into.append(group[0])
    into.append(cython.cast(cython.p_char, p.topic.data), p.topic.size)
    if record.properties_size:
        write_varint(length, p.properties.size)
        into.append(cython.cast(cython.p_char, length), record.properties_size - p.properties.size)
        into.append(cython.cast(cython.p_char, p.properties.data), p.properties.size)
    if p.payload.size:
        into.append(cython.cast(cython.p_char, p.payload.data), p.payload.size)
    holds(
        cython.cast(int64_t, into.size() - before) == size,
        b"forwarding: as many bytes are under way as are written",
    )
    r.tally[C_MESSAGES_TO_NODES] += 1
    p.receivers += 1
    if p.token:
        side.asked[record.clock] = p.token
        p.answers += 1


def _reserve(r, p, node, size):
    """Whether there is room for so many bytes more, which then are under way."""
    most: int64_t = r.common.limits.node_bytes_max
    count: cython.pointer[int64_t] = cython.address(r.common.nodes.get().under_way[node])
    under_way: int64_t = add_i64(count, size, RELAXED)
    if under_way > most and under_way != size:
        add_i64(count, -size, RELAXED)
        return False
    if under_way > most // 2 and (p.qos or not _is_slow(r, node)):
        _hold_back(r, node, p.feeder)
    return True


def _is_slow(r, node):
    """Whether publishers have waited for the node for long, in vain."""
    since_ms: int64_t = r.nodes[node].since_ms
    return since_ms and r.now_ms - since_ms >= r.common.limits.backpressure_ms


def _append(r, node, record):
    r.nodes[node].out.append(
        cython.cast(cython.p_char, cython.cast(cython.p_void, record)), cython.sizeof(NodeRecord)
    )
    r.nodes_written |= cython.cast(uint32_t, 1) << node


def answer_node(r, node, asked, reason, takers):
    """Tells a node that everybody here has kept its message, or why not, and who takes it of what it has
    offered; ``takers`` may be NULL. There is always room for that.
    """
    record: NodeRecord
    memset(cython.address(record), 0, cython.sizeof(NodeRecord))
    record.kind = NODE_ANSWER
    record.reason = reason
    record.clock = asked
    if takers != cython.NULL and takers.size() > _TAKERS_BYTES_MAX:
        record.reason = RC_UNSPECIFIED_ERROR
    elif takers != cython.NULL:
        record.payload_size = cython.cast(uint32_t, takers.size())
    add_i64(
        cython.address(r.common.nodes.get().under_way[node]),
        cython.cast(int64_t, cython.sizeof(NodeRecord) + record.payload_size),
        RELAXED,
    )
    _append(r, node, cython.address(record))
    if record.payload_size:
        r.nodes[node].out.append(takers[0])


def hand_to_nodes(r):
    """Hands over what was written since the last time: one lock, and one wake-up at the most."""
    node: uint8_t
    hub: cython.pointer[NodeHub] = r.common.nodes.get()
    lock(cython.address(hub.lock))
    for node in range(NODES_MAX):
        if not r.nodes_written >> node & 1:
            continue
        out: cython.pointer[string] = cython.address(r.nodes[node].out)
        if hub.closed:
            add_i64(cython.address(hub.under_way[node]), -cython.cast(int64_t, out.size()), RELAXED)
        elif hub.pending[node].empty():
            hub.pending[node].swap(out[0])
        else:
            hub.pending[node].append(out[0])
        out.clear()
    if hub.waiting:
        pthread_cond_signal(cython.address(hub.ready))
    unlock(cython.address(hub.lock))
    r.nodes_written = 0


def _hold_back(r, node, feeder):
    """Reads nothing more from a publisher of this reactor until less is under way to the node."""
    if feeder == 0 or reactor_of(feeder) != r.index:
        return
    c: cython.pointer[Connection] = connection_of(r, feeder)
    if c != cython.NULL and c.pause_count == 0:
        side: cython.pointer[NodeSide] = cython.address(r.nodes[node])
        side.held.push_back(feeder)
        if side.since_ms == 0:
            side.since_ms = r.now_ms
        r.nodes_holding |= cython.cast(uint32_t, 1) << node
        pause_feeder(r, feeder)


def release_held_back(r):
    """Once a turn: publishers go on, who have waited longest first, where less is under way now, or the node
    is slow; who then publishes at QoS 1 or 2 waits again.
    """
    node: uint8_t
    index: cython.size_t
    for node in range(NODES_MAX):
        if not r.nodes_holding >> node & 1:
            continue
        under_way: int64_t = load_i64(cython.address(r.common.nodes.get().under_way[node]), RELAXED)
        low: cython.bint = under_way <= r.common.limits.node_bytes_max // 4
        side: cython.pointer[NodeSide] = cython.address(r.nodes[node])
        holds(side.since_ms != 0, b"forwarding: it is known since when publishers wait for a node")
        if not low and not _is_slow(r, node):
            continue
        count: cython.size_t = min(side.held.size(), _SLICE)
        for index in range(count):
            count_steps(1)
            resume_feeder(r, side.held[index])
        side.held.erase(side.held.begin(), side.held.begin() + count)
        if low and side.held.empty():
            side.since_ms = 0
            r.nodes_holding &= ~(cython.cast(uint32_t, 1) << node)
