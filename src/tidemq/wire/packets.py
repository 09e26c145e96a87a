"""Control packets of clients and servers: parsed in place and checked whole (5.0 chapter 3).

Parsing keeps nothing and copies nothing: every Span points into the caller's bytes. A packet is judged by
itself; whether it may come now is the session's business. Every function may run on any thread without the
GIL.
"""

import cython
from cython.cimports.libc.stdint import uint8_t, uint16_t, uint32_t
from cython.cimports.libc.string import memcmp
from cython.cimports.tidemq.wire.cursor import (
    Cursor,
    fail,
    read_binary,
    read_rest,
    read_string,
    read_u8,
    read_u16,
)
from cython.cimports.tidemq.wire.properties import (
    WILL,
    clear_properties,
    has_property,
    read_properties,
)
from cython.cimports.tidemq.wire.protocol import (
    CONNACK,
    CONNECT,
    FAULT_CLIENT_ID,
    FAULT_DUP_QOS_0,
    FAULT_FLAGS,
    FAULT_NEED_MORE,
    FAULT_NO_FILTERS,
    FAULT_NO_LOCAL_SHARED,
    FAULT_NONE,
    FAULT_PACKET_ID_ZERO,
    FAULT_PACKET_TYPE,
    FAULT_PASSWORD_WITHOUT_USERNAME,
    FAULT_PROTOCOL_NAME,
    FAULT_PROTOCOL_VERSION,
    FAULT_QOS,
    FAULT_REASON_CODE,
    FAULT_RESERVED_BIT,
    FAULT_SUBSCRIPTION_OPTIONS,
    FAULT_TOPIC_EMPTY,
    FAULT_TRAILING,
    FAULT_TRUNCATED,
    FAULT_VARINT_OVERLONG,
    FAULT_WILL_FLAGS,
    PROP_TOPIC_ALIAS,
    PUBLISH,
    PUBREL,
    RC_SUCCESS,
    SUBACK,
    SUBSCRIBE,
    UNSUBSCRIBE,
    Fault,
    Span,
)
from cython.cimports.tidemq.wire.reasons import allowed_reason
from cython.cimports.tidemq.wire.topics import (
    check_topic_filter,
    check_topic_name,
    check_topic_text,
    split_shared,
)


def parse_fixed_header(data, size, out):
    """FAULT_NEED_MORE while the header itself is not whole; the body may be missing (2.1)."""
    if size == 0:
        return FAULT_NEED_MORE
    out.first = data[0]
    if data[0] < 0x10:
        return FAULT_PACKET_TYPE  # type 0 is reserved
    value: uint32_t = 0
    i: uint32_t = 1
    while i < 5:
        if i >= size:
            return FAULT_NEED_MORE
        byte: uint8_t = data[i]
        value |= cython.cast(uint32_t, byte & 0x7F) << (7 * (i - 1))
        i += 1
        if byte < 0x80:
            if byte == 0 and i > 2:
                return FAULT_VARINT_OVERLONG  # [MQTT-1.5.5-1]
            out.header_size = i
            out.body_size = value
            return FAULT_NONE
    return FAULT_VARINT_OVERLONG


def check_flags(first, version):
    """The flag nibble of every packet but PUBLISH. In 3.1 those that have no meaning there are not looked at:
    DUP marks what is sent again, and unused ones may be anything (3.1, sections 2.1 and 3).
    """
    packet_type: uint8_t = first >> 4
    flags: uint8_t = first & 0x0F
    if packet_type in (PUBREL, SUBSCRIBE, UNSUBSCRIBE):
        if version == 3:
            flags &= 0x06
        return FAULT_NONE if flags == 0x02 else FAULT_FLAGS  # [MQTT-3.6.1-1] [MQTT-3.8.1-1] [MQTT-3.10.1-1]
    return FAULT_NONE if flags == 0 or version == 3 else FAULT_FLAGS  # [MQTT-2.1.3-1]


def finish(c):
    """The fault of a packet whose last field was read."""
    if c.at != c.end:
        fail(c, FAULT_TRAILING)
    return c.fault


def read_packet_id(c):
    packet_id: uint16_t = read_u16(c)
    if packet_id == 0:
        fail(c, FAULT_PACKET_ID_ZERO)  # [MQTT-2.2.1-3]
    return packet_id


def read_reason(c, packet_type, version):
    reason: uint8_t = read_u8(c)
    if not allowed_reason(packet_type, reason, version):
        fail(c, FAULT_REASON_CODE)
    return reason


def parse_connect(first, body, size, out):
    """3.1. `version` is written whatever the fault: 0 where there is no level to answer in."""
    c: Cursor = Cursor(body, body + size, FAULT_NONE)
    out.version = 0
    name: Span = read_string(cython.address(c))
    level: uint8_t = read_u8(cython.address(c))
    if c.fault == FAULT_NONE:
        c.fault = check_flags(first, level)
    if c.fault == FAULT_NONE:
        c.fault = check_protocol(name, level)
    if c.fault != FAULT_NONE:
        return c.fault
    out.version = level
    flags: uint8_t = read_u8(cython.address(c))
    out.keep_alive_s = read_u16(cython.address(c))
    if c.fault == FAULT_NONE:
        c.fault = read_connect_flags(flags, out)
    if c.fault != FAULT_NONE:
        return c.fault
    clear_properties(cython.address(out.properties))
    clear_properties(cython.address(out.will_properties))
    if level == 5:
        read_properties(cython.address(c), CONNECT, cython.address(out.properties))
    read_client_id(cython.address(c), out)
    if out.has_will:
        read_will(cython.address(c), out)
    read_credentials(cython.address(c), out)
    return finish(cython.address(c))


def check_protocol(name, level):
    if name.size == 4 and memcmp(name.data, b"MQTT", 4) == 0:
        return FAULT_NONE if level == 4 or level == 5 else FAULT_PROTOCOL_VERSION  # [MQTT-3.1.2-2]
    if name.size == 6 and memcmp(name.data, b"MQIsdp", 6) == 0:
        return FAULT_NONE if level == 3 else FAULT_PROTOCOL_VERSION
    return FAULT_PROTOCOL_NAME  # [MQTT-3.1.2-1]


def read_connect_flags(flags, out):
    """3.1.2.3. In 3.1 bit 0 means nothing, and nor do a will's flags without a will."""
    out.clean_start = (flags & 0x02) != 0
    out.has_will = (flags & 0x04) != 0
    out.will_qos = (flags >> 3) & 3
    out.will_retain = (flags & 0x20) != 0
    out.has_password = (flags & 0x40) != 0
    out.has_username = (flags & 0x80) != 0
    if flags & 0x01 and out.version != 3:
        return FAULT_RESERVED_BIT  # [MQTT-3.1.2-3]
    if out.has_will:
        if out.will_qos == 3:
            return FAULT_WILL_FLAGS  # [MQTT-3.1.2-12]
    else:
        if (out.will_qos or out.will_retain) and out.version != 3:
            return FAULT_WILL_FLAGS  # [MQTT-3.1.2-11] [MQTT-3.1.2-13]
        out.will_qos = 0
        out.will_retain = False
    if out.has_password and not out.has_username and out.version < 5:
        return FAULT_PASSWORD_WITHOUT_USERNAME  # [3.1.1 MQTT-3.1.2-22]
    return FAULT_NONE


def read_client_id(c, out):
    out.client_id = read_string(c)
    optional: cython.bint = out.version == 5 or (out.version == 4 and out.clean_start)
    if out.client_id.size == 0 and not optional:
        fail(c, FAULT_CLIENT_ID)  # [3.1.1 MQTT-3.1.3-8]


def read_will(c, out):
    if out.version == 5:
        read_properties(c, WILL, cython.address(out.will_properties))
    out.will_topic = read_string(c)
    out.will_payload = read_binary(c)
    fault: Fault = check_topic_name(out.will_topic, out.will_topic.size + 1)
    if fault != FAULT_NONE:
        fail(c, fault)


def read_credentials(c, out):
    """User name and password; a 3.1 client may announce them and then leave them out (3.1, section 3.1)."""
    if out.version == 3 and c.at == c.end:
        out.has_username = False
    if out.has_username:
        out.username = read_string(c)
    if out.version == 3 and c.at == c.end:
        out.has_password = False
    if out.has_password:
        out.password = read_binary(c)


def parse_connack(first, body, size, version, out):
    """3.2. In 3.1 the first byte means nothing."""
    c: Cursor = Cursor(body, body + size, check_flags(first, version))
    flags: uint8_t = read_u8(cython.address(c))
    if version != 3 and flags > 1:
        fail(cython.address(c), FAULT_RESERVED_BIT)  # [MQTT-3.2.2-1]
    out.session_present = version != 3 and (flags & 1) != 0
    out.reason = read_reason(cython.address(c), CONNACK, version)
    read_optional_properties(cython.address(c), CONNACK, version, cython.address(out.properties))
    return finish(cython.address(c))


def read_optional_properties(c, packet, version, out):
    """Those of 5.0; none below it."""
    if version == 5:
        read_properties(c, packet, out)
    else:
        clear_properties(out)


def parse_publish(first, body, size, version, out):
    """3.3. An empty topic passes only with a topic alias; levels are not counted, aliases not resolved."""
    at: uint32_t = 2
    if size < at:
        return FAULT_TRUNCATED
    out.dup = (first & 0x08) != 0
    out.qos = (first >> 1) & 3
    out.retain = (first & 0x01) != 0
    if out.qos == 3:
        return FAULT_QOS  # [MQTT-3.3.1-4]
    if out.dup and out.qos == 0:
        return FAULT_DUP_QOS_0  # [MQTT-3.3.1-2]
    out.topic.data = body + at
    out.topic.size = (cython.cast(uint32_t, body[0]) << 8) | body[1]
    at += out.topic.size
    if at > size:
        return FAULT_TRUNCATED
    fault: Fault = check_topic_text(cython.address(out.topic))
    if fault != FAULT_NONE:
        return fault
    out.packet_id = 0
    if out.qos:
        if size - at < 2:
            return FAULT_TRUNCATED
        out.packet_id = cython.cast(uint16_t, (body[at] << 8) | body[at + 1])
        at += 2
        if out.packet_id == 0:
            return FAULT_PACKET_ID_ZERO  # [MQTT-2.2.1-3]
    out.properties.present = 0  # as clear_properties does, without its call
    out.properties.raw = Span(cython.NULL, 0)
    out.properties.user_count = 0
    out.properties.subscription_id_count = 0
    if version == 5:
        if at < size and body[at] == 0:
            at += 1
        else:
            return parse_publish_properties(body, at, size, out)
    if out.topic.size == 0:
        return FAULT_TOPIC_EMPTY  # [MQTT-4.7.3-1]
    out.payload.data = body + at
    out.payload.size = size - at
    return FAULT_NONE


def parse_publish_properties(body, at, size, out):
    """The rest of a 5.0 PUBLISH from its properties on."""
    c: Cursor = Cursor(body + at, body + size, FAULT_NONE)
    read_properties(cython.address(c), PUBLISH, cython.address(out.properties))
    if out.topic.size == 0 and not has_property(cython.address(out.properties), PROP_TOPIC_ALIAS):
        fail(cython.address(c), FAULT_TOPIC_EMPTY)
    out.payload = read_rest(cython.address(c))
    return c.fault


def parse_ack(first, body, size, version, out):
    """3.4 to 3.7. In 5.0 the reason (success) and the properties (none) may be left out."""
    out.reason = RC_SUCCESS
    clear_properties(cython.address(out.properties))
    fault: Fault = check_flags(first, version)
    if fault == FAULT_NONE and size == 2:  # the usual form, without a cursor
        out.packet_id = cython.cast(uint16_t, (body[0] << 8) | body[1])
        return FAULT_NONE if out.packet_id else FAULT_PACKET_ID_ZERO
    c: Cursor = Cursor(body, body + size, fault)
    packet_type: uint8_t = first >> 4
    out.packet_id = read_packet_id(cython.address(c))
    if version == 5 and size > 2:
        out.reason = read_reason(cython.address(c), packet_type, version)
        if size > 3:
            read_properties(cython.address(c), packet_type, cython.address(out.properties))
    return finish(cython.address(c))


def parse_subscribe(first, body, size, version, levels_max, out):
    """3.8."""
    return read_subscribe(first, body, size, version, levels_max, True, out)


def parse_unsubscribe(first, body, size, version, levels_max, out):
    """3.10."""
    return read_subscribe(first, body, size, version, levels_max, False, out)


def read_subscribe(first, body, size, version, levels_max, with_options, out):
    c: Cursor = Cursor(body, body + size, check_flags(first, version))
    out.packet_id = read_packet_id(cython.address(c))
    read_optional_properties(cython.address(c), first >> 4, version, cython.address(out.properties))
    if c.fault == FAULT_NONE and c.at == c.end:
        return FAULT_NO_FILTERS  # [MQTT-3.8.3-2] [MQTT-3.10.3-2]
    out.filters = Span(c.at, cython.cast(uint32_t, c.end - c.at))
    out.count = 0
    while c.fault == FAULT_NONE and c.at < c.end:
        read_filter(cython.address(c), version, levels_max, with_options)
        out.count += 1
    return c.fault


def read_filter(c, version, levels_max, with_options):
    filter: Span = read_string(c)
    options: uint8_t = read_u8(c) if with_options else 0
    if c.fault != FAULT_NONE:
        return
    fault: Fault = check_topic_filter(filter, levels_max)
    if fault == FAULT_NONE:
        fault = check_options(filter, options, version)
    if fault != FAULT_NONE:
        fail(c, fault)


def check_options(filter, options, version):
    """3.8.3.1. Below 5.0 all but the QoS is reserved."""
    if options & (0xC0 if version == 5 else 0xFC):
        return FAULT_RESERVED_BIT  # [MQTT-3.8.3-5]
    if options & 0x03 == 0x03 or options & 0x30 == 0x30:
        return FAULT_SUBSCRIPTION_OPTIONS
    if options & 0x04 and split_shared(filter).shared:
        return FAULT_NO_LOCAL_SHARED  # [MQTT-3.8.3-4]
    return FAULT_NONE


def next_filter(rest, with_options, filter, options):
    c: Cursor = Cursor(rest.data, rest.data + rest.size, FAULT_NONE)
    options[0] = 0
    filter[0] = read_binary(cython.address(c))
    if with_options:
        options[0] = read_u8(cython.address(c))
    rest[0] = Span(c.at, cython.cast(uint32_t, c.end - c.at))
    return c.fault == FAULT_NONE


def parse_suback(first, body, size, version, out):
    """3.9 and 3.11. An UNSUBACK below 5.0 has no reasons."""
    c: Cursor = Cursor(body, body + size, check_flags(first, version))
    packet_type: uint8_t = first >> 4
    out.packet_id = read_packet_id(cython.address(c))
    read_optional_properties(cython.address(c), packet_type, version, cython.address(out.properties))
    out.reasons = Span(c.at, 0)
    if packet_type == SUBACK or version == 5:
        out.reasons = Span(c.at, cython.cast(uint32_t, c.end - c.at))
        read_reason(cython.address(c), packet_type, version)  # at least one
        while c.fault == FAULT_NONE and c.at < c.end:
            read_reason(cython.address(c), packet_type, version)
    return finish(cython.address(c))


def parse_disconnect(first, body, size, version, out):
    """3.14. In 5.0 the reason (success) and the properties (none) may be left out."""
    c: Cursor = Cursor(body, body + size, check_flags(first, version))
    out.reason = RC_SUCCESS
    clear_properties(cython.address(out.properties))
    if version == 5 and size > 0:
        out.reason = read_reason(cython.address(c), first >> 4, version)
        if size > 1:
            read_properties(cython.address(c), first >> 4, cython.address(out.properties))
    return finish(cython.address(c))


def parse_auth(first, body, size, out):
    """3.15, of the same form as DISCONNECT."""
    return parse_disconnect(first, body, size, 5, out)


def parse_ping(first, size, version):
    """3.12 and 3.13."""
    fault: Fault = check_flags(first, version)
    if fault != FAULT_NONE:
        return fault
    return FAULT_NONE if size == 0 else FAULT_TRAILING
