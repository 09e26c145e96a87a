"""The frames that a load sends: one PUBLISH per publisher, encoded once, its own numbers patched in later."""

from __future__ import annotations

from tidemq.bench.workload import STAMP_BYTES, Workload

FILTERS_PER_SUBSCRIBE = 256
SESSION_NEVER_EXPIRES = b"\x05\x11\xff\xff\xff\xff"  # properties of a CONNECT
CLEAN, PASSWORD, USERNAME = 0x02, 0x40, 0x80  # flags of CONNECT
TOPIC_DIGITS = 8  # of a publisher with several topics, hexadecimal, at the end of the topic name


def encode_publish(workload: Workload, publisher: int) -> bytes:
    """One PUBLISH of this publisher, with zeros where a message's own numbers go."""
    packet_id = b"\0\0" if workload.qos else b""
    stamp = bytes(4) + publisher.to_bytes(4, "little") + bytes(8)
    payload = stamp + b"x" * (workload.payload_bytes - STAMP_BYTES)
    head = encode_string(topic_of(workload, publisher)) + packet_id + no_properties(workload)
    return encode_packet(0x30 | workload.qos << 1 | workload.retain, head + payload)


def topic_of(workload: Workload, publisher: int) -> bytes:
    """What this publisher publishes to; with several topics the last eight characters are patched."""
    digits = max(4, len(str(workload.publishers)))  # all topics are equally long
    topic = f"{workload.prefix}/{publisher if workload.single else 0:0{digits}}".encode()
    return topic + b"/" + b"0" * TOPIC_DIGITS if workload.topics > 1 else topic


def encode_connect(workload: Workload, index: int, username: str | None, password: str | None) -> bytes:
    """CONNECT without keep alive, and with a client id made of the connection's index."""
    properties = no_properties(workload)
    if workload.persistent and workload.version == 5:
        properties = SESSION_NEVER_EXPIRES
    flags = 0 if workload.persistent else CLEAN
    payload = encode_string(f"{workload.prefix}-{index:08x}".encode())
    for flag, text in ((USERNAME, username), (PASSWORD, password)):
        if text is not None:
            flags |= flag
            payload += encode_string(text.encode())
    return encode_packet(
        0x10, b"\x00\x04MQTT" + bytes([workload.version, flags, 0, 0]) + properties + payload
    )


def encode_subscribes(workload: Workload, publisher: int) -> list[bytes]:
    """The SUBSCRIBE packets for all topics of a publisher; each with packet identifier 1."""
    topic = topic_of(workload, publisher)
    topics = [topic]
    if workload.topics > 1:
        topics = [topic[:-TOPIC_DIGITS] + b"%08x" % number for number in range(workload.topics)]
    filters = [encode_string(name) + bytes([workload.qos]) for name in topics]
    head = b"\x00\x01" + no_properties(workload)
    starts = range(0, len(filters), FILTERS_PER_SUBSCRIBE)
    return [encode_packet(0x82, head + b"".join(filters[at : at + FILTERS_PER_SUBSCRIBE])) for at in starts]


def no_properties(workload: Workload) -> bytes:
    """What stands for "no properties" in the workload's protocol version."""
    return b"\0" if workload.version == 5 else b""


def encode_packet(first: int, body: bytes) -> bytes:
    """A control packet from its first byte and all behind the fixed header."""
    return bytes([first]) + encode_varint(len(body)) + body


def encode_string(text: bytes) -> bytes:
    return len(text).to_bytes(2) + text


def encode_varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
