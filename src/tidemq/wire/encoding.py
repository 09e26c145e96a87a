"""Control packets written: the forms of the message path, and one form for all the others (5.0 chapter 3).

Callers give what is valid and have made room. Every function may run on any thread without the GIL.
"""

import cython
from cython.cimports.libc.stdint import uint8_t, uint16_t, uint32_t
from cython.cimports.tidemq.wire.cursor import (
    varint_size,
    write_bytes,
    write_string,
    write_u16,
    write_u32,
    write_varint,
)
from cython.cimports.tidemq.wire.protocol import (
    PROP_MESSAGE_EXPIRY,
    PROP_SUBSCRIPTION_ID,
    PROP_TOPIC_ALIAS,
    PUBLISH,
    PUBREL,
    RC_SUCCESS,
)


def publish_properties_size(head):
    """Bytes of the property block without its length."""
    size: uint32_t = head.forwarded.size
    if head.topic_alias:
        size += 3
    if head.message_expiry_s >= 0:
        size += 5
    i: uint32_t
    for i in range(head.subscription_id_count):
        size += 1 + varint_size(head.subscription_ids[i])
    return size


def publish_variable_size(head):
    """Bytes of the variable header."""
    size: uint32_t = 2 + head.topic.size
    if head.qos:
        size += 2
    if head.version == 5:
        properties_size: uint32_t = publish_properties_size(head)
        size += varint_size(properties_size) + properties_size
    return size


def publish_head_size(head, packet_id_at):
    size: uint32_t = publish_variable_size(head)
    fixed_size: uint32_t = 1 + varint_size(size + head.payload_size)
    packet_id_at[0] = fixed_size + 2 + head.topic.size
    return fixed_size + size


def encode_publish_head(head, out):
    at: cython.pointer[uint8_t] = out
    at[0] = cython.cast(uint8_t, (PUBLISH << 4) | (head.dup << 3) | (head.qos << 1) | head.retain)
    at = write_varint(at + 1, publish_variable_size(head) + head.payload_size)
    at = write_string(at, head.topic)
    if head.qos:
        at = write_u16(at, head.packet_id)
    if head.version == 5:
        at = write_varint(at, publish_properties_size(head))
        at = write_publish_properties(at, head)
    return cython.cast(uint32_t, at - out)


def write_publish_properties(at, head):
    if head.topic_alias:
        at[0] = PROP_TOPIC_ALIAS
        at = write_u16(at + 1, head.topic_alias)
    if head.message_expiry_s >= 0:
        at[0] = PROP_MESSAGE_EXPIRY
        at = write_u32(at + 1, cython.cast(uint32_t, head.message_expiry_s))
    i: uint32_t
    for i in range(head.subscription_id_count):
        at[0] = PROP_SUBSCRIPTION_ID
        at = write_varint(at + 1, head.subscription_ids[i])
    return write_bytes(at, head.forwarded.data, head.forwarded.size)


def encode_ack(packet_type, packet_id, reason, version, out):
    with_reason: cython.bint = version == 5 and reason != RC_SUCCESS
    out[0] = cython.cast(uint8_t, (packet_type << 4) | (0x02 if packet_type == PUBREL else 0))
    out[1] = 3 if with_reason else 2
    out[2] = cython.cast(uint8_t, packet_id >> 8)
    out[3] = cython.cast(uint8_t, packet_id)
    if with_reason:
        out[4] = reason
    return 5 if with_reason else 4


def append(data, size, out):
    if size:
        out.append(cython.cast(cython.p_const_char, data), size)


def encode_packet(first, head, properties, with_properties, tail, out):
    """The caller keeps the sum of all below 268,435,456 bytes."""
    lengths = cython.declare(uint8_t[16])
    at: cython.pointer[uint8_t] = lengths
    size: uint32_t = head.size + tail.size
    if with_properties:
        size += varint_size(properties.size) + properties.size
    at[0] = first
    at = write_varint(at + 1, size)
    append(lengths, cython.cast(uint32_t, at - lengths), out)
    append(head.data, head.size, out)
    if with_properties:
        at = write_varint(lengths, properties.size)
        append(lengths, cython.cast(uint32_t, at - lengths), out)
        append(properties.data, properties.size, out)
    append(tail.data, tail.size, out)


def append_field(value, out):
    length = cython.declare(uint8_t[2])
    write_u16(length, cython.cast(uint16_t, value.size))
    append(length, 2, out)
    append(value.data, value.size, out)


def append_u8_property(property_id, value, out):
    encoded = cython.declare(uint8_t[2])
    encoded[0] = property_id
    encoded[1] = value
    append(encoded, 2, out)


def append_u16_property(property_id, value, out):
    encoded = cython.declare(uint8_t[3])
    encoded[0] = property_id
    write_u16(cython.address(encoded[1]), value)
    append(encoded, 3, out)


def append_u32_property(property_id, value, out):
    encoded = cython.declare(uint8_t[5])
    encoded[0] = property_id
    write_u32(cython.address(encoded[1]), value)
    append(encoded, 5, out)


def append_varint_property(property_id, value, out):
    encoded = cython.declare(uint8_t[5])
    encoded[0] = property_id
    at: cython.pointer[uint8_t] = write_varint(cython.address(encoded[1]), value)
    append(encoded, cython.cast(uint32_t, at - encoded), out)


def append_string_property(property_id, value, out):
    """Also binary data, whose form is the same."""
    append(cython.address(property_id), 1, out)
    append_field(value, out)


def append_pair_property(property_id, key, value, out):
    append_string_property(property_id, key, out)
    append_field(value, out)
