"""Messages that plugins have answered go on, in the order in which they came (`holding`)."""

import cython
from cython.cimports.libc.stdint import uint8_t
from cython.cimports.tidemq.engine.base.counters import C_REFUSED_NOT_AUTHORISED, C_REFUSED_PLUGIN
from cython.cimports.tidemq.engine.base.steps import count_steps
from cython.cimports.tidemq.engine.clients.authorising import judge_topic, message_bit
from cython.cimports.tidemq.engine.clients.holding import (
    continue_later,
    end_release,
    free_held,
    has_answered,
    take_held,
)
from cython.cimports.tidemq.engine.clients.publishing import accept_publish, write_denial, write_refusal
from cython.cimports.tidemq.engine.link.drops import note_drop
from cython.cimports.tidemq.engine.link.replies import span_of
from cython.cimports.tidemq.engine.queues.cache import find_receivers
from cython.cimports.tidemq.engine.queues.received_identifiers import fingerprint_of, is_received
from cython.cimports.tidemq.engine.state.client import HELD_DENIED, HELD_REFUSED, HeldPublish
from cython.cimports.tidemq.engine.state.routing import CacheEntry
from cython.cimports.tidemq.engine.state.work import begin_work, is_enough
from cython.cimports.tidemq.wire.packets import FixedHeader, Publish, parse_fixed_header, parse_publish
from cython.cimports.tidemq.wire.protocol import (
    FAULT_NONE,
    RC_NOT_AUTHORIZED,
    RC_SUCCESS,
    RC_UNSPECIFIED_ERROR,
    Fault,
    Span,
)


def release_held(r, c):
    """What plugins have answered goes on, in the order in which it came, and what came behind it."""
    item: HeldPublish
    c.held.due = False
    begin_work(r)
    while not c.doomed and has_answered(c.held):
        if is_enough(r):
            continue_later(r, c)
            break
        count_steps(1)
        item = take_held(r, c)
        _settle_held(r, c, cython.address(item))
        free_held(r, cython.address(item))
    end_release(r, c)


def _settle_held(r, c, item):
    """One of them."""
    publish: Publish
    reason: uint8_t = item.reason
    if item.packet == cython.NULL:
        publish.qos = item.qos
        publish.dup = item.dup
        publish.packet_id = item.packet_id
        if item.verdict == HELD_REFUSED:
            write_refusal(r, c, cython.address(publish), reason)
        else:
            write_denial(r, c, cython.address(publish), reason)
        return
    packet: Span = span_of(item.packet)
    parse_publish(packet.data[0], packet.data + 1, packet.size - 1, c.version, cython.address(publish))
    if not item.topic.empty():
        publish.topic = span_of(cython.address(item.topic))
    if publish.qos == 2 and is_received(c.session, publish.packet_id):  # the client used it twice
        write_denial(r, c, cython.address(publish), RC_SUCCESS)
        return
    if item.verdict != HELD_DENIED and c.rules != cython.NULL:
        entry: cython.pointer[CacheEntry] = find_receivers(r, cython.address(publish.topic))
        if not judge_topic(c, entry) & message_bit(publish.qos, publish.retain):
            note_drop(r, c.session, C_REFUSED_NOT_AUTHORISED, 1)  # the rules have changed while it waited
            write_denial(r, c, cython.address(publish), RC_NOT_AUTHORIZED)
            return
    r.fingerprint = fingerprint_of(r, c, cython.address(publish))  # as its client sends it again
    if item.changed != cython.NULL and not _change(cython.address(publish), item):
        item.verdict = HELD_DENIED
        reason = RC_UNSPECIFIED_ERROR
    if item.verdict == HELD_DENIED:
        note_drop(r, c.session, C_REFUSED_PLUGIN, reason >= 0x80)
        write_denial(r, c, cython.address(publish), reason)
    else:
        r.delay_s = item.delay_s
        accept_publish(r, c, cython.address(publish), cython.NULL, 0, cython.NULL, item.came_ms)


def _change(publish, item):
    """Another message in its place, which is answered as this one: False where it cannot be read."""
    header: FixedHeader
    packet: Span = span_of(item.changed)
    fault: Fault = parse_fixed_header(packet.data, packet.size, cython.address(header))
    if fault == FAULT_NONE:
        body: cython.pointer[cython.const[uint8_t]] = packet.data + header.header_size
        fault = parse_publish(header.first, body, header.body_size, 5, publish)
    publish.qos = item.qos
    publish.dup = item.dup
    publish.packet_id = item.packet_id
    return fault == FAULT_NONE
