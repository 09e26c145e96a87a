"""From the store into an engine that has not started, and rows of a queue into one that runs.

Each ``load_*`` says whether the row could be read; one that could not changes nothing. Needs the GIL.
"""

from __future__ import annotations

import cython
from cython.cimports.libc.stdint import int64_t, uint8_t, uint32_t, uint64_t
from cython.cimports.libc.string import memset
from cython.cimports.libcpp.string import string
from cython.cimports.tidemq.engine.base.allocation import obtain
from cython.cimports.tidemq.engine.base.asserting import holds
from cython.cimports.tidemq.engine.base.message import Message, MessageId, release_message, topic_of
from cython.cimports.tidemq.engine.index.retained_index import (
    find_retained,
    lock_exclusive,
    put_retained,
    remove_retained,
    unlock_exclusive,
)
from cython.cimports.tidemq.engine.index.subscriptions import SharedGroup, find_group_by_name
from cython.cimports.tidemq.engine.journal.journal import precedes
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
from cython.cimports.tidemq.engine.queues.arrivals import (
    fill_session,
    free_entry,
    let_go_on,
    restore_entry,
    restore_subscription,
)
from cython.cimports.tidemq.engine.queues.clearing import begin_clearing
from cython.cimports.tidemq.engine.queues.queueing import new_rows, note_stored
from cython.cimports.tidemq.engine.queues.received_identifiers import restore_received
from cython.cimports.tidemq.engine.queues.sessions import Found, find_session, restore_session
from cython.cimports.tidemq.engine.queues.shards import load_shard
from cython.cimports.tidemq.engine.state.arrival import StoredEntry, StoredSession, StoredSubscription
from cython.cimports.tidemq.engine.state.client import Session
from cython.cimports.tidemq.engine.state.queue import ROW_IDLE, ROW_INFLIGHT
from cython.cimports.tidemq.engine.state.reactor import Reactor
from cython.cimports.tidemq.engine.state.section import StoredRow, StoredRows
from cython.cimports.tidemq.wire.protocol import FAULT_NONE, bytes_of, span_of
from cython.cimports.tidemq.wire.topics import SharedFilter, check_topic_filter, split_shared
from cython.operator import dereference, preincrement


def reactor_for(common, client_id):
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


def is_queue_value(value):
    rest: cython.Py_ssize_t = len(value) - QUEUE_VALUE_BYTES
    return rest >= 0 and rest % 4 == 0 and 1 <= value[1] <= 2


def parse_session(common, client_id, value, row):
    """A session's own row; False where it cannot be read."""
    if len(value) < SESSION_BYTES:
        return False
    data: cython.pointer[cython.const[uint8_t]] = _bytes_at(value, 0)
    will_size: uint32_t = read_u32(data + 40)
    row.number = read_u64(data)
    if row.number == 0 or len(value) != SESSION_BYTES + will_size:
        return False
    name: string = client_id
    row.client_id = name
    row.expiry_s = read_u32(data + 8)
    row.ends_ms = monotonic_ms(common, cython.cast(int64_t, read_u64(data + 12)))
    row.stays = False
    row.will_ms = monotonic_ms(common, cython.cast(int64_t, read_u64(data + 20)))
    row.will_delay_s = read_u32(data + 28)
    row.will_expiry_s = cython.cast(int64_t, read_u64(data + 32))
    row.will = cython.NULL
    if will_size:
        none: MessageId
        none.clock = none.origin = 0
        row.will = read_message(common, data + SESSION_BYTES, will_size, cython.address(none), common.tally)
        return row.will != cython.NULL
    return True


def load_session(common, client_id, value, unasked):
    """A session; what was connected when the broker ended counts as gone since now."""
    row: StoredSession
    if not parse_session(common, client_id, value, cython.address(row)):
        return False
    r: cython.pointer[Reactor] = reactor_for(common, client_id)
    s: cython.pointer[Session] = restore_session(r, cython.address(row))
    if s == cython.NULL:
        if row.will != cython.NULL:
            release_message(row.will, common.tally)
        return False
    fill_session(r, s, cython.address(row))
    if unasked:
        begin_clearing(s.stored)
    let_go_on(r, s)
    return True


def parse_subscription(common, key, value, subscription):
    """A subscription's row; returns whose it is, None where it cannot be read."""
    if len(key) < 3 or len(value) not in (SUBSCRIPTION_BYTES, REPLAY_BYTES):
        return None
    size: cython.size_t = (key[0] << 8) + key[1]
    if len(key) <= 2 + size:
        return None
    filter: bytes = key[2 + size :]
    try:
        filter.decode()
    except UnicodeDecodeError:
        return None
    if value[0] & 3 == 3 or check_topic_filter(span_of(filter), common.limits.topic_levels_max) != FAULT_NONE:
        return None
    kept: string = filter
    subscription.filter = kept
    subscription.options = value[0]
    subscription.subscription_id = read_u32(_bytes_at(value, 1))
    subscription.replayed = len(value) == REPLAY_BYTES
    subscription.epoch = 0
    subscription.start = 0
    if subscription.replayed:
        subscription.epoch = read_u64(_bytes_at(value, SUBSCRIPTION_BYTES))
        subscription.start = cython.cast(int64_t, read_u64(_bytes_at(value, SUBSCRIPTION_BYTES + 8)))
    return key[2 : 2 + size]


def load_subscription(common, key, value):
    """A subscription; one whose session is gone is left out."""
    subscription: StoredSubscription
    client_id = parse_subscription(common, key, value, cython.address(subscription))
    if client_id is None:
        return False
    r: cython.pointer[Reactor] = reactor_for(common, client_id)
    name: string = client_id
    found: Found = find_session(r, cython.address(name), False)
    if found.session != cython.NULL:
        restore_subscription(r, found.session, cython.address(subscription))
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


def mark_of(key):
    """What ``restore_received`` takes, of a row's key and the value behind it."""
    return int.from_bytes(key[10:] + key[8:10])


def load_received(common, key):
    """A packet identifier (in 10 bytes of key, and 6 of a fingerprint, or none) of a QoS 2 message that waits
    for its PUBREL; False where the session is gone.
    """
    number: uint64_t = read_u64(_bytes_at(key, 0))
    if number > common.next_session:
        common.next_session = number  # not to be used again while anything is left of it
    s: cython.pointer[Session] = _session_of(common, number)
    if s == cython.NULL:
        return False
    restore_received(s, mark_of(key))
    return True


def _retained_of(common, topic, value):
    """The retained message of a row, held once; NULL where it cannot be read."""
    if len(value) < 16:
        return cython.NULL
    id: MessageId = read_id(_bytes_at(value, 0))
    message: cython.pointer[Message] = read_message(
        common, _bytes_at(value, 16), len(value) - 16, cython.address(id), common.tally
    )
    if message != cython.NULL and bytes_of(topic_of(message)) != topic:
        release_message(message, common.tally)
        message = cython.NULL
    return message


def load_retained(common, topic, value):
    """What is retained for a topic from now on, also while the reactors run: the newer one of what is there
    and this. False where it cannot be read.
    """
    message: cython.pointer[Message] = _retained_of(common, topic, value)
    if message == cython.NULL:
        return False
    lock_exclusive(common.retained)
    old: cython.pointer[Message] = cython.cast(
        cython.pointer[Message], find_retained(common.retained, topic_of(message))
    )
    if old != cython.NULL and precedes(cython.address(message.id), cython.address(old.id)):
        old = message
    else:
        old = cython.cast(cython.pointer[Message], put_retained(common.retained, topic_of(message), message))
    unlock_exclusive(common.retained)
    if old != cython.NULL:
        release_message(old, common.tally)
    return True


def clear_retained(common, topic, value):
    """Nothing is retained for a topic since the time of an id; what is newer stays."""
    id: MessageId = read_id(_bytes_at(value, 0))
    lock_exclusive(common.retained)
    old: cython.pointer[Message] = cython.cast(
        cython.pointer[Message], find_retained(common.retained, span_of(topic))
    )
    if old != cython.NULL and precedes(cython.address(id), cython.address(old.id)):
        old = cython.NULL
    elif old != cython.NULL:
        remove_retained(common.retained, span_of(topic))
    unlock_exclusive(common.retained)
    if old != cython.NULL:
        release_message(old, common.tally)


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
        if len(key_bytes) != QUEUE_KEY_BYTES or not is_queue_value(value_bytes):
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


def parse_entry(common, key, value, payload, entry):
    """A row in flight with its payload; False where it cannot be read."""
    entry.message = _read_payload(common, key, value, payload)
    if entry.message == cython.NULL:
        return False
    entry.subscription_ids = _read_ids(value)
    entry.place = read_u64(_bytes_at(value, 14))
    entry.qos = value[1]
    entry.retain = value[0] & ROW_FLAG_RETAIN != 0
    entry.released = value[0] & ROW_FLAG_RELEASED != 0
    return True


def load_inflight(common, key, value, payload):
    """An entry that was in flight, at its place; the rows of a queue come in the order of their places."""
    entry: StoredEntry
    s: cython.pointer[Session] = _session_of(common, read_u64(_bytes_at(key, 0)))
    if not parse_entry(common, key, value, payload, cython.address(entry)):
        return False
    taken: cython.bint = restore_entry(common.reactors[s.reactor], s, cython.address(entry))
    free_entry(cython.address(entry), common.tally)
    return taken


def make_rows(common, rows, corrupt):
    """Rows of a queue, each of key, value and payload, as a reactor takes them. ``corrupt`` gets the keys of
    those that cannot be read.
    """
    result: cython.pointer[StoredRows] = new_rows()
    for key, value, payload in rows:
        row: StoredRow
        row.message = cython.NULL
        if payload is not None and is_queue_value(value):
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


def make_ids(ids, sizes):
    """Rows of which only their messages' ids, 16 bytes each, and sizes are known."""
    result: cython.pointer[StoredRows] = make_sizes(sizes)
    for index, each in enumerate(ids):
        result.rows[index].id = read_id(_bytes_at(each, 0))
    return result


def doubt_sessions(common):
    """What a client could have in flight may have been sent already."""
    item = common.registry.begin()
    while item != common.registry.end():
        if dereference(item).second.stored != cython.NULL:
            dereference(item).second.stored.doubtful = common.limits.inflight_max
        preincrement(item)
