"""What decides without I/O, by itself: bytes in any pieces, packet identifiers, topics, filters."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quick import examples

from tidemq.client.incoming import Incoming
from tidemq.client.message import Message
from tidemq.client.outgoing import Outgoing
from tidemq.client.queue import Intake, MessageQueue
from tidemq.errors import ProtocolError
from tidemq.wire import Decoder, Packet, Pingresp, Properties, Puback, Publish, Pubrel, Suback, encode
from tidemq.wire.filters import matches


class Core:
    """The parts as a client puts them together, connected."""

    def __init__(self, version: int = 5, inflight_max: int = 0xFFFF, aliases: int = 0) -> None:
        nothing: Callable[[], None] = lambda: None  # noqa: E731
        self.version = version
        self.outgoing = Outgoing(nothing, nothing, 100_000, 1 << 30, False, aliases)
        self.intake = Intake(self.outgoing, False, 1 << 20, 1 << 30)
        self.queue = MessageQueue(self.intake)
        self.incoming = Incoming(self.outgoing, self.intake, self.queue)
        self.incoming.begin(version, 1 << 28, 0xFFFF, aliases)
        self.outgoing.connect(version, inflight_max, 0xFFFFFFFF, 2, True, aliases)
        self.incoming.accept(False)

    def parse(self) -> list[Any]:
        return list(iter(self.incoming.parse, None))

    def sent(self) -> list[Any]:
        decoder = Decoder(self.version)
        decoder.feed(self.outgoing.take())
        return list(decoder)


packets = st.lists(
    st.one_of(
        st.builds(
            Publish,
            topic=st.sampled_from(["a", "a/b", "long/" * 20, "ü/€"]),
            payload=st.binary(max_size=300),
            retain=st.booleans(),
            properties=st.sampled_from(
                [Properties(), Properties(content_type="t", user_properties=(("a", "b"),))]
            ),
        ),
        st.builds(Suback, packet_id=st.integers(1, 0xFFFF), reasons=st.just((1,))),
        st.just(Pingresp()),
        st.just(Puback(packet_id=7)),
    ),
    max_size=12,
)


@given(packets, st.data())
@settings(max_examples=examples(150))
def test_any_split_gives_the_same(sent: list[Packet], data: st.DataObject) -> None:
    core = Core()
    stream = b"".join(encode(each, 5) for each in sent)
    others: list[object] = []
    at = 0
    while at < len(stream):
        size = data.draw(st.integers(1, min(len(stream) - at, 200)))
        if data.draw(st.booleans()):
            core.incoming.feed(stream[at : at + size])
        else:
            room = core.incoming.room()
            assert len(room) >= size
            room[:size] = stream[at : at + size]
            core.incoming.wrote(size)
        at += size
        others += core.parse()
    received = core.queue.take_nowait()
    expected = [each for each in sent if isinstance(each, Publish)]
    assert [(m.topic, m.payload, m.retain, m.properties) for m in received] == [
        (p.topic, p.payload, p.retain, p.properties) for p in expected
    ]
    assert others == [each for each in sent if not isinstance(each, Publish | Puback)]


@given(st.binary(max_size=200))
@settings(max_examples=examples(150))
def test_any_bytes_are_parsed_or_refused(data: bytes) -> None:
    """And what is refused is refused again, not passed over."""
    core = Core()
    core.incoming.feed(data)
    try:
        core.parse()
    except ProtocolError:
        refused = True
    else:
        refused = False
    decoder = Decoder(5)
    decoder.feed(data)
    try:
        kinds = [type(each).__name__ for each in decoder]
    except ProtocolError:
        assert refused
    else:
        assert not refused or {"Connect", "Subscribe", "Unsubscribe", "Pingreq", "Publish"} & set(kinds)


def test_messages_of_one_topic_share_its_text() -> None:
    core = Core()
    for _ in range(2):
        core.incoming.feed(encode(Publish(topic="some/long/topic"), 5))
    core.parse()
    first, second = core.queue.take_nowait()
    assert first.topic is second.topic


def test_a_packet_of_megabytes() -> None:
    core = Core()
    packet = encode(Publish(topic="t", payload=bytes(3 << 20)), 5)
    for at in range(0, len(packet), 100_000):
        part = packet[at : at + 100_000]
        while part:
            room = core.incoming.room()
            size = min(len(room), len(part))
            room[:size] = part[:size]
            core.incoming.wrote(size)
            part = part[size:]
            assert core.parse() == []
    (message,) = core.queue.take_nowait()
    assert len(message.payload) == 3 << 20


@given(st.lists(st.integers(0, 1 << 30), max_size=400), st.integers(1, 300))
@settings(max_examples=examples(60))
def test_identifiers_in_use_are_never_given_twice(choices: list[int], window: int) -> None:
    """Whatever the order of acknowledgements; the window is kept and filled."""
    core = Core(inflight_max=window)
    receipts = [core.outgoing.publish("t", b"", 1, False, None) for _ in range(len(choices) + window)]
    open_ids: list[int] = []
    for choice in choices:
        open_ids += [packet.packet_id for packet in core.sent()]
        assert len(open_ids) == len(set(open_ids)) == core.outgoing.inflight == window
        core.incoming.feed(encode(Puback(packet_id=open_ids.pop(choice % len(open_ids))), 5))
        core.parse()
    assert sum(each.done for each in receipts) == len(choices)


def test_acknowledgements_of_nothing_are_passed_over() -> None:
    core = Core()
    receipt = core.outgoing.publish("t", b"", 2, False, None)
    (packet,) = core.sent()
    for stray in (Puback(packet_id=packet.packet_id), Puback(packet_id=999), Pubrel(packet_id=5)):
        core.incoming.feed(encode(stray, 5))
    core.parse()
    assert not receipt.done
    assert [(type(each).__name__, each.packet_id, each.reason) for each in core.sent()] == [
        ("Pubcomp", 5, 0x92)
    ]


class Late(Future[Any]):
    """Of a thread that gives up right after the loop's look at it."""

    def done(self) -> bool:
        before = super().done()
        self.cancel()
        return before


@pytest.mark.parametrize("reason", [0, 0x87])
def test_who_gives_up_while_being_told_harms_nobody(reason: int) -> None:
    core = Core()
    receipt = core.outgoing.publish("t", b"", 1, False, None)
    late = Late()
    other: Any = Future()
    for waiter in (late, other):
        receipt.notify_acknowledged(waiter)
    core.incoming.feed(encode(Puback(packet_id=1, reason=reason), 5))
    core.parse()
    assert late.cancelled()
    assert (other.exception(0) is None) == (reason == 0)
    assert core.outgoing.held_messages == 0


def test_aliases_are_as_many_as_both_allow() -> None:
    core = Core(aliases=2)
    for topic in ("a", "b", "c", "a", "b", "c"):
        core.outgoing.publish(topic, b"", 0, False, None)
    assert [(each.topic, each.properties.topic_alias) for each in core.sent()] == [
        ("a", 1),
        ("b", 2),
        ("c", None),
        ("", 1),
        ("", 2),
        ("c", None),
    ]


@pytest.mark.parametrize(
    ("topic_filter", "topic", "expected"),
    [
        ("a/b", "a/b", True),
        ("a/b", "a/b/c", False),
        ("a/+", "a/b", True),
        ("a/+", "a", False),
        ("a/+", "a/", True),
        ("+/+", "/a", True),
        ("a/#", "a", True),
        ("a/#", "a/b/c", True),
        ("#", "a/b", True),
        ("#", "$SYS/x", False),
        ("+/x", "$SYS/x", False),
        ("$SYS/#", "$SYS/x", True),
        ("$share/g/a/+", "a/b", True),
        ("$share/g/#", "$SYS/x", False),
        ("a", "b", False),
    ],
)
def test_filters(topic_filter: str, topic: str, expected: bool) -> None:
    assert matches(topic_filter, topic) is expected


def test_a_message_shows_itself() -> None:
    message = Message("t", "x", 1, True, Properties(content_type="c"))
    assert repr(message) == (
        "Message('t', b'x', qos=1, retain=True, properties=Properties(content_type='c'))"
    )
    with pytest.raises(AttributeError):
        message.topic = "other"  # type: ignore[misc]
