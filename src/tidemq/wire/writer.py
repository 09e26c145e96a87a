"""Control packets to bytes for Python. What is written is judged by `packets` before it leaves.

Every function takes the GIL and keeps nothing. Bytes are put together by `encoding`, the broker's own.
"""

from dataclasses import replace

import cython
from cython.cimports.libc.stdint import uint8_t, uint16_t, uint32_t
from cython.cimports.libcpp.string import string
from cython.cimports.libcpp.vector import vector
from cython.cimports.tidemq.wire.encoding import (
    PublishHead,
    encode_ack,
    encode_packet,
    encode_publish_head,
    publish_head_size,
)
from cython.cimports.tidemq.wire.property_blocks import as_binary, as_text, as_uint, with_length
from cython.cimports.tidemq.wire.protocol import (
    AUTH,
    CONNACK,
    CONNECT,
    DISCONNECT,
    PINGREQ,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
    span_of,
)

from tidemq.errors import UsageError
from tidemq.wire import control_packets
from tidemq.wire.control_packets import NO_PROPERTIES
from tidemq.wire.faults import fault_text
from tidemq.wire.property_blocks import VARINT_MAX, encode_properties
from tidemq.wire.reader import check


def encode(packet: object, version: cython.int) -> bytes:
    """The bytes of `packet` for protocol `version` 3, 4 or 5.

    Raises `UsageError` where that version cannot say it, a value does not fit its field, or it breaks a rule.
    """
    if version not in (3, 4, 5):
        raise UsageError(f"the protocol version is {version}; accepted: 3, 4, 5")
    write = _WRITERS.get(type(packet))
    if write is None:
        raise UsageError(f"{packet!r} is no control packet")
    data: bytes = write(packet, version)
    fault: cython.int = check(data, version)
    if fault:
        raise UsageError(f"{type(packet).__name__}: {fault_text(fault)}")
    return data


def holds_any(properties):
    return properties is not NO_PROPERTIES and properties != NO_PROPERTIES


def properties_block(properties, version):
    if not holds_any(properties):
        return b""
    require_5(version)
    return encode_properties(properties)


def require_5(version):
    if version != 5:
        raise UsageError("only MQTT 5.0 has properties")
    return 0


def whole(first, head, properties, version, tail):
    """The packet of its parts; the property block in 5.0 only."""
    out = cython.declare(string)
    block: bytes = properties_block(properties, version)
    require_size(len(head) + 4 + len(block) + len(tail))
    encode_packet(first, span_of(head), span_of(block), version == 5, span_of(tail), cython.address(out))
    return cython.cast(bytes, out)


def require_size(size):
    if size > VARINT_MAX:
        raise UsageError(f"a packet of {size} bytes; accepted: up to {VARINT_MAX}")
    return 0


def field(data):
    return len(data).to_bytes(2, "big") + data


def u16(name, value):
    return int(as_uint(name, value, 0xFFFF)).to_bytes(2, "big")


def u8(name, value):
    return bytes((as_uint(name, value, 0xFF),))


def require_reason(packet, version):
    """Refuse what only 5.0 can say."""
    if version != 5 and (packet.reason or holds_any(packet.properties)):
        raise UsageError(f"only MQTT 5.0 has a reason code or properties in {type(packet).__name__}")
    return 0


def write_connect(packet: object, version: cython.int) -> bytes:
    if packet.version != version:
        raise UsageError(f"a CONNECT of version {packet.version} was to be encoded as {version}")
    will: object = packet.will
    flags: cython.uint = (0x02 if packet.clean_start else 0) | (0 if packet.username is None else 0x80)
    flags |= 0 if packet.password is None else 0x40
    tail: bytes = field(as_text("client_id", packet.client_id))
    if will is not None:
        flags |= 0x04 | (as_uint("the will's qos", will.qos, 3) << 3) | (0x20 if will.retain else 0)
        tail += write_will(will, version)
    if packet.username is not None:
        tail += field(as_text("username", packet.username))
    if packet.password is not None:
        tail += field(as_binary("password", packet.password))
    head: bytes = field(b"MQIsdp" if version == 3 else b"MQTT") + bytes((version, flags))
    head += u16("keep_alive_s", packet.keep_alive_s)
    return whole(CONNECT << 4, head, packet.properties, version, tail)


def write_will(will, version):
    block: bytes = properties_block(will.properties, version)
    out: bytes = with_length(block) if version == 5 else b""
    return out + field(as_text("the will's topic", will.topic)) + field(as_binary("the will", will.payload))


def write_connack(packet: object, version: cython.int) -> bytes:
    if packet.session_present and version == 3:
        raise UsageError("MQTT 3.1 has no session present")
    head: bytes = bytes((packet.session_present != 0,)) + u8("reason", packet.reason)
    return whole(CONNACK << 4, head, packet.properties, version, b"")


def write_publish(packet: object, version: cython.int) -> bytes:
    if packet.qos == 0 and packet.packet_id:
        raise UsageError("a PUBLISH at QoS 0 has no packet identifier")
    head = cython.declare(PublishHead)
    subscription_ids = cython.declare(vector[uint32_t])
    topic: bytes = as_text("topic", packet.topic)
    payload: bytes = bytes(packet.payload)
    properties: object = packet.properties
    block: bytes = forwarded_block(properties, version)
    for each in properties.subscription_ids:
        subscription_ids.push_back(as_uint("a subscription identifier", each, VARINT_MAX))
    require_size(len(topic) + 16 + 5 * len(properties.subscription_ids) + len(block) + len(payload))
    head.version = version
    head.dup = packet.dup != 0
    head.qos = as_uint("qos", packet.qos, 3)
    head.retain = packet.retain != 0
    head.packet_id = cython.cast(uint16_t, as_uint("packet_id", packet.packet_id, 0xFFFF))
    head.topic_alias = topic_alias_of(properties)
    head.message_expiry_s = message_expiry_of(properties)
    head.topic = span_of(topic)
    head.forwarded = span_of(block)
    head.subscription_ids = subscription_ids.data()
    head.subscription_id_count = subscription_ids.size()
    head.payload_size = cython.cast(uint32_t, len(payload))
    packet_id_at: uint32_t = 0
    out: bytearray = bytearray(publish_head_size(cython.address(head), cython.address(packet_id_at)))
    encode_publish_head(
        cython.address(head), cython.cast(cython.pointer[uint8_t], cython.cast(cython.p_char, out))
    )
    assert not head.qos or out[packet_id_at] << 8 | out[packet_id_at + 1] == head.packet_id
    return bytes(out) + payload


def forwarded_block(properties, version):
    """What PublishHead has no fields for; the broker forwards it unread."""
    if not holds_any(properties):
        return b""
    require_5(version)
    rest: object = replace(properties, topic_alias=None, message_expiry_s=None, subscription_ids=())
    return properties_block(rest, version)


def topic_alias_of(properties):
    if properties.topic_alias is None:
        return 0  # none, to PublishHead
    alias: cython.uint = as_uint("topic_alias", properties.topic_alias, 0xFFFF)
    if alias == 0:
        raise UsageError("topic_alias is 0; accepted: 1 to 65,535")
    return alias


def message_expiry_of(properties):
    if properties.message_expiry_s is None:
        return -1  # none, to PublishHead
    return as_uint("message_expiry_s", properties.message_expiry_s, 0xFFFFFFFF)


def write_ack(packet_type, packet, version):
    require_reason(packet, version)
    if holds_any(packet.properties):
        first: uint8_t = (packet_type << 4) | (0x02 if packet_type == PUBREL else 0)
        head: bytes = u16("packet_id", packet.packet_id) + u8("reason", packet.reason)
        return whole(first, head, packet.properties, version, b"")
    out = cython.declare(uint8_t[5])
    packet_id: cython.uint = as_uint("packet_id", packet.packet_id, 0xFFFF)
    reason: cython.uint = as_uint("reason", packet.reason, 0xFF)
    size: uint32_t = encode_ack(
        packet_type, cython.cast(uint16_t, packet_id), cython.cast(uint8_t, reason), version, out
    )
    return cython.cast(cython.p_char, out)[:size]


def write_puback(packet: object, version: cython.int) -> bytes:
    return write_ack(PUBACK, packet, version)


def write_pubrec(packet: object, version: cython.int) -> bytes:
    return write_ack(PUBREC, packet, version)


def write_pubrel(packet: object, version: cython.int) -> bytes:
    return write_ack(PUBREL, packet, version)


def write_pubcomp(packet: object, version: cython.int) -> bytes:
    return write_ack(PUBCOMP, packet, version)


def write_subscribe(packet: object, version: cython.int) -> bytes:
    tail: bytes = b""
    for each in packet.subscriptions:
        options: cython.uint = as_uint("qos", each.qos, 3) | (0x04 if each.no_local else 0)
        options |= 0x08 if each.retain_as_published else 0
        options |= as_uint("retain_handling", each.retain_handling, 3) << 4
        tail += field(as_text("a topic filter", each.filter)) + bytes((options,))
    head: bytes = u16("packet_id", packet.packet_id)
    return whole((SUBSCRIBE << 4) | 0x02, head, packet.properties, version, tail)


def write_suback(packet: object, version: cython.int) -> bytes:
    head: bytes = u16("packet_id", packet.packet_id)
    tail: bytes = b"".join([u8("a reason", reason) for reason in packet.reasons])
    return whole(SUBACK << 4, head, packet.properties, version, tail)


def write_unsubscribe(packet: object, version: cython.int) -> bytes:
    head: bytes = u16("packet_id", packet.packet_id)
    tail: bytes = b"".join([field(as_text("a topic filter", each)) for each in packet.filters])
    return whole((UNSUBSCRIBE << 4) | 0x02, head, packet.properties, version, tail)


def write_unsuback(packet: object, version: cython.int) -> bytes:
    if version != 5 and packet.reasons:
        raise UsageError("only MQTT 5.0 has reason codes in Unsuback")
    head: bytes = u16("packet_id", packet.packet_id)
    tail: bytes = b"".join([u8("a reason", reason) for reason in packet.reasons])
    return whole(UNSUBACK << 4, head, packet.properties, version, tail)


def write_pingreq(packet: object, version: cython.int) -> bytes:
    return bytes((PINGREQ << 4, 0))


def write_pingresp(packet: object, version: cython.int) -> bytes:
    return bytes((PINGRESP << 4, 0))


def write_disconnect(packet: object, version: cython.int) -> bytes:
    require_reason(packet, version)
    return write_reason_only(DISCONNECT, packet, version)


def write_auth(packet: object, version: cython.int) -> bytes:
    return write_reason_only(AUTH, packet, version)


def write_reason_only(packet_type, packet, version):
    """DISCONNECT and AUTH, in their shortest form."""
    first: uint8_t = packet_type << 4
    if holds_any(packet.properties):
        return whole(first, u8("reason", packet.reason), packet.properties, version, b"")
    body: bytes = u8("reason", packet.reason) if packet.reason else b""
    return bytes((first, len(body))) + body


_WRITERS = {
    control_packets.Connect: write_connect,
    control_packets.Connack: write_connack,
    control_packets.Publish: write_publish,
    control_packets.Puback: write_puback,
    control_packets.Pubrec: write_pubrec,
    control_packets.Pubrel: write_pubrel,
    control_packets.Pubcomp: write_pubcomp,
    control_packets.Subscribe: write_subscribe,
    control_packets.Suback: write_suback,
    control_packets.Unsubscribe: write_unsubscribe,
    control_packets.Unsuback: write_unsuback,
    control_packets.Pingreq: write_pingreq,
    control_packets.Pingresp: write_pingresp,
    control_packets.Disconnect: write_disconnect,
    control_packets.Auth: write_auth,
}
