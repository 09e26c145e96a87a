"""Messages that a stream keeps, for a client that subscribes to them below `$stream/`.

The control plane finds and encodes them and hands over a piece at a time; it is told when that is out, so a
client gets them as fast as it reads, and no more than a piece waits here. Such a filter is in no subscription
index. At QoS 0 it is in no session either: it ends with the connection. At QoS 1 the session has it and
knows how far it is acknowledged (`replayed`): the control plane is told when it begins, and when its client
is back.
"""

import cython
from cython.cimports.libc.stdint import int64_t, uint8_t, uint32_t, uint64_t
from cython.cimports.libc.string import memcmp
from cython.cimports.tidemq.engine.base.asserting import holds
from cython.cimports.tidemq.engine.base.counters import (
    C_MESSAGES_SENT,
    C_REFUSED_STORE,
    C_SUBSCRIPTIONS_REVOKED,
)
from cython.cimports.tidemq.engine.base.event import (
    EVENT_DELIVERED,
    EVENT_FED,
    EVENT_REPLAY,
    EVENT_UNSUBSCRIBE,
    Event,
)
from cython.cimports.tidemq.engine.base.steps import count_steps
from cython.cimports.tidemq.engine.clients.replaying import START_BYTES
from cython.cimports.tidemq.engine.journal.journal import STORE_FAILED
from cython.cimports.tidemq.engine.journal.rows import read_u64
from cython.cimports.tidemq.engine.link.output import append_output, touch
from cython.cimports.tidemq.engine.link.replies import span_of
from cython.cimports.tidemq.engine.link.reports import connection_event, new_event, post_event
from cython.cimports.tidemq.engine.queues.delivery import send_waiting
from cython.cimports.tidemq.engine.queues.replayed import (
    append_replayed,
    begin_replay,
    drop_replay,
    find_replay,
)
from cython.cimports.tidemq.engine.state.client import CONNECTED, Connection, Replay, Session
from cython.cimports.tidemq.engine.state.handles import connection_of, handle_of
from cython.cimports.tidemq.wire.packets import next_filter
from cython.cimports.tidemq.wire.protocol import RC_QUOTA_EXCEEDED, RC_SUCCESS, Span
from cython.operator import dereference, preincrement

_PREFIX_SIZE = cython.declare(uint32_t, 8)


def names_stream(filter):
    """Whether the filter asks for what a stream keeps."""
    return filter.size > _PREFIX_SIZE and memcmp(filter.data, cython.cast(cython.p_char, b"$stream/"), 8) == 0


def asks_for_stream(filters):
    """The same of any of a SUBSCRIBE packet's filters."""
    filter: Span
    options: uint8_t
    while next_filter(cython.address(filters), True, cython.address(filter), cython.address(options)):
        if names_stream(filter):
            return True
    return False


def apply_replay(r, c, filter, options, subscription_id, start, fails):
    """A subscription that the control plane has granted, with the QoS and the ``start`` that it says; returns
    the reason. ``fails``: it would have to be stored, and the store takes nothing.
    """
    c.replays = True
    reason: uint8_t = RC_SUCCESS
    if start.size < START_BYTES or start.data[0] == 0:
        drop_replay(r, c.session, filter)
        return reason
    replay: cython.pointer[Replay] = cython.NULL
    if fails and find_replay(c.session, filter) == cython.NULL:
        r.tally[C_REFUSED_STORE] += 1
        reason = STORE_FAILED
    else:
        epoch: uint64_t = read_u64(start.data + 1)
        offset: int64_t = cython.cast(int64_t, read_u64(start.data + 9))
        options = (options & ~3) | 1
        replay = begin_replay(r, c.session, filter, options, subscription_id, epoch, offset)
        reason = 1 if replay != cython.NULL else RC_QUOTA_EXCEEDED
    if replay == cython.NULL:
        report_unsubscribed(r, c, filter)
    else:
        _report_replay(r, c, replay, True)
    return reason


def _report_replay(r, c, replay, asked):
    """Tells the control plane where to begin, or to go on."""
    event: cython.pointer[Event] = connection_event(r, c, EVENT_REPLAY)
    event.text = replay.filter
    event.reason = replay.options & 3
    event.epoch = replay.epoch
    event.offset = replay.end
    event.number = replay.subscription_id
    event.packet_bytes_max = c.packet_bytes_max
    event.flag = asked
    post_event(r.common, event)


def resume_replays(r, c):
    """The client is back: what its session was given of streams goes on."""
    s: cython.pointer[Session] = c.session
    if s.replays == cython.NULL:
        return
    item = s.replays.by_filter.begin()
    while item != s.replays.by_filter.end():
        c.replays = True
        _report_replay(r, c, dereference(item).second, False)
        preincrement(item)
        count_steps(1)


def feed_replay(r, mail):
    """Messages for a replay at QoS 1; where the client has gone, that is said at once."""
    c: cython.pointer[Connection] = connection_of(r, mail.number)
    if c == cython.NULL or c.doomed or c.leaving or c.state != CONNECTED:
        event: cython.pointer[Event] = new_event(EVENT_FED, mail.number)
        event.text = mail.letter.text[0]
        event.flag = True
        post_event(r.common, event)
        return
    replay: cython.pointer[Replay] = find_replay(c.session, span_of(mail.letter.text))
    if replay != cython.NULL:  # else it has ended meanwhile
        append_replayed(r, c.session, replay, span_of(mail.letter.data), cython.cast(int64_t, mail.token))
        send_waiting(r, c.session)
        touch(r, c)


def revoke_replay(r, mail):
    """The client may have this no more, or there is none of it."""
    c: cython.pointer[Connection] = connection_of(r, mail.number)
    if c != cython.NULL and c.session != cython.NULL:
        if drop_replay(r, c.session, span_of(mail.letter.text)):
            r.tally[C_SUBSCRIPTIONS_REVOKED] += 1


def report_unsubscribed(r, c, filter):
    """Tells the control plane that the client wants no more of it."""
    event: cython.pointer[Event] = new_event(EVENT_UNSUBSCRIBE, handle_of(r, c))
    event.text.assign(cython.cast(cython.p_char, filter.data), filter.size)
    post_event(r.common, event)


def deliver_replayed(r, mail):
    """Puts packets into the client's output; where it has gone, that is said at once."""
    c: cython.pointer[Connection] = connection_of(r, mail.number)
    if c == cython.NULL or c.doomed or not c.replays:
        event: cython.pointer[Event] = new_event(EVENT_DELIVERED, mail.number)
        event.flag = True
        post_event(r.common, event)
        return
    holds(not c.delivered, b"replaying: the next piece comes when the last one is out")
    append_output(r, c, mail.letter.data.data(), cython.cast(uint32_t, mail.letter.data.size()))
    r.tally[C_MESSAGES_SENT] += mail.token
    c.delivered = True
    touch(r, c)


def report_delivered(r, c, gone):
    """What was delivered last is out, or never will be."""
    holds(c.delivered, b"replaying: what is reported was delivered")
    c.delivered = False
    event: cython.pointer[Event] = new_event(EVENT_DELIVERED, handle_of(r, c))
    event.flag = gone
    post_event(r.common, event)
