"""SUBSCRIBE and UNSUBSCRIBE."""

import cython
from cython.cimports.libc.stdint import uint8_t, uint16_t, uint32_t
from cython.cimports.libcpp.string import string
from cython.cimports.tidemq.engine.base.asserting import holds
from cython.cimports.tidemq.engine.base.counters import (
    C_REFUSED_EXCLUSIVE,
    C_REFUSED_NOT_AUTHORISED,
    C_REFUSED_STORE,
    C_REFUSED_SUBSCRIPTIONS,
    C_SUBSCRIBED_AT_CONNECT,
)
from cython.cimports.tidemq.engine.base.event import EVENT_SUBSCRIBE, Event
from cython.cimports.tidemq.engine.base.steps import count_steps
from cython.cimports.tidemq.engine.clients.authorising import judge_filter, judge_filters
from cython.cimports.tidemq.engine.clients.replaying import (
    START_BYTES,
    apply_replay,
    asks_for_stream,
    names_stream,
    report_unsubscribed,
)
from cython.cimports.tidemq.engine.index.rules import NAMES_CLIENT, NAMES_USER, USER_BYTE, fits_level
from cython.cimports.tidemq.engine.index.topic_rules import (
    REWRITES_SUBSCRIBE,
    ConnectSubscription,
    find_rewrite,
    rewrite,
)
from cython.cimports.tidemq.engine.journal.journal import STORE_FAILED, store_fails
from cython.cimports.tidemq.engine.journal.rows import append_u16
from cython.cimports.tidemq.engine.link.drops import note_drop
from cython.cimports.tidemq.engine.link.output import doom, touch
from cython.cimports.tidemq.engine.link.replies import append_packet, encode_reasons, span_of
from cython.cimports.tidemq.engine.link.reports import connection_event, drop_packet, keep_packet, post_event
from cython.cimports.tidemq.engine.link.visits import is_bridge
from cython.cimports.tidemq.engine.queues.backlogs import begin_backlog, end_backlog
from cython.cimports.tidemq.engine.queues.promises import promise_backlog, promise_packet
from cython.cimports.tidemq.engine.queues.replayed import drop_replay, find_replay
from cython.cimports.tidemq.engine.queues.sessions import add_subscription, drop_subscription
from cython.cimports.tidemq.engine.state.handles import handle_of
from cython.cimports.tidemq.wire.packets import (
    Subscribe,
    next_filter,
    parse_subscribe,
    parse_unsubscribe,
)
from cython.cimports.tidemq.wire.properties import has_property
from cython.cimports.tidemq.wire.protocol import (
    FAULT_NONE,
    FAULT_STORE,
    PROP_SUBSCRIPTION_ID,
    RC_NO_SUBSCRIPTION_EXISTED,
    RC_QUOTA_EXCEEDED,
    RC_SUCCESS,
    RC_TOPIC_FILTER_INVALID,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    Fault,
    Span,
    fault_reason,
)
from cython.cimports.tidemq.wire.topics import split_shared, wildcard_ways

_KEPT = cython.declare(uint8_t, 0x0F)  # of a subscription's options, what is the client's and stays
_FILTERS_MAX = cython.declare(uint32_t, 16_384)  # of one SUBSCRIBE, where a client may not hold more


def handle_subscribe(r, c, first, body, size):
    """A SUBSCRIBE from a client."""
    packet: Subscribe
    renamed: string
    fault: Fault = FAULT_NONE
    renames: cython.bint = _renames(r, c)
    if renames:
        fault = parse_subscribe(
            first, body, size, c.version, r.common.limits.topic_levels_max, cython.address(packet)
        )
    if renames and fault == FAULT_NONE:
        _rename(r, body, cython.address(packet), True, cython.address(renamed))
        body = span_of(cython.address(renamed)).data
        size = span_of(cython.address(renamed)).size
    _subscribe(r, c, first, body, size)


def _renames(r, c):
    """Whether filters get other names. Those of a bridge do not: it would not know by what name to pass on
    what comes.
    """
    return r.topic_rules != cython.NULL and not (r.topic_rules.rewrites.empty() or is_bridge(c))


def _append_renamed(r, filter, body):
    """A filter by the name that the operator wants for its topics, or as it is, with its length."""
    topics: Span = split_shared(filter).filter
    before: uint32_t = filter.size - topics.size  # `$share/group/`
    number: uint16_t = find_rewrite(r.topic_rules, topics, REWRITES_SUBSCRIBE)
    named: cython.bint = number != 0 and rewrite(r.topic_rules, number, topics, cython.address(r.rewritten))
    if named and before + r.rewritten.size() <= 0xFFFF:
        topics = span_of(cython.address(r.rewritten))
    append_u16(body, cython.cast(uint16_t, before + topics.size))
    body.append(cython.cast(cython.p_char, filter.data), before)
    body.append(cython.cast(cython.p_char, topics.data), topics.size)


def _rename(r, body, packet, with_options, renamed):
    """The same SUBSCRIBE or UNSUBSCRIBE with the names that the operator wants. More filters than a client
    may have keep their names, so that one packet does not take long: they are refused, or there are none.
    Steps are counted where each filter is applied.
    """
    filter: Span
    options: uint8_t
    rest: Span = packet.filters
    left: uint32_t = min(packet.count, _filters_max(r))
    # packet identifier and properties
    renamed.assign(cython.cast(cython.p_char, body), cython.cast(cython.size_t, rest.data - body))
    while left and next_filter(
        cython.address(rest), with_options, cython.address(filter), cython.address(options)
    ):
        left -= 1
        _append_renamed(r, filter, renamed)
        if with_options:
            renamed.push_back(cython.cast(cython.char, options))
    renamed.append(cython.cast(cython.p_char, rest.data), rest.size)


def _filters_max(r):
    """Of one packet."""
    return max(r.common.limits.subscriptions_max, _FILTERS_MAX)


def _fill_in(c, wanted, filter):
    """A filter with the client's names in it; false where one does not fit, or there is none."""
    client_id: Span = span_of(cython.address(c.session.client_id))
    user: Span = Span(cython.NULL, 0)
    index: cython.size_t
    if c.identity != cython.NULL and c.identity.username != cython.NULL:
        user = span_of(c.identity.username)
    if (wanted.names & NAMES_USER and not fits_level(user)) or (
        wanted.names & NAMES_CLIENT and not fits_level(client_id)
    ):
        return False
    filter.clear()
    for index in range(wanted.filter.size()):
        byte: uint8_t = wanted.filter[index]
        if byte >= USER_BYTE:
            name: Span = user if byte == USER_BYTE else client_id
            filter.append(cython.cast(cython.p_char, name.data), name.size)
        else:
            filter.push_back(cython.cast(cython.char, byte))
    return filter.size() <= 0xFFFF


def _has(c, filter, options):
    """Whether the session, which has come back, is subscribed so already, or as far as it may be."""
    if c.session.subscriptions == cython.NULL or not c.session.subscriptions.count(filter[0]):
        return False
    judge_filter(c, span_of(filter), cython.address(options))
    if options & 3 > c.qos_max:
        options = options & 0xFC | c.qos_max
    return c.session.subscriptions[0][filter[0]].options & _KEPT == options & _KEPT


def subscribe_at_connect(r, c):
    """Subscribes a client to what the operator wants, as if its SUBSCRIBE had come right behind its CONNECT;
    what a session that comes back has already, stays as it is.
    """
    body: string
    filter: string
    index: cython.size_t
    if r.topic_rules == cython.NULL or r.topic_rules.subscriptions.empty() or c.doomed:
        return
    if is_bridge(c):
        return  # its topics are those of the configuration alone
    append_u16(cython.address(body), 1)  # some identifier: nobody is answered
    if c.version == 5:
        body.push_back(0)
    empty: cython.size_t = body.size()
    for index in range(r.topic_rules.subscriptions.size()):
        wanted: cython.pointer[ConnectSubscription] = cython.address(r.topic_rules.subscriptions[index])
        options: uint8_t = wanted.options if c.version == 5 else wanted.options & 3
        if not _fill_in(c, wanted, cython.address(filter)) or _has(c, cython.address(filter), options):
            continue
        append_u16(cython.address(body), cython.cast(uint16_t, filter.size()))
        body.append(filter)
        body.push_back(cython.cast(cython.char, options))
        r.tally[C_SUBSCRIBED_AT_CONNECT] += 1
    if body.size() == empty:
        return
    c.automatic = True
    _subscribe(
        r,
        c,
        SUBSCRIBE << 4 | 2,
        span_of(cython.address(body)).data,
        cython.cast(uint32_t, body.size()),
    )
    c.automatic = c.asked


def _subscribe(r, c, first, body, size):
    """Applied at once, or after the control plane has decided on each filter."""
    packet: Subscribe
    fault: Fault = parse_subscribe(
        first, body, size, c.version, r.common.limits.topic_levels_max, cython.address(packet)
    )
    if fault != FAULT_NONE:
        doom(r, c, fault_reason(fault), fault)
        return
    if r.common.ask_subscribe or asks_for_stream(packet.filters):
        holds(c.pending_packet == cython.NULL, b"subscribing: one SUBSCRIBE of a client waits for a decision")
        c.asked = True
        touch(r, c)
        c.pending_packet = keep_packet(r, first, body, size)
        event: cython.pointer[Event] = connection_event(r, c, EVENT_SUBSCRIBE)
        event.packet = c.pending_packet[0]
        event.packet_bytes_max = c.packet_bytes_max
        event.data = judge_filters(c, packet.filters)
        post_event(r.common, event)
        return
    _apply_subscribe(r, c, cython.address(packet), cython.NULL)


def answer_subscribe(r, c, answer):
    """The control plane's reason for each filter: 0 allows it; one that it left out is refused."""
    packet: Subscribe
    if not c.asked or c.pending_packet == cython.NULL:
        return
    kept: cython.pointer[string] = c.pending_packet
    data: cython.pointer[cython.const[uint8_t]] = span_of(kept).data
    if data[0] >> 4 != SUBSCRIBE:
        return  # an answer to something else
    c.pending_packet = cython.NULL
    c.asked = False
    r.resumed.push_back(handle_of(r, c))
    parse_subscribe(
        data[0],
        data + 1,
        cython.cast(uint32_t, kept.size() - 1),
        c.version,
        r.common.limits.topic_levels_max,
        cython.address(packet),
    )
    _apply_subscribe(r, c, cython.address(packet), answer)
    c.automatic = False
    drop_packet(r, kept)


def _is_refused(r, filter):
    """Whether a client may not have a filter to itself: the operator does not allow any, or it begins with a
    `$` once more.
    """
    if r.topic_rules == cython.NULL or not r.topic_rules.exclusive:
        return True
    return split_shared(filter).filter.data[0] == 0x24


def _apply_one(r, c, filter, options, subscription_id, fails, wants_retained):
    """Subscribes to one filter; returns its reason code and whether its retained messages are to be sent.

    ``fails``: it would have to be stored, and the store takes nothing.
    """
    wants_retained[0] = False
    if filter.size > r.common.limits.topic_bytes_max:
        return RC_TOPIC_FILTER_INVALID
    if split_shared(filter).exclusive and _is_refused(r, filter):
        r.tally[C_REFUSED_EXCLUSIVE] += 1
        return RC_TOPIC_FILTER_INVALID
    if wildcard_ways(split_shared(filter).filter) > r.common.limits.wildcard_ways_max:
        r.tally[C_REFUSED_SUBSCRIPTIONS] += 1
        return RC_TOPIC_FILTER_INVALID
    if fails:
        r.tally[C_REFUSED_STORE] += 1
        return STORE_FAILED
    reason: uint8_t = add_subscription(r, c.session, filter, options, subscription_id, wants_retained)
    if wants_retained[0]:
        end_backlog(r, c.session, filter)  # it begins anew
    return reason


def _answer(r, c, packet_type, packet_id, reasons, why, stored):
    """SUBACK or UNSUBACK; ``stored``: once the store has what it says."""
    packet: string
    if c.automatic:
        return
    if why != cython.NULL and not c.terse:  # [MQTT-3.1.2-29]
        encode_reasons(c.version, packet_type, packet_id, reasons, why, cython.address(packet))
    if packet.empty() or packet.size() > c.packet_bytes_max:  # [MQTT-3.9.2-1]
        packet.clear()
        encode_reasons(c.version, packet_type, packet_id, reasons, cython.NULL, cython.address(packet))
    if stored and packet.size() <= c.packet_bytes_max:
        promise_packet(r, c, cython.address(packet))
    else:
        append_packet(r, c, cython.address(packet))


def _apply_subscribe(r, c, packet, answer):
    """Subscribes, answers with SUBACK in the filters' order, then sends what is retained [MQTT-3.8.4-6]."""
    subscription_id: uint32_t = 0
    reasons: string
    wanted: string
    filter: Span
    options: uint8_t
    if c.version == 5 and has_property(cython.address(packet.properties), PROP_SUBSCRIPTION_ID):
        subscription_id = packet.properties.subscription_id
    rest: Span = packet.filters
    index: uint32_t = 0
    retained: cython.bint
    stored: cython.bint = c.session.stored != cython.NULL
    fails: cython.bint = stored and store_fails(r)
    starts: Span = Span(cython.NULL, 0)
    why: cython.pointer[cython.const[string]] = cython.NULL
    if answer != cython.NULL:
        why = answer.text
        if answer.starts != cython.NULL:
            starts = span_of(answer.starts)
    while next_filter(cython.address(rest), True, cython.address(filter), cython.address(options)):
        reason: uint8_t = RC_SUCCESS
        retained = False
        if answer != cython.NULL:
            reason = answer.data[0][index] if index < answer.data.size() else 0x87
        if reason < 0x80:
            reason = judge_filter(c, filter, cython.address(options))
        if options & 3 > c.qos_max:
            options = options & 0xFC | c.qos_max
        if reason >= 0x80:
            note_drop(r, c.session, C_REFUSED_NOT_AUTHORISED, 1)
        elif index >= _filters_max(r):
            reason = RC_QUOTA_EXCEEDED
            r.tally[C_REFUSED_SUBSCRIPTIONS] += 1
            if names_stream(filter):
                report_unsubscribed(r, c, filter)
        elif names_stream(filter) and filter.size <= r.common.limits.topic_bytes_max:
            reason = apply_replay(r, c, filter, options, subscription_id, starts, fails)
            if starts.size:
                starts = Span(starts.data + START_BYTES, starts.size - START_BYTES)
        else:
            reason = _apply_one(r, c, filter, options, subscription_id, fails, cython.address(retained))
        reasons.push_back(cython.cast(cython.char, reason))
        wanted.push_back(retained)
        index += 1
        count_steps(1)
    _answer(r, c, SUBACK, packet.packet_id, cython.address(reasons), why, stored and not fails)
    rest = packet.filters
    index = 0
    while next_filter(cython.address(rest), True, cython.address(filter), cython.address(options)):
        holds(
            index < wanted.size(),
            b"subscribing: of each filter it is known what it wants",
        )
        if wanted[index] and stored:
            promise_backlog(r, c, filter, reasons[index] & 3, subscription_id)
        elif wanted[index]:
            begin_backlog(r, c.session, filter, reasons[index] & 3, subscription_id)
        index += 1


def _drop_one(r, c, filter, fails):
    """Unsubscribes from one filter; returns its reason code. ``fails`` as for `_apply_one`."""
    kept: cython.bint = find_replay(c.session, filter) != cython.NULL
    if c.replays and names_stream(filter) and not (kept and fails):
        drop_replay(r, c.session, filter)
        report_unsubscribed(r, c, filter)
        return RC_SUCCESS
    if fails:
        r.tally[C_REFUSED_STORE] += 1
        return STORE_FAILED
    end_backlog(r, c.session, filter)
    return RC_SUCCESS if drop_subscription(r, c.session, filter) else RC_NO_SUBSCRIPTION_EXISTED


def handle_unsubscribe(r, c, first, body, size):
    """An UNSUBSCRIBE: filters are compared as they were written [MQTT-3.10.4-1]. Where the store takes
    nothing it is refused; 3.x knows no refusal, and is disconnected.
    """
    packet: Subscribe
    filter: Span
    options: uint8_t
    reasons: string
    fault: Fault = parse_unsubscribe(
        first, body, size, c.version, r.common.limits.topic_levels_max, cython.address(packet)
    )
    renamed: string
    if fault == FAULT_NONE and _renames(r, c):
        _rename(r, body, cython.address(packet), False, cython.address(renamed))
        fault = parse_unsubscribe(
            first,
            span_of(cython.address(renamed)).data,
            cython.cast(uint32_t, renamed.size()),
            c.version,
            r.common.limits.topic_levels_max,
            cython.address(packet),
        )
    if fault != FAULT_NONE:
        doom(r, c, fault_reason(fault), fault)
        return
    stored: cython.bint = c.session.stored != cython.NULL
    fails: cython.bint = stored and store_fails(r)
    if fails and c.version < 5:
        r.tally[C_REFUSED_STORE] += 1
        doom(r, c, STORE_FAILED, FAULT_STORE)
        return
    rest: Span = packet.filters
    while next_filter(cython.address(rest), False, cython.address(filter), cython.address(options)):
        reasons.push_back(_drop_one(r, c, filter, fails))
        count_steps(1)
    _answer(r, c, UNSUBACK, packet.packet_id, cython.address(reasons), cython.NULL, stored and not fails)
