"""PUBLISH packets that plugins are asked about, and what came after them: each client's go on in their order.

The client is read meanwhile, up to a bound, so that plugins get batches also of one client. What comes and is
no PUBLISH waits in front of all that until nothing is held (`wait_behind`). Answers may come in any order.
"""

import cython
from cython.cimports.libc.stdint import int64_t, uint64_t
from cython.cimports.libcpp.memory import make_unique, unique_ptr
from cython.cimports.tidemq.engine.base.asserting import holds
from cython.cimports.tidemq.engine.base.counters import C_DROPPED_HELD, MEMORY_BUFFERS
from cython.cimports.tidemq.engine.base.event import EVENT_HELD, Event
from cython.cimports.tidemq.engine.base.message import hold_message, topic_of
from cython.cimports.tidemq.engine.base.steps import count_steps
from cython.cimports.tidemq.engine.base.system import RELAXED, add_i64, load_i64, load_u8
from cython.cimports.tidemq.engine.link.backpressure import pause_held
from cython.cimports.tidemq.engine.link.drops import note_drop
from cython.cimports.tidemq.engine.link.reports import (
    connection_event,
    drop_packet,
    keep_packet,
    new_event,
    post_event,
)
from cython.cimports.tidemq.engine.queues.cache import find_receivers
from cython.cimports.tidemq.engine.state.client import (
    HELD_DENIED,
    HELD_PASSES,
    HELD_WAITS,
    Held,
    HeldPublish,
)
from cython.cimports.tidemq.engine.state.handles import handle_of
from cython.cimports.tidemq.engine.state.routing import PLUGIN_PUBLISH
from cython.cimports.tidemq.wire.protocol import RC_SUCCESS, Span

_HELD_MAX = cython.declare(cython.size_t, 256)  # packets of one client
_HELD_BYTES_MAX = cython.declare(uint64_t, 262144)  # of these; one may be larger
_TOPIC_COPIES = cython.declare(int64_t, 2)  # ours, and the event's
_HELD_IN_ALL = cython.declare(int64_t, 16384)  # packets; beyond, a client may have one


def hold_publish(r, c, publish, first, body, size, asks, came_ms):
    """Keeps a PUBLISH that is allowed, until it need not wait any more."""
    item: HeldPublish
    item.packet = keep_packet(r, first, body, size)
    item.changed = cython.NULL
    if publish.topic.data != body + 2:  # it has an alias, or topic rules say otherwise
        item.topic.assign(cython.cast(cython.p_char, publish.topic.data), publish.topic.size)
        r.tally[MEMORY_BUFFERS] += _TOPIC_COPIES * cython.cast(int64_t, item.topic.size())
    item.verdict = HELD_WAITS if asks else HELD_PASSES
    item.reason = RC_SUCCESS
    item.qos = publish.qos
    item.dup = publish.dup
    item.packet_id = publish.packet_id
    item.delay_s = r.delay_s
    item.came_ms = came_ms
    _add(r, c, cython.address(item))
    if asks:
        _ask(r, c, publish)


def hold_verdict(r, c, publish, verdict, reason):
    """The client is told of it when its turn comes."""
    item: HeldPublish
    item.packet = item.changed = cython.NULL
    item.verdict = verdict
    item.reason = reason
    item.qos = publish.qos
    item.dup = publish.dup
    item.packet_id = publish.packet_id
    item.delay_s = 0
    item.came_ms = r.now_ms
    _add(r, c, cython.address(item))


def _bytes(item):
    """An alias is short, and what it stands for may be long."""
    size: uint64_t = item.topic.size()
    if item.packet != cython.NULL:
        size += item.packet.size()
    return size


def _add(r, c, item):
    if c.held == cython.NULL:
        owner: unique_ptr[Held] = make_unique[Held]()
        c.held = owner.release()
        holds(item.verdict == HELD_WAITS, b"holding: the first that is held waits for plugins")
    c.held.messages.push_back(item[0])
    c.held.bytes += _bytes(item)
    c.held.owed += item.qos > 0
    add_i64(cython.address(r.common.held), 1, RELAXED)
    if _is_full(r, c.held):
        pause_held(r, c)


def _is_full(r, held):
    many: cython.bint = held.messages.size() >= _HELD_MAX or held.bytes >= _HELD_BYTES_MAX
    return many or load_i64(cython.address(r.common.held), RELAXED) > _HELD_IN_ALL


def _ask(r, c, publish):
    """The newest of what is held goes up."""
    event: cython.pointer[Event] = connection_event(r, c, EVENT_HELD)
    event.offset = cython.cast(int64_t, c.held.first + c.held.messages.size() - 1)
    event.text.assign(cython.cast(cython.p_char, publish.topic.data), publish.topic.size)
    event.data.assign(cython.cast(cython.p_char, publish.payload.data), publish.payload.size)
    event.reason = publish.qos
    event.flag = publish.retain
    if publish.properties.present:
        raw: Span = publish.properties.raw
        event.packet.assign(cython.cast(cython.p_char, raw.data), raw.size)
    post_event(r.common, event)


def answer_held(r, c, mail):
    """Plugins have decided on one of them."""
    held: cython.pointer[Held] = c.held
    if held == cython.NULL or mail.token - held.first >= held.messages.size():
        return
    item: cython.pointer[HeldPublish] = cython.address(held.messages[mail.token - held.first])
    if item.verdict != HELD_WAITS:
        return
    item.verdict = HELD_DENIED if mail.reason else HELD_PASSES
    item.reason = mail.reason
    if mail.letter != cython.NULL:
        item.changed = mail.letter.data
        mail.letter.data = cython.NULL
        r.tally[MEMORY_BUFFERS] += cython.cast(int64_t, item.changed.size())
    if has_answered(held) and not held.due:
        continue_later(r, c)


def has_answered(held):
    """Whether there is one, the first, that need not wait any more."""
    return not held.messages.empty() and held.messages.front().verdict != HELD_WAITS


def continue_later(r, c):
    """Later in this turn, or in the next, held messages go on (`releasing.release_held`)."""
    c.held.due = True
    r.resumed.push_back(handle_of(r, c))


def take_held(r, c):
    """The first; the caller frees it."""
    held: cython.pointer[Held] = c.held
    holds(has_answered(held), b"holding: what goes on need not wait any more")
    item: HeldPublish = held.messages.front()
    held.messages.pop_front()
    held.first += 1
    held.bytes -= _bytes(cython.address(item))
    held.owed -= item.qos > 0
    add_i64(cython.address(r.common.held), -1, RELAXED)
    return item


def free_held(r, item):
    if item.changed != cython.NULL:
        r.tally[MEMORY_BUFFERS] -= cython.cast(int64_t, item.changed.size())
        del item.changed
    r.tally[MEMORY_BUFFERS] -= _TOPIC_COPIES * cython.cast(int64_t, item.topic.size())
    drop_packet(r, item.packet)


def end_release(r, c):
    """The client is read again where few enough are left."""
    held: cython.pointer[Held] = c.held
    empty: cython.bint = held.messages.empty()
    if held.paused and (empty or (not held.behind and held.messages.size() <= _HELD_MAX // 2)):
        holds(c.pause_count > 0, b"holding: a client that is read again was paused")
        held.paused = held.behind = False
        c.pause_count -= 1
    if empty:
        del c.held
        c.held = cython.NULL


def drop_held(r, c):
    """The connection ends: what is held has not been acknowledged, and is dropped."""
    lost: uint64_t = 0
    index: cython.size_t
    if c.held == cython.NULL:
        return
    count_steps(c.held.messages.size())
    for index in range(c.held.messages.size()):
        lost += c.held.messages[index].packet != cython.NULL
        free_held(r, cython.address(c.held.messages[index]))
    add_i64(cython.address(r.common.held), -cython.cast(int64_t, c.held.messages.size()), RELAXED)
    note_drop(r, c.session, C_DROPPED_HELD, lost)
    del c.held
    c.held = cython.NULL


def hand_over_will(r, s):
    """Whether plugins decide on a will: then the control plane publishes it, or does not. They have decided
    on a delayed message before.
    """
    if s.delayed_bytes:
        return False
    topic: Span = topic_of(s.will.message)
    if (
        not load_u8(cython.address(r.common.plugins), RELAXED)
        or not find_receivers(r, cython.address(topic)).plugins & PLUGIN_PUBLISH
    ):
        return False
    event: cython.pointer[Event] = new_event(EVENT_HELD, 0)
    event.client_id = s.client_id
    event.offset = s.will.expiry_s
    event.message = s.will.message
    hold_message(event.message)
    post_event(r.common, event)
    return True
