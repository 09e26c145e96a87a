"""Properties of 5.0 (section 2.2.2): read, checked, and copied for forwarding.

Only what a block holds is written to its struct: `present` says which fields to look at. Every function may
run on any thread without the GIL.
"""

import cython
from cython.cimports.libc.stdint import uint8_t, uint16_t, uint32_t, uint64_t
from cython.cimports.libc.string import memcpy
from cython.cimports.tidemq.wire.cursor import (
    Cursor,
    fail,
    read_binary,
    read_string,
    read_u8,
    read_u16,
    read_u32,
    read_varint,
)
from cython.cimports.tidemq.wire.properties import WILL
from cython.cimports.tidemq.wire.protocol import (
    AUTH,
    CONNACK,
    CONNECT,
    DISCONNECT,
    FAULT_AUTH_DATA_WITHOUT_METHOD,
    FAULT_NONE,
    FAULT_PROPERTY_MISPLACED,
    FAULT_PROPERTY_TWICE,
    FAULT_PROPERTY_UNKNOWN,
    FAULT_PROPERTY_VALUE,
    FAULT_TOPIC_ALIAS,
    FAULT_TRUNCATED,
    PROP_ASSIGNED_CLIENT_ID,
    PROP_AUTH_DATA,
    PROP_AUTH_METHOD,
    PROP_CONTENT_TYPE,
    PROP_CORRELATION_DATA,
    PROP_MAXIMUM_PACKET_SIZE,
    PROP_MAXIMUM_QOS,
    PROP_MESSAGE_EXPIRY,
    PROP_PAYLOAD_FORMAT,
    PROP_REASON_STRING,
    PROP_RECEIVE_MAXIMUM,
    PROP_REQUEST_PROBLEM_INFO,
    PROP_REQUEST_RESPONSE_INFO,
    PROP_RESPONSE_INFO,
    PROP_RESPONSE_TOPIC,
    PROP_RETAIN_AVAILABLE,
    PROP_SERVER_KEEP_ALIVE,
    PROP_SERVER_REFERENCE,
    PROP_SESSION_EXPIRY,
    PROP_SHARED_AVAILABLE,
    PROP_SUBSCRIPTION_ID,
    PROP_SUBSCRIPTION_IDS_AVAILABLE,
    PROP_TOPIC_ALIAS,
    PROP_TOPIC_ALIAS_MAXIMUM,
    PROP_USER_PROPERTY,
    PROP_WILDCARD_AVAILABLE,
    PROP_WILL_DELAY,
    PUBLISH,
    SUBSCRIBE,
    UNSUBSCRIBE,
    Fault,
    Span,
)
from cython.cimports.tidemq.wire.topics import check_topic_name


def bit(property_id):
    return cython.cast(uint64_t, 1) << property_id


def message_properties():
    """What a PUBLISH and a will share."""
    return (
        bit(PROP_PAYLOAD_FORMAT)
        | bit(PROP_MESSAGE_EXPIRY)
        | bit(PROP_CONTENT_TYPE)
        | bit(PROP_RESPONSE_TOPIC)
        | bit(PROP_CORRELATION_DATA)
        | bit(PROP_USER_PROPERTY)
    )


def connect_properties():
    return (
        bit(PROP_SESSION_EXPIRY)
        | bit(PROP_AUTH_METHOD)
        | bit(PROP_AUTH_DATA)
        | bit(PROP_REQUEST_PROBLEM_INFO)
        | bit(PROP_REQUEST_RESPONSE_INFO)
        | bit(PROP_RECEIVE_MAXIMUM)
        | bit(PROP_TOPIC_ALIAS_MAXIMUM)
        | bit(PROP_USER_PROPERTY)
        | bit(PROP_MAXIMUM_PACKET_SIZE)
    )


def connack_properties():
    return (
        bit(PROP_SESSION_EXPIRY)
        | bit(PROP_ASSIGNED_CLIENT_ID)
        | bit(PROP_SERVER_KEEP_ALIVE)
        | bit(PROP_AUTH_METHOD)
        | bit(PROP_AUTH_DATA)
        | bit(PROP_RESPONSE_INFO)
        | bit(PROP_SERVER_REFERENCE)
        | bit(PROP_REASON_STRING)
        | bit(PROP_RECEIVE_MAXIMUM)
        | bit(PROP_TOPIC_ALIAS_MAXIMUM)
        | bit(PROP_MAXIMUM_QOS)
        | bit(PROP_RETAIN_AVAILABLE)
        | bit(PROP_USER_PROPERTY)
        | bit(PROP_MAXIMUM_PACKET_SIZE)
        | bit(PROP_WILDCARD_AVAILABLE)
        | bit(PROP_SUBSCRIPTION_IDS_AVAILABLE)
        | bit(PROP_SHARED_AVAILABLE)
    )


def allowed_properties(packet):
    """The properties that may be in a packet, as bits (5.0 table 2-4)."""
    if packet == CONNECT:
        return connect_properties()
    if packet == CONNACK:
        return connack_properties()
    if packet == PUBLISH:
        return message_properties() | bit(PROP_TOPIC_ALIAS) | bit(PROP_SUBSCRIPTION_ID)
    if packet == WILL:
        return message_properties() | bit(PROP_WILL_DELAY)
    if packet == SUBSCRIBE:
        return bit(PROP_SUBSCRIPTION_ID) | bit(PROP_USER_PROPERTY)
    if packet == UNSUBSCRIBE:
        return bit(PROP_USER_PROPERTY)
    if packet == DISCONNECT:
        return (
            bit(PROP_SESSION_EXPIRY)
            | bit(PROP_SERVER_REFERENCE)
            | bit(PROP_REASON_STRING)
            | bit(PROP_USER_PROPERTY)
        )
    if packet == AUTH:
        return bit(PROP_AUTH_METHOD) | bit(PROP_AUTH_DATA) | bit(PROP_REASON_STRING) | bit(PROP_USER_PROPERTY)
    return bit(PROP_REASON_STRING) | bit(PROP_USER_PROPERTY)  # acknowledgements


def known_properties():
    return (
        connect_properties()
        | connack_properties()
        | message_properties()
        | bit(PROP_TOPIC_ALIAS)
        | bit(PROP_SUBSCRIPTION_ID)
        | bit(PROP_WILL_DELAY)
    )


def has_property(p, property_id):
    return (p.present & bit(property_id)) != 0


def clear_properties(p):
    p.present = 0
    p.raw.data = cython.NULL
    p.raw.size = 0
    p.user_count = 0
    p.subscription_id_count = 0


def read_properties(c, packet, out):
    clear_properties(out)
    size: uint32_t = read_varint(c)
    if cython.cast(cython.size_t, c.end - c.at) < size:
        fail(c, FAULT_TRUNCATED)
    if c.fault != FAULT_NONE:
        return
    block: Cursor = Cursor(c.at, c.at + size, FAULT_NONE)
    out.raw.data = c.at
    out.raw.size = size
    c.at += size
    allowed: uint64_t = allowed_properties(packet)
    while block.at < block.end:
        property_id: uint32_t = read_varint(cython.address(block))
        fault: Fault = check_placement(property_id, packet, allowed, out.present)
        if fault != FAULT_NONE:
            fail(cython.address(block), fault)
            break
        out.present |= bit(property_id)
        read_value(cython.address(block), property_id, out)
    if block.fault != FAULT_NONE:
        fail(c, block.fault)
    elif has_property(out, PROP_AUTH_DATA) and not has_property(out, PROP_AUTH_METHOD):
        fail(c, FAULT_AUTH_DATA_WITHOUT_METHOD)


def check_placement(property_id, packet, allowed, present):
    """Whether the property may stand here: `allowed` are those of `packet`, `present` those before it."""
    if property_id > 63 or not known_properties() & bit(property_id):
        return FAULT_PROPERTY_UNKNOWN
    if not allowed & bit(property_id):
        return FAULT_PROPERTY_MISPLACED
    repeatable: uint64_t = bit(PROP_USER_PROPERTY)
    if packet == PUBLISH:
        repeatable |= bit(PROP_SUBSCRIPTION_ID)
    return FAULT_PROPERTY_TWICE if present & ~repeatable & bit(property_id) else FAULT_NONE


def read_value(c, property_id, out):
    if property_id == PROP_PAYLOAD_FORMAT:
        out.payload_format = read_flag(c)
    elif property_id == PROP_MESSAGE_EXPIRY:
        out.message_expiry_s = read_u32(c)
    elif property_id == PROP_CONTENT_TYPE:
        out.content_type = read_string(c)
    elif property_id == PROP_RESPONSE_TOPIC:
        out.response_topic = read_topic(c)
    elif property_id == PROP_CORRELATION_DATA:
        out.correlation_data = read_binary(c)
    elif property_id == PROP_SUBSCRIPTION_ID:
        read_subscription_id(c, out)
    elif property_id == PROP_SESSION_EXPIRY:
        out.session_expiry_s = read_u32(c)
    elif property_id == PROP_ASSIGNED_CLIENT_ID:
        out.assigned_client_id = read_string(c)
    elif property_id == PROP_SERVER_KEEP_ALIVE:
        out.server_keep_alive_s = read_u16(c)
    elif property_id == PROP_AUTH_METHOD:
        out.auth_method = read_string(c)
    elif property_id == PROP_AUTH_DATA:
        out.auth_data = read_binary(c)
    elif property_id == PROP_REQUEST_PROBLEM_INFO:
        out.request_problem_info = read_flag(c)
    elif property_id == PROP_WILL_DELAY:
        out.will_delay_s = read_u32(c)
    elif property_id == PROP_REQUEST_RESPONSE_INFO:
        out.request_response_info = read_flag(c)
    elif property_id == PROP_RESPONSE_INFO:
        out.response_info = read_string(c)
    elif property_id == PROP_SERVER_REFERENCE:
        out.server_reference = read_string(c)
    elif property_id == PROP_REASON_STRING:
        out.reason_string = read_string(c)
    elif property_id == PROP_RECEIVE_MAXIMUM:
        out.receive_maximum = read_positive_u16(c, FAULT_PROPERTY_VALUE)
    elif property_id == PROP_TOPIC_ALIAS_MAXIMUM:
        out.topic_alias_maximum = read_u16(c)
    elif property_id == PROP_TOPIC_ALIAS:
        out.topic_alias = read_positive_u16(c, FAULT_TOPIC_ALIAS)  # [MQTT-3.3.2-8]
    elif property_id == PROP_MAXIMUM_QOS:
        out.maximum_qos = read_flag(c)
    elif property_id == PROP_RETAIN_AVAILABLE:
        out.retain_available = read_flag(c)
    elif property_id == PROP_USER_PROPERTY:
        out.user_count += 1
        skip_pair(c)
    elif property_id == PROP_MAXIMUM_PACKET_SIZE:
        out.maximum_packet_size = read_packet_size(c)
    elif property_id == PROP_WILDCARD_AVAILABLE:
        out.wildcard_available = read_flag(c)
    elif property_id == PROP_SUBSCRIPTION_IDS_AVAILABLE:
        out.subscription_ids_available = read_flag(c)
    elif property_id == PROP_SHARED_AVAILABLE:
        out.shared_available = read_flag(c)


def read_flag(c):
    value: uint8_t = read_u8(c)
    if value > 1:
        fail(c, FAULT_PROPERTY_VALUE)
    return value


def read_positive_u16(c, fault):
    value: uint16_t = read_u16(c)
    if value == 0:
        fail(c, fault)
    return value


def read_packet_size(c):
    value: uint32_t = read_u32(c)
    if value == 0:
        fail(c, FAULT_PROPERTY_VALUE)
    return value


def read_subscription_id(c, out):
    value: uint32_t = read_varint(c)
    if value == 0:
        fail(c, FAULT_PROPERTY_VALUE)
    if out.subscription_id_count == 0:
        out.subscription_id = value
    out.subscription_id_count += 1


def read_topic(c):
    topic: Span = read_string(c)
    if check_topic_name(topic, topic.size + 1) != FAULT_NONE:
        fail(c, FAULT_PROPERTY_VALUE)  # 0x90 would blame the packet's own topic [MQTT-3.3.2-14]
    return topic


def skip_pair(c):
    read_string(c)
    read_string(c)


def copy_forwarded(raw, out):
    """`raw` was checked by read_properties; so its properties are only stepped over."""
    ours: uint64_t = (
        bit(PROP_MESSAGE_EXPIRY) | bit(PROP_TOPIC_ALIAS) | bit(PROP_SUBSCRIPTION_ID) | bit(PROP_WILL_DELAY)
    )
    size: uint32_t = 0
    c: Cursor = Cursor(raw.data, raw.data + raw.size, FAULT_NONE)
    while c.at < c.end:
        start: cython.pointer[cython.const[uint8_t]] = c.at
        property_id: uint32_t = read_varint(cython.address(c))
        skip_value(cython.address(c), property_id)
        if c.fault == FAULT_NONE and not ours & bit(property_id):
            memcpy(out + size, start, c.at - start)
            size += cython.cast(uint32_t, c.at - start)
    return size


def skip_value(c, property_id):
    if property_id in (
        PROP_PAYLOAD_FORMAT,
        PROP_REQUEST_PROBLEM_INFO,
        PROP_REQUEST_RESPONSE_INFO,
        PROP_MAXIMUM_QOS,
        PROP_RETAIN_AVAILABLE,
        PROP_WILDCARD_AVAILABLE,
        PROP_SUBSCRIPTION_IDS_AVAILABLE,
        PROP_SHARED_AVAILABLE,
    ):
        read_u8(c)
    elif property_id in (
        PROP_SERVER_KEEP_ALIVE,
        PROP_RECEIVE_MAXIMUM,
        PROP_TOPIC_ALIAS_MAXIMUM,
        PROP_TOPIC_ALIAS,
    ):
        read_u16(c)
    elif property_id in (
        PROP_MESSAGE_EXPIRY,
        PROP_SESSION_EXPIRY,
        PROP_WILL_DELAY,
        PROP_MAXIMUM_PACKET_SIZE,
    ):
        read_u32(c)
    elif property_id == PROP_SUBSCRIPTION_ID:
        read_varint(c)
    elif property_id == PROP_USER_PROPERTY:
        read_binary(c)
        read_binary(c)
    else:
        read_binary(c)
