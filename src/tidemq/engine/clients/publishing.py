"""PUBLISH as it comes from a client, and the acknowledgements of both directions."""

import cython
from cython.cimports.libc.stdint import int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from cython.cimports.libc.string import memcpy
from cython.cimports.libcpp.memory import make_unique, unique_ptr
from cython.cimports.libcpp.string import string
from cython.cimports.libcpp.vector import vector
from cython.cimports.tidemq.engine.base.asserting import ASSERTS, holds, may_touch
from cython.cimports.tidemq.engine.base.counters import (
    C_DROPPED_EXPIRED,
    C_DROPPED_MEMORY,
    C_DROPPED_PAYLOAD_TOO_LARGE,
    C_MESSAGES_RECEIVED,
    C_REFUSED_NOT_AUTHORISED,
    C_REFUSED_STORE,
)
from cython.cimports.tidemq.engine.base.event import EVENT_PUBLISH, Event
from cython.cimports.tidemq.engine.base.message import Passage, close_passage, empty_passage, passage_message
from cython.cimports.tidemq.engine.base.system import RELAXED, load_int, load_u8
from cython.cimports.tidemq.engine.clients.authorising import (
    find_judgement,
    is_own_state,
    judge_topic,
    message_bit,
    remember,
)
from cython.cimports.tidemq.engine.clients.commit_results import settle_published
from cython.cimports.tidemq.engine.clients.holding import hold_publish, hold_verdict
from cython.cimports.tidemq.engine.clients.placement import consider_moving
from cython.cimports.tidemq.engine.clients.publishing import Meant
from cython.cimports.tidemq.engine.clients.wills import delay, refused_delay, take_delay
from cython.cimports.tidemq.engine.index.rules import Judgement
from cython.cimports.tidemq.engine.journal.journal import (
    MESSAGES_ONLY,
    STORE_FAILED,
    is_committed,
    last_section,
    next_id,
    note_released,
    remove_row,
)
from cython.cimports.tidemq.engine.journal.ledger import is_owed, next_token
from cython.cimports.tidemq.engine.link.backpressure import is_waited_for
from cython.cimports.tidemq.engine.link.drops import note_drop
from cython.cimports.tidemq.engine.link.output import doom, touch
from cython.cimports.tidemq.engine.link.replies import span_of, write_ack
from cython.cimports.tidemq.engine.link.reports import (
    connection_event,
    drop_packet,
    keep_packet,
    post_event,
    report_acknowledged,
)
from cython.cimports.tidemq.engine.link.spans import (
    Received,
    begin_commit,
    begin_received,
    end_received,
    makes_spans,
)
from cython.cimports.tidemq.engine.link.visits import is_bridge
from cython.cimports.tidemq.engine.queues.agreement import record_offers
from cython.cimports.tidemq.engine.queues.cache import find_receivers, rename_topic
from cython.cimports.tidemq.engine.queues.clearing import note_cleared
from cython.cimports.tidemq.engine.queues.delivery import send_waiting
from cython.cimports.tidemq.engine.queues.memory_ceiling import refused_by_memory
from cython.cimports.tidemq.engine.queues.outbox import find_entry, forget_entry, place_of, release_payload
from cython.cimports.tidemq.engine.queues.promises import promise_ack, promise_published
from cython.cimports.tidemq.engine.queues.queueing import request_rows
from cython.cimports.tidemq.engine.queues.received_identifiers import (
    fingerprint_of,
    forget_received,
    is_received,
    is_sent_again,
    note_fingerprint,
    note_received,
    store_received,
)
from cython.cimports.tidemq.engine.queues.replayed import note_replayed
from cython.cimports.tidemq.engine.queues.routing import route
from cython.cimports.tidemq.engine.queues.shards import look_at_room
from cython.cimports.tidemq.engine.state.client import HELD_DENIED, HELD_REFUSED, Session
from cython.cimports.tidemq.engine.state.handles import handle_of
from cython.cimports.tidemq.engine.state.queue import RELEASED, ROW_NONE, SENT, Entry
from cython.cimports.tidemq.engine.state.routing import PLUGIN_PUBLISH, CacheEntry
from cython.cimports.tidemq.wire.packets import (
    Ack,
    Publish,
    parse_ack,
    parse_publish,
)
from cython.cimports.tidemq.wire.properties import copy_forwarded, has_property
from cython.cimports.tidemq.wire.protocol import (
    FAULT_ACK_OF_OTHER_QOS,
    FAULT_LIMIT,
    FAULT_NONE,
    FAULT_PROPERTY_VALUE,
    FAULT_QOS_NOT_SUPPORTED,
    FAULT_RECEIVE_MAXIMUM,
    FAULT_RETAIN_NOT_SUPPORTED,
    FAULT_STORE,
    FAULT_TOPIC_ALIAS,
    FAULT_TOPIC_EMPTY,
    FAULT_TOPIC_LEVELS,
    PROP_MESSAGE_EXPIRY,
    PROP_TOPIC_ALIAS,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    RC_NO_MATCHING_SUBSCRIBERS,
    RC_NOT_AUTHORIZED,
    RC_PACKET_IDENTIFIER_NOT_FOUND,
    RC_PAYLOAD_FORMAT_INVALID,
    RC_QUOTA_EXCEEDED,
    RC_SUCCESS,
    RC_TOPIC_NAME_INVALID,
    Fault,
    Span,
    fault_reason,
)
from cython.cimports.tidemq.wire.topics import check_topic_levels


def _resolve_alias(r, c, publish):
    """Sets or uses a topic alias: afterwards the packet has its topic name (5.0 section 3.3.2.3.4)."""
    alias: uint16_t = publish.properties.topic_alias
    if alias > r.common.limits.topic_alias_max:
        return FAULT_TOPIC_ALIAS
    if c.aliases_in == cython.NULL:
        owner: unique_ptr[vector[string]] = make_unique[vector[string]]()
        c.aliases_in = owner.release()
        c.aliases_in.resize(r.common.limits.topic_alias_max + 1)
    known: cython.pointer[string] = cython.address(c.aliases_in[0][alias])
    if publish.topic.size:
        known.assign(cython.cast(cython.p_char, publish.topic.data), publish.topic.size)
    elif known.empty():
        return FAULT_TOPIC_EMPTY
    else:
        publish.topic = span_of(known)
    return FAULT_NONE


def _check_publish(r, c, publish):
    """What the packet alone does not show: who may send what, aliases, limits."""
    if publish.qos > c.qos_max:
        return FAULT_QOS_NOT_SUPPORTED
    if publish.retain and not c.retain_available:
        return FAULT_RETAIN_NOT_SUPPORTED
    if c.version == 5 and publish.properties.present:
        if publish.properties.subscription_id_count:
            return FAULT_PROPERTY_VALUE  # [MQTT-3.3.4-6]
        if has_property(cython.address(publish.properties), PROP_TOPIC_ALIAS):
            fault: Fault = _resolve_alias(r, c, publish)
            if fault != FAULT_NONE:
                return fault
    r.delay_s = 0
    if r.topic_rules != cython.NULL:
        take_delay(r, cython.address(publish.topic))
        rename_topic(r, cython.address(publish.topic))
    if publish.topic.size > r.common.limits.topic_bytes_max:
        return FAULT_TOPIC_LEVELS
    return check_topic_levels(cython.address(publish.topic), r.common.limits.topic_levels_max)


def handle_publish(r, c, first, body, size, frame, frame_size):
    """A PUBLISH from a client, in its whole ``frame``: checked, decided on, routed, acknowledged."""
    publish: Publish
    if ASSERTS:
        own: cython.bint = c.session.connection == c and may_touch(c.session.reactor)
        holds(own, b"publishing: a client publishes on the reactor of its session")
    fault: Fault = parse_publish(first, body, size, c.version, cython.address(publish))
    named: cython.pointer[cython.const[uint8_t]] = publish.topic.data
    if fault == FAULT_NONE:
        fault = _check_publish(r, c, cython.address(publish))
    if publish.topic.data != named:
        frame = cython.NULL  # it has another topic than is meant
    if fault == FAULT_NONE:
        r.fingerprint = fingerprint_of(r, c, cython.address(publish))
    if fault == FAULT_NONE and is_sent_again(r, c, cython.address(publish)):
        if _may_be_uncopied(r, c):
            doom(r, c, STORE_FAILED, FAULT_STORE)
        elif is_owed(r, c.session):  # it may be what it is owed the answer to
            promise_published(r, c, cython.NULL, PUBREC, publish.packet_id, RC_SUCCESS, True)
        else:
            write_ack(r, c, PUBREC, publish.packet_id, RC_SUCCESS)
        return
    if (
        fault == FAULT_NONE
        and publish.qos == 2
        and c.version == 5
        and c.session.received_count + _held_count(c) >= r.common.limits.receive_max
        and not is_bridge(c)  # a 3.1.1 broker behind it counts nothing
    ):
        fault = FAULT_RECEIVE_MAXIMUM  # [MQTT-3.3.4-7]
    if fault != FAULT_NONE:
        doom(r, c, fault_reason(fault), fault)
        return
    if refused_by_memory(r, c):
        note_drop(r, c.session, C_DROPPED_MEMORY, 1)
        _refuse_publish(r, c, cython.address(publish), RC_QUOTA_EXCEEDED)
        return
    if r.common.limits.payload_bytes_max and publish.payload.size > r.common.limits.payload_bytes_max:
        _deny_publish(r, c, cython.address(publish), RC_PAYLOAD_FORMAT_INVALID, C_DROPPED_PAYLOAD_TOO_LARGE)
        return
    entry: cython.pointer[CacheEntry] = cython.NULL
    if publish.topic.data[0] == 0x24 and not is_own_state(  # "$": they are the server's own (4.7.2)
        cython.address(c.session.client_id), publish.topic
    ):
        _deny_publish(r, c, cython.address(publish), RC_TOPIC_NAME_INVALID, C_REFUSED_NOT_AUTHORISED)
        return
    if c.rules != cython.NULL:
        entry = find_receivers(r, cython.address(publish.topic))
        if not judge_topic(c, entry) & message_bit(publish.qos, publish.retain):
            _deny_publish(r, c, cython.address(publish), RC_NOT_AUTHORIZED, C_REFUSED_NOT_AUTHORISED)
            return
    if r.common.ask_publish:
        if entry == cython.NULL:
            entry = find_receivers(r, cython.address(publish.topic))
        known: cython.pointer[Judgement] = _answered(r, c, entry, cython.address(publish))
        if known == cython.NULL:
            _ask_publish(r, c, cython.address(publish), first, body, size)
            return
        if not known.allowed & message_bit(publish.qos, publish.retain):
            _deny_publish(r, c, cython.address(publish), RC_NOT_AUTHORIZED, C_REFUSED_NOT_AUTHORISED)
            return
    if load_u8(cython.address(r.common.plugins), RELAXED) or c.held != cython.NULL:
        _admit_publish(r, c, cython.address(publish), first, body, size, frame, frame_size, entry, r.now_ms)
    else:
        accept_publish(r, c, cython.address(publish), frame, frame_size, entry, r.now_ms)


def _held_count(c):
    """How many of the client's messages are under way that no session knows of."""
    return c.held.owed if c.held != cython.NULL else 0


def _admit_publish(r, c, publish, first, body, size, frame, frame_size, entry, came_ms):
    """It is allowed, and goes on at once, or after plugins, or what waits for them."""
    if entry == cython.NULL:
        entry = find_receivers(r, cython.address(publish.topic))
    asks: cython.bint = entry.plugins & PLUGIN_PUBLISH
    if asks or c.held != cython.NULL:
        hold_publish(r, c, publish, first, body, size, asks, came_ms)
        return
    accept_publish(r, c, publish, frame, frame_size, entry, came_ms)


def _answered(r, c, entry, publish):
    """What the authoriser has said to this client on such a message and topic, while it holds, or NULL."""
    if c.asker_number == 0:
        return cython.NULL
    known: cython.pointer[Judgement] = find_judgement(entry, c.asker_number)
    if known == cython.NULL or known.until_ms <= r.now_ms:
        return cython.NULL
    return known if known.known & message_bit(publish.qos, publish.retain) else cython.NULL


def _ask_publish(r, c, publish, first, body, size):
    """Lets the control plane decide on a message; nothing more is read until it has."""
    holds(c.pending_packet == cython.NULL, b"publishing: one message of a client waits for a decision")
    c.asked = True
    touch(r, c)
    # what is decided on is what is published, though rules or aliases change meanwhile
    kept: string
    meant: Meant = Meant(0, r.delay_s, r.now_ms)
    kept.assign(cython.cast(cython.p_char, body), size)
    if publish.topic.data != body + 2:
        meant.topic_size = publish.topic.size
        kept.append(cython.cast(cython.p_char, publish.topic.data), publish.topic.size)
    kept.append(cython.cast(cython.p_char, cython.address(meant)), cython.sizeof(Meant))
    whole: Span = span_of(cython.address(kept))
    c.pending_packet = keep_packet(r, first, whole.data, whole.size)
    event: cython.pointer[Event] = connection_event(r, c, EVENT_PUBLISH)
    event.text.assign(cython.cast(cython.p_char, publish.topic.data), publish.topic.size)
    event.data.assign(cython.cast(cython.p_char, publish.payload.data), publish.payload.size)
    event.reason = publish.qos
    event.flag = publish.retain
    post_event(r.common, event)


def _deny_publish(r, c, publish, reason, counter):
    """The client may not publish this, which ``counter`` counts: 5.0 is told so; 3.x cannot be, and the
    message is acknowledged and dropped (3.1.1 section 3.3.5).
    """
    note_drop(r, c.session, counter, 1)
    if c.held != cython.NULL:
        hold_verdict(r, c, publish, HELD_DENIED, reason)
    else:
        write_denial(r, c, publish, reason)


def write_denial(r, c, publish, reason):
    """A reason below 0x80: the message is taken, and goes to nobody."""
    if publish.qos == 0:
        return
    packet_type: uint8_t = PUBACK if publish.qos == 1 else PUBREC
    if c.version < 5:
        reason = RC_SUCCESS
    if publish.qos == 2 and reason < 0x80:
        note_received(c.session, publish.packet_id)
    if is_owed(r, c.session):
        promise_published(r, c, cython.NULL, packet_type, publish.packet_id, reason, False)
    else:
        write_ack(r, c, packet_type, publish.packet_id, reason)


def _refuse_publish(r, c, publish, reason):
    """There is no room for the message: 5.0 is told so, 3.x cannot be and is disconnected rather than lied
    to. So is who repeats a message of QoS 2: its first copy may be in the store, known by the identifier that
    the answer would set free.
    """
    if c.held != cython.NULL:
        hold_verdict(r, c, publish, HELD_REFUSED, reason)
    else:
        write_refusal(r, c, publish, reason)


def write_refusal(r, c, publish, reason):
    if publish.qos == 0:
        return
    packet_type: uint8_t = PUBACK if publish.qos == 1 else PUBREC
    if c.version < 5 or (publish.dup and publish.qos == 2 and c.session.stored != cython.NULL):
        doom(r, c, reason, FAULT_STORE if reason == STORE_FAILED else FAULT_LIMIT)
    elif is_owed(r, c.session):
        promise_published(r, c, cython.NULL, packet_type, publish.packet_id, reason, False)
    else:
        write_ack(r, c, packet_type, publish.packet_id, reason)


def _may_be_uncopied(r, c):
    """Whether a message that came before may be one that is stored and was not acknowledged, because no other
    node has it: then its repetition is not acknowledged either.
    """
    if c.session.stored == cython.NULL:
        return False
    if not load_int(cython.address(r.common.store_refuses), RELAXED) & MESSAGES_ONLY:
        return False
    r.tally[C_REFUSED_STORE] += 1
    return True


def _refused_by_store(r, c, publish, entry):
    """Refuses a message that would have to be stored while the store takes nothing."""
    reason: cython.int = load_int(cython.address(r.common.store_refuses), RELAXED)
    if reason == 0 or publish.qos == 0:
        return False
    if not publish.retain and r.delay_s == 0:
        if entry == cython.NULL:
            entry = find_receivers(r, cython.address(publish.topic))
        if not entry.stored:
            return False
    r.tally[C_REFUSED_STORE] += 1
    write_refusal(r, c, publish, cython.cast(uint8_t, reason))
    return True


def answer_publish(r, c, reason, ttl_ms):
    """The control plane has decided on the PUBLISH that waits; for so long it wants to say the same of others
    like it.
    """
    publish: Publish
    if not c.asked or c.pending_packet == cython.NULL:
        return
    kept: cython.pointer[string] = c.pending_packet
    packet: cython.pointer[cython.const[uint8_t]] = span_of(kept).data
    if packet[0] >> 4 != PUBLISH:
        return  # an answer to something else
    c.pending_packet = cython.NULL
    c.asked = False
    r.resumed.push_back(handle_of(r, c))
    meant: Meant
    size: uint32_t = cython.cast(uint32_t, kept.size() - 1 - cython.sizeof(Meant))
    memcpy(cython.address(meant), packet + 1 + size, cython.sizeof(Meant))
    size -= meant.topic_size
    parse_publish(packet[0], packet + 1, size, c.version, cython.address(publish))
    if meant.topic_size:
        publish.topic = Span(packet + 1 + size, meant.topic_size)
    r.delay_s = meant.delay_s
    r.fingerprint = fingerprint_of(r, c, cython.address(publish))
    entry: cython.pointer[CacheEntry] = find_receivers(r, cython.address(publish.topic))
    message: uint8_t = message_bit(publish.qos, publish.retain)
    if ttl_ms:
        remember(r, c, entry, message, reason == RC_SUCCESS, cython.cast(int64_t, ttl_ms))
    if c.rules != cython.NULL and not judge_topic(c, entry) & message:
        reason = RC_NOT_AUTHORIZED  # the rules have changed while it waited
    if reason == RC_SUCCESS:
        _admit_publish(
            r, c, cython.address(publish), packet[0], packet + 1, size, cython.NULL, 0, entry, meant.came_ms
        )
    else:
        _deny_publish(r, c, cython.address(publish), reason, C_REFUSED_NOT_AUTHORISED)
    drop_packet(r, kept)


def _acknowledge(r, c, p, packet_id):
    """PUBACK or PUBREC: now where nobody keeps the message and nothing before it waits, else when all have
    kept it.
    """
    packet_type: uint8_t = PUBACK if p.qos == 1 else PUBREC
    reason: uint8_t = RC_SUCCESS
    if p.refused:
        reason = p.refused
    elif p.receivers == 0 and c.version == 5:
        reason = RC_NO_MATCHING_SUBSCRIBERS
    if p.qos == 2:
        note_received(c.session, packet_id)
        note_fingerprint(c.session, packet_id, r.fingerprint)
        if c.session.stored != cython.NULL and (p.kept or p.answers) and not p.offered:
            store_received(r, c.session, packet_id)
            p.kept = True
    if p.offered and (p.kept or p.answers or p.places):
        passage_message(p, r.tally)
        promise_published(r, c, p, packet_type, packet_id, reason, False)
        if p.answers == 0:
            record_offers(r, c.session)
    elif p.kept or p.answers or is_owed(r, c.session):
        p.offered = False
        promise_published(r, c, p, packet_type, packet_id, reason, False)
    else:
        settle_published(r, c, c.session, packet_type, packet_id, reason)
        r.answered[p.qos == 2] += 1


def _report_span(r, c, span, p):
    """It is received; where somebody is to keep it, that is what its answer waits for."""
    end_received(r, c, span, p)
    if p.qos and (p.kept or p.answers or (p.offered and p.places)):
        begin_commit(r, span, p, c.session.last_owed)


def _is_over(r, publish, came_ms):
    """Whether a message has expired while somebody decided on it [MQTT-3.3.2-5]. One that is delayed lasts
    from when it is due.
    """
    if r.delay_s or not publish.properties.present:
        return False
    if not has_property(cython.address(publish.properties), PROP_MESSAGE_EXPIRY):
        return False
    return came_ms + cython.cast(int64_t, publish.properties.message_expiry_s) * 1000 <= r.now_ms


def accept_publish(r, c, publish, frame, frame_size, entry, came_ms):
    """Routes a message that is allowed, and acknowledges it. ``entry``: of its topic, or NULL; ``came_ms``:
    when it came.
    """
    passage: Passage
    forwarded: string
    span: Received
    span.begun = False
    if _refused_by_store(r, c, publish, entry):
        return
    if r.delay_s and refused_delay(r, publish):
        write_refusal(r, c, publish, RC_QUOTA_EXCEEDED)
        return
    if came_ms != r.now_ms and _is_over(r, publish, came_ms):
        note_drop(r, c.session, C_DROPPED_EXPIRED, 1)
        write_denial(r, c, publish, RC_SUCCESS)
        return
    empty_passage(cython.address(passage))
    passage.topic = publish.topic
    passage.payload = publish.payload
    passage.qos = publish.qos
    passage.retain = publish.retain
    passage.publisher = c.session.number
    passage.feeder = handle_of(r, c)
    if publish.properties.present:  # which only a 5.0 packet has
        raw: Span = publish.properties.raw
        forwarded.resize(raw.size)
        forwarded.resize(copy_forwarded(raw, cython.cast(cython.pointer[uint8_t], forwarded.data())))
        if makes_spans(r):
            begin_received(r, cython.address(span), cython.address(forwarded))
        passage.properties = span_of(cython.address(forwarded))
        if has_property(cython.address(publish.properties), PROP_MESSAGE_EXPIRY):
            since_ms: int64_t = r.now_ms if r.delay_s else came_ms
            passage.expires_ms = since_ms + cython.cast(int64_t, publish.properties.message_expiry_s) * 1000
            if passage.expires_ms == r.now_ms:
                passage.expires_ms = 1  # already over; 0 would mean never
    elif publish.qos == 0:
        passage.frame = frame
        passage.frame_size = frame_size
        passage.frame_is_5 = c.version == 5
    if publish.retain or (r.common.durable and publish.qos):
        passage.id = next_id(r)
    if publish.qos:
        passage.token = next_token(r)
        passage.dup = publish.dup
        passage.packet_id = publish.packet_id
        if r.common.durable:
            # only a client whose session is stored can send it again after a crash
            passage.offered = publish.qos == 2 and c.session.stored != cython.NULL
    if not publish.retain:  # else who subscribes before it is retained is to get it: looked up after that
        passage.entry = entry
    r.tally[C_MESSAGES_RECEIVED] += 1
    r.unasked += publish.qos == 0 and c.session.subscriptions == cython.NULL
    if r.delay_s:
        delay(r, cython.address(passage))
    else:
        route(r, cython.address(passage))
    if publish.qos:
        _acknowledge(r, c, cython.address(passage), publish.packet_id)
    if span.begun:
        _report_span(r, c, cython.address(span), cython.address(passage))
    close_passage(cython.address(passage), r.tally)
    if passage.only_reactors:
        consider_moving(r, c, passage.only_reactors)
    else:
        c.away = 0


def _handle_pubrel(r, c, packet_id):
    """PUBREL ends a QoS 2 message from the client [MQTT-4.3.3-11].

    PUBCOMP lets the client use the identifier for another message: the store must not know it any more.
    """
    known: cython.bint = is_received(c.session, packet_id)
    stored: cython.bint = forget_received(r, c.session, packet_id)
    if not stored and not known and c.session.stored != cython.NULL:
        stored = last_section(r) > r.committed  # said again while the store still has to forget it
    if stored:
        promise_ack(r, c, PUBCOMP, packet_id, RC_SUCCESS)
    else:
        write_ack(r, c, PUBCOMP, packet_id, RC_SUCCESS if known else RC_PACKET_IDENTIFIER_NOT_FOUND)


def _release_entry(r, c, entry, packet_id):
    """PUBREC has come: PUBREL follows [MQTT-4.3.3-4]. Where the entry is stored, the store has to know before
    the client does, for it forgets the identifier then; and the message stays, since it names the row.
    """
    s: cython.pointer[Session] = c.session
    if entry.state == SENT:
        entry.state = RELEASED
        if entry.row == ROW_NONE:
            release_payload(cython.address(s.outbox), entry, r.tally)
        else:
            note_released(r, s, entry, place_of(cython.address(s.outbox), packet_id))
    if is_committed(r, entry):
        write_ack(r, c, PUBREL, packet_id, RC_SUCCESS)
    else:
        promise_ack(r, c, PUBREL, packet_id, RC_SUCCESS)


def _handle_pubrec(r, c, entry, ack):
    """Whether it ends the message, as one with a reason from 0x80 on does: no PUBREL follows that."""
    known: cython.bint = entry != cython.NULL and (entry.state == SENT or entry.state == RELEASED)
    if ack.reason >= 0x80:
        return known
    if known:
        if entry.reported and entry.state == SENT:
            report_acknowledged(r, c.session, entry)
        _release_entry(r, c, entry, ack.packet_id)
    else:
        write_ack(r, c, PUBREL, ack.packet_id, RC_PACKET_IDENTIFIER_NOT_FOUND)
    return False


def handle_ack(r, c, first, body, size):
    """PUBACK, PUBREC, PUBREL, PUBCOMP. One that fits no message is answered, or means nothing: its message
    may be of an earlier connection. One for a message of another QoS breaks the protocol
    [3.1.1 MQTT-4.8.0-1].
    """
    ack: Ack
    fault: Fault = parse_ack(first, body, size, c.version, cython.address(ack))
    kind: uint8_t = first >> 4
    if fault == FAULT_NONE and kind == PUBREL:
        _handle_pubrel(r, c, ack.packet_id)
        return
    s: cython.pointer[Session] = c.session
    if fault == FAULT_NONE and kind == PUBCOMP and note_cleared(r, s, c, ack.packet_id):
        send_waiting(r, s)
        return
    entry: cython.pointer[Entry] = find_entry(cython.address(s.outbox), ack.packet_id)
    if fault == FAULT_NONE and entry != cython.NULL and (entry.qos == 1) != (kind == PUBACK):
        if entry.state == SENT or entry.state == RELEASED:
            fault = FAULT_ACK_OF_OTHER_QOS
    if fault != FAULT_NONE:
        doom(r, c, fault_reason(fault), fault)
        return
    if kind == PUBREC:
        if not _handle_pubrec(r, c, entry, cython.address(ack)):
            return
    elif entry == cython.NULL or entry.state != (SENT if kind == PUBACK else RELEASED):
        return
    if entry.reported and kind == PUBACK and ack.reason < 0x80:
        report_acknowledged(r, c.session, entry)
    replay: uint16_t = entry.replay
    place: uint64_t = place_of(cython.address(s.outbox), ack.packet_id)
    remove_row(r, s, entry)
    forget_entry(cython.address(s.outbox), entry, r.tally)
    if replay:
        note_replayed(r, s, replay, place)
    if is_waited_for(s) or s.backlogs != cython.NULL:
        touch(r, c)  # it may be below its mark now
    if s.outbox.next < s.outbox.tail:
        send_waiting(r, s)
    else:
        request_rows(r, s)
    look_at_room(r, s)
