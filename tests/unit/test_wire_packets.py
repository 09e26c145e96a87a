"""Each control packet of each version is these bytes, read and written."""

from __future__ import annotations

import pytest

from tidemq.errors import ProtocolError, UsageError
from tidemq.wire import (
    Auth,
    Connack,
    Connect,
    ConnectReturnCode,
    Decoder,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
    decode,
    encode,
)

USER = Properties(user_properties=(("k", "v"),))
USER_HEX = "07 26 0001 6b 0001 76"  # with its length

# name, version, bytes, packet: what we write, and read back
BOTH_WAYS: list[tuple[str, int, str, Packet]] = [
    (
        "connect 3.1",
        3,
        "10 0f 0006 4d5149736470 03 02 003c 0001 61",
        Connect(version=3, client_id="a"),
    ),
    (
        "connect 3.1.1 without a client identifier",
        4,
        "10 0c 0004 4d515454 04 02 003c 0000",
        Connect(version=4),
    ),
    (
        "connect 3.1.1 with everything",
        4,
        "10 1d 0004 4d515454 04 ec 0102 0001 61 0003 772f78 0002 00ff 0001 75 0002 00fe",
        Connect(
            version=4,
            client_id="a",
            clean_start=False,
            keep_alive_s=258,
            will=Will(topic="w/x", payload=b"\x00\xff", qos=1, retain=True),
            username="u",
            password=b"\x00\xfe",
        ),
    ),
    (
        "connect 3.1.1 with an empty user name and will",
        4,
        "10 13 0004 4d515454 04 96 0000 0000 0001 77 0000 0000",
        Connect(version=4, keep_alive_s=0, will=Will(topic="w", qos=2), username=""),
    ),
    (
        "connect 5.0",
        5,
        "10 0d 0004 4d515454 05 02 003c 00 0000",
        Connect(version=5),
    ),
    (
        "connect 5.0 with a password alone",
        5,
        "10 10 0004 4d515454 05 42 003c 00 0000 0001 70",
        Connect(version=5, password=b"p"),
    ),
    (
        "connect 5.0 with a will and properties of both",
        5,
        f"10 22 0004 4d515454 05 06 003c 05 11 0000000a 0000 {USER_HEX} 0001 77 0003 627965",
        Connect(
            version=5,
            will=Will(topic="w", payload=b"bye", properties=USER),
            properties=Properties(session_expiry_s=10),
        ),
    ),
    ("connack 3.1", 3, "20 02 00 05", Connack(reason=ConnectReturnCode.NOT_AUTHORIZED)),
    ("connack 3.1.1", 4, "20 02 01 00", Connack(session_present=True)),
    ("connack 5.0", 5, "20 03 01 00 00", Connack(session_present=True)),
    (
        "connack 5.0 with properties",
        5,
        f"20 0a 00 87 {USER_HEX}",
        Connack(reason=ReasonCode.NOT_AUTHORIZED, properties=USER),
    ),
    ("publish at QoS 0", 4, "30 07 0003 612f62 6869", Publish(topic="a/b", payload=b"hi")),
    ("publish at QoS 0, 3.1", 3, "30 07 0003 612f62 6869", Publish(topic="a/b", payload=b"hi")),
    ("publish retained and empty", 4, "31 03 0001 61", Publish(topic="a", retain=True)),
    (
        "publish at QoS 1 again",
        4,
        "3a 06 0001 61 1234 78",
        Publish(topic="a", payload=b"x", qos=1, dup=True, packet_id=0x1234),
    ),
    (
        "publish at QoS 2, 5.0",
        5,
        "34 07 0001 61 ffff 00 78",
        Publish(topic="a", payload=b"x", qos=2, packet_id=0xFFFF),
    ),
    (
        "publish with properties",
        5,
        f"30 0b 0001 61 {USER_HEX}",
        Publish(topic="a", properties=USER),
    ),
    (
        "publish by its alias alone",
        5,
        "30 07 0000 03 23 0001 78",
        Publish(topic="", payload=b"x", properties=Properties(topic_alias=1)),
    ),
    (
        "publish with several subscription identifiers",
        5,
        "30 0a 0001 61 06 0b 01 0b ffff7f",
        Publish(topic="a", properties=Properties(subscription_ids=(1, 2097151))),
    ),
    (
        "subscribe",
        4,
        "82 06 0001 0001 23 02",
        Subscribe(packet_id=1, subscriptions=(Subscription(filter="#", qos=2),)),
    ),
    (
        "subscribe to two, 3.1",
        3,
        "82 0c 0007 0003 612f2b 00 0001 62 01",
        Subscribe(packet_id=7, subscriptions=(Subscription(filter="a/+"), Subscription(filter="b", qos=1))),
    ),
    (
        "subscribe 5.0 with every option and property",
        5,
        "82 10 0001 09 0b 05 26 0001 6b 0001 76 0001 61 2e",
        Subscribe(
            packet_id=1,
            subscriptions=(
                Subscription(filter="a", qos=2, no_local=True, retain_as_published=True, retain_handling=2),
            ),
            properties=Properties(subscription_ids=(5,), user_properties=(("k", "v"),)),
        ),
    ),
    ("suback 3.1.1", 4, "90 06 0001 00 01 02 80", Suback(packet_id=1, reasons=(0, 1, 2, 0x80))),
    ("suback 5.0", 5, "90 05 0001 00 00 97", Suback(packet_id=1, reasons=(0, ReasonCode.QUOTA_EXCEEDED))),
    ("unsubscribe 3.1.1", 4, "a2 08 0001 0001 61 0001 62", Unsubscribe(packet_id=1, filters=("a", "b"))),
    (
        "unsubscribe 5.0",
        5,
        f"a2 0d 0001 {USER_HEX} 0001 61",
        Unsubscribe(packet_id=1, filters=("a",), properties=USER),
    ),
    ("unsuback 3.1.1", 4, "b0 02 0001", Unsuback(packet_id=1)),
    ("unsuback 5.0", 5, "b0 05 0001 00 00 11", Unsuback(packet_id=1, reasons=(0, 0x11))),
    ("disconnect 3.1.1", 4, "e0 00", Disconnect()),
    ("disconnect 5.0", 5, "e0 00", Disconnect()),
    ("disconnect 5.0 with a reason", 5, "e0 01 8b", Disconnect(reason=ReasonCode.SERVER_SHUTTING_DOWN)),
    ("disconnect 5.0 with properties", 5, f"e0 09 04 {USER_HEX}", Disconnect(reason=4, properties=USER)),
    ("auth", 5, "f0 00", Auth()),
    (
        "auth with a method",
        5,
        "f0 0b 18 09 15 0001 6d 16 0002 0001",
        Auth(
            reason=ReasonCode.CONTINUE_AUTHENTICATION,
            properties=Properties(auth_method="m", auth_data=b"\x00\x01"),
        ),
    ),
]
for _version in (3, 4, 5):
    BOTH_WAYS += [
        (f"puback {_version}", _version, "40 02 0102", Puback(packet_id=0x0102)),
        (f"pubrec {_version}", _version, "50 02 0102", Pubrec(packet_id=0x0102)),
        (f"pubrel {_version}", _version, "62 02 0102", Pubrel(packet_id=0x0102)),
        (f"pubcomp {_version}", _version, "70 02 0102", Pubcomp(packet_id=0x0102)),
        (f"pingreq {_version}", _version, "c0 00", Pingreq()),
        (f"pingresp {_version}", _version, "d0 00", Pingresp()),
    ]
for _first, _kind, _reason in (
    ("40", Puback, ReasonCode.NO_MATCHING_SUBSCRIBERS),
    ("50", Pubrec, ReasonCode.QUOTA_EXCEEDED),
    ("62", Pubrel, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND),
    ("70", Pubcomp, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND),
):
    BOTH_WAYS += [
        (
            f"{_kind.__name__} with a reason",
            5,
            f"{_first} 03 0001 {_reason:02x}",
            _kind(packet_id=1, reason=_reason),
        ),
        (
            f"{_kind.__name__} with properties",
            5,
            f"{_first} 0b 0001 00 {USER_HEX}",
            _kind(packet_id=1, properties=USER),
        ),
    ]

# name, version, bytes, packet: forms that we read and never write
READ_ONLY: list[tuple[str, int, str, Packet]] = [
    ("an acknowledgement that says success", 5, "40 03 0001 00", Puback(packet_id=1)),
    ("an acknowledgement with an empty block", 5, "40 04 0001 10 00", Puback(packet_id=1, reason=0x10)),
    ("disconnect that says success", 5, "e0 01 00", Disconnect()),
    ("disconnect with an empty block", 5, "e0 02 00 00", Disconnect()),
    ("auth that says success", 5, "f0 01 00", Auth()),
    ("3.1 marks what comes again: pubrel", 3, "6a 02 0001", Pubrel(packet_id=1)),
    (
        "3.1 marks what comes again: subscribe",
        3,
        "8a 06 0001 0001 61 00",
        Subscribe(packet_id=1, subscriptions=(Subscription(filter="a"),)),
    ),
    (
        "3.1 marks what comes again: unsubscribe",
        3,
        "aa 05 0001 0001 61",
        Unsubscribe(packet_id=1, filters=("a",)),
    ),
    (
        "3.1 leaves user name and password out though the flags announce them",
        3,
        "10 0f 0006 4d5149736470 03 c2 003c 0001 61",
        Connect(version=3, client_id="a"),
    ),
    (
        "3.1 leaves the password out though the flags announce it",
        3,
        "10 12 0006 4d5149736470 03 c2 003c 0001 61 0001 75",
        Connect(version=3, client_id="a", username="u"),
    ),
    (
        "3.1 has no meaning for bit 0 and for a will's flags without a will",
        3,
        "10 0f 0006 4d5149736470 03 3b 003c 0001 61",
        Connect(version=3, client_id="a"),
    ),
    ("3.1 has no meaning for the first byte of connack", 3, "20 02 ff 00", Connack()),
    (
        "3.1 with a client identifier of 24 bytes",
        3,
        "10 26 0006 4d5149736470 03 02 003c 0018" + "61" * 24,
        Connect(version=3, client_id="a" * 24),
    ),
]


def table(rows: list[tuple[str, int, str, Packet]]) -> list[object]:
    return [
        pytest.param(version, bytes.fromhex(raw), packet, id=f"{version} {name}")
        for name, version, raw, packet in rows
    ]


@pytest.mark.parametrize(("version", "raw", "packet"), table(BOTH_WAYS + READ_ONLY))
def test_bytes_are_read_as_the_packet(version: int, raw: bytes, packet: Packet) -> None:
    assert decode(raw, version) == (packet, len(raw))


@pytest.mark.parametrize(("version", "raw", "packet"), table(BOTH_WAYS))
def test_the_packet_is_written_as_the_bytes(version: int, raw: bytes, packet: Packet) -> None:
    assert encode(packet, version).hex(" ") == raw.hex(" ")


@pytest.mark.parametrize(("version", "raw", "packet"), table(BOTH_WAYS + READ_ONLY))
def test_a_packet_is_none_until_its_last_byte(version: int, raw: bytes, packet: Packet) -> None:
    for size in range(len(raw)):
        assert decode(raw[:size], version) is None
    assert decode(raw + b"\xc0\x00", version) == (packet, len(raw))


@pytest.mark.parametrize("size", [0, 127 - 3, 128 - 3, 16383 - 3, 16384 - 3, 2097151 - 3, 2097152 - 3])
def test_remaining_length_at_the_edges_of_its_forms(size: int) -> None:
    packet = Publish(topic="a", payload=bytes(size))
    raw = encode(packet, 4)
    assert decode(raw, 4) == (packet, len(raw))
    header_size = len(raw) - size - 3
    assert header_size == 1 + len(remaining_length(size + 3))
    assert raw[1:header_size] == remaining_length(size + 3)


def remaining_length(value: int) -> bytes:
    """The algorithm of section 1.5.5."""
    out = bytearray()
    while True:
        value, byte = divmod(value, 128)
        out.append(byte | 0x80 if value else byte)
        if not value:
            return bytes(out)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_decode_takes_any_buffer(kind: type) -> None:
    assert decode(kind(b"\x30\x05\x00\x01axy"), 4) == (Publish(topic="a", payload=b"xy"), 7)


@pytest.mark.parametrize(
    ("version", "packet"),
    [
        pytest.param(4, Connect(version=5), id="connect of another version"),
        pytest.param(4, Publish(topic="a", properties=USER), id="properties in 3.1.1"),
        pytest.param(
            4, Connect(version=4, will=Will(topic="a", properties=USER)), id="will properties in 3.1.1"
        ),
        pytest.param(3, Puback(packet_id=1, reason=0x80), id="reason of an acknowledgement in 3.1"),
        pytest.param(4, Puback(packet_id=1, properties=USER), id="properties of an acknowledgement in 3.1.1"),
        pytest.param(4, Disconnect(reason=0x80), id="reason of disconnect in 3.1.1"),
        pytest.param(4, Unsuback(packet_id=1, reasons=(0,)), id="reasons of unsuback in 3.1.1"),
        pytest.param(3, Connack(session_present=True), id="session present in 3.1"),
        pytest.param(4, Connack(reason=0x87), id="5.0 reason in a 3.1.1 connack"),
        pytest.param(4, Auth(), id="auth in 3.1.1"),
        pytest.param(
            4, Subscribe(packet_id=1, subscriptions=(Subscription(filter="a", no_local=True),)), id="no local"
        ),
        pytest.param(4, Publish(topic="a", packet_id=1), id="packet identifier at QoS 0"),
        pytest.param(4, Publish(topic="a", qos=1), id="packet identifier 0"),
        pytest.param(4, Publish(topic="a", qos=1, packet_id=65536), id="packet identifier above 65,535"),
        pytest.param(4, Publish(topic="a", qos=4), id="QoS 4"),
        pytest.param(4, Publish(topic="a", qos=3, packet_id=1), id="QoS 3"),
        pytest.param(4, Publish(topic="a", dup=True), id="dup at QoS 0"),
        pytest.param(4, Publish(topic=""), id="empty topic"),
        pytest.param(4, Publish(topic="a/+"), id="wildcard in a topic"),
        pytest.param(4, Publish(topic="a\0"), id="NUL"),
        pytest.param(4, Publish(topic="\ud800"), id="surrogate"),
        pytest.param(4, Publish(topic="a" * 65536), id="topic of 65,536 bytes"),
        pytest.param(4, Publish(topic=b"a"), id="topic that is bytes"),  # type: ignore[arg-type]
        pytest.param(4, Connect(version=4, username="u", password="p"), id="password that is a str"),  # type: ignore[arg-type]
        pytest.param(
            4, Connect(version=4, username="u", password=bytes(65536)), id="password of 65,536 bytes"
        ),
        pytest.param(4, Connect(version=4, password=b"p"), id="password without user name in 3.1.1"),
        pytest.param(4, Connect(version=4, keep_alive_s=65536), id="keep alive above 65,535"),
        pytest.param(4, Connect(version=4, keep_alive_s=-1), id="negative keep alive"),
        pytest.param(4, Connect(version=4, keep_alive_s=1.5), id="fractional keep alive"),  # type: ignore[arg-type]
        pytest.param(4, Subscribe(packet_id=1, subscriptions=()), id="no subscriptions"),
        pytest.param(4, Unsubscribe(packet_id=1, filters=("a#",)), id="malformed filter"),
        pytest.param(5, Suback(packet_id=1, reasons=(300,)), id="reason above 255"),
        pytest.param(5, Suback(packet_id=1, reasons=()), id="no reasons"),
        pytest.param(5, Puback(packet_id=1, reason=0x82), id="reason of another packet"),
        pytest.param(5, Puback(packet_id=1, properties=Properties(topic_alias=1)), id="misplaced property"),
        pytest.param(5, Publish(topic="a", properties=Properties(topic_alias=0)), id="topic alias 0"),
        pytest.param(
            5, Publish(topic="a", properties=Properties(message_expiry_s=1 << 32)), id="expiry above 32 bits"
        ),
        pytest.param(
            5, Publish(topic="a", properties=Properties(subscription_ids=(1 << 28,))), id="subscription id"
        ),
        pytest.param(
            5,
            Publish(topic="a", properties=Properties(user_properties=(("k", "v" * 65536),))),
            id="user property",
        ),
        pytest.param(4, "a", id="no packet"),
        pytest.param(6, Pingreq(), id="version 6"),
    ],
)
def test_what_cannot_be_said_is_refused(version: int, packet: Packet) -> None:
    with pytest.raises(UsageError):
        encode(packet, version)


def test_decode_refuses_an_unknown_version() -> None:
    with pytest.raises(UsageError):
        decode(b"\xc0\x00", 2)


def test_decoder_gives_packets_as_their_bytes_come() -> None:
    decoder = Decoder(version=4)
    packets: list[Packet] = [Connect(version=5), Publish(topic="a", properties=USER), Pingreq()]
    stream = b"".join(encode(packet, 5) for packet in packets)
    found: list[Packet] = []
    for byte in stream:
        decoder.feed(bytes((byte,)))
        found += decoder
    assert found == packets
    assert decoder.version == 5  # CONNECT said so
    decoder.feed(encode(Pingresp(), 5))
    assert list(decoder) == [Pingresp()]
    assert list(decoder) == []


@pytest.mark.parametrize(("version", "raw", "packet"), table(BOTH_WAYS))
def test_a_packet_cut_short_is_a_fault_or_another(version: int, raw: bytes, packet: Packet) -> None:
    """The remaining length tells of the cut, so nothing more is waited for."""
    body = raw[2:]
    cut_short = [bytes((raw[0], size)) + body[:size] for size in range(len(body))]
    for cut in cut_short:
        try:
            found = decode(cut, version)
        except ProtocolError:
            continue
        assert found is not None
        other, size = found
        assert size == len(cut)
        assert other != packet
        assert type(other) is type(packet)
