"""The control packets that a server answers with, in the form of the client's protocol version."""

import cython
from cython.cimports.libc.stdint import uint8_t, uint32_t
from cython.cimports.libcpp.string import string
from cython.cimports.tidemq.engine.link.output import append_output, doom, reserve_output
from cython.cimports.tidemq.engine.state.client import CONNECTED
from cython.cimports.tidemq.wire.packets import append_string_property, encode_ack, encode_packet
from cython.cimports.tidemq.wire.protocol import (
    AUTH,
    CONNACK,
    DISCONNECT,
    PROP_AUTH_DATA,
    PROP_AUTH_METHOD,
    PROP_REASON_STRING,
    RC_BAD_AUTHENTICATION_METHOD,
    RC_BAD_USER_NAME_OR_PASSWORD,
    RC_BANNED,
    RC_CLIENT_IDENTIFIER_NOT_VALID,
    RC_NOT_AUTHORIZED,
    RC_PACKET_TOO_LARGE,
    RC_SUCCESS,
    RC_UNSUPPORTED_PROTOCOL_VERSION,
    SUBACK,
    Span,
)


def span_of(text):
    """A view of a string; valid as long as the string does not change."""
    span: Span
    span.data = cython.cast(cython.pointer[uint8_t], text.data())
    span.size = cython.cast(uint32_t, text.size())
    return span


def _no_bytes():
    span: Span
    span.data = cython.NULL
    span.size = 0
    return span


def write_ack(r, c, packet_type, packet_id, reason):
    """PUBACK, PUBREC, PUBREL or PUBCOMP; below 5.0 the reason is not sent."""
    size: uint32_t = 5 if c.version == 5 and reason != RC_SUCCESS else 4
    encode_ack(packet_type, packet_id, reason, c.version, reserve_output(r, c, size))


def append_packet(r, c, packet):
    """Sends a rare packet; a client that takes no packet of this size cannot go on [MQTT-3.1.2-24]."""
    if packet.size() > c.packet_bytes_max:
        doom(r, c, RC_PACKET_TOO_LARGE if c.state == CONNECTED else 0, 0)  # no DISCONNECT before CONNACK
    else:
        append_output(r, c, packet.data(), cython.cast(uint32_t, packet.size()))


def _old_return_code(reason):
    """The CONNACK return code of 3.x for a reason code of 5.0 (3.1.1 section 3.2.2.3)."""
    if reason == RC_SUCCESS:
        return 0
    if reason == RC_UNSUPPORTED_PROTOCOL_VERSION:
        return 1
    if reason == RC_CLIENT_IDENTIFIER_NOT_VALID:
        return 2
    if reason == RC_BAD_USER_NAME_OR_PASSWORD:
        return 4
    if reason in (RC_NOT_AUTHORIZED, RC_BANNED, RC_BAD_AUTHENTICATION_METHOD):
        return 5
    return 3


def encode_connack(c, session_present, reason, properties, packet):
    """CONNACK; MQTT 3.1 knows no session present flag."""
    body: uint8_t[2]
    body[0] = session_present and c.version > 3
    body[1] = reason if c.version == 5 else _old_return_code(reason)
    head: Span
    head.data = body
    head.size = 2
    encode_packet(CONNACK << 4, head, span_of(properties), c.version == 5, _no_bytes(), packet)


def refuse_late(r, c, reason, fault):
    """A CONNACK that refuses, where the session has begun already: it ends with the connection, its will
    too.
    """
    packet: string
    properties: string
    encode_connack(c, False, reason, cython.address(properties), cython.address(packet))
    append_packet(r, c, cython.address(packet))
    c.session.expiry_s = 0
    c.clean_disconnect = True
    doom(r, c, 0, fault)  # no DISCONNECT follows


def write_disconnect(r, c, reason):
    """DISCONNECT, which only a 5.0 client understands."""
    packet: uint8_t[3]
    packet[0] = DISCONNECT << 4
    packet[1] = 1
    packet[2] = reason
    if c.version == 5:
        append_output(r, c, packet, 3)


def write_auth(r, c, reason, data):
    """AUTH with the client's method [MQTT-4.12.0-5]; ``data`` may be NULL."""
    packet: string
    properties: string
    head: Span
    head.data = cython.address(reason)
    head.size = 1
    append_string_property(PROP_AUTH_METHOD, span_of(c.identity.auth_method), cython.address(properties))
    if data != cython.NULL:
        append_string_property(PROP_AUTH_DATA, span_of(data), cython.address(properties))
    encode_packet(
        AUTH << 4, head, span_of(cython.address(properties)), True, _no_bytes(), cython.address(packet)
    )
    append_packet(r, c, cython.address(packet))


def encode_reasons(version, packet_type, packet_id, reasons, why, packet):
    """SUBACK or UNSUBACK; 3.x knows 0x80 as the only failure and no reasons in UNSUBACK. ``why``: the reason
    in words, for 5.0; or NULL.
    """
    properties: string
    identifier: uint8_t[2]
    identifier[0] = cython.cast(uint8_t, packet_id >> 8)
    identifier[1] = cython.cast(uint8_t, packet_id)
    head: Span
    head.data = identifier
    head.size = 2
    tail: Span = span_of(reasons)
    index: uint32_t
    old: string
    if version < 5:
        for index in range(tail.size):
            if packet_type == SUBACK:
                old.push_back(0x80 if tail.data[index] & 0x80 else tail.data[index])
        tail = span_of(cython.address(old))
    if why != cython.NULL and version == 5:
        append_string_property(PROP_REASON_STRING, span_of(why), cython.address(properties))
    encode_packet(packet_type << 4, head, span_of(cython.address(properties)), version == 5, tail, packet)
