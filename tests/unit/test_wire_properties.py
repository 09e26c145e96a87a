"""Each property is these bytes, stands only where it may, once, and within its range."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from tidemq.errors import ProtocolError
from tidemq.wire import (
    NO_PROPERTIES,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Fault,
    Packet,
    PacketType,
    Properties,
    PropertyId,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
    decode,
    decode_properties,
    encode,
    encode_properties,
    forwarded_properties,
)

# identifier, field, value, bytes (identifier included), where it may stand (table 2-4; `w` is a will)
C, A, P, W, S, U, D, X = (
    "connect",
    "connack",
    "publish",
    "will",
    "subscribe",
    "unsubscribe",
    "disconnect",
    "auth",
)
ANSWERS = ("puback", "pubrec", "pubrel", "pubcomp", "suback", "unsuback")
MESSAGE = (P, W)
TABLE: list[tuple[PropertyId, str, object, str, tuple[str, ...]]] = [
    (PropertyId.PAYLOAD_FORMAT, "payload_format", 1, "01 01", MESSAGE),
    (PropertyId.MESSAGE_EXPIRY, "message_expiry_s", 0x01020304, "02 01020304", MESSAGE),
    (PropertyId.CONTENT_TYPE, "content_type", "é", "03 0002 c3a9", MESSAGE),
    (PropertyId.RESPONSE_TOPIC, "response_topic", "a/b", "08 0003 612f62", MESSAGE),
    (PropertyId.CORRELATION_DATA, "correlation_data", b"\x00\xff", "09 0002 00ff", MESSAGE),
    (PropertyId.SUBSCRIPTION_ID, "subscription_ids", (268_435_455,), "0b ffffff7f", (P, S)),
    (PropertyId.SESSION_EXPIRY, "session_expiry_s", 0xFFFFFFFF, "11 ffffffff", (C, A, D)),
    (PropertyId.ASSIGNED_CLIENT_ID, "assigned_client_id", "id", "12 0002 6964", (A,)),
    (PropertyId.SERVER_KEEP_ALIVE, "server_keep_alive_s", 0x0102, "13 0102", (A,)),
    (PropertyId.AUTH_METHOD, "auth_method", "m", "15 0001 6d", (C, A, X)),
    (PropertyId.AUTH_DATA, "auth_data", b"\xfe", "16 0001 fe", (C, A, X)),
    (PropertyId.REQUEST_PROBLEM_INFO, "request_problem_info", False, "17 00", (C,)),
    (PropertyId.WILL_DELAY, "will_delay_s", 0x01020304, "18 01020304", (W,)),
    (PropertyId.REQUEST_RESPONSE_INFO, "request_response_info", True, "19 01", (C,)),
    (PropertyId.RESPONSE_INFO, "response_info", "r", "1a 0001 72", (A,)),
    (PropertyId.SERVER_REFERENCE, "server_reference", "s", "1c 0001 73", (A, D)),
    (PropertyId.REASON_STRING, "reason_string", "why", "1f 0003 776879", (A, *ANSWERS, D, X)),
    (PropertyId.RECEIVE_MAXIMUM, "receive_maximum", 0x0102, "21 0102", (C, A)),
    (PropertyId.TOPIC_ALIAS_MAXIMUM, "topic_alias_maximum", 0x0102, "22 0102", (C, A)),
    (PropertyId.TOPIC_ALIAS, "topic_alias", 0x0102, "23 0102", (P,)),
    (PropertyId.MAXIMUM_QOS, "maximum_qos", 1, "24 01", (A,)),
    (PropertyId.RETAIN_AVAILABLE, "retain_available", False, "25 00", (A,)),
    (
        PropertyId.USER_PROPERTY,
        "user_properties",
        (("k", "v"), ("k", "")),
        "26 0001 6b 0001 76 26 0001 6b 0000",
        (C, A, P, W, S, U, D, X, *ANSWERS),
    ),
    (PropertyId.MAXIMUM_PACKET_SIZE, "maximum_packet_size", 0x01020304, "27 01020304", (C, A)),
    (PropertyId.WILDCARD_AVAILABLE, "wildcard_available", False, "28 00", (A,)),
    (PropertyId.SUBSCRIPTION_IDS_AVAILABLE, "subscription_ids_available", False, "29 00", (A,)),
    (PropertyId.SHARED_AVAILABLE, "shared_available", True, "2a 01", (A,)),
]

EVERYWHERE = (C, W, A, P, *ANSWERS, S, U, D, X)


def with_value(field: str, value: Any) -> Properties:
    changes: dict[str, Any] = {field: value}
    return dataclasses.replace(NO_PROPERTIES, **changes)


def packet_with(place: str, properties: Properties) -> Packet:
    makers: dict[str, Callable[[], Packet]] = {
        C: lambda: Connect(version=5, properties=properties),
        W: lambda: Connect(version=5, will=Will(topic="w", properties=properties)),
        A: lambda: Connack(properties=properties),
        P: lambda: Publish(topic="t", properties=properties),
        "puback": lambda: Puback(packet_id=1, properties=properties),
        "pubrec": lambda: Pubrec(packet_id=1, properties=properties),
        "pubrel": lambda: Pubrel(packet_id=1, properties=properties),
        "pubcomp": lambda: Pubcomp(packet_id=1, properties=properties),
        S: lambda: Subscribe(packet_id=1, subscriptions=(Subscription(filter="f"),), properties=properties),
        "suback": lambda: Suback(packet_id=1, reasons=(0,), properties=properties),
        U: lambda: Unsubscribe(packet_id=1, filters=("f",), properties=properties),
        "unsuback": lambda: Unsuback(packet_id=1, reasons=(0,), properties=properties),
        D: lambda: Disconnect(properties=properties),
        X: lambda: Auth(properties=properties),
    }
    return makers[place]()


# Bytes of each packet before and after its block (without the fixed header).
FRAMES = {
    C: (0x10, "0004 4d515454 05 02 003c", "0000"),
    W: (0x10, "0004 4d515454 05 06 003c 00 0000", "0001 77 0000"),
    A: (0x20, "00 00", ""),
    P: (0x30, "0001 74", ""),
    "puback": (0x40, "0001 00", ""),
    "pubrec": (0x50, "0001 00", ""),
    "pubrel": (0x62, "0001 00", ""),
    "pubcomp": (0x70, "0001 00", ""),
    S: (0x82, "0001", "0001 66 00"),
    "suback": (0x90, "0001", "00"),
    U: (0xA2, "0001", "0001 66"),
    "unsuback": (0xB0, "0001", "00"),
    D: (0xE0, "00", ""),
    X: (0xF0, "00", ""),
}


def raw_with(place: str, block: bytes) -> bytes:
    first, before, after = FRAMES[place]
    body = bytes.fromhex(before) + bytes((len(block),)) + block + bytes.fromhex(after)
    assert len(body) < 128
    return bytes((first, len(body))) + body


def fault_of(raw: bytes) -> Fault:
    with pytest.raises(ProtocolError) as caught:
        decode(raw, 5)
    return Fault(caught.value.fault)


def needs_method(field: str) -> bytes:
    """Authentication data is judged together with its method, which therefore goes in front."""
    return bytes.fromhex("15 0001 6d") if field == "auth_data" else b""


def test_table_has_every_property() -> None:
    assert [row[0] for row in TABLE] == list(PropertyId)
    assert {row[1] for row in TABLE} == {field.name for field in dataclasses.fields(Properties)}


@pytest.mark.parametrize(("field", "value", "block"), [row[1:4] for row in TABLE])
def test_property_is_these_bytes(field: str, value: Any, block: str) -> None:
    properties = with_value(field, value)
    assert encode_properties(properties).hex() == bytes.fromhex(block).hex()


@pytest.mark.parametrize("place", EVERYWHERE)
@pytest.mark.parametrize(("number", "field", "value", "block", "places"), TABLE)
def test_property_stands_only_where_it_may(
    place: str, number: PropertyId, field: str, value: object, block: str, places: tuple[str, ...]
) -> None:
    raw = raw_with(place, needs_method(field) + bytes.fromhex(block))
    if place not in places:
        raw = raw_with(place, bytes.fromhex(block))
        assert fault_of(raw) == Fault.PROPERTY_MISPLACED
        return
    fields: dict[str, Any] = {"auth_method": "m", field: value} if field == "auth_data" else {field: value}
    expected = packet_with(place, dataclasses.replace(NO_PROPERTIES, **fields))
    assert decode(raw, 5) == (expected, len(raw))
    assert encode(expected, 5) == raw


@pytest.mark.parametrize("place", EVERYWHERE)
@pytest.mark.parametrize(("number", "field", "value", "block", "places"), TABLE)
def test_property_comes_once(
    place: str, number: PropertyId, field: str, value: object, block: str, places: tuple[str, ...]
) -> None:
    if place not in places:
        return
    raw = raw_with(place, needs_method(field) + bytes.fromhex(block) * 2)
    if field == "user_properties" or (field, place) == ("subscription_ids", P):
        assert decode(raw, 5) is not None
    else:
        assert fault_of(raw) == Fault.PROPERTY_TWICE


@pytest.mark.parametrize(("number", "field", "value", "block", "places"), TABLE)
def test_property_cut_short_is_refused(
    number: PropertyId, field: str, value: object, block: str, places: tuple[str, ...]
) -> None:
    data = bytes.fromhex(block)
    first_size = 7 if field == "user_properties" else len(data)
    for size in range(1, first_size):
        assert fault_of(raw_with(places[0], needs_method(field) + data[:size])) == Fault.TRUNCATED


FLAGS = [row for row in TABLE if len(bytes.fromhex(row[3])) == 2]


@pytest.mark.parametrize("row", FLAGS, ids=lambda row: row[1])
@pytest.mark.parametrize("value", [2, 3, 0x80, 0xFF])
def test_flag_above_1_is_refused(
    row: tuple[PropertyId, str, object, str, tuple[str, ...]], value: int
) -> None:
    assert fault_of(raw_with(row[4][0], bytes((row[0], value)))) == Fault.PROPERTY_VALUE


@pytest.mark.parametrize(
    ("place", "block", "fault"),
    [
        (C, "21 0000", Fault.PROPERTY_VALUE),
        (A, "21 0000", Fault.PROPERTY_VALUE),
        (C, "27 00000000", Fault.PROPERTY_VALUE),
        (P, "0b 00", Fault.PROPERTY_VALUE),
        (S, "0b 00", Fault.PROPERTY_VALUE),
        (P, "23 0000", Fault.TOPIC_ALIAS),
        (P, "08 0003 612f2b", Fault.PROPERTY_VALUE),
        (W, "08 0001 23", Fault.PROPERTY_VALUE),
        (P, "08 0000", Fault.PROPERTY_VALUE),
        (C, "16 0001 61", Fault.AUTH_DATA_WITHOUT_METHOD),
        (A, "16 0001 61", Fault.AUTH_DATA_WITHOUT_METHOD),
        (X, "16 0001 61", Fault.AUTH_DATA_WITHOUT_METHOD),
        (P, "03 0001 ff", Fault.UTF8),
        (P, "03 0001 00", Fault.NUL),
        (A, "1f 0001 ff", Fault.UTF8),
        (C, "15 0001 00", Fault.NUL),
        (P, "26 0001 ff 0000", Fault.UTF8),
        (P, "26 0000 0001 00", Fault.NUL),
    ],
)
def test_excluded_value_is_refused(place: str, block: str, fault: Fault) -> None:
    assert fault_of(raw_with(place, bytes.fromhex(block))) == fault


@pytest.mark.parametrize(
    ("place", "block", "field", "value"),
    [
        (C, "22 0000", "topic_alias_maximum", 0),
        (C, "11 00000000", "session_expiry_s", 0),
        (A, "13 0000", "server_keep_alive_s", 0),
        (P, "02 00000000", "message_expiry_s", 0),
        (P, "09 0002 00ff", "correlation_data", b"\x00\xff"),
        (P, "03 0000", "content_type", ""),
    ],
)
def test_zero_and_empty_are_values_where_the_standard_lets_them(
    place: str, block: str, field: str, value: object
) -> None:
    raw = raw_with(place, bytes.fromhex(block))
    assert decode(raw, 5) == (
        packet_with(place, with_value(field, value)),
        len(raw),
    )


def test_user_properties_and_subscription_identifiers_keep_their_order() -> None:
    block = bytes.fromhex("26 0001 62 0001 31 0b 05 26 0001 61 0001 32 0b 03 26 0001 62 0001 31")
    properties = decode_properties(block)
    assert properties.user_properties == (("b", "1"), ("a", "2"), ("b", "1"))
    assert properties.subscription_ids == (5, 3)


def test_forwarded_are_all_but_what_each_receiver_has_of_its_own() -> None:
    kept = ["26 0001 62 0001 31", "01 01", "26 0001 61 0001 32", "03 0001 63", "08 0001 72", "09 0001 ff"]
    own = ["02 00000001", "0b 05", "23 0001", "0b ffffff7f"]
    mixed = [kept[0], own[0], *kept[1:3], own[1], own[2], *kept[3:5], own[3], kept[5]]
    assert forwarded_properties(bytes.fromhex("".join(mixed))) == bytes.fromhex("".join(kept))
    assert forwarded_properties(b"") == b""
    assert forwarded_properties(bytes.fromhex("".join(own))) == b""


def test_a_block_is_decoded_for_its_packet() -> None:
    block = encode_properties(Properties(receive_maximum=5))
    assert decode_properties(block, PacketType.CONNECT) == Properties(receive_maximum=5)
    with pytest.raises(ProtocolError) as caught:
        decode_properties(block, PacketType.PUBLISH)
    assert caught.value.fault == Fault.PROPERTY_MISPLACED


def test_a_large_block_keeps_its_length() -> None:
    pairs = tuple((f"key {i}", "v" * 100) for i in range(200))  # more than 16,383 bytes
    packet = Publish(topic="t", payload=b"x", properties=Properties(user_properties=pairs))
    raw = encode(packet, 5)
    assert decode(raw, 5) == (packet, len(raw))


def test_repr_shows_only_what_is_present() -> None:
    assert repr(Properties(topic_alias=1, content_type="t")) == "Properties(content_type='t', topic_alias=1)"
    assert repr(NO_PROPERTIES) == "Properties()"
