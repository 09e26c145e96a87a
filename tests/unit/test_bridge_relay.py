"""What comes in at one half of a bridge goes out at the other: topics, QoS, properties, acknowledgements."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidemq.bridge.relay import HOPS, Counts, Half, PeerRefusedError
from tidemq.errors import ProtocolError
from tidemq.wire import (
    Disconnect,
    Packet,
    Pingresp,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
    decode,
    encode,
)


class Relay:
    """Both halves, with what was said to each."""

    def __init__(self, version: int = 5, hops_max: int = 8) -> None:
        self.counts = Counts()
        self.local = Half(self.counts, is_local=True, packet_bytes_max=1 << 20)
        self.remote = Half(self.counts, is_local=False, packet_bytes_max=1 << 20)
        self.local.join(self.remote)
        self.remote.version = version
        self.local.hops_max = self.remote.hops_max = hops_max

    def tell(self, half: Half, *packets: Packet) -> list[Packet]:
        """Packets come in there; what is not passed on."""
        for packet in packets:
            data = encode(packet, half.version)
            half.room()[: len(data)] = data
            half.wrote(len(data))
        found = []
        while (rest := half.parse()) is not None:
            found.append(rest)
        return found


def said(half: Half) -> list[Packet]:
    """What has gone out there."""
    data, found = half.take(), []
    while data:
        whole = decode(data, half.version)
        assert whole is not None
        found.append(whole[0])
        data = data[whole[1] :]
    return found


def crossed(hops: int, *others: tuple[str, str]) -> Properties:
    return Properties(user_properties=(*others, (HOPS, str(hops))))


@pytest.fixture
def relay() -> Relay:
    relay = Relay()
    relay.local.map(b"plant/#", len(b"plant/"), b"site/7/")
    relay.remote.map(b"orders/+", 0, b"cloud/")
    return relay


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_goes_out_under_its_identifier_and_another_topic(relay: Relay, qos: int) -> None:
    packet_id = 0x1234 if qos else 0
    relay.tell(relay.local, Publish(topic="plant/a/b", payload=b"1", qos=qos, packet_id=packet_id))
    expected = Publish(topic="site/7/a/b", payload=b"1", qos=qos, packet_id=packet_id, properties=crossed(1))
    assert said(relay.remote) == [expected]
    assert said(relay.local) == []
    assert (relay.counts.messages_out, relay.counts.messages_in) == (1, 0)


def test_a_message_comes_in(relay: Relay) -> None:
    relay.tell(relay.remote, Publish(topic="orders/1", retain=True, dup=True, qos=1, packet_id=9))
    expected = Publish(topic="cloud/orders/1", retain=True, dup=True, qos=1, packet_id=9)
    assert said(relay.local) == [replace(expected, properties=crossed(1))]
    assert relay.counts.messages_in == 1


def test_the_level_above_a_filter_matches_it_only_where_the_prefix_has_it(relay: Relay) -> None:
    relay.tell(relay.local, Publish(topic="plant", qos=1, packet_id=1))
    assert said(relay.remote) == []
    assert said(relay.local) == [Puback(packet_id=1)]
    assert relay.counts.dropped_unmatched == 1


@pytest.mark.parametrize(
    ("filter", "topic", "fits"),
    [
        ("#", "a", True),
        ("#", "$SYS/a", False),
        ("+/a", "$SYS/a", False),
        ("$SYS/#", "$SYS/a/b", True),
        ("a/#", "a", True),
        ("a/#", "ab", False),
        ("a/+", "a/", True),
        ("a/+", "a", False),
        ("a/+/c", "a/b/c", True),
        ("a/+/c", "a/b/d", False),
        ("a/b", "a/b/c", False),
        ("a/b/c", "a/b", False),
        ("+", "/a", False),
        ("+/+", "/a", True),
        ("/+", "/a", True),
        ("a/+/#", "a/b", True),
    ],
)
def test_filters_match_as_the_standard_says(filter: str, topic: str, fits: bool) -> None:
    relay = Relay()
    relay.local.map(filter.encode(), 0, b"x/")
    relay.tell(relay.local, Publish(topic=topic))
    assert len(said(relay.remote)) == fits


def test_the_first_filter_that_matches_counts() -> None:
    relay = Relay()
    relay.local.map(b"a/b", 0, b"one/")
    relay.local.map(b"a/#", 0, b"two/")
    relay.tell(relay.local, Publish(topic="a/b"), Publish(topic="a/c"))
    assert [each.topic for each in said(relay.remote) if isinstance(each, Publish)] == ["one/a/b", "two/a/c"]


def test_acknowledgements_go_back_to_where_the_message_came_from(relay: Relay) -> None:
    relay.tell(relay.remote, Puback(packet_id=1), Pubrec(packet_id=2), Pubcomp(packet_id=3))
    assert said(relay.local) == [Puback(packet_id=1), Pubrec(packet_id=2), Pubcomp(packet_id=3)]
    relay.tell(relay.local, Pubrel(packet_id=2))
    assert said(relay.remote) == [Pubrel(packet_id=2)]


def test_properties_go_along_but_for_what_is_of_one_connection(relay: Relay) -> None:
    given = Properties(
        payload_format=1,
        message_expiry_s=60,
        content_type="t",
        response_topic="r",
        correlation_data=b"c",
        subscription_ids=(5,),
        user_properties=(("a", "1"), (HOPS, "2"), ("a", "2")),
    )
    relay.tell(relay.local, Publish(topic="plant/a", properties=given))
    [message] = said(relay.remote)
    assert isinstance(message, Publish)
    users = (("a", "1"), ("a", "2"), (HOPS, "3"))
    assert message.properties == replace(given, subscription_ids=(), user_properties=users)


def test_a_3_1_1_side_gets_no_properties() -> None:
    relay = Relay(version=4)
    relay.local.map(b"#", 0, b"")
    relay.tell(relay.local, Publish(topic="a", properties=Properties(content_type="t")))
    assert said(relay.remote) == [Publish(topic="a")]


@pytest.mark.parametrize(
    ("count", "passes"), [("2", True), ("3", False), ("99999999999", False), ("x", True)]
)
def test_a_message_that_has_crossed_enough_bridges_ends(count: str, passes: bool) -> None:
    relay = Relay(hops_max=3)
    relay.local.map(b"#", 0, b"")
    properties = Properties(user_properties=((HOPS, count),))
    relay.tell(relay.local, Publish(topic="a", qos=1, packet_id=1, properties=properties))
    assert len(said(relay.remote)) == passes
    assert said(relay.local) == ([] if passes else [Puback(packet_id=1)])
    assert relay.counts.dropped_hops == (not passes)


@pytest.mark.parametrize("hops", [8, 9, 97, 98])
def test_two_digits_of_bridges_are_counted(hops: int) -> None:
    relay = Relay(hops_max=99)
    relay.local.map(b"#", 0, b"")
    relay.tell(relay.local, Publish(topic="a", properties=crossed(hops)))
    assert said(relay.remote) == [Publish(topic="a", properties=crossed(hops + 1))]


def test_many_counts_in_a_message_become_one_and_leave_the_rest_as_it_is() -> None:
    relay = Relay(hops_max=99)
    relay.local.map(b"#", 0, b"")
    rest = [("a", str(number)) for number in range(5000)]
    given = [each for pair in rest for each in ((HOPS, "1"), pair, (HOPS, "4"))]
    properties = Properties(content_type="t", user_properties=tuple(given), message_expiry_s=9)
    relay.tell(relay.local, Publish(topic="a", properties=properties))
    [message] = said(relay.remote)
    assert isinstance(message, Publish)
    assert message.properties.content_type == "t"
    assert message.properties.message_expiry_s == 9
    assert message.properties.user_properties == (*rest, (HOPS, "5"))


def test_what_is_dropped_at_qos_2_is_acknowledged_too(relay: Relay) -> None:
    relay.tell(relay.local, Publish(topic="other", qos=2, packet_id=7))
    assert said(relay.local) == [Pubrec(packet_id=7)]


def test_retain_is_cleared_where_the_other_side_keeps_nothing(relay: Relay) -> None:
    relay.remote.keeps_retain = False
    relay.tell(relay.local, Publish(topic="plant/a", retain=True))
    assert said(relay.remote) == [Publish(topic="site/7/a", properties=crossed(1))]


def test_qos_2_goes_as_1_to_a_side_that_takes_no_more(relay: Relay) -> None:
    relay.remote.qos_max = 1
    relay.tell(relay.local, Publish(topic="plant/a", qos=2, packet_id=5))
    assert said(relay.remote) == [Publish(topic="site/7/a", qos=1, packet_id=5, properties=crossed(1))]
    relay.tell(relay.remote, Puback(packet_id=5))
    assert said(relay.local) == [Pubrec(packet_id=5)]
    relay.tell(relay.local, Pubrel(packet_id=5))
    assert said(relay.local) == [Pubcomp(packet_id=5)]
    assert said(relay.remote) == []
    relay.tell(relay.remote, Puback(packet_id=5))  # of a later message at QoS 1
    assert said(relay.local) == [Puback(packet_id=5)]


@pytest.mark.parametrize("reason", [ReasonCode.QUOTA_EXCEEDED, ReasonCode.UNSPECIFIED_ERROR])
def test_a_refusal_that_may_pass_is_not_told_to_who_sent_the_message(relay: Relay, reason: int) -> None:
    with pytest.raises(PeerRefusedError) as refused:
        relay.tell(relay.remote, Puback(packet_id=7, reason=reason))
    assert (refused.value.reason, refused.value.packet_id) == (reason, 7)
    assert said(relay.local) == []


@pytest.mark.parametrize("kind", [Puback, Pubrec])
def test_a_refusal_for_good_ends_the_message_and_is_counted(
    relay: Relay, kind: type[Puback] | type[Pubrec]
) -> None:
    refusal = kind(packet_id=1, reason=ReasonCode.NOT_AUTHORIZED)
    relay.tell(relay.remote, refusal)
    assert said(relay.local) == [refusal]
    assert relay.counts.dropped_refused == 1


@pytest.mark.parametrize("kind", [0x40, 0x50])
@pytest.mark.parametrize("reason", [0x95, 0x9A, 0x9B])
def test_a_refusal_for_a_reason_of_other_packets_is_one_for_good(
    relay: Relay, kind: int, reason: int
) -> None:
    """Mosquitto answers with 0x95 in PUBACK, which is none of its reasons (3.4.2.1)."""
    relay.remote.feed(bytes([kind, 3, 0x12, 0x34, reason]))
    assert relay.remote.parse() is None
    answer = Puback if kind == 0x40 else Pubrec
    assert said(relay.local) == [answer(packet_id=0x1234, reason=ReasonCode.PAYLOAD_FORMAT_INVALID)]
    assert relay.counts.dropped_refused == 1


def test_a_reason_that_nobody_knows_is_a_fault(relay: Relay) -> None:
    relay.remote.feed(bytes([0x40, 3, 0, 1, 0xFE]))
    with pytest.raises(ProtocolError):
        relay.remote.parse()


@pytest.mark.parametrize("qos", [1, 2])
def test_messages_go_one_at_a_time_where_care_is_needed(relay: Relay, qos: int) -> None:
    answer = Puback if qos == 1 else Pubrec
    relay.remote.careful = 2
    messages = [Publish(topic="plant/a", qos=qos, packet_id=each) for each in (1, 2, 3, 4)]
    relay.tell(relay.local, Publish(topic="plant/a"), *messages)
    assert [each.packet_id for each in said(relay.remote) if isinstance(each, Publish)] == [0, 1]
    assert relay.local.held
    assert (relay.remote.under_way, relay.remote.last_id) == (1, 1)
    relay.tell(relay.remote, answer(packet_id=1))
    relay.tell(relay.local)
    assert [each.packet_id for each in said(relay.remote) if isinstance(each, Publish)] == [2]
    relay.tell(relay.remote, answer(packet_id=2))  # so many were to be
    relay.tell(relay.local)
    assert [each.packet_id for each in said(relay.remote) if isinstance(each, Publish)] == [3, 4]
    assert not relay.local.held
    assert relay.remote.answered == 2


@pytest.mark.parametrize(("qos", "answer"), [(1, Puback(packet_id=5)), (2, Pubrec(packet_id=5))])
def test_a_message_is_passed_by_once(relay: Relay, qos: int, answer: Packet) -> None:
    relay.remote.skip = 5
    relay.tell(relay.local, *(Publish(topic="plant/a", qos=qos, packet_id=each) for each in (4, 5)))
    assert said(relay.local) == [answer]
    relay.tell(relay.local, Publish(topic="plant/a", qos=qos, packet_id=5))
    assert [each.packet_id for each in said(relay.remote) if isinstance(each, Publish)] == [4, 5]
    assert relay.counts.dropped_refused == 1


def test_answers_to_packets_of_its_own_are_told_nobody(relay: Relay) -> None:
    relay.remote.releases = 2
    relay.tell(relay.remote, *(Pubcomp(packet_id=each) for each in (1, 2, 3)))
    assert said(relay.local) == [Pubcomp(packet_id=3)]
    assert relay.remote.releases == 0


@pytest.mark.parametrize("topic", ["$SYS/x", "", "a" * 101, "/" * 11])
def test_what_the_own_broker_would_not_take_is_dropped(topic: str) -> None:
    relay = Relay()
    relay.remote.map(b"#", 1, b"")
    relay.local.topic_bytes_max, relay.local.topic_levels_max = 100, 10
    relay.tell(relay.remote, Publish(topic=f"x{topic}", qos=1, packet_id=1))
    assert said(relay.local) == []
    assert said(relay.remote) == [Puback(packet_id=1)]
    assert relay.counts.dropped_unfit == 1


def test_what_is_too_large_for_the_other_side_is_dropped(relay: Relay) -> None:
    relay.remote.peer_bytes_max = 60
    relay.tell(relay.local, Publish(topic="plant/a", payload=bytes(40), qos=1, packet_id=1))
    assert said(relay.remote) == []
    assert said(relay.local) == [Puback(packet_id=1)]
    assert relay.counts.dropped_unfit == 1


def test_every_other_packet_is_given_in_its_place(relay: Relay) -> None:
    rest = relay.tell(
        relay.remote,
        Pingresp(),
        Publish(topic="orders/1"),
        Disconnect(reason=ReasonCode.SERVER_SHUTTING_DOWN),
    )
    assert [type(each) for each in rest] == [Pingresp, Disconnect]
    assert len(said(relay.local)) == 1


@pytest.mark.parametrize(("size", "payload_bytes"), [(1, 300), (7, 3000), (4096, 300_000)])
def test_packets_come_in_pieces(relay: Relay, size: int, payload_bytes: int) -> None:
    message = Publish(topic="orders/1", payload=bytes(payload_bytes), qos=1, packet_id=1)
    data = encode(message, 5) * 3
    taken = b""
    for at in range(0, len(data), size):
        relay.remote.feed(data[at : at + size])
        assert relay.remote.parse() is None
        if relay.local.output_bytes:
            taken += relay.local.take()
    found = decode(taken, 5)
    assert found is not None
    assert len(taken) == 3 * found[1]
    assert relay.counts.messages_in == 3


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x00",  # no packet type
        b"\x36\x05\x00\x01a\x00\x01",  # QoS 3
        b"\x30\x06\x00\x01a\x03\x23\x00\x01",  # a topic alias, of which we take none
        b"\x30\xff\xff\xff\x7f",  # larger than is taken
        b"\x40\x02\x00\x00",  # packet identifier 0
        b"\x30\x04\x00\x02a#",  # a wildcard
    ],
)
def test_what_is_no_mqtt_is_a_fault(relay: Relay, data: bytes) -> None:
    relay.remote.feed(data)
    with pytest.raises(ProtocolError):
        relay.remote.parse()
    assert said(relay.local) == []
