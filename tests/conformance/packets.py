"""MQTT's packets for the conformance tests: exact bytes built, and a server's packets parsed and checked.

This codec shares nothing with `tidemq.wire`: it is the second opinion about what the bytes mean. `parse`
checks what a server may send (flags, lengths, properties, reasons), so that every packet a test reads is a
well-formed one. Nothing here judges a client's packets: tests send wrong ones on purpose, with `packet`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBSCRIBE = range(1, 9)
SUBACK, UNSUBSCRIBE, UNSUBACK, PINGREQ, PINGRESP, DISCONNECT, AUTH = range(9, 16)
NAMES = (
    *("(0)", "CONNECT", "CONNACK", "PUBLISH", "PUBACK", "PUBREC", "PUBREL", "PUBCOMP", "SUBSCRIBE"),
    *("SUBACK", "UNSUBSCRIBE", "UNSUBACK", "PINGREQ", "PINGRESP", "DISCONNECT", "AUTH"),
)

# name: (identifier, form); forms: 1, 2, 4 bytes, v(ariable integer), s(tring), b(inary), p(air of strings)
PROPERTIES = {
    "payload_format": (0x01, "1"),
    "message_expiry": (0x02, "4"),
    "content_type": (0x03, "s"),
    "response_topic": (0x08, "s"),
    "correlation_data": (0x09, "b"),
    "subscription_id": (0x0B, "v"),
    "session_expiry": (0x11, "4"),
    "assigned_client_id": (0x12, "s"),
    "server_keep_alive": (0x13, "2"),
    "auth_method": (0x15, "s"),
    "auth_data": (0x16, "b"),
    "request_problem": (0x17, "1"),
    "will_delay": (0x18, "4"),
    "request_response": (0x19, "1"),
    "response_information": (0x1A, "s"),
    "server_reference": (0x1C, "s"),
    "reason_string": (0x1F, "s"),
    "receive_max": (0x21, "2"),
    "topic_alias_max": (0x22, "2"),
    "topic_alias": (0x23, "2"),
    "qos_max": (0x24, "1"),
    "retain_available": (0x25, "1"),
    "user": (0x26, "p"),
    "packet_max": (0x27, "4"),
    "wildcards_available": (0x28, "1"),
    "subscription_ids_available": (0x29, "1"),
    "shared_available": (0x2A, "1"),
}
PROPERTY_NAMES = {identifier: (name, form) for name, (identifier, form) in PROPERTIES.items()}
# which properties the standard lets a server send with which packet (5.0, table 2-4)
SENT_BY_SERVER = {
    CONNACK: "session_expiry assigned_client_id server_keep_alive auth_method auth_data response_information "
    "server_reference reason_string receive_max topic_alias_max qos_max retain_available user packet_max "
    "wildcards_available subscription_ids_available shared_available",
    PUBLISH: "payload_format message_expiry content_type response_topic correlation_data subscription_id "
    "topic_alias user",
    DISCONNECT: "server_reference reason_string user",
    AUTH: "auth_method auth_data reason_string user",
}
SENT_BY_SERVER |= dict.fromkeys((PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK), "reason_string user")
REASONS = {  # the reason codes a server may send, by packet
    CONNACK: [0, *range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9F],
    PUBACK: [0, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99],
    PUBREC: [0, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99],
    PUBREL: [0, 0x92],
    PUBCOMP: [0, 0x92],
    SUBACK: [0, 1, 2, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2],
    UNSUBACK: [0, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91],
    DISCONNECT: [0, 0x81, 0x82, 0x83, 0x87, 0x89, 0x8B, *range(0x8D, 0x8F), 0x8F, 0x90, *range(0x93, 0xA3)],
    AUTH: [0, 0x18],
}

Properties = Iterable[tuple[str, object]]


# ---------------------------------------------------------------------------------------------- writing


def varint(value: int, size: int = 0) -> bytes:
    """A variable byte integer; `size` above the needed bytes makes an overlong one."""
    out = bytearray()
    while True:
        value, low = value >> 7, value & 0x7F
        more = value > 0 or len(out) + 1 < size
        out.append(low | 0x80 if more else low)
        if not more:
            return bytes(out)


def text(value: str | bytes) -> bytes:
    """A length-prefixed string or binary field."""
    raw = value.encode() if isinstance(value, str) else value
    return len(raw).to_bytes(2) + raw


def property_bytes(name: str, value: object) -> bytes:
    identifier, form = PROPERTIES[name]
    if form == "v":
        assert isinstance(value, int)
        body = varint(value)
    elif form == "p":
        assert isinstance(value, tuple)
        key, word = value
        body = text(key) + text(word)
    elif form in "sb":
        body = text(value)  # type: ignore[arg-type]
    else:
        body = value.to_bytes(int(form))  # type: ignore[attr-defined]
    return bytes([identifier]) + body


def properties(pairs: Properties) -> bytes:
    body = b"".join(property_bytes(name, value) for name, value in pairs)
    return varint(len(body)) + body


def packet(first_byte: int, *parts: bytes) -> bytes:
    """A control packet of any first byte and body."""
    body = b"".join(parts)
    return bytes([first_byte]) + varint(len(body)) + body


@dataclass
class Will:
    topic: str | bytes
    payload: bytes = b"gone"
    qos: int = 0
    retain: bool = False
    properties: Properties = ()


def connect(
    client_id: str | bytes,
    version: int = 5,
    *,
    clean: bool = True,
    keep_alive_s: int = 60,
    will: Will | None = None,
    username: str | bytes | None = None,
    password: bytes | None = None,
    flags: int | None = None,
    protocol: str | None = None,
    **named: Any,
) -> bytes:
    """A CONNECT; `flags` replaces the connect flags; further keywords are 5.0 properties."""
    bits = clean << 1
    payload = text(client_id)
    if will is not None:
        bits |= 4 | will.qos << 3 | will.retain << 5
        payload += properties(will.properties) if version >= 5 else b""
        payload += text(will.topic) + text(will.payload)
    if username is not None:
        bits |= 0x80
        payload += text(username)
    if password is not None:
        bits |= 0x40
        payload += text(password)
    name = protocol if protocol is not None else "MQIsdp" if version == 3 else "MQTT"
    head = text(name) + bytes([version, bits if flags is None else flags]) + keep_alive_s.to_bytes(2)
    return packet(0x10, head, properties(listed(named)) if version >= 5 else b"", payload)


def listed(named: dict[str, object]) -> list[tuple[str, object]]:
    """Properties by keyword; a list as value repeats the property."""
    return [
        (name, each)
        for name, value in named.items()
        for each in (value if isinstance(value, list) else [value])
    ]


def publish(
    topic: str | bytes,
    payload: bytes = b"",
    qos: int = 0,
    packet_id: int = 0,
    version: int = 5,
    *,
    retain: bool = False,
    dup: bool = False,
    **named: Any,
) -> bytes:
    identifier = packet_id.to_bytes(2) if qos else b""
    props = properties(listed(named)) if version >= 5 else b""
    return packet(0x30 | dup << 3 | qos << 1 | retain, text(topic), identifier, props, payload)


def acknowledge(kind: int, packet_id: int, reason: int = 0, **named: Any) -> bytes:
    """PUBACK, PUBREC, PUBREL or PUBCOMP; in the short form, right for every version, where that says all."""
    tail = b""
    if named:
        tail = bytes([reason]) + properties(listed(named))
    elif reason:
        tail = bytes([reason])
    return packet(kind << 4 | (2 if kind == PUBREL else 0), packet_id.to_bytes(2), tail)


def subscribe(packet_id: int, *filters: tuple[str | bytes, int], version: int = 5, **named: Any) -> bytes:
    """SUBSCRIBE with (filter, options byte) pairs."""
    props = properties(listed(named)) if version >= 5 else b""
    return packet(0x82, packet_id.to_bytes(2), props, *(text(name) + bytes([opts]) for name, opts in filters))


def unsubscribe(packet_id: int, *filters: str | bytes, version: int = 5, **named: Any) -> bytes:
    props = properties(listed(named)) if version >= 5 else b""
    return packet(0xA2, packet_id.to_bytes(2), props, *(text(name) for name in filters))


def disconnect(reason: int = 0, **named: Any) -> bytes:
    """DISCONNECT; without reason and properties in the short form of every version."""
    if not named:
        return packet(0xE0, bytes([reason]) if reason else b"")
    return packet(0xE0, bytes([reason]), properties(listed(named)))


def auth(reason: int, **named: Any) -> bytes:
    return packet(0xF0, bytes([reason]), properties(listed(named)))


PING = packet(0xC0)


def options(qos: int = 0, *, no_local: bool = False, as_published: bool = False, handling: int = 0) -> int:
    """The subscription options byte of 5.0."""
    return qos | no_local << 2 | as_published << 3 | handling << 4


# ---------------------------------------------------------------------------------------------- reading


@dataclass
class Packet:
    """A packet from the broker, parsed and checked. `raw` are all its bytes."""

    kind: int
    raw: bytes
    version: int
    flags: int = 0
    packet_id: int = 0
    reason: int = 0
    reasons: list[int] = field(default_factory=list)
    session_present: bool = False
    topic: str = ""
    payload: bytes = b""
    properties: list[tuple[str, object]] = field(default_factory=list)

    @property
    def qos(self) -> int:
        return self.flags >> 1 & 3

    @property
    def retain(self) -> bool:
        return bool(self.flags & 1)

    @property
    def dup(self) -> bool:
        return bool(self.flags & 8)

    def all(self, name: str) -> list[Any]:
        """The values of a property, in order."""
        return [value for key, value in self.properties if key == name]

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a property that comes once at most."""
        values = self.all(name)
        assert len(values) <= 1, f"{name} comes {len(values)} times in {self}"
        return values[0] if values else default

    def __repr__(self) -> str:
        shown = [NAMES[self.kind], f"id={self.packet_id}", f"reason={self.reason:#04x}"]
        if self.kind == PUBLISH:
            shown = [NAMES[self.kind], f"id={self.packet_id} q{self.qos} r{self.retain:d} d{self.dup:d}"]
            shown += [repr(self.topic), repr(self.payload[:40])]
        if self.kind in (SUBACK, UNSUBACK):
            shown.append(f"reasons={[hex(code) for code in self.reasons]}")
        if self.kind == CONNACK:
            shown.append(f"session_present={self.session_present}")
        return f"<{' '.join(shown)} {self.properties or ''} raw={self.raw[:60].hex(' ')}>"


class Reader:
    """Takes fields from the front of a packet's body; running over the end is a failure of the broker."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.at = 0

    def take(self, count: int) -> bytes:
        assert self.at + count <= len(self.body), f"packet too short: {self.body.hex(' ')}"
        self.at += count
        return self.body[self.at - count : self.at]

    def number(self, count: int) -> int:
        return int.from_bytes(self.take(count))

    def varint(self) -> int:
        value = 0
        for shift in range(0, 28, 7):
            byte = self.number(1)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                assert shift == 0 or byte != 0, f"overlong variable byte integer: {self.body.hex(' ')}"
                return value
        raise AssertionError(f"variable byte integer of more than 4 bytes: {self.body.hex(' ')}")

    def text(self) -> str:
        value = self.take(self.number(2)).decode()
        assert "\0" not in value
        return value

    def binary(self) -> bytes:
        return self.take(self.number(2))

    def left(self) -> int:
        return len(self.body) - self.at

    def properties(self, kind: int) -> list[tuple[str, object]]:
        found: list[tuple[str, object]] = []
        end = self.varint() + self.at
        while self.at < end:
            name, form = PROPERTY_NAMES[self.number(1)]
            assert name in SENT_BY_SERVER[kind].split(), f"{name} in {NAMES[kind]} from a server"
            if form in "124":
                found.append((name, self.number(int(form))))
            elif form == "v":
                found.append((name, self.varint()))
            elif form == "p":
                found.append((name, (self.text(), self.text())))
            else:
                found.append((name, self.text() if form == "s" else self.binary()))
        assert self.at == end, f"property length wrong in {self.body.hex(' ')}"
        return found


def parse(raw: bytes, body: bytes, version: int) -> Packet:
    """A whole packet, checked as what a server of this version may send."""
    kind, flags = raw[0] >> 4, raw[0] & 15
    packet, reader = Packet(kind, raw, version, flags), Reader(body)
    five = version >= 5
    assert kind == PUBLISH or flags == (2 if kind == PUBREL else 0), f"flag bits {flags:04b} in {packet}"
    if kind == PUBLISH:
        assert packet.qos in ((1, 2) if packet.dup else (0, 1, 2)), f"flag bits {flags:04b} in {packet}"
        packet.topic = reader.text()
        packet.packet_id = reader.number(2) if packet.qos else 0
        assert packet.qos == 0 or packet.packet_id != 0, f"packet identifier 0 in {packet}"
        packet.properties = reader.properties(kind) if five else []
        packet.payload = reader.take(reader.left())
    elif kind == CONNACK:
        flags = reader.number(1)
        assert flags < 2, f"reserved CONNACK flags {flags:#x}"
        packet.session_present, packet.reason = bool(flags), reader.number(1)
        packet.properties = reader.properties(kind) if five else []
    elif kind in (PUBACK, PUBREC, PUBREL, PUBCOMP):
        packet.packet_id = reader.number(2)
        packet.reason = reader.number(1) if five and reader.left() else 0
        packet.properties = reader.properties(kind) if five and reader.left() else []
    elif kind in (SUBACK, UNSUBACK):
        packet.packet_id = reader.number(2)
        packet.properties = reader.properties(kind) if five else []
        packet.reasons = list(reader.take(reader.left())) if five or kind == SUBACK else []
    elif kind in (DISCONNECT, AUTH):
        assert five, f"{packet} to a {version} client"
        packet.reason = reader.number(1) if reader.left() else 0
        packet.properties = reader.properties(kind) if reader.left() else []
    else:
        assert kind == PINGRESP, f"a server never sends {packet}"
    assert reader.left() == 0, f"{reader.left()} bytes too many in {packet}"
    check_reasons(packet)
    return packet


def check_reasons(packet: Packet) -> None:
    """The reason codes of a packet are among those that its version lists for it."""
    if packet.version >= 5:
        allowed = REASONS.get(packet.kind, [0])
    else:
        allowed = {CONNACK: [0, 1, 2, 3, 4, 5], SUBACK: [0, 1, 2, 0x80]}.get(packet.kind, [0])
    wrong = [hex(code) for code in [packet.reason, *packet.reasons] if code not in allowed]
    assert not wrong, f"reason codes {wrong} do not belong in {packet}"


def whole(buffer: bytes) -> tuple[int, int] | None:
    """Sizes of the fixed header and of the whole first packet, `None` while it is incomplete."""
    size = 0
    for index, byte in enumerate(buffer[1:5]):
        size |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            total = 2 + index + size
            return (2 + index, total) if len(buffer) >= total else None
    assert len(buffer) < 5, f"remaining length of more than 4 bytes: {buffer[:8].hex(' ')}"
    return None
