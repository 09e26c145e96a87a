"""What has come from other nodes of a cluster: messages for subscribers here, and answers to questions.

It was checked whole when it came (``door/node_batches``), and dealt out to the reactors by topic, so that the
messages of one publisher on one topic stay in their order. A reactor acts on so much of it in a turn, and on
none while another reactor's inbox is full, for there is no publisher here that could wait.
"""

import cython
from cython.cimports.libc.stdint import int64_t, uint8_t, uint64_t
from cython.cimports.libc.string import memcpy
from cython.cimports.libcpp.string import string
from cython.cimports.tidemq.engine.base.asserting import holds
from cython.cimports.tidemq.engine.base.counters import (
    C_DROPPED_MEMORY,
    C_MESSAGES_FROM_NODES,
    C_NODE_ANSWERS_LATE,
    C_REFUSED_STORE,
)
from cython.cimports.tidemq.engine.base.message import Passage, close_passage, empty_passage
from cython.cimports.tidemq.engine.base.steps import allow_steps, count_steps
from cython.cimports.tidemq.engine.base.system import RELAXED, add_i64, load_int
from cython.cimports.tidemq.engine.clients.commit_results import answer_kept
from cython.cimports.tidemq.engine.journal.journal import next_id
from cython.cimports.tidemq.engine.journal.ledger import next_token, promise_at, slot_of_token
from cython.cimports.tidemq.engine.link.drops import note_drop
from cython.cimports.tidemq.engine.link.mail import new_mail
from cython.cimports.tidemq.engine.link.replies import span_of
from cython.cimports.tidemq.engine.queues.agreement import add_takers
from cython.cimports.tidemq.engine.queues.cache import find_receivers
from cython.cimports.tidemq.engine.queues.forwarding import answer_node, release_held_back
from cython.cimports.tidemq.engine.queues.offers import describe_offer
from cython.cimports.tidemq.engine.queues.promises import promise_node
from cython.cimports.tidemq.engine.queues.routing import route_arrived, route_to_group
from cython.cimports.tidemq.engine.state.mail import MAIL_KEPT, Mail
from cython.cimports.tidemq.engine.state.nodes import (
    NODE_ANSWER,
    NODE_ASKS,
    NODE_OFFERED,
    NODE_RETAIN,
    NODES_MAX,
    NodeBatch,
    NodeRecord,
    NodeSide,
)
from cython.cimports.tidemq.engine.state.promise import Promise
from cython.cimports.tidemq.engine.state.wall_clock import id_offset, raise_ids
from cython.cimports.tidemq.engine.state.work import begin_work, is_enough
from cython.cimports.tidemq.wire.cursor import Cursor, read_varint
from cython.cimports.tidemq.wire.protocol import FAULT_NONE, RC_QUOTA_EXCEEDED, RC_UNSPECIFIED_ERROR, Span
from cython.cimports.tidemq.wire.topics import SharedFilter, split_shared
from cython.operator import dereference

_RECORDS_A_TURN = cython.declare(cython.int, 4096)
_SETTLED_A_TURN = cython.declare(cython.int, 4096)
_AHEAD_NS_MAX = cython.declare(int64_t, 3600 * 1000000000)  # clocks of nodes are never so far apart


def accept_arrived(r, mail):
    """Records for this reactor: they wait behind those that came before."""
    batch: NodeBatch
    batch.node = cython.cast(uint8_t, mail.number)
    batch.origin = mail.token
    batch.at = 0
    holds(mail.number < NODES_MAX, b"arriving: what comes is from a node that has a slot")
    r.arrived.push_back(batch)
    r.arrived.back().records.swap(mail.letter.data[0])


def continue_nodes(r):
    """Once a turn: what there is to be done for other nodes."""
    if not r.arrived.empty():
        _continue_arrived(r)
    if r.nodes_settled:
        _continue_settling(r)
    if r.nodes_holding:
        release_held_back(r)


def _is_flooding(r):
    """Whether another reactor has more mail than it should have."""
    index: cython.size_t
    for index in range(r.common.reactors.size()):
        waiting: cython.int = load_int(cython.address(r.common.reactors[index].inbox_count), RELAXED)
        if waiting >= r.common.limits.inbox_messages_max:
            return True
    return False


def _continue_arrived(r):
    record: NodeRecord
    left: cython.int = 0 if _is_flooding(r) else _RECORDS_A_TURN
    r.arrived_ready = left > 0
    begin_work(r)
    while left and not r.arrived.empty() and not is_enough(r):
        allow_steps(1)
        left -= 1
        batch: cython.pointer[NodeBatch] = cython.address(r.arrived.front())
        at: cython.pointer[cython.const[uint8_t]] = span_of(cython.address(batch.records)).data + batch.at
        memcpy(cython.address(record), at, cython.sizeof(NodeRecord))
        at += cython.sizeof(NodeRecord)
        if record.kind == NODE_ANSWER:
            _take_answer(r, batch.node, cython.address(record), at)
        else:
            _take_message(r, batch, cython.address(record), at)
        batch.at += cython.sizeof(NodeRecord)
        batch.at += record.group_size
        batch.at += record.topic_size
        batch.at += record.properties_size
        batch.at += record.payload_size
        holds(batch.at <= batch.records.size(), b"arriving: a batch ends where its last record does")
        if batch.at >= batch.records.size():
            add_i64(cython.address(r.arrived_bytes), -cython.cast(int64_t, batch.records.size()), RELAXED)
            r.arrived.pop_front()
    r.arrived_ready = r.arrived_ready and not r.arrived.empty()


def _raise_ids(r, clock):
    """A publisher may move here, where its ids go on rising, from a node whose clock is ahead."""
    ahead: int64_t = cython.cast(int64_t, clock) - r.now_ns - id_offset(r.common)
    if 0 < ahead < _AHEAD_NS_MAX:
        raise_ids(r.common, cython.cast(int64_t, clock) - r.now_ns)


def _take_message(r, batch, record, at):
    """``at``: the group that it is for, if any; its topic, properties with their length, and payload."""
    node: uint8_t = batch.node
    passage: Passage
    empty_passage(cython.address(passage))
    whole: Span = Span(at, record.group_size)
    at += record.group_size
    passage.topic = Span(at, record.topic_size)
    at += record.topic_size
    if record.properties_size:
        block: Cursor = Cursor(at, at + record.properties_size, FAULT_NONE)
        read_varint(cython.address(block))
        passage.properties = Span(block.at, cython.cast(cython.uint, block.end - block.at))
    passage.payload = Span(at + record.properties_size, record.payload_size)
    passage.qos = record.qos
    passage.retain = record.flags & NODE_RETAIN
    if record.left_ms:
        passage.expires_ms = r.now_ms + record.left_ms
    r.tally[C_MESSAGES_FROM_NODES] += 1
    asks: cython.bint = record.flags & NODE_ASKS
    reason: uint8_t = _refusal(r, cython.address(passage))
    if reason:
        if asks:
            answer_node(r, node, record.clock, reason, cython.NULL)
        return
    if record.clock:
        _raise_ids(r, record.clock)
    if r.common.durable and record.qos:
        # one message has one id everywhere, so that two nodes may take it for one session
        passage.id = next_id(r)
        if record.clock:
            passage.id.clock = record.clock
            passage.id.origin = batch.origin
    if asks:
        passage.token = next_token(r)
        passage.offered = r.common.durable and record.flags & NODE_OFFERED
    if whole.size:
        group: SharedFilter = split_shared(whole)
        route_to_group(r, cython.address(passage), group.filter, group.group, False)
    else:
        route_arrived(r, cython.address(passage))
    takers: cython.pointer[string] = cython.NULL
    if passage.offered:
        takers = describe_offer(r, cython.address(passage.id))
    if asks and (passage.kept or passage.answers):
        promise_node(r, cython.address(passage), node, record.clock, takers)
    elif asks:
        answer_node(r, node, record.clock, passage.refused, takers)
        del takers
    close_passage(cython.address(passage), r.tally)


def _refusal(r, p):
    """0, or why the message goes to nobody: memory is short, or the store takes nothing that it has to keep.
    Its publisher is on another node and cannot be held first. Between nodes 0x97 says that a queue is full,
    which may be acknowledged all the same.
    """
    if load_int(cython.address(r.common.overloaded), RELAXED):
        note_drop(r, cython.NULL, C_DROPPED_MEMORY, 1)
        return RC_UNSPECIFIED_ERROR
    reason: cython.int = load_int(cython.address(r.common.store_refuses), RELAXED)
    if reason == 0 or p.qos == 0 or not find_receivers(r, cython.address(p.topic)).stored:
        return 0
    r.tally[C_REFUSED_STORE] += 1
    return RC_UNSPECIFIED_ERROR if reason == RC_QUOTA_EXCEEDED else cython.cast(uint8_t, reason)


def _take_answer(r, node, record, at):
    """A node has kept a message, or refused it; ``at``: who takes it there, where it was offered. One to
    nothing that it was asked is void.
    """
    side: cython.pointer[NodeSide] = cython.address(r.nodes[node])
    known = side.asked.find(record.clock)
    if known == side.asked.end():
        r.tally[C_NODE_ANSWERS_LATE] += 1
        return
    token: uint64_t = dereference(known).second
    side.asked.erase(known)
    promise: cython.pointer[Promise] = promise_at(r, slot_of_token(token))
    if record.payload_size and promise.message != cython.NULL:
        add_takers(promise, Span(at, record.payload_size))
    _keep(r, token, record.reason)


def _keep(r, token, reason):
    """As if another reactor had said so."""
    mail: Mail = new_mail(MAIL_KEPT)
    mail.number = token
    mail.reason = reason
    answer_kept(r, cython.address(mail))


def begin_settling(r, node, reason):
    """All that a node was asked so far counts as answered, with this reason."""
    r.nodes[node].settled = r.clock | 63  # every id of this reactor so far
    r.nodes[node].reason = reason
    r.nodes_settled |= 1 << node


def _continue_settling(r):
    """Some of it in each turn, the oldest first."""
    left: cython.int = _SETTLED_A_TURN
    node: uint8_t
    for node in range(NODES_MAX):
        if not r.nodes_settled >> node & 1:
            continue
        side: cython.pointer[NodeSide] = cython.address(r.nodes[node])
        while left and not side.asked.empty() and dereference(side.asked.begin()).first <= side.settled:
            count_steps(1)
            left -= 1
            token: uint64_t = dereference(side.asked.begin()).second
            side.asked.erase(side.asked.begin())
            _keep(r, token, side.reason)
        if left:
            r.nodes_settled &= ~(1 << node)
