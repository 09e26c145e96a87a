"""Batches from other nodes of a cluster: checked whole, here and nowhere else, before any of it is acted on.

A batch is a NodeBatchHead and records, each a NodeRecord and what it says the lengths of (``state/nodes``).
One byte that is wrong, and nothing of the batch is applied: its sender is not what it seems, or not of this
version.
"""

import cython
from cython.cimports.libc.stdint import int64_t, uint8_t, uint32_t
from cython.cimports.libc.string import memcmp, memcpy
from cython.cimports.tidemq.engine.base.asserting import holds
from cython.cimports.tidemq.engine.door.node_batches import (
    BATCH_CUT,
    BATCH_FIELD,
    BATCH_FOREIGN,
    BATCH_FORMAT,
    BATCH_GROUP,
    BATCH_KIND,
    BATCH_NO_HEAD,
    BATCH_PROPERTIES,
    BATCH_TAKERS,
    BATCH_TOPIC,
    BATCH_WHOLE,
    BatchCheck,
    BatchFault,
)
from cython.cimports.tidemq.engine.journal.rows import read_u32, read_u64
from cython.cimports.tidemq.engine.state.nodes import (
    NODE_ANSWER,
    NODE_ASKS,
    NODE_BATCH_MAGIC,
    NODE_MESSAGE,
    NODE_OFFERED,
    NODE_RETAIN,
    NodeBatchHead,
    NodeRecord,
)
from cython.cimports.tidemq.wire.cursor import Cursor, check_utf8
from cython.cimports.tidemq.wire.properties import Properties, has_property, read_properties
from cython.cimports.tidemq.wire.protocol import (
    FAULT_NONE,
    PROP_MESSAGE_EXPIRY,
    PROP_TOPIC_ALIAS,
    PUBLISH,
    RC_QUOTA_EXCEEDED,
    Span,
)
from cython.cimports.tidemq.wire.topics import (
    SharedFilter,
    check_topic_text,
    split_shared,
)

_LEFT_MS_MAX = cython.declare(int64_t, 0xFFFFFFFF * 1000)  # Message Expiry Interval
_TAKER_BYTES = cython.declare(uint32_t, 14)  # of who takes what was offered, before its identifiers
_PAYLOAD_MAX = cython.declare(cython.uint, 0x0FFFFFFF)  # of a packet

# in the order of BatchFault
WRONG = (
    "it is whole",
    "it is shorter than its head, 16 bytes",
    "it does not begin as a batch of a node does",
    "it is of a format that this node does not read",
    "a record goes beyond its end",
    "a record is neither a message nor an answer",
    "a record has a value that it cannot have",
    "a topic name is empty, no topic name, or below $SYS/",
    "the name of a shared group is none",
    "properties are malformed, or of those that are not passed on",
    "who takes what was offered is not said as it has to be",
)


def _record_size(record):
    size: cython.size_t = cython.sizeof(NodeRecord)
    size += record.group_size
    size += record.topic_size
    size += record.properties_size
    size += record.payload_size
    return size


def check_batch(batch, formats):
    """Whether all of a batch is what it has to be; else what is wrong with which byte's record."""
    head: NodeBatchHead
    record: NodeRecord
    result: BatchCheck = BatchCheck(BATCH_WHOLE, 0)
    if batch.size < cython.sizeof(NodeBatchHead):
        result.fault = BATCH_NO_HEAD
        return result
    memcpy(cython.address(head), batch.data, cython.sizeof(NodeBatchHead))
    if head.magic != NODE_BATCH_MAGIC:
        result.fault = BATCH_FOREIGN
        return result
    if not formats.lowest <= head.format <= formats.highest:
        result.fault = BATCH_FORMAT
        return result
    result.at = cython.sizeof(NodeBatchHead)
    while result.at < batch.size:
        left: cython.size_t = batch.size - result.at
        if left < cython.sizeof(NodeRecord):
            result.fault = BATCH_CUT
            return result
        memcpy(cython.address(record), batch.data + result.at, cython.sizeof(NodeRecord))
        if _record_size(cython.address(record)) > left:
            result.fault = BATCH_CUT
            return result
        result.fault = _check_record(
            cython.address(record), batch.data + result.at + cython.sizeof(NodeRecord)
        )
        if result.fault != BATCH_WHOLE:
            return result
        result.at += _record_size(cython.address(record))
    return result


def _check_record(record, at):
    """``at``: what follows the record, which is all there."""
    fault: BatchFault = BATCH_KIND
    if record.kind == NODE_ANSWER:
        return _check_answer(record, at)
    if record.kind == NODE_MESSAGE:
        fault = _check_message(record)
    if fault != BATCH_WHOLE:
        return fault
    if not _is_group(Span(at, record.group_size)):
        return BATCH_GROUP
    at += record.group_size
    if not _is_topic(Span(at, record.topic_size)):
        return BATCH_TOPIC
    if not _are_properties(at + record.topic_size, record.properties_size):
        return BATCH_PROPERTIES
    return BATCH_WHOLE


def _check_answer(record, at):
    nothing: cython.bint = (
        record.qos == 0
        and record.flags == 0
        and record.group_size == 0
        and record.topic_size == 0
        and record.properties_size == 0
        and record.payload_size <= _PAYLOAD_MAX
        and record.left_ms == 0
    )
    known: cython.bint = record.reason == 0 or record.reason in (0x80, 0x83, RC_QUOTA_EXCEEDED)
    if not nothing or not known or record.clock == 0:
        return BATCH_FIELD
    return BATCH_WHOLE if _are_takers(at, at + record.payload_size) else BATCH_TAKERS


def _are_takers(at, end):
    """Whether these are client ids and what each takes, as ``offers`` has them. None names a queue: it would
    be one of this node's.
    """
    while at < end:
        if end - at < _TAKER_BYTES or read_u64(at) or at[8] != 2 or at[9] > 1:
            return False
        count: uint32_t = read_u32(at + 10)
        at += _TAKER_BYTES
        if count > (end - at) // 4:
            return False
        at += cython.cast(cython.size_t, count) * 4
        if end - at < 2:
            return False
        size: uint32_t = cython.cast(uint32_t, at[0]) << 8 | at[1]
        at += 2
        if size == 0 or size > end - at or check_utf8(at, size) != FAULT_NONE:
            return False
        at += size
    return True


def _check_message(record):
    asks: cython.bint = record.flags & NODE_ASKS
    good: cython.bint = (
        record.qos <= 2
        and not record.flags & ~(NODE_RETAIN | NODE_ASKS | NODE_OFFERED)
        and record.reason == 0
        and record.payload_size <= _PAYLOAD_MAX
        and 0 <= record.left_ms <= _LEFT_MS_MAX
    )
    # a question is about a message that can be kept, and has a name; what is offered has QoS 2 and no group
    offered: cython.bint = record.flags & NODE_OFFERED
    good = good and (not asks or (record.qos and record.clock))
    good = good and (not offered or (asks and record.qos == 2 and record.group_size == 0))
    return BATCH_WHOLE if good else BATCH_FIELD


def _is_group(text):
    """Nothing, or `$share/group/filter`; of which filter it is, is looked for among those that are there."""
    if text.size == 0:
        return True
    parts: SharedFilter = split_shared(text)
    return parts.shared and parts.group.size and parts.filter.size


def _is_topic(topic):
    """As long and deep as MQTT allows: another node may have other limits for its clients, and what it sends
    behind a message that is refused would wait for ever.
    """
    if topic.size == 0:
        return False
    if topic.size >= 5 and memcmp(topic.data, cython.cast(cython.p_char, b"$SYS/"), 5) == 0:
        return False  # each node has its own
    return check_topic_text(cython.address(topic)) == FAULT_NONE


def _are_properties(at, size):
    """Whether they are as a server forwards them: without expiry, alias and subscription identifiers."""
    found: Properties
    if size == 0:
        return True
    c: Cursor = Cursor(at, at + size, FAULT_NONE)
    read_properties(cython.address(c), PUBLISH, cython.address(found))
    if c.fault != FAULT_NONE or c.at != c.end or found.raw.size == 0:
        return False
    if has_property(cython.address(found), PROP_MESSAGE_EXPIRY):
        return False
    return not has_property(cython.address(found), PROP_TOPIC_ALIAS) and found.subscription_id_count == 0


def deal_batch(batch, hash, dealt, taken):
    """Messages by topic, so that those of a topic stay in order; answers to the reactor that asked."""
    head: NodeBatchHead
    record: NodeRecord
    at: cython.size_t = cython.sizeof(NodeBatchHead)
    count: cython.size_t = dealt.size()
    memcpy(cython.address(head), batch.data, cython.sizeof(NodeBatchHead))
    reactor: cython.size_t
    while at < batch.size:
        memcpy(cython.address(record), batch.data + at, cython.sizeof(NodeRecord))
        size: cython.size_t = _record_size(cython.address(record))
        holds(at + size <= batch.size, b"node batches: one that is dealt out was checked")
        if record.kind == NODE_ANSWER:
            reactor = record.clock & 63
            if reactor >= count:
                reactor = 0  # of an earlier life with more reactors: to nothing that it has asked
        else:
            topic: cython.pointer[cython.const[uint8_t]] = batch.data + at + cython.sizeof(NodeRecord)
            reactor = hash.of(topic + record.group_size, record.topic_size) % count
            taken[record.clock & 63] = max(
                taken[record.clock & 63], cython.cast(cython.ulonglong, record.clock)
            )
        dealt[0][reactor].append(cython.cast(cython.p_char, batch.data + at), size)
        at += size
    return head.origin


def cut_records(records, at, bytes_max):
    """The records are our own."""
    record: NodeRecord
    end: cython.size_t = at
    while end < records.size():
        holds(
            records.size() - end >= cython.sizeof(NodeRecord),
            b"node batches: what goes out is whole records",
        )
        memcpy(cython.address(record), records.data() + end, cython.sizeof(NodeRecord))
        size: cython.size_t = _record_size(cython.address(record))
        if end > at and end + size - at > bytes_max:
            break
        end += size
    return end
