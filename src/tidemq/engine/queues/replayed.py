"""What a stream keeps, to a session at QoS 1: messages that the control plane brings go through the outbox as
all others do, and the session remembers how far they are acknowledged, in the store too.

The store has no row for such a message, for the stream keeps it; it has the offset before which all are
acknowledged, in the row of the subscription. What was sent stays in the outbox while its client is away, and
is sent again with its packet identifier. What was not sent leaves, and is brought again.
"""

import cython
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t
from cython.cimports.libcpp.memory import make_unique, unique_ptr
from cython.cimports.libcpp.string import string
from cython.cimports.tidemq.engine.base.asserting import holds
from cython.cimports.tidemq.engine.base.counters import MEMORY_SESSIONS
from cython.cimports.tidemq.engine.base.event import EVENT_FED, Event
from cython.cimports.tidemq.engine.base.message import (
    Passage,
    copy_identifiers,
    empty_passage,
    message_bytes,
    new_message,
)
from cython.cimports.tidemq.engine.base.steps import count_steps
from cython.cimports.tidemq.engine.journal.journal import change_value, delete_value, put_value
from cython.cimports.tidemq.engine.journal.rows import (
    append_subscription_key,
    append_u32,
    append_u64,
    read_u32,
    read_u64,
)
from cython.cimports.tidemq.engine.link.reports import new_event, post_event
from cython.cimports.tidemq.engine.queues.outbox import append_entry, entry_at, forget_entry
from cython.cimports.tidemq.engine.state.client import Replay, Replayed, Replays
from cython.cimports.tidemq.engine.state.handles import handle_of
from cython.cimports.tidemq.engine.state.queue import WAITING, Entry, Outbox
from cython.cimports.tidemq.engine.state.section import FAMILY_SUBSCRIPTION
from cython.cimports.tidemq.wire.protocol import Span
from cython.operator import dereference, preincrement

_REFILLED_AT = cython.declare(cython.size_t, 64)  # messages not acknowledged, of a replay that gets more
_OF_A_SESSION_MAX = cython.declare(cython.size_t, 32_768)  # a number has 16 bits
_HEAD_BYTES = cython.declare(uint32_t, 20)  # of a message that comes: offset (8), sizes of its parts (4 each)
_REPLAY_BYTES = cython.declare(int64_t, 512)  # about, with its places in tables; its filter comes to it


def find_replay(s, filter):
    """The session's replay of this whole filter."""
    key: string
    key.assign(cython.cast(cython.p_char, filter.data), filter.size)
    if s.replays == cython.NULL or not s.replays.by_filter.count(key):
        return cython.NULL
    return s.replays.by_filter[key]


def _record(r, s, replay):
    """Brings the subscription's row up to date: options (1), subscription identifier (4), the stream's epoch
    (8), the first offset that is not acknowledged (8).
    """
    if s.stored == cython.NULL or r.section == cython.NULL:
        return
    key: string
    value: string
    value.push_back(cython.cast(cython.char, replay.options))
    append_u32(cython.address(value), replay.subscription_id)
    append_u64(cython.address(value), replay.epoch)
    append_u64(cython.address(value), replay.recorded)
    if change_value(r, replay.section, replay.record, cython.address(value)):
        return
    append_subscription_key(cython.address(s.client_id), cython.address(replay.filter), cython.address(key))
    put_value(r, FAMILY_SUBSCRIPTION, cython.address(key), cython.address(value))
    replay.section = r.section.number
    replay.record = cython.cast(uint32_t, r.section.records.size() - 1)


def _delete(r, s, replay):
    key: string
    if s.stored != cython.NULL and r.section != cython.NULL:
        append_subscription_key(
            cython.address(s.client_id), cython.address(replay.filter), cython.address(key)
        )
        delete_value(r, FAMILY_SUBSCRIPTION, cython.address(key))


def begin_replay(r, s, filter, options, subscription_id, epoch, start):
    """A subscription at QoS 1. One that the session has goes on where it was, if the stream is the same; any
    other begins at ``start``. NULL: the session may have no more of them.
    """
    replay: cython.pointer[Replay] = find_replay(s, filter)
    if replay != cython.NULL and replay.epoch != epoch:
        drop_replay(r, s, filter)
        replay = cython.NULL
    if replay == cython.NULL:
        if s.replays != cython.NULL and s.replays.by_filter.size() >= min(
            _OF_A_SESSION_MAX, r.common.limits.subscriptions_max
        ):
            return cython.NULL
        restore_replay(r, s, filter, options, subscription_id, epoch, start)
        replay = find_replay(s, filter)
        replay.doubtful = 0
    replay.options = options
    replay.subscription_id = subscription_id
    _record(r, s, replay)
    return replay


def restore_replay(r, s, filter, options, subscription_id, epoch, start):
    """One that the store has: some of what comes next may have been sent before the broker ended."""
    if s.replays == cython.NULL:
        owner: unique_ptr[Replays] = make_unique[Replays]()
        s.replays = owner.release()
    holds(find_replay(s, filter) == cython.NULL, b"replayed: a session has one replay of a filter")
    made: unique_ptr[Replay] = make_unique[Replay]()
    replay: cython.pointer[Replay] = made.release()
    replay.filter.assign(cython.cast(cython.p_char, filter.data), filter.size)
    replay.options = options
    replay.subscription_id = subscription_id
    replay.epoch = epoch
    replay.end = replay.recorded = start
    replay.doubtful = r.common.limits.inflight_max
    s.replays.last += 1
    while s.replays.last == 0 or s.replays.by_number.count(s.replays.last):
        s.replays.last += 1
        count_steps(1)
    replay.number = s.replays.last
    s.replays.by_number[replay.number] = replay
    s.replays.by_filter[replay.filter] = replay
    r.tally[MEMORY_SESSIONS] += _REPLAY_BYTES + filter.size


def drop_replay(r, s, filter):
    """It ends; false where there is none. What was sent is still to be acknowledged."""
    replay: cython.pointer[Replay] = find_replay(s, filter)
    if replay == cython.NULL:
        return False
    _evict(r, s, replay)
    _delete(r, s, replay)
    r.tally[MEMORY_SESSIONS] -= _REPLAY_BYTES + cython.cast(int64_t, replay.filter.size())
    s.replays.by_number.erase(replay.number)
    s.replays.by_filter.erase(replay.filter)
    del replay
    return True


def append_replayed(r, s, replay, messages, end):
    """Messages of the stream wait in the outbox, and all before the offset ``end`` have come; what was here
    before does not come again. Each is offset (8), sizes of topic, properties and payload (4 each), and they.
    """
    rest: Span = messages
    topic: Span
    properties: Span
    payload: Span
    while rest.size >= _HEAD_BYTES:
        offset: int64_t = cython.cast(int64_t, read_u64(rest.data))
        topic = Span(rest.data + _HEAD_BYTES, read_u32(rest.data + 8))
        properties = Span(topic.data + topic.size, read_u32(rest.data + 12))
        payload = Span(properties.data + properties.size, read_u32(rest.data + 16))
        size: uint64_t = _HEAD_BYTES
        size += topic.size
        size += properties.size
        size += payload.size
        if offset >= replay.end:
            _append(r, s, replay, offset, topic, properties, payload)
        rest = Span(rest.data + size, rest.size - cython.cast(uint32_t, size))
        count_steps(1)
    replay.end = max(end, replay.end)
    replay.due = True
    _settle(r, s, replay)


def _append(r, s, replay, offset, topic, properties, payload):
    passage: Passage
    pending: Replayed
    box: cython.pointer[Outbox] = cython.address(s.outbox)
    empty_passage(cython.address(passage))
    passage.topic = topic
    passage.properties = properties
    passage.payload = payload
    passage.qos = 1
    entry: cython.pointer[Entry] = append_entry(box, r.now_ms, r.tally)
    entry.message = new_message(cython.address(passage), r.tally)
    entry.qos = 1
    entry.retain = False
    entry.replay = replay.number
    entry.subscription_ids = copy_identifiers(
        cython.address(replay.subscription_id), 1 if replay.subscription_id else 0
    )
    if replay.doubtful:
        replay.doubtful -= 1
        entry.was_sent = True
    box.bytes += message_bytes(entry.message)
    pending.place = box.tail - 1
    pending.offset = offset
    pending.done = False
    replay.pending.push_back(pending)


def note_replayed(r, s, number, place):
    """The client has a message of this replay, or takes none so large: it is not brought again."""
    if s.replays == cython.NULL or not s.replays.by_number.count(number):
        return
    replay: cython.pointer[Replay] = s.replays.by_number[number]
    low: cython.size_t = 0
    high: cython.size_t = replay.pending.size()
    while low < high:
        middle: cython.size_t = (low + high) // 2
        if replay.pending[middle].place < place:
            low = middle + 1
        else:
            high = middle
    if low == replay.pending.size() or replay.pending[low].place != place:
        return  # of one with this number that has ended
    replay.pending[low].done = True
    _settle(r, s, replay)


def _settle(r, s, replay):
    """Notes how far it is acknowledged, and asks for more where there is room."""
    while not replay.pending.empty() and replay.pending.front().done:
        replay.pending.pop_front()
        count_steps(1)
    first: int64_t = replay.end
    if not replay.pending.empty():
        first = replay.pending.front().offset
    holds(first >= replay.recorded, b"replayed: what is acknowledged stays so")
    if first != replay.recorded:
        replay.recorded = first
        _record(r, s, replay)
    if replay.due and replay.pending.size() <= _REFILLED_AT and s.connection != cython.NULL:
        replay.due = False
        event: cython.pointer[Event] = new_event(EVENT_FED, handle_of(r, s.connection))
        event.text = replay.filter
        post_event(r.common, event)


def _evict(r, s, replay):
    """What was never sent leaves the outbox, from its end on."""
    box: cython.pointer[Outbox] = cython.address(s.outbox)
    while not replay.pending.empty() and not replay.pending.back().done:
        last: Replayed = replay.pending.back()
        entry: cython.pointer[Entry] = entry_at(box, last.place)
        if entry.state != WAITING or entry.was_sent:
            break
        forget_entry(box, entry, r.tally)
        replay.pending.pop_back()
        replay.end = last.offset
        count_steps(1)
    replay.due = False


def evict_replayed(r, s):
    """The client is gone."""
    if s.replays == cython.NULL:
        return
    item = s.replays.by_filter.begin()
    while item != s.replays.by_filter.end():
        _evict(r, s, dereference(item).second)
        preincrement(item)
        count_steps(1)


def unstore_replays(r, s):
    """The session ends: its rows go."""
    if s.replays == cython.NULL:
        return
    item = s.replays.by_filter.begin()
    while item != s.replays.by_filter.end():
        _delete(r, s, dereference(item).second)
        preincrement(item)
        count_steps(1)


def free_replays(r, s):
    """The session ends."""
    if s.replays == cython.NULL:
        return
    item = s.replays.by_filter.begin()
    while item != s.replays.by_filter.end():
        replay: cython.pointer[Replay] = dereference(item).second
        r.tally[MEMORY_SESSIONS] -= _REPLAY_BYTES + cython.cast(int64_t, replay.filter.size())
        del replay
        preincrement(item)
        count_steps(1)
    del s.replays
    s.replays = cython.NULL
