"""Bytes to control packets for Python. The parsing and its checks are those of `packets`, the broker's own.

Every function takes the GIL and keeps nothing. What is returned owns its bytes.
"""

import cython
from cython.cimports.cpython.buffer import (
    Py_buffer,
    PyBUF_SIMPLE,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from cython.cimports.libc.stdint import uint8_t
from cython.cimports.tidemq.wire.packets import (
    Ack,
    Connack,
    Connect,
    Disconnect,
    FixedHeader,
    Publish,
    Suback,
    Subscribe,
    next_filter,
    parse_ack,
    parse_auth,
    parse_connack,
    parse_connect,
    parse_disconnect,
    parse_fixed_header,
    parse_ping,
    parse_publish,
    parse_suback,
    parse_subscribe,
    parse_unsubscribe,
)
from cython.cimports.tidemq.wire.property_blocks import make_properties
from cython.cimports.tidemq.wire.protocol import (
    AUTH,
    CONNACK,
    CONNECT,
    DISCONNECT,
    FAULT_NEED_MORE,
    FAULT_NONE,
    FAULT_PACKET_TOO_LARGE,
    FAULT_PACKET_TYPE,
    FAULT_TRAILING,
    PINGREQ,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
    Fault,
    Span,
)
from cython.cimports.tidemq.wire.reader import LEVELS_MAX

from tidemq.errors import UsageError
from tidemq.wire import control_packets
from tidemq.wire.codes import ConnectReturnCode, ReasonCode
from tidemq.wire.faults import protocol_error

PACKET_BYTES_MAX = 5 + 268_435_455

_ACKS = {
    PUBACK: control_packets.Puback,
    PUBREC: control_packets.Pubrec,
    PUBREL: control_packets.Pubrel,
    PUBCOMP: control_packets.Pubcomp,
}


def decode(buffer, version: cython.int, packet_bytes_max: cython.uint = PACKET_BYTES_MAX):
    """The first control packet in `buffer` and the bytes it took, or None while it is not whole.

    `version` is 3, 4 or 5, and means nothing to CONNECT. `ProtocolError` as soon as the bytes show a fault.
    """
    if version not in (3, 4, 5):
        raise UsageError(f"the protocol version is {version}; accepted: 3, 4, 5")
    view = cython.declare(Py_buffer)
    PyObject_GetBuffer(buffer, cython.address(view), PyBUF_SIMPLE)
    try:
        return decode_first(
            cython.cast(cython.pointer[cython.const[uint8_t]], view.buf), view.len, version, packet_bytes_max
        )
    finally:
        PyBuffer_Release(cython.address(view))


def decode_first(data, size, version, packet_bytes_max):
    header = cython.declare(FixedHeader)
    fault: Fault = parse_fixed_header(data, size, cython.address(header))
    if fault == FAULT_NEED_MORE:
        return None
    require(fault)
    end: cython.size_t = cython.cast(cython.size_t, header.header_size) + header.body_size
    if end > packet_bytes_max:
        require(FAULT_PACKET_TOO_LARGE)
    if end > size:
        return None
    return read_packet(header.first, data + header.header_size, header.body_size, version), end


def check(data: bytes, version: cython.int) -> cython.int:
    """The fault of the one whole packet that `data` is, 0 if none; nothing is made of it."""
    at: cython.pointer[cython.const[uint8_t]] = data
    header = cython.declare(FixedHeader)
    fault: Fault = parse_fixed_header(at, len(data), cython.address(header))
    if fault != FAULT_NONE:
        return fault
    size: cython.size_t = cython.cast(cython.size_t, header.header_size) + header.body_size
    if cython.cast(cython.size_t, len(data)) != size:
        return FAULT_NEED_MORE if cython.cast(cython.size_t, len(data)) < size else FAULT_TRAILING
    return check_packet(header.first, at + header.header_size, header.body_size, version)


def check_packet(first, body, size, version):
    """One flat dispatch."""
    connect = cython.declare(Connect)
    connack = cython.declare(Connack)
    publish = cython.declare(Publish)
    ack = cython.declare(Ack)
    subscribe = cython.declare(Subscribe)
    suback = cython.declare(Suback)
    disconnect = cython.declare(Disconnect)
    packet_type: uint8_t = first >> 4
    if packet_type == PUBLISH:
        return parse_publish(first, body, size, version, cython.address(publish))
    if packet_type == CONNECT:
        return parse_connect(first, body, size, cython.address(connect))
    if packet_type == CONNACK:
        return parse_connack(first, body, size, version, cython.address(connack))
    if packet_type in (PUBACK, PUBREC, PUBREL, PUBCOMP):
        return parse_ack(first, body, size, version, cython.address(ack))
    if packet_type == SUBSCRIBE:
        return parse_subscribe(first, body, size, version, LEVELS_MAX, cython.address(subscribe))
    if packet_type == UNSUBSCRIBE:
        return parse_unsubscribe(first, body, size, version, LEVELS_MAX, cython.address(subscribe))
    if packet_type in (SUBACK, UNSUBACK):
        return parse_suback(first, body, size, version, cython.address(suback))
    if packet_type in (PINGREQ, PINGRESP):
        return parse_ping(first, size, version)
    if packet_type == DISCONNECT:
        return parse_disconnect(first, body, size, version, cython.address(disconnect))
    if packet_type == AUTH and version == 5:
        return parse_auth(first, body, size, cython.address(disconnect))
    return FAULT_PACKET_TYPE


def require(fault):
    if fault != FAULT_NONE:
        raise protocol_error(fault)


def read_packet(first, body, size, version):
    """One flat dispatch."""
    packet_type: uint8_t = first >> 4
    if packet_type == PUBLISH:
        return read_publish(first, body, size, version)
    if packet_type == CONNECT:
        return read_connect(first, body, size)
    if packet_type == CONNACK:
        return read_connack(first, body, size, version)
    if packet_type in (PUBACK, PUBREC, PUBREL, PUBCOMP):
        return read_ack(first, body, size, version)
    if packet_type == SUBSCRIBE:
        return read_subscribe(first, body, size, version)
    if packet_type == UNSUBSCRIBE:
        return read_unsubscribe(first, body, size, version)
    if packet_type in (SUBACK, UNSUBACK):
        return read_suback(first, body, size, version)
    if packet_type in (PINGREQ, PINGRESP):
        require(parse_ping(first, size, version))
        return control_packets.Pingreq() if packet_type == PINGREQ else control_packets.Pingresp()
    if packet_type == DISCONNECT:
        return read_disconnect(first, body, size, version)
    if packet_type == AUTH and version == 5:
        return read_auth(first, body, size)
    require(FAULT_PACKET_TYPE)


def text(span):
    return cython.cast(cython.p_const_char, span.data)[: span.size].decode("utf-8")


def content(span):
    return cython.cast(cython.p_const_char, span.data)[: span.size]


def read_connect(first, body, size):
    p = cython.declare(Connect)
    require(parse_connect(first, body, size, cython.address(p)))
    will = None
    if p.has_will:
        will = control_packets.Will(
            topic=text(p.will_topic),
            payload=content(p.will_payload),
            qos=p.will_qos,
            retain=p.will_retain,
            properties=make_properties(cython.address(p.will_properties)),
        )
    return control_packets.Connect(
        version=p.version,
        client_id=text(p.client_id),
        clean_start=p.clean_start,
        keep_alive_s=p.keep_alive_s,
        will=will,
        username=text(p.username) if p.has_username else None,
        password=content(p.password) if p.has_password else None,
        properties=make_properties(cython.address(p.properties)),
    )


def read_connack(first, body, size, version):
    p = cython.declare(Connack)
    require(parse_connack(first, body, size, version, cython.address(p)))
    return control_packets.Connack(
        session_present=p.session_present,
        reason=ReasonCode(p.reason) if version == 5 else ConnectReturnCode(p.reason),
        properties=make_properties(cython.address(p.properties)),
    )


def read_publish(first, body, size, version):
    p = cython.declare(Publish)
    require(parse_publish(first, body, size, version, cython.address(p)))
    return control_packets.Publish(
        topic=text(p.topic),
        payload=content(p.payload),
        qos=p.qos,
        retain=p.retain,
        dup=p.dup,
        packet_id=p.packet_id,
        properties=make_properties(cython.address(p.properties)),
    )


def read_ack(first, body, size, version):
    p = cython.declare(Ack)
    require(parse_ack(first, body, size, version, cython.address(p)))
    return _ACKS[first >> 4](
        packet_id=p.packet_id,
        reason=ReasonCode(p.reason),
        properties=make_properties(cython.address(p.properties)),
    )


def read_subscribe(first, body, size, version):
    p = cython.declare(Subscribe)
    require(parse_subscribe(first, body, size, version, LEVELS_MAX, cython.address(p)))
    filter = cython.declare(Span)
    options: uint8_t = 0
    subscriptions: list = []
    while next_filter(cython.address(p.filters), True, cython.address(filter), cython.address(options)):
        subscriptions.append(
            control_packets.Subscription(
                filter=text(filter),
                qos=options & 3,
                no_local=(options & 0x04) != 0,
                retain_as_published=(options & 0x08) != 0,
                retain_handling=options >> 4,
            )
        )
    return control_packets.Subscribe(
        packet_id=p.packet_id,
        subscriptions=tuple(subscriptions),
        properties=make_properties(cython.address(p.properties)),
    )


def read_unsubscribe(first, body, size, version):
    p = cython.declare(Subscribe)
    require(parse_unsubscribe(first, body, size, version, LEVELS_MAX, cython.address(p)))
    filter = cython.declare(Span)
    options: uint8_t = 0
    filters: list = []
    while next_filter(cython.address(p.filters), False, cython.address(filter), cython.address(options)):
        filters.append(text(filter))
    return control_packets.Unsubscribe(
        packet_id=p.packet_id,
        filters=tuple(filters),
        properties=make_properties(cython.address(p.properties)),
    )


def read_suback(first, body, size, version):
    p = cython.declare(Suback)
    require(parse_suback(first, body, size, version, cython.address(p)))
    make = control_packets.Suback if first >> 4 == SUBACK else control_packets.Unsuback
    return make(
        packet_id=p.packet_id,
        reasons=tuple([ReasonCode(reason) for reason in content(p.reasons)]),
        properties=make_properties(cython.address(p.properties)),
    )


def read_disconnect(first, body, size, version):
    p = cython.declare(Disconnect)
    require(parse_disconnect(first, body, size, version, cython.address(p)))
    return control_packets.Disconnect(
        reason=ReasonCode(p.reason), properties=make_properties(cython.address(p.properties))
    )


def read_auth(first, body, size):
    p = cython.declare(Disconnect)
    require(parse_auth(first, body, size, cython.address(p)))
    return control_packets.Auth(
        reason=ReasonCode(p.reason), properties=make_properties(cython.address(p.properties))
    )
