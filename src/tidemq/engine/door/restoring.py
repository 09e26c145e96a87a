"""From the store into an engine that has not started, and rows of a queue into one that runs.

Each ``load_*`` says whether the row could be read; one that could not changes nothing. Needs the GIL.
"""

from __future__ import annotations

import cython
from cython.cimports.libc.stdint import int64_t, uint8_t, uint32_t, uint64_t
from cython.cimports.libc.string import memset
from cython.cimports.libcpp.memory import make_unique, unique_ptr
from cython.cimports.libcpp.string import string
from cython.cimports.tidemq.engine.base.allocation import obtain
from cython.cimports.tidemq.engine.base.asserting import holds
from cython.cimports.tidemq.engine.base.counters import LIVE_ENTRIES
from cython.cimports.tidemq.engine.base.message import (
    Message,
    MessageId,
    message_bytes,
    release_message,
    topic_of,
)
from cython.cimports.tidemq.engine.index.retained_index import put_retained
from cython.cimports.tidemq.engine.index.subscribers import OPTION_BACKLOG, OPTION_QOS
from cython.cimports.tidemq.engine.index.subscriptions import SharedGroup, find_group_by_name
from cython.cimports.tidemq.engine.journal.journal import NO_RECORD
from cython.cimports.tidemq.engine.journal.rows import (
    QUEUE_KEY_BYTES,
    QUEUE_VALUE_BYTES,
    REPLAY_BYTES,
    ROW_FLAG_COUNTED,
    ROW_FLAG_RELEASED,
    ROW_FLAG_RETAIN,
    SESSION_BYTES,
    SUBSCRIPTION_BYTES,
    monotonic_ms,
    read_id,
    read_message,
    read_u32,
    read_u64,
)
from cython.cimports.tidemq.engine.link.timers import time_session
from cython.cimports.tidemq.engine.queues.backlogs import keep_backlog
from cython.cimports.tidemq.engine.queues.outbox import append_entry
from cython.cimports.tidemq.engine.queues.queueing import age_ms, make_stored, new_rows, note_stored
from cython.cimports.tidemq.engine.queues.received_identifiers import restore_received
from cython.cimports.tidemq.engine.queues.replayed import restore_replay
from cython.cimports.tidemq.engine.queues.sessions import Found, add_subscription, count_delayed, find_session
from cython.cimports.tidemq.engine.queues.shards import load_shard
from cython.cimports.tidemq.engine.state.client import FOR_EVER, Session, Will
from cython.cimports.tidemq.engine.state.queue import DONE, RELEASED, ROW_IDLE, ROW_INFLIGHT, Entry, Outbox
from cython.cimports.tidemq.engine.state.reactor import Reactor
from cython.cimports.tidemq.engine.state.section import StoredRow, StoredRows
from cython.cimports.tidemq.wire.protocol import FAULT_NONE, bytes_of, span_of
from cython.cimports.tidemq.wire.topics import SharedFilter, check_topic_filter, split_shared
from cython.operator import dereference, preincrement


def _reactor_for(common, client_id):
    """Sessions come back spread over the reactors, whatever their number is now."""
    return common.reactors[sum(client_id) % common.reactors.size()]


def _session_of(common, queue):
    if not common.queue_owners.count(queue):
        return cython.NULL
    r: cython.pointer[Reactor] = common.reactors[common.queue_owners[queue]]
    holds(r.sessions.count(queue) > 0, b"restoring: who owns a queue has its session")
    return r.sessions[queue]


def _bytes_at(value, at):
    return cython.cast(cython.pointer[uint8_t], cython.cast(cython.p_char, value)) + at


def _is_queue_value(value):
    rest: cython.Py_ssize_t = len(value) - QUEUE_VALUE_BYTES
    return rest >= 0 and rest % 4 == 0 and 1 <= value[1] <= 2


def load_session(common, client_id, value):
    """A session; what was connected when the broker ended counts as gone since now."""
    if len(value) < SESSION_BYTES:
        return False
    data: cython.pointer[cython.const[uint8_t]] = _bytes_at(value, 0)
    number: uint64_t = read_u64(data)
    will_size: uint32_t = read_u32(data + 40)
    if number == 0 or len(value) != SESSION_BYTES + will_size or common.queue_owners.count(number):
        return False
    r: cython.pointer[Reactor] = _reactor_for(common, client_id)
    will: cython.pointer[Message] = cython.NULL
    if will_size:
        none: MessageId
        none.clock = none.origin = 0
        will = read_message(common, data + SESSION_BYTES, will_size, cython.address(none), r.tally)
        if will == cython.NULL:
            return False
    name: string = client_id
    found: Found = find_session(r, cython.address(name), True)
    if found.session == cython.NULL or not found.created:
        if will != cython.NULL:
            release_message(will, r.tally)
        return False
    s: cython.pointer[Session] = found.session
    s.number = number
    s.expiry_s = read_u32(data + 8)
    s.ends_ms = monotonic_ms(common, cython.cast(int64_t, read_u64(data + 12)))
    if s.ends_ms == 0 and s.expiry_s != FOR_EVER:
        s.ends_ms = r.now_ms + cython.cast(int64_t, s.expiry_s) * 1000
    make_stored(r, s)
    if will != cython.NULL:
        owner: unique_ptr[Will] = make_unique[Will]()
        s.will = owner.release()
        s.will.message = will
        s.will.delay_s = read_u32(data + 28)
        s.will.expiry_s = cython.cast(int64_t, read_u64(data + 32))
        s.will_ms = monotonic_ms(common, cython.cast(int64_t, read_u64(data + 20)))
        if s.will_ms == 0:
            s.will_ms = r.now_ms + cython.cast(int64_t, s.will.delay_s) * 1000
    if client_id[:1] == b"\0":  # a message that waits for its time, see wills
        count_delayed(r, s)
    if number > common.next_session:
        common.next_session = number
    time_session(r, s)
    return True


def load_subscription(common, key, value):
    """A subscription; one whose session is gone is left out."""
    if len(key) < 3 or len(value) not in (SUBSCRIPTION_BYTES, REPLAY_BYTES):
        return False
    size: cython.size_t = (key[0] << 8) + key[1]
    if len(key) <= 2 + size:
        return False
    client_id = key[2 : 2 + size]
    filter = key[2 + size :]
    try:
        filter.decode()
    except UnicodeDecodeError:
        return False
    if value[0] & 3 == 3 or check_topic_filter(span_of(filter), common.limits.topic_levels_max) != FAULT_NONE:
        return False
    r: cython.pointer[Reactor] = _reactor_for(common, client_id)
    name: string = client_id
    wants_retained: cython.bint = False
    subscription_id: uint32_t = read_u32(_bytes_at(value, 1))
    found: Found = find_session(r, cython.address(name), False)
    if found.session != cython.NULL and len(value) == REPLAY_BYTES:
        epoch: uint64_t = read_u64(_bytes_at(value, SUBSCRIPTION_BYTES))
        start: int64_t = cython.cast(int64_t, read_u64(_bytes_at(value, SUBSCRIPTION_BYTES + 8)))
        restore_replay(r, found.session, span_of(filter), value[0], subscription_id, epoch, start)
    elif found.session != cython.NULL:
        add_subscription(
            r, found.session, span_of(filter), value[0], subscription_id, cython.address(wants_retained)
        )
        if value[0] & OPTION_BACKLOG:
            keep_backlog(found.session, span_of(filter), value[0] & OPTION_QOS, subscription_id)
    return True


def load_shared(common, key, value):
    """A shard of a shared group's queue; one whose group has no member any more is left to be purged."""
    if len(key) != 8 or not value.startswith(b"$share/"):
        return False
    number: uint64_t = read_u64(_bytes_at(key, 0))
    if number > common.next_session:
        common.next_session = number
    parts: SharedFilter = split_shared(span_of(value))
    found: cython.pointer[SharedGroup] = find_group_by_name(common.subscriptions, parts.filter, parts.group)
    if found == cython.NULL or common.queue_owners.count(number):
        return False
    load_shard(common.reactors[number % common.reactors.size()], number, found.id)
    return True


def load_received(common, key):
    """A packet identifier (in 10 bytes of key) of a QoS 2 message that waits for its PUBREL; False where the
    session is gone.
    """
    number: uint64_t = read_u64(_bytes_at(key, 0))
    if number > common.next_session:
        common.next_session = number  # not to be used again while anything is left of it
    s: cython.pointer[Session] = _session_of(common, number)
    if s == cython.NULL:
        return False
    restore_received(s, (key[8] << 8) + key[9])
    return True


def load_retained(common, topic, value):
    """A retained message."""
    r: cython.pointer[Reactor] = common.reactors[0]
    if len(value) < 16:
        return False
    id: MessageId = read_id(_bytes_at(value, 0))
    message: cython.pointer[Message] = read_message(
        common, _bytes_at(value, 16), len(value) - 16, cython.address(id), r.tally
    )
    if message == cython.NULL:
        return False
    if bytes_of(topic_of(message)) != topic:
        release_message(message, r.tally)
        return False
    old: cython.p_void = put_retained(common.retained, topic_of(message), message)
    if old != cython.NULL:
        release_message(cython.cast(cython.pointer[Message], old), r.tally)
    return True


def load_queue_rows(common, rows, orphans, held, corrupt):
    """Counts the idle rows, which stay in the store; returns those in flight.

    ``rows``: pairs of key and value. ``orphans`` gets the queues that have no session, ``held`` the rows
    that members of a shared group had taken, ``corrupt`` the keys of rows that cannot be read.
    """
    inflight: list = []
    s: cython.pointer[Session] = cython.NULL
    last: uint64_t = 0
    for key, value in rows:
        key_bytes: bytes = key
        value_bytes: bytes = value
        if len(key_bytes) != QUEUE_KEY_BYTES or not _is_queue_value(value_bytes):
            corrupt.append(key_bytes)
            continue
        queue: uint64_t = read_u64(_bytes_at(key_bytes, 0))
        if queue != last:
            last = queue
            s = _session_of(common, queue)
            if queue > common.next_session:
                common.next_session = queue
        if s == cython.NULL:
            orphans.add(queue)
        elif key_bytes[8] == ROW_IDLE or (s.group and key_bytes[8] == ROW_INFLIGHT):
            if key_bytes[8] == ROW_INFLIGHT:
                held.append((key_bytes, value_bytes))
            note_stored(s.stored, read_u64(_bytes_at(key_bytes, 9)))
            s.stored.bytes += read_u32(_bytes_at(value_bytes, 2))
        elif key_bytes[8] == ROW_INFLIGHT:
            inflight.append((queue, read_u64(_bytes_at(value_bytes, 14)), key_bytes, value_bytes))
        else:
            corrupt.append(key_bytes)
    inflight.sort()
    return [(key, value) for _, _, key, value in inflight]


def _read_ids(value):
    count: uint32_t = (len(value) - QUEUE_VALUE_BYTES) // 4
    index: uint32_t
    if count == 0:
        return cython.NULL
    ids: cython.pointer[uint32_t] = cython.cast(cython.pointer[uint32_t], obtain((count + 1) * 4))
    ids[0] = count
    for index in range(count):
        ids[index + 1] = read_u32(_bytes_at(value, QUEUE_VALUE_BYTES + index * 4))
    return ids


def _read_payload(common, key, value, payload):
    """The message of a queue row, held once; NULL when it cannot be read."""
    id: MessageId = read_id(_bytes_at(key, 9))
    message: cython.pointer[Message] = read_message(
        common, _bytes_at(payload, 0), len(payload), cython.address(id), common.tally
    )
    if message != cython.NULL:
        message.counted = value[0] & ROW_FLAG_COUNTED != 0
    return message


def load_inflight(common, key, value, payload):
    """An entry that was in flight, at its place; the rows of a queue come in the order of their places."""
    s: cython.pointer[Session] = _session_of(common, read_u64(_bytes_at(key, 0)))
    box: cython.pointer[Outbox] = cython.address(s.outbox)
    r: cython.pointer[Reactor] = common.reactors[s.reactor]
    sequence: uint64_t = read_u64(_bytes_at(value, 14))
    entry: cython.pointer[Entry]
    message: cython.pointer[Message] = _read_payload(common, key, value, payload)
    if message == cython.NULL:
        return False
    if box.head == box.tail:
        box.head = box.next = box.tail = sequence
    if sequence < box.tail or sequence - box.head >= 65535:
        release_message(message, common.tally)
        return False
    while box.tail < sequence:  # a hole, so that places keep their packet identifiers
        entry = append_entry(box, r.now_ms, r.tally)
        entry.state = DONE
        box.waiting -= 1
        r.tally[LIVE_ENTRIES] -= 1
    holds(box.tail == sequence, b"restoring: what was in flight comes back to its place")
    entry = append_entry(box, r.now_ms, r.tally)
    entry.message = message
    entry.subscription_ids = _read_ids(value)
    entry.qos = value[1]
    entry.retain = value[0] & ROW_FLAG_RETAIN != 0
    entry.was_sent = True
    entry.since_ms = cython.cast(uint32_t, r.now_ms - age_ms(r, message.id.clock))
    entry.row = ROW_INFLIGHT
    entry.section = 0
    entry.record = NO_RECORD
    box.bytes += message_bytes(message)
    if value[0] & ROW_FLAG_RELEASED:
        entry.state = RELEASED
        box.waiting -= 1
    return True


def make_rows(common, rows, corrupt):
    """Rows of a queue, each of key, value and payload, as a reactor takes them. ``corrupt`` gets the keys of
    those that cannot be read.
    """
    result: cython.pointer[StoredRows] = new_rows()
    for key, value, payload in rows:
        row: StoredRow
        row.message = cython.NULL
        if payload is not None and _is_queue_value(value):
            row.message = _read_payload(common, key, value, payload)
        if row.message == cython.NULL:
            corrupt.append(key)
            continue
        row.subscription_ids = _read_ids(value)
        row.id = row.message.id
        row.qos = value[1]
        row.retain = value[0] & ROW_FLAG_RETAIN != 0
        row.bytes = read_u32(_bytes_at(value, 2))
        result.rows.push_back(row)
    return result


def make_sizes(sizes):
    """Rows of which nothing is known any more but the bytes of their messages."""
    result: cython.pointer[StoredRows] = new_rows()
    for size in sizes:
        row: StoredRow
        memset(cython.address(row), 0, cython.sizeof(StoredRow))
        row.bytes = size
        result.rows.push_back(row)
    return result


def doubt_sessions(common):
    """What a client could have in flight may have been sent already."""
    item = common.registry.begin()
    while item != common.registry.end():
        if dereference(item).second.stored != cython.NULL:
            dereference(item).second.stored.doubtful = common.limits.inflight_max
        preincrement(item)
