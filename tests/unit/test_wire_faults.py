"""Each malformed form is refused with the fault that names it, in every version that knows the rule."""

from __future__ import annotations

import pytest

from tidemq.errors import ProtocolError
from tidemq.wire import EXPLANATIONS, Decoder, Fault, ReasonCode, decode, fault_text, protocol_error

ALL = (3, 4, 5)
OLD = (3, 4)
C3 = "0006 4d5149736470 03"  # protocol name and level of each version
C4 = "0004 4d515454 04"
C5 = "0004 4d515454 05"


def body(hexadecimal: str) -> bytes:
    return bytes.fromhex(hexadecimal)


def packet(first: int, hexadecimal: str) -> bytes:
    """A fixed header with the right length before the body; 127 bytes at most."""
    data = body(hexadecimal)
    assert len(data) < 128
    return bytes((first, len(data))) + data


Row = tuple[Fault, tuple[int, ...], str, bytes]

FIXED_HEADER: list[Row] = [
    (Fault.VARINT_OVERLONG, ALL, "remaining length of five bytes", body("30 80 80 80 80 01")),
    (Fault.VARINT_OVERLONG, ALL, "remaining length whose fourth byte goes on", body("30 ff ff ff ff")),
    (Fault.VARINT_OVERLONG, ALL, "remaining length 0 in two bytes", body("c0 80 00")),
    (Fault.VARINT_OVERLONG, ALL, "remaining length 127 in three bytes", body("30 ff 80 00")),
    (Fault.VARINT_OVERLONG, (5,), "property length 0 in two bytes", packet(0x30, "0001 61 80 00")),
    (Fault.VARINT_OVERLONG, (5,), "property length of five bytes", packet(0x30, "0001 61 80 80 80 80 01")),
    (Fault.VARINT_OVERLONG, (5,), "property identifier in two bytes", packet(0x30, "0001 61 03 81 00 01")),
    (Fault.VARINT_OVERLONG, (5,), "subscription identifier", packet(0x30, "0001 61 03 0b 81 00")),
    (Fault.PACKET_TYPE, ALL, "type 0", body("00 00")),
    (Fault.PACKET_TYPE, ALL, "type 0 and nothing else", body("0f")),
    (Fault.PACKET_TYPE, OLD, "auth", body("f0 00")),
]

# The flag nibble of each type but PUBLISH, for one body that is else right.
_BODIES = {
    0x10: {3: C3 + "02 003c 0001 61", 4: C4 + "02 003c 0001 61", 5: C5 + "02 003c 00 0001 61"},
    0x20: {3: "00 00", 4: "00 00", 5: "00 00 00"},
    0x40: dict.fromkeys(ALL, "0001"),
    0x50: dict.fromkeys(ALL, "0001"),
    0x62: dict.fromkeys(ALL, "0001"),
    0x70: dict.fromkeys(ALL, "0001"),
    0x82: {3: "0001 0001 61 00", 4: "0001 0001 61 00", 5: "0001 00 0001 61 00"},
    0x90: {3: "0001 00", 4: "0001 00", 5: "0001 00 00"},
    0xA2: {3: "0001 0001 61", 4: "0001 0001 61", 5: "0001 00 0001 61"},
    0xB0: {3: "0001", 4: "0001", 5: "0001 00 00"},
    0xC0: dict.fromkeys(ALL, ""),
    0xD0: dict.fromkeys(ALL, ""),
    0xE0: dict.fromkeys(ALL, ""),
    0xF0: {5: ""},
}


def has_wrong_flags(version: int, right: int, flags: int) -> bool:
    """3.1 gives a meaning to the QoS of PUBREL, SUBSCRIBE and UNSUBSCRIBE alone, beside DUP."""
    if version == 3:
        return right & 0x0F == 2 and flags & 0x06 != 2
    return right & 0x0F != flags


_NIBBLES = [
    (version, right, right & 0xF0 | flags, bodies[version])
    for right, bodies in _BODIES.items()
    for version in bodies
    for flags in range(16)
]
FLAGS: list[Row] = [
    (Fault.FLAGS, (version,), f"{first:02x}", packet(first, body))
    for version, right, first, body in _NIBBLES
    if has_wrong_flags(version, right, first & 0x0F)
]

CONNECT: list[Row] = [
    (Fault.TRUNCATED, ALL, "empty", packet(0x10, "")),
    (Fault.TRUNCATED, ALL, "cut in the name", packet(0x10, "0004 4d51")),
    (Fault.TRUNCATED, ALL, "no level", packet(0x10, "0004 4d515454")),
    (Fault.TRUNCATED, ALL, "no client identifier", packet(0x10, C4 + "02 003c")),
    (Fault.TRUNCATED, ALL, "no will", packet(0x10, C4 + "06 003c 0001 61")),
    (Fault.TRUNCATED, ALL, "no user name", packet(0x10, C4 + "82 003c 0001 61")),
    (Fault.TRUNCATED, ALL, "no password", packet(0x10, C4 + "c2 003c 0001 61 0001 75")),
    (Fault.TRUNCATED, ALL, "properties past the end", packet(0x10, C5 + "02 003c 05 0001 61")),
    (Fault.TRAILING, ALL, "a byte after the client identifier", packet(0x10, C4 + "02 003c 0001 61 00")),
    (Fault.TRAILING, ALL, "a byte after the client identifier, 3.1", packet(0x10, C3 + "02 003c 0001 61 00")),
    (Fault.PROTOCOL_NAME, ALL, "another", packet(0x10, "0004 4d515455 04 02 003c 0001 61")),
    (Fault.PROTOCOL_NAME, ALL, "in lower case", packet(0x10, "0004 6d717474 04 02 003c 0001 61")),
    (Fault.PROTOCOL_NAME, ALL, "empty", packet(0x10, "0000 04 02 003c 0001 61")),
    (Fault.PROTOCOL_VERSION, ALL, "3 with MQTT", packet(0x10, "0004 4d515454 03 02 003c 0001 61")),
    (Fault.PROTOCOL_VERSION, ALL, "6", packet(0x10, "0004 4d515454 06 02 003c 0001 61")),
    (Fault.PROTOCOL_VERSION, ALL, "4 with MQIsdp", packet(0x10, "0006 4d5149736470 04 02 003c 0001 61")),
    (Fault.PROTOCOL_VERSION, ALL, "bridge, 3.1", packet(0x10, "0006 4d5149736470 83 02 003c 0001 61")),
    (Fault.PROTOCOL_VERSION, ALL, "bridge, 3.1.1", packet(0x10, "0004 4d515454 84 02 003c 0001 61")),
    (Fault.RESERVED_BIT, ALL, "flags bit 0, 3.1.1", packet(0x10, C4 + "03 003c 0001 61")),
    (Fault.RESERVED_BIT, ALL, "flags bit 0, 5.0", packet(0x10, C5 + "03 003c 00 0001 61")),
    (Fault.WILL_FLAGS, ALL, "will QoS without a will", packet(0x10, C4 + "0a 003c 0001 61")),
    (Fault.WILL_FLAGS, ALL, "will retain without a will", packet(0x10, C5 + "22 003c 00 0001 61")),
    (Fault.WILL_FLAGS, ALL, "will QoS 3", packet(0x10, C4 + "1e 003c 0001 61 0001 77 0000")),
    (Fault.WILL_FLAGS, ALL, "will QoS 3, 3.1", packet(0x10, C3 + "1e 003c 0001 61 0001 77 0000")),
    (Fault.PASSWORD_WITHOUT_USERNAME, ALL, "3.1", packet(0x10, C3 + "42 003c 0001 61 0001 70")),
    (Fault.PASSWORD_WITHOUT_USERNAME, ALL, "3.1.1", packet(0x10, C4 + "42 003c 0001 61 0001 70")),
    (Fault.CLIENT_ID, ALL, "empty in 3.1", packet(0x10, C3 + "02 003c 0000")),
    (Fault.CLIENT_ID, ALL, "empty without clean session in 3.1.1", packet(0x10, C4 + "00 003c 0000")),
    (Fault.UTF8, ALL, "client identifier", packet(0x10, C4 + "02 003c 0001 ff")),
    (Fault.UTF8, ALL, "user name", packet(0x10, C4 + "82 003c 0001 61 0001 ff")),
    (Fault.UTF8, ALL, "will topic", packet(0x10, C4 + "06 003c 0001 61 0001 ff 0000")),
    (Fault.NUL, ALL, "client identifier", packet(0x10, C4 + "02 003c 0001 00")),
    (Fault.TOPIC_EMPTY, ALL, "will topic", packet(0x10, C4 + "06 003c 0001 61 0000 0000")),
    (Fault.TOPIC_WILDCARD, ALL, "will topic", packet(0x10, C4 + "06 003c 0001 61 0001 2b 0000")),
]

PUBLISH: list[Row] = [
    (Fault.TRUNCATED, ALL, "empty", packet(0x30, "")),
    (Fault.TRUNCATED, ALL, "topic past the end", packet(0x30, "0002 61")),
    (Fault.TRUNCATED, ALL, "no packet identifier", packet(0x32, "0001 61")),
    (Fault.TRUNCATED, ALL, "half a packet identifier", packet(0x32, "0001 61 01")),
    (Fault.TRUNCATED, (5,), "no property length", packet(0x30, "0001 61")),
    (Fault.TRUNCATED, (5,), "properties past the end", packet(0x30, "0001 61 03 23 00")),
    (Fault.TRUNCATED, (5,), "a property past its block", packet(0x30, "0001 61 02 23 00 01 78")),
    (Fault.QOS, ALL, "3", packet(0x36, "0001 61 0001 00")),
    (Fault.DUP_QOS_0, ALL, "dup", packet(0x38, "0001 61 00")),
    (Fault.PACKET_ID_ZERO, ALL, "QoS 1", packet(0x32, "0001 61 0000 00")),
    (Fault.TOPIC_EMPTY, OLD, "no topic", packet(0x30, "0000 78")),
    (Fault.TOPIC_EMPTY, (5,), "no topic and no properties", packet(0x30, "0000 00")),
    (Fault.TOPIC_EMPTY, (5,), "no topic and no alias", packet(0x30, "0000 02 01 00")),
    (Fault.TOPIC_WILDCARD, ALL, "plus", packet(0x30, "0003 612f2b 00")),
    (Fault.TOPIC_WILDCARD, ALL, "number sign in the middle", packet(0x30, "0009 616161616123616161 00")),
    (Fault.TOPIC_WILDCARD, ALL, "among letters that are not ASCII", packet(0x30, "0003 c3a9 2b 00")),
    (Fault.UTF8, ALL, "a lone surrogate", packet(0x30, "0003 eda080 00")),
    (Fault.UTF8, ALL, "a pair of surrogates", packet(0x30, "0006 eda080 edb080 00")),
    (Fault.UTF8, ALL, "an overlong slash", packet(0x30, "0002 c0af 00")),
    (Fault.UTF8, ALL, "an overlong NUL", packet(0x30, "0002 c080 00")),
    (Fault.UTF8, ALL, "an overlong form of three bytes", packet(0x30, "0003 e09fbf 00")),
    (Fault.UTF8, ALL, "an overlong form of four bytes", packet(0x30, "0004 f08fbfbf 00")),
    (Fault.UTF8, ALL, "above U+10FFFF", packet(0x30, "0004 f4908080 00")),
    (Fault.UTF8, ALL, "a continuation alone", packet(0x30, "0001 80 00")),
    (Fault.UTF8, ALL, "a cut sequence at the end", packet(0x30, "0009 6161616161616161 c3 00")),
    (Fault.UTF8, ALL, "a cut sequence in the middle", packet(0x30, "0003 e28261 00")),
    (Fault.UTF8, ALL, "ff", packet(0x30, "0001 ff 00")),
    (Fault.NUL, ALL, "alone", packet(0x30, "0001 00 00")),
    (Fault.NUL, ALL, "the eighth of many", packet(0x30, "000a 61616161616161 00 6161 00")),
    (Fault.NUL, ALL, "the last of many", packet(0x30, "000a 616161616161616161 00 00")),
]

ACKS: list[Row] = [
    row
    for first in (0x40, 0x50, 0x62, 0x70)
    for row in (
        (Fault.TRUNCATED, ALL, f"{first:02x} empty", packet(first, "")),
        (Fault.TRUNCATED, ALL, f"{first:02x} half a packet identifier", packet(first, "01")),
        (Fault.TRAILING, OLD, f"{first:02x} a third byte", packet(first, "0001 00")),
        (Fault.TRAILING, (5,), f"{first:02x} a byte after the properties", packet(first, "0001 00 00 00")),
        (Fault.TRUNCATED, (5,), f"{first:02x} properties past the end", packet(first, "0001 00 01")),
        (Fault.PACKET_ID_ZERO, ALL, f"{first:02x}", packet(first, "0000")),
        (Fault.REASON_CODE, (5,), f"{first:02x}", packet(first, "0001 01")),
    )
]


def subscribe(filter_hex: str, options_hex: str) -> dict[int, bytes]:
    """The same SUBSCRIBE in each version."""
    head = {3: "0001", 4: "0001", 5: "0001 00"}
    size = f"{len(body(filter_hex)):04x}"
    return {v: packet(0x82, head[v] + size + filter_hex + options_hex) for v in ALL}


def unsubscribe(filter_hex: str) -> dict[int, bytes]:
    return {v: bytes((0xA2, len(raw) - 3)) + raw[2:-1] for v, raw in subscribe(filter_hex, "00").items()}


_FILTERS = {
    "number sign not last": b"#/a",
    "number sign after a letter": b"a#",
    "number sign before a letter": b"#a",
    "plus after a letter": b"a+",
    "plus before a letter": b"a/+b",
    "two plusses": b"++",
    "shared without a group": b"$share//a",
    "shared without a filter": b"$share/g",
    "shared with an empty filter": b"$share/g/",
    "shared with nothing": b"$share/",
    "shared with a plus in its group": b"$share/g+/a",
    "shared with a number sign as group": b"$share/#/a",
    "shared with a malformed filter": b"$share/g/a#",
}
SUBSCRIBE: list[Row] = [
    (Fault.TOPIC_FILTER, (version,), f"{kind} {name}", raw)
    for name, text in _FILTERS.items()
    for kind, raws in (("subscribe", subscribe(text.hex(), "00")), ("unsubscribe", unsubscribe(text.hex())))
    for version, raw in raws.items()
]
for _version in ALL:
    _block = "" if _version < 5 else "00"
    SUBSCRIBE += [
        (Fault.TRUNCATED, (_version,), "subscribe empty", packet(0x82, "")),
        (Fault.PACKET_ID_ZERO, (_version,), "subscribe", packet(0x82, "0000" + _block + "0001 61 00")),
        (Fault.PACKET_ID_ZERO, (_version,), "unsubscribe", packet(0xA2, "0000" + _block + "0001 61")),
        (Fault.NO_FILTERS, (_version,), "subscribe", packet(0x82, "0001" + _block)),
        (Fault.NO_FILTERS, (_version,), "unsubscribe", packet(0xA2, "0001" + _block)),
        (Fault.TRUNCATED, (_version,), "no options", packet(0x82, "0001" + _block + "0001 61")),
        (
            Fault.TRUNCATED,
            (_version,),
            "second filter cut",
            packet(0x82, "0001" + _block + "0001 61 00 0002 61"),
        ),
        (Fault.TRUNCATED, (_version,), "unsubscribe cut", packet(0xA2, "0001" + _block + "0001 61 00")),
        (Fault.TOPIC_EMPTY, (_version,), "filter", subscribe("", "00")[_version]),
        (Fault.TOPIC_EMPTY, (_version,), "filter to unsubscribe", unsubscribe("")[_version]),
        (Fault.UTF8, (_version,), "filter", subscribe("ff", "00")[_version]),
        (Fault.NUL, (_version,), "filter", subscribe("00", "00")[_version]),
        (Fault.SUBSCRIPTION_OPTIONS, (_version,), "QoS 3", subscribe("61", "03")[_version]),
        (Fault.RESERVED_BIT, (_version,), "option bit 6", subscribe("61", "40")[_version]),
        (Fault.RESERVED_BIT, (_version,), "option bit 7", subscribe("61", "80")[_version]),
    ]
SUBSCRIBE += [
    (Fault.RESERVED_BIT, OLD, f"option {o}", subscribe("61", o)[4]) for o in ("04", "08", "10", "20")
]
SUBSCRIBE += [
    (Fault.SUBSCRIPTION_OPTIONS, (5,), "retain handling 3", subscribe("61", "30")[5]),
    (Fault.NO_LOCAL_SHARED, (5,), "shared", subscribe(b"$share/g/a".hex(), "04")[5]),
]

ANSWERS: list[Row] = [
    (Fault.TRUNCATED, ALL, "connack empty", packet(0x20, "")),
    (Fault.TRUNCATED, ALL, "connack of a byte", packet(0x20, "00")),
    (Fault.TRUNCATED, (5,), "connack without properties", packet(0x20, "00 00")),
    (Fault.TRAILING, OLD, "connack of three bytes", packet(0x20, "00 00 00")),
    (Fault.RESERVED_BIT, (4, 5), "connack flags", packet(0x20, "02 00 00")),
    (Fault.REASON_CODE, OLD, "connack 6", packet(0x20, "00 06")),
    (Fault.REASON_CODE, (5,), "connack 1", packet(0x20, "00 01 00")),
    (Fault.TRUNCATED, OLD, "suback without reasons", packet(0x90, "0001")),
    (Fault.TRUNCATED, (5,), "suback without reasons", packet(0x90, "0001 00")),
    (Fault.PACKET_ID_ZERO, ALL, "suback", packet(0x90, "0000 00 00")),
    (Fault.REASON_CODE, OLD, "suback 3", packet(0x90, "0001 03")),
    (Fault.REASON_CODE, (5,), "suback 3, second", packet(0x90, "0001 00 00 03")),
    (Fault.PACKET_ID_ZERO, ALL, "unsuback", packet(0xB0, "0000")),
    (Fault.TRAILING, OLD, "unsuback with reasons", packet(0xB0, "0001 00")),
    (Fault.TRUNCATED, (5,), "unsuback without reasons", packet(0xB0, "0001 00")),
    (Fault.REASON_CODE, (5,), "unsuback 1", packet(0xB0, "0001 00 01")),
    (Fault.TRAILING, ALL, "pingreq", packet(0xC0, "00")),
    (Fault.TRAILING, ALL, "pingresp", packet(0xD0, "00")),
    (Fault.TRAILING, OLD, "disconnect", packet(0xE0, "00")),
    (Fault.TRAILING, (5,), "disconnect", packet(0xE0, "00 00 00")),
    (Fault.REASON_CODE, (5,), "disconnect", packet(0xE0, "01")),
    (Fault.REASON_CODE, (5,), "auth", packet(0xF0, "01")),
    (Fault.AUTH_DATA_WITHOUT_METHOD, (5,), "auth", packet(0xF0, "18 04 16 0001 61")),
    (Fault.AUTH_DATA_WITHOUT_METHOD, (5,), "connect", packet(0x10, C5 + "02 003c 04 16 0001 61 0001 61")),
]

PROPERTIES: list[Row] = [
    (Fault.PROPERTY_UNKNOWN, (5,), f"identifier {number:02x}", packet(0x30, f"0001 61 02 {number:02x} 00"))
    for number in (0x00, 0x04, 0x0A, 0x10, 0x14, 0x1B, 0x1D, 0x20, 0x2B, 0x3F, 0x40, 0x7F)
]
PROPERTIES += [
    (Fault.PROPERTY_UNKNOWN, (5,), "identifier of two bytes", packet(0x30, "0001 61 03 81 01 00")),
    (Fault.PROPERTY_MISPLACED, (5,), "will delay in a publish", packet(0x30, "0001 61 05 18 00000001")),
    (Fault.PROPERTY_TWICE, (5,), "payload format", packet(0x30, "0001 61 04 0100 0100")),
    (
        Fault.PROPERTY_TWICE,
        (5,),
        "subscription id in a subscribe",
        packet(0x82, "0001 04 0b01 0b01 0001 61 00"),
    ),
    (Fault.PROPERTY_VALUE, (5,), "payload format 2", packet(0x30, "0001 61 02 0102")),
    (Fault.PROPERTY_VALUE, (5,), "subscription id 0", packet(0x82, "0001 02 0b00 0001 61 00")),
    (Fault.TOPIC_ALIAS, (5,), "topic alias 0", packet(0x30, "0001 61 03 230000")),
    (Fault.PROPERTY_VALUE, (5,), "response topic with #", packet(0x30, "0001 61 04 08 0001 23")),
    (Fault.PROPERTY_VALUE, (5,), "empty response topic", packet(0x30, "0001 61 03 08 0000")),
    (Fault.UTF8, (5,), "user property", packet(0x30, "0001 61 07 26 0001 61 0001 ff")),
    (Fault.NUL, (5,), "user property", packet(0x30, "0001 61 07 26 0001 00 0001 61")),
    (Fault.TRUNCATED, (5,), "half a user property", packet(0x30, "0001 61 04 26 0001 61")),
]

TABLE = FIXED_HEADER + FLAGS + CONNECT + PUBLISH + ACKS + SUBSCRIBE + ANSWERS + PROPERTIES
LIMITS = {Fault.TOPIC_LEVELS, Fault.PACKET_TOO_LARGE}  # by the receiver's choice: tested below and in topics


@pytest.mark.parametrize(
    ("fault", "version", "raw"),
    [
        pytest.param(fault, version, raw, id=f"{fault.name} {version} {raw[0] >> 4} {name}")
        for fault, versions, name, raw in TABLE
        for version in versions
    ],
)
def test_malformed_packet_is_refused_by_its_fault(fault: Fault, version: int, raw: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode(raw, version)
    assert Fault(caught.value.fault) == fault
    assert caught.value.reason == EXPLANATIONS[fault].reason
    assert str(caught.value).startswith(fault_text(fault))


@pytest.mark.parametrize(
    ("first", "body"),
    [each[2:] for each in _NIBBLES if each[0] == 3 and not has_wrong_flags(3, each[1], each[2] & 0x0F)],
)
def test_flags_that_3_1_does_not_use_are_not_looked_at(first: int, body: str) -> None:
    assert decode(packet(first, body), 3) is not None


def test_every_fault_of_the_wire_format_has_a_case() -> None:
    of_the_wire = {fault for fault in Fault if Fault.VARINT_OVERLONG <= fault <= Fault.PACKET_TOO_LARGE}
    assert {fault for fault, *_ in TABLE} - {Fault.TOPIC_ALIAS} == of_the_wire - LIMITS


def test_a_packet_above_the_limit_is_refused_by_its_header_alone() -> None:
    assert decode(b"\x30\x05\x00\x01axy", 4, 7) is not None
    for raw in (b"\x30\x06", b"\x30\x06\x00\x01axyz"):
        with pytest.raises(ProtocolError) as caught:
            decode(raw, 4, 7)
        assert caught.value.fault == Fault.PACKET_TOO_LARGE
        assert caught.value.reason == ReasonCode.PACKET_TOO_LARGE


def test_decoder_gives_what_came_before_a_fault_and_then_only_the_fault() -> None:
    decoder = Decoder(version=4)
    decoder.feed(b"\xc0\x00\xd0\x00\xc1\x00\xc0\x00")
    assert [type(packet).__name__ for packet in (next(decoder), next(decoder))] == ["Pingreq", "Pingresp"]
    for _ in range(2):
        with pytest.raises(ProtocolError) as caught:
            next(decoder)
        assert caught.value.fault == Fault.FLAGS


# What 5.0 says of each; the expected values are written out here, apart from the code that chooses them.
REASONS = {
    0x81: "VARINT_OVERLONG FLAGS TRUNCATED TRAILING UTF8 NUL RESERVED_BIT WILL_FLAGS QOS DUP_QOS_0 "
    "PASSWORD_WITHOUT_USERNAME PROPERTY_UNKNOWN PROPERTY_MISPLACED",
    0x82: "PACKET_TYPE PACKET_ID_ZERO TOPIC_EMPTY NO_FILTERS SUBSCRIPTION_OPTIONS NO_LOCAL_SHARED "
    "PROPERTY_TWICE PROPERTY_VALUE AUTH_DATA_WITHOUT_METHOD REASON_CODE "
    "BEFORE_CONNECT SECOND_CONNECT PACKET_ID_UNKNOWN "
    "SESSION_EXPIRY AUTH_UNEXPECTED CONNECT_TIMEOUT TRANSPORT ACK_OF_OTHER_QOS TLS",
    0x83: "STORE",
    0x84: "PROTOCOL_NAME PROTOCOL_VERSION",
    0x85: "CLIENT_ID",
    0x87: "REMOTE",
    0x8D: "KEEP_ALIVE",
    0x8F: "TOPIC_FILTER",
    0x90: "TOPIC_WILDCARD TOPIC_LEVELS",
    0x93: "RECEIVE_MAXIMUM",
    0x94: "TOPIC_ALIAS",
    0x95: "PACKET_TOO_LARGE",
    0x97: "LIMIT PACKET_LATE OUTPUT_STALLED",
    0x9A: "RETAIN_NOT_SUPPORTED",
    0x9B: "QOS_NOT_SUPPORTED",
    0x9F: "FLAPPING",
}


@pytest.mark.parametrize("fault", [fault for fault in Fault if fault > Fault.NEED_MORE])
def test_fault_is_explained_and_answered(fault: Fault) -> None:
    explanation = EXPLANATIONS[fault]
    assert [code for code, names in REASONS.items() if fault.name in names.split()] == [explanation.reason]
    assert "\n" not in explanation.text
    assert all(tag.removeprefix("3.1.1 ").startswith("MQTT-") for tag in explanation.tags)
    error = protocol_error(fault)
    assert (error.fault, error.reason) == (fault, explanation.reason)
    assert error.tag == (explanation.tags[0] if explanation.tags else "")


@pytest.mark.parametrize("fault", [Fault.NONE, Fault.NEED_MORE])
def test_no_fault_is_no_error(fault: Fault) -> None:
    with pytest.raises(KeyError):
        protocol_error(fault)
