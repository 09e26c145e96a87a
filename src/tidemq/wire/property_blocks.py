"""Blocks of properties for Python: the dataclass `Properties` from bytes and to bytes.

Reading is `properties.read_properties`, writing the `append_` functions of `encoding`. Needs the GIL.
"""

import cython
from cython.cimports.libc.stdint import uint8_t, uint16_t, uint32_t
from cython.cimports.libcpp.string import string
from cython.cimports.tidemq.wire.cursor import Cursor, read_binary, read_varint, write_varint
from cython.cimports.tidemq.wire.encoding import (
    append_pair_property,
    append_string_property,
    append_u8_property,
    append_u16_property,
    append_u32_property,
    append_varint_property,
)
from cython.cimports.tidemq.wire.properties import (
    Properties,
    copy_forwarded,
    has_property,
    read_properties,
    skip_value,
)
from cython.cimports.tidemq.wire.protocol import (
    FAULT_NONE,
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
    span_of,
)

from tidemq.errors import UsageError
from tidemq.wire import control_packets
from tidemq.wire.control_packets import NO_PROPERTIES
from tidemq.wire.faults import protocol_error

VARINT_MAX = 268_435_455

# --- Python to bytes


def as_uint(name, value, value_max):
    if not isinstance(value, int) or not 0 <= value <= value_max:
        raise UsageError(f"{name} is {value!r}; accepted: 0 to {value_max}")
    return value


def as_text(name, value):
    if not isinstance(value, str):
        raise UsageError(f"{name} is {value!r}; accepted: a str")
    try:
        data: bytes = value.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{name} has no UTF-8 form: {error}") from error
    return limited(name, data)


def as_binary(name, value):
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise UsageError(f"{name} is {value!r}; accepted: bytes")
    return limited(name, bytes(value))


def limited(name, data):
    if len(data) > 0xFFFF:
        raise UsageError(f"{name} has {len(data)} bytes; accepted: up to 65,535")
    return data


# The properties with one value, in the order in which they are written: name in the dataclass, identifier,
# and type or largest value.
_SINGLE = (
    ("payload_format", PROP_PAYLOAD_FORMAT, 0xFF),
    ("message_expiry_s", PROP_MESSAGE_EXPIRY, 0xFFFFFFFF),
    ("content_type", PROP_CONTENT_TYPE, str),
    ("response_topic", PROP_RESPONSE_TOPIC, str),
    ("correlation_data", PROP_CORRELATION_DATA, bytes),
    ("session_expiry_s", PROP_SESSION_EXPIRY, 0xFFFFFFFF),
    ("assigned_client_id", PROP_ASSIGNED_CLIENT_ID, str),
    ("server_keep_alive_s", PROP_SERVER_KEEP_ALIVE, 0xFFFF),
    ("auth_method", PROP_AUTH_METHOD, str),
    ("auth_data", PROP_AUTH_DATA, bytes),
    ("request_problem_info", PROP_REQUEST_PROBLEM_INFO, 0xFF),
    ("will_delay_s", PROP_WILL_DELAY, 0xFFFFFFFF),
    ("request_response_info", PROP_REQUEST_RESPONSE_INFO, 0xFF),
    ("response_info", PROP_RESPONSE_INFO, str),
    ("server_reference", PROP_SERVER_REFERENCE, str),
    ("reason_string", PROP_REASON_STRING, str),
    ("receive_maximum", PROP_RECEIVE_MAXIMUM, 0xFFFF),
    ("topic_alias_maximum", PROP_TOPIC_ALIAS_MAXIMUM, 0xFFFF),
    ("topic_alias", PROP_TOPIC_ALIAS, 0xFFFF),
    ("maximum_qos", PROP_MAXIMUM_QOS, 0xFF),
    ("retain_available", PROP_RETAIN_AVAILABLE, 0xFF),
    ("maximum_packet_size", PROP_MAXIMUM_PACKET_SIZE, 0xFFFFFFFF),
    ("wildcard_available", PROP_WILDCARD_AVAILABLE, 0xFF),
    ("subscription_ids_available", PROP_SUBSCRIPTION_IDS_AVAILABLE, 0xFF),
    ("shared_available", PROP_SHARED_AVAILABLE, 0xFF),
)


def append_properties(properties, out):
    if properties is NO_PROPERTIES:
        return 0
    for name, property_id, kind in _SINGLE:
        value = getattr(properties, name)
        if value is not None:
            append_single(name, property_id, value, kind, out)
    for value in properties.subscription_ids:
        append_varint_property(
            PROP_SUBSCRIPTION_ID, as_uint("a subscription identifier", value, VARINT_MAX), out
        )
    for name, value in properties.user_properties:
        key: bytes = as_text("a user property's name", name)
        data: bytes = as_text("a user property's value", value)
        append_pair_property(PROP_USER_PROPERTY, span_of(key), span_of(data), out)
    return 0


def append_single(name, property_id, value, kind, out):
    if kind is str or kind is bytes:
        data: bytes = as_text(name, value) if kind is str else as_binary(name, value)
        append_string_property(property_id, span_of(data), out)
        return 0
    number: cython.uint = as_uint(name, value, kind)
    if kind == 0xFF:
        append_u8_property(property_id, cython.cast(uint8_t, number), out)
    elif kind == 0xFFFF:
        append_u16_property(property_id, cython.cast(uint16_t, number), out)
    else:
        append_u32_property(property_id, number, out)
    return 0


def encode_properties(properties: object) -> bytes:
    """The block of `properties` without its length. Whether a packet may have them is not judged."""
    out = cython.declare(string)
    append_properties(properties, cython.address(out))
    return cython.cast(bytes, out)


# --- bytes to Python


def text(span):
    return cython.cast(cython.p_const_char, span.data)[: span.size].decode("utf-8")


def content(span):
    return cython.cast(cython.p_const_char, span.data)[: span.size]


def make_properties(p):
    if p.present == 0:
        return NO_PROPERTIES
    found: dict = {}
    find_numbers(p, found)
    find_flags(p, found)
    find_fields(p, found)
    if p.user_count or p.subscription_id_count:
        find_repeatable(p, found)
    return control_packets.Properties(**found)


def find_numbers(p, found):
    if has_property(p, PROP_PAYLOAD_FORMAT):
        found["payload_format"] = p.payload_format
    if has_property(p, PROP_MESSAGE_EXPIRY):
        found["message_expiry_s"] = p.message_expiry_s
    if has_property(p, PROP_SESSION_EXPIRY):
        found["session_expiry_s"] = p.session_expiry_s
    if has_property(p, PROP_SERVER_KEEP_ALIVE):
        found["server_keep_alive_s"] = p.server_keep_alive_s
    if has_property(p, PROP_WILL_DELAY):
        found["will_delay_s"] = p.will_delay_s
    if has_property(p, PROP_RECEIVE_MAXIMUM):
        found["receive_maximum"] = p.receive_maximum
    if has_property(p, PROP_TOPIC_ALIAS_MAXIMUM):
        found["topic_alias_maximum"] = p.topic_alias_maximum
    if has_property(p, PROP_TOPIC_ALIAS):
        found["topic_alias"] = p.topic_alias
    if has_property(p, PROP_MAXIMUM_QOS):
        found["maximum_qos"] = p.maximum_qos
    if has_property(p, PROP_MAXIMUM_PACKET_SIZE):
        found["maximum_packet_size"] = p.maximum_packet_size


def find_flags(p, found):
    if has_property(p, PROP_REQUEST_PROBLEM_INFO):
        found["request_problem_info"] = p.request_problem_info != 0
    if has_property(p, PROP_REQUEST_RESPONSE_INFO):
        found["request_response_info"] = p.request_response_info != 0
    if has_property(p, PROP_RETAIN_AVAILABLE):
        found["retain_available"] = p.retain_available != 0
    if has_property(p, PROP_WILDCARD_AVAILABLE):
        found["wildcard_available"] = p.wildcard_available != 0
    if has_property(p, PROP_SUBSCRIPTION_IDS_AVAILABLE):
        found["subscription_ids_available"] = p.subscription_ids_available != 0
    if has_property(p, PROP_SHARED_AVAILABLE):
        found["shared_available"] = p.shared_available != 0


def find_fields(p, found):
    if has_property(p, PROP_CONTENT_TYPE):
        found["content_type"] = text(p.content_type)
    if has_property(p, PROP_RESPONSE_TOPIC):
        found["response_topic"] = text(p.response_topic)
    if has_property(p, PROP_CORRELATION_DATA):
        found["correlation_data"] = content(p.correlation_data)
    if has_property(p, PROP_ASSIGNED_CLIENT_ID):
        found["assigned_client_id"] = text(p.assigned_client_id)
    if has_property(p, PROP_AUTH_METHOD):
        found["auth_method"] = text(p.auth_method)
    if has_property(p, PROP_AUTH_DATA):
        found["auth_data"] = content(p.auth_data)
    if has_property(p, PROP_RESPONSE_INFO):
        found["response_info"] = text(p.response_info)
    if has_property(p, PROP_SERVER_REFERENCE):
        found["server_reference"] = text(p.server_reference)
    if has_property(p, PROP_REASON_STRING):
        found["reason_string"] = text(p.reason_string)


def find_repeatable(p, found):
    pairs: list = []
    subscription_ids: list = []
    c: Cursor = Cursor(p.raw.data, p.raw.data + p.raw.size, FAULT_NONE)
    while c.at < c.end:
        property_id: uint32_t = read_varint(cython.address(c))
        if property_id == PROP_USER_PROPERTY:
            name: str = text(read_binary(cython.address(c)))
            pairs.append((name, text(read_binary(cython.address(c)))))
        elif property_id == PROP_SUBSCRIPTION_ID:
            subscription_ids.append(read_varint(cython.address(c)))
        else:
            skip_value(cython.address(c), property_id)
    assert len(pairs) == p.user_count
    assert len(subscription_ids) == p.subscription_id_count
    found["user_properties"] = tuple(pairs)
    found["subscription_ids"] = tuple(subscription_ids)


def parse_block(block, packet_type, out):
    """`block` with its length in front; `out` points into it."""
    data: cython.pointer[cython.const[uint8_t]] = block
    c: Cursor = Cursor(data, data + len(block), FAULT_NONE)
    read_properties(cython.address(c), packet_type, out)
    if c.fault != FAULT_NONE:
        raise protocol_error(c.fault)
    return 0


def with_length(block):
    length = cython.declare(uint8_t[4])
    if len(block) > VARINT_MAX:
        raise UsageError(f"a property block has {len(block)} bytes; accepted: up to 268,435,455")
    end: cython.pointer[uint8_t] = write_varint(length, cython.cast(uint32_t, len(block)))
    return cython.cast(cython.p_char, length)[: end - length] + block


def decode_properties(block: bytes, packet_type: cython.int = PUBLISH) -> object:
    """The properties in `block`, which has no length in front, as a packet of that type may have them."""
    properties = cython.declare(Properties)
    data: bytes = with_length(block)
    parse_block(data, packet_type, cython.address(properties))
    return make_properties(cython.address(properties))


def forwarded_properties(block: bytes) -> bytes:
    """What a server passes on of a PUBLISH's properties, in order; both blocks are without their lengths.

    Left out are message expiry, topic alias and subscription identifiers, which each receiver has of its own.
    """
    properties = cython.declare(Properties)
    data: bytes = with_length(block)
    parse_block(data, PUBLISH, cython.address(properties))
    out: bytearray = bytearray(len(block))
    size: uint32_t = copy_forwarded(
        properties.raw, cython.cast(cython.pointer[uint8_t], cython.cast(cython.p_char, out))
    )
    return bytes(out[:size])
