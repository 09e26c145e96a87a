"""The frames that a load sends: one PUBLISH per publisher, encoded once, its own numbers patched in later."""

from __future__ import annotations

from tidemq.bench.workload import Workload

STAMP_BYTES = 16  # of a payload: sequence number (4), publisher (4), time in ns (8), little-endian
PAYLOAD_BYTES_MAX = 32_768
MESSAGES_MAX = 0xFFFFFFFF  # of each publisher: what a sequence number can say
FILTERS_PER_SUBSCRIBE = 256
SESSION_NEVER_EXPIRES = b"\x05\x11\xff\xff\xff\xff"  # properties of a CONNECT
WINDOW_MAX = 32_767  # half of the packet identifiers, so that none is reused while in flight


def encode_publish(workload: Workload, publisher: int) -> bytes:
    """One PUBLISH of this publisher, with zeros where a message's own numbers go."""
    packet_id = b"\0\0" if workload.qos else b""
    stamp = bytes(4) + publisher.to_bytes(4, "little") + bytes(8)
    payload = stamp + b"x" * (workload.payload_bytes - STAMP_BYTES)
    head = encode_string(topic_of(workload, publisher)) + packet_id + no_properties(workload)
    return encode_packet(0x30 | workload.qos << 1 | workload.retain, head + payload)


def topic_of(workload: Workload, publisher: int) -> bytes:
    """What this publisher publishes to; with several topics the last eight characters are patched."""
    topic = b"bench/%04d" % (publisher if workload.pairs else 0)
    return topic + b"/00000000" if workload.topics > 1 else topic


def encode_connect(workload: Workload, index: int) -> bytes:
    """CONNECT without keep alive, and with a client id made of the connection's index."""
    properties = no_properties(workload)
    if workload.persistent and workload.version == 5:
        properties = SESSION_NEVER_EXPIRES
    clean = 0 if workload.persistent else 0x02
    body = b"\x00\x04MQTT" + bytes([workload.version, clean, 0, 0]) + properties
    return encode_packet(0x10, body + encode_string(b"bench-%08x" % index))


def encode_subscribes(workload: Workload, subscriber: int) -> list[bytes]:
    """The SUBSCRIBE packets for all topics that a subscriber hears; each with packet identifier 1."""
    topic = topic_of(workload, subscriber)
    topics = [topic]
    if workload.topics > 1:
        topics = [topic[:-8] + b"%08x" % number for number in range(workload.topics)]
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


def check_workload(workload: Workload) -> None:
    """Raise ValueError for what this generator cannot send or check."""
    if workload.payload_bytes < STAMP_BYTES or workload.payload_bytes > PAYLOAD_BYTES_MAX:
        raise ValueError(
            f"payload_bytes must be {STAMP_BYTES} to {PAYLOAD_BYTES_MAX}, not {workload.payload_bytes}"
        )
    if not 0 <= workload.messages <= MESSAGES_MAX:
        raise ValueError(f"messages must be at most {MESSAGES_MAX:,} of each publisher")
    if workload.part != "whole" and (workload.mesh or not workload.persistent or workload.rate_per_s):
        raise ValueError("a run in parts needs persistent sessions, and knows neither mesh nor rate")
    if workload.mesh and workload.publishers != workload.subscribers:
        raise ValueError("in a mesh the publishers are the subscribers: give the same number of both")
    if workload.pairs and workload.publishers != workload.subscribers:
        raise ValueError("pairs need as many publishers as subscribers")
    if workload.topics > 1 and not workload.pairs:
        raise ValueError("several topics are for pairs: only there does a subscriber hear one publisher")
    if not 1 <= workload.window <= WINDOW_MAX:
        raise ValueError(f"window must be 1 to {WINDOW_MAX}")
    if workload.version not in (4, 5):
        raise ValueError("version must be 4 (MQTT 3.1.1) or 5 (MQTT 5.0)")
