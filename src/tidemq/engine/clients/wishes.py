"""What a CONNECT asks for, within our limits, and its will."""

import cython
from cython.cimports.libc.stdint import int64_t, uint8_t, uint16_t, uint32_t
from cython.cimports.libcpp.memory import make_unique, unique_ptr
from cython.cimports.libcpp.string import string
from cython.cimports.tidemq.engine.base.asserting import holds
from cython.cimports.tidemq.engine.base.engine_limits import EngineLimits
from cython.cimports.tidemq.engine.base.message import Passage, empty_passage, new_message
from cython.cimports.tidemq.engine.link.replies import span_of
from cython.cimports.tidemq.engine.link.timers import time_connection
from cython.cimports.tidemq.engine.link.visits import is_bridge
from cython.cimports.tidemq.engine.state.client import FOR_EVER, Will
from cython.cimports.tidemq.wire.packets import append_u8_property, append_u16_property, append_u32_property
from cython.cimports.tidemq.wire.properties import copy_forwarded, has_property
from cython.cimports.tidemq.wire.protocol import (
    PROP_MAXIMUM_PACKET_SIZE,
    PROP_MAXIMUM_QOS,
    PROP_MESSAGE_EXPIRY,
    PROP_RECEIVE_MAXIMUM,
    PROP_REQUEST_PROBLEM_INFO,
    PROP_RETAIN_AVAILABLE,
    PROP_SERVER_KEEP_ALIVE,
    PROP_SESSION_EXPIRY,
    PROP_TOPIC_ALIAS_MAXIMUM,
    PROP_WILL_DELAY,
    REMAINING_MAX,
)


def wanted_expiry_s(connect):
    """How long the client wants its session to outlive the connection; FOR_EVER, or 0 for not at all."""
    if connect.version < 5:
        return 0 if connect.clean_start else FOR_EVER
    if has_property(cython.address(connect.properties), PROP_SESSION_EXPIRY):
        return connect.properties.session_expiry_s
    return 0


def apply_wishes(r, c, s, connect, properties):
    """What the client asked for within our limits; what we changed, and what we expect, goes into CONNACK."""
    limits: cython.pointer[EngineLimits] = cython.address(r.common.limits)
    keep_alive_s: uint32_t = connect.keep_alive_s
    wanted_s: uint32_t = wanted_expiry_s(connect)
    c.send_max = limits.inflight_max
    s.expiry_s = wanted_s
    if wanted_s > limits.session_expiry_s_max and not is_bridge(c):
        s.expiry_s = limits.session_expiry_s_max
    if (
        limits.keep_alive_s_max
        and not is_bridge(c)
        and (keep_alive_s == 0 or keep_alive_s > limits.keep_alive_s_max)
    ):
        if c.version == 5:
            keep_alive_s = limits.keep_alive_s_max
            append_u16_property(PROP_SERVER_KEEP_ALIVE, cython.cast(uint16_t, keep_alive_s), properties)
    c.keep_alive_ms = keep_alive_s * 1500  # one and a half times the keep alive [MQTT-3.1.2-22]
    if c.keep_alive_ms:
        time_connection(r, c, r.now_ms + c.keep_alive_ms)
    if limits.ack_timeout_s and c.version == 3:
        time_connection(r, c, r.now_ms + cython.cast(int64_t, limits.ack_timeout_s) * 1000)
    if c.version < 5:
        return
    if s.expiry_s != wanted_s:
        append_u32_property(PROP_SESSION_EXPIRY, s.expiry_s, properties)
    if has_property(cython.address(connect.properties), PROP_REQUEST_PROBLEM_INFO):
        c.terse = connect.properties.request_problem_info == 0
    if has_property(cython.address(connect.properties), PROP_RECEIVE_MAXIMUM):
        if connect.properties.receive_maximum < c.send_max:
            c.send_max = connect.properties.receive_maximum
    if has_property(cython.address(connect.properties), PROP_MAXIMUM_PACKET_SIZE):
        c.packet_bytes_max = connect.properties.maximum_packet_size
    holds(c.send_max > 0 and c.packet_bytes_max > 0, b"wishes: a client takes at least one message at a time")
    if has_property(cython.address(connect.properties), PROP_TOPIC_ALIAS_MAXIMUM):
        c.alias_max = connect.properties.topic_alias_maximum
        if c.alias_max > limits.topic_alias_max:
            c.alias_max = limits.topic_alias_max
    if limits.receive_max < 65535:
        append_u16_property(PROP_RECEIVE_MAXIMUM, limits.receive_max, properties)
    if limits.packet_bytes_max < REMAINING_MAX:  # to say nothing means as large as MQTT allows
        append_u32_property(PROP_MAXIMUM_PACKET_SIZE, limits.packet_bytes_max, properties)
    if c.qos_max < 2:  # [MQTT-3.2.2-9]
        append_u8_property(PROP_MAXIMUM_QOS, c.qos_max, properties)
    if not c.retain_available:
        append_u8_property(PROP_RETAIN_AVAILABLE, 0, properties)
    if limits.topic_alias_max:
        append_u16_property(PROP_TOPIC_ALIAS_MAXIMUM, limits.topic_alias_max, properties)


def keep_will(r, s, connect):
    """Keeps the will as the message that it will be [MQTT-3.1.2-7]."""
    passage: Passage
    forwarded: string
    empty_passage(cython.address(passage))
    passage.topic = connect.will_topic
    passage.payload = connect.will_payload
    passage.qos = connect.will_qos
    passage.retain = connect.will_retain
    passage.publisher = s.number
    holds(s.will == cython.NULL, b"wishes: the will of before is gone")
    owner: unique_ptr[Will] = make_unique[Will]()
    s.will = owner.release()
    s.will.expiry_s = -1
    if connect.version == 5 and connect.will_properties.present:
        forwarded.resize(connect.will_properties.raw.size)
        forwarded.resize(
            copy_forwarded(
                connect.will_properties.raw, cython.cast(cython.pointer[uint8_t], forwarded.data())
            )
        )
        passage.properties = span_of(cython.address(forwarded))
        if has_property(cython.address(connect.will_properties), PROP_WILL_DELAY):
            s.will.delay_s = connect.will_properties.will_delay_s
        if has_property(cython.address(connect.will_properties), PROP_MESSAGE_EXPIRY):
            s.will.expiry_s = connect.will_properties.message_expiry_s
    s.will.message = new_message(cython.address(passage), r.tally)
