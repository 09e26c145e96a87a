"""What comes from another node is checked whole: of a batch that is wrong nothing is applied."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from conformance.kit import connected
from hypothesis import given
from hypothesis import strategies as st

from tidemq.engine.door.node_access import NodeAccess
from tidemq.errors import ClusterError, UsageError

if TYPE_CHECKING:
    from adversity.conftest import StartEngine

HEAD = struct.pack("=IIQ", 0x424E4D54, 1, 7)
RECORD = struct.Struct("=BBBBHHIIQq")
RETAIN, ASKS, OFFERED = 1, 2, 4
LINKED = 512 * 1024


def record(
    topic: bytes = b"a",
    payload: bytes = b"x",
    properties: bytes = b"",
    *,
    kind: int = 1,
    qos: int = 1,
    flags: int = ASKS,
    reason: int = 0,
    group: bytes = b"",
    clock: int = 64,
    left_ms: int = 0,
) -> bytes:
    head = RECORD.pack(
        kind, qos, flags, reason, len(topic), len(group), len(properties), len(payload), clock, left_ms
    )
    return head + group + topic + properties + payload


def answer(clock: int, reason: int = 0, takers: bytes = b"") -> bytes:
    return record(b"", takers, kind=2, qos=0, flags=0, reason=reason, clock=clock)


def taker(
    name: bytes = b"ann", ids: bytes = b"", *, queue: int = 0, qos: int = 2, retain: int = 0, count: int = 0
) -> bytes:
    head = struct.pack(">QBBI", queue, qos, retain, count or len(ids) // 4)
    return head + ids + struct.pack(">H", len(name)) + name


TAKERS = taker() + taker(b"bob", b"\0\0\0\1", retain=1)
GOOD = (
    HEAD
    + record()
    + answer(64)
    + answer(64, takers=TAKERS)
    + record(b"b/c", b"y" * 50, b"\x02\x01\x01", qos=0, flags=RETAIN, clock=0)
)

WRONG = {
    "shorter than its head": (b"", HEAD[:15]),
    "does not begin as": (b"x" * 16, GOOD[1:]),
    "goes beyond its end": (
        HEAD + b"\x01",
        GOOD[:-1],
        HEAD + RECORD.pack(1, 0, 0, 0, 1, 0, 0xFFFFFFFF, 0xFFFFFFFF, 0, 0) + b"a",
        HEAD + RECORD.pack(2, 0, 0, 0, 0xFFFF, 0, 0, 0, 64, 0),
    ),
    "neither a message nor an answer": (HEAD + record(kind=0), HEAD + record(kind=3)),
    "a value that it cannot have": (
        HEAD + record(qos=3),
        HEAD + record(flags=8),
        HEAD + record(flags=OFFERED, qos=2),  # and does not ask
        HEAD + record(flags=OFFERED | ASKS),  # at QoS 1
        HEAD + record(flags=OFFERED | ASKS, qos=2, group=b"$share/g/a"),
        HEAD + record(reason=1),
        HEAD + record(b"", b"", kind=2, qos=0, flags=0, group=b"$share/g/a"),
        HEAD + record(left_ms=-1),
        HEAD + record(left_ms=0xFFFFFFFF * 1000 + 1),
        HEAD + record(qos=0),  # asks
        HEAD + record(clock=0),
        HEAD + answer(0),
        HEAD + answer(64, 0x10),
    ),
    "a topic name is": (
        HEAD + record(b""),
        HEAD + record(b"a/+"),
        HEAD + record(b"a\0"),
        HEAD + record(b"\xff"),
        HEAD + record(b"$SYS/x"),
    ),
    "the name of a shared group is none": (
        HEAD + record(group=b"$share/g"),
        HEAD + record(group=b"$share//a"),
        HEAD + record(group=b"$share/g/"),
        HEAD + record(group=b"g/a"),
    ),
    "who takes what was offered": (
        *(HEAD + answer(64, takers=TAKERS[:size]) for size in range(1, len(TAKERS)) if size != len(taker())),
        HEAD + answer(64, takers=taker(queue=1)),  # a queue of this node's
        HEAD + answer(64, takers=taker(qos=1)),
        HEAD + answer(64, takers=taker(retain=2)),
        HEAD + answer(64, takers=taker(count=0x40000000)),
        HEAD + answer(64, takers=taker(b"")),
        HEAD + answer(64, takers=taker(b"\xff")),
        HEAD + answer(64, takers=TAKERS + b"\0"),
    ),
    "properties are": (
        HEAD + record(properties=b"\x00"),
        HEAD + record(properties=b"\x05\x01\x01"),
        HEAD + record(properties=b"\x02\x01\x01\x01"),
        HEAD + record(properties=b"\x02\x01\x02"),
        HEAD + record(properties=b"\x02\x0b\x01"),  # a subscription identifier
        HEAD + record(properties=b"\x05\x02\x00\x00\x00\x01"),  # expiry
        HEAD + record(properties=b"\x03\x23\x00\x01"),  # an alias
        HEAD + record(properties=b"\x05\x11\x00\x00\x00\x01"),  # of CONNECT
    ),
}


def answers(access: NodeAccess) -> list[tuple[int, int, int]]:
    """Of what is to go out: node, question, reason."""
    found = []
    for node, batch in access.take(0.5) or []:
        for at in range(16, len(batch), 32):
            fields = RECORD.unpack_from(batch, at)
            assert fields[0] == 2
            found.append((node, fields[8], fields[3]))
        access.sent(node, len(batch))
    return found


@pytest.mark.parametrize("words", WRONG)
def test_a_batch_that_is_wrong_is_refused_whole(start_engine: StartEngine, words: str) -> None:
    engine = start_engine(linked=LINKED, topic_bytes_max=500, topic_levels_max=50)
    for batch in WRONG[words]:
        for before in (b"", record()) if len(batch) > 16 else (b"",):
            with pytest.raises(ClusterError, match=f"from node 3 is wrong at byte .*{words}"):
                engine.nodes.give(3, batch[:16] + before + batch[16:])
    assert engine.nodes.give(3, HEAD)
    assert engine.nodes.give(3, HEAD + record(clock=128))
    assert answers(engine.nodes) == [(3, 128, 0)]
    assert engine.count("messages_from_nodes") == 1


def test_another_node_may_have_other_limits_for_its_clients(start_engine: StartEngine) -> None:
    """What is refused would be sent again, and hold up all that comes behind it."""
    engine = start_engine(linked=LINKED, topic_bytes_max=500, topic_levels_max=50)
    client = connected(engine)
    client.subscribe("#", 1)
    deep, long = b"/" * 65_535, b"a" * 1000
    assert engine.nodes.give(3, HEAD + record(deep, clock=64) + record(long, clock=128))
    assert {client.receive().topic for _ in range(2)} == {deep.decode(), long.decode()}
    assert answers(engine.nodes) == [(3, 64, 0), (3, 128, 0)]
    engine.nodes.change_filters(3, [], ["a/" * 1000 + "#", "b" * 1000])
    engine.nodes.change_groups(3, [("$share/g/" + "a/" * 1000 + "#", 1)])
    for text in ("a" * 65_536, "a/#/b"):
        with pytest.raises(UsageError):
            engine.nodes.change_filters(3, [], [text])


def test_a_batch_of_a_format_that_is_not_read_is_refused_with_both_named(start_engine: StartEngine) -> None:
    engine = start_engine(linked=LINKED)
    for number in (0, 2, 0xFFFFFFFF):
        batch = struct.pack("=IIQ", 0x424E4D54, number, 7) + record()
        with pytest.raises(ClusterError, match=f"from node 3 is in format {number}; this node reads 1 to 1"):
            engine.nodes.give(3, batch)
    with pytest.raises(UsageError, match="the format is 2, must be 1 to 1"):
        engine.nodes.use_format(2)
    assert engine.count("messages_from_nodes") == 0


def test_what_is_good_is_delivered_and_answered(start_engine: StartEngine) -> None:
    engine = start_engine(2, linked=LINKED)
    client = connected(engine)
    client.subscribe("#", 2)
    assert engine.nodes.give(5, GOOD)
    messages = sorted([client.receive(), client.receive()], key=lambda each: each.topic)
    assert [(each.topic, each.payload, each.qos) for each in messages] == [
        ("a", b"x", 1),
        ("b/c", b"y" * 50, 0),
    ]
    assert messages[1].get("payload_format") == 1
    assert answers(engine.nodes) == [(5, 64, 0)]
    engine.wait_for("node_answers_late")


def test_answers_to_nothing_are_counted(start_engine: StartEngine) -> None:
    engine = start_engine(2, linked=LINKED)
    engine.nodes.give(0, HEAD + b"".join(answer(clock) for clock in (1, 64, 1 << 60, 63, (1 << 64) - 1)))
    engine.wait_for("node_answers_late", 5)


def test_what_waits_is_bounded(start_engine: StartEngine) -> None:
    """A reactor that is behind takes nothing more, and says so."""
    engine = start_engine(linked=LINKED, node_bytes_max=65_536)
    clients = [connected(engine) for _ in range(30)]
    for client in clients:
        client.subscribe("#", 0)
    batch = HEAD + record(payload=b"x" * 10, qos=0, flags=0, clock=0) * 1400
    refused = 0
    for _ in range(50):
        while not engine.nodes.give(0, batch):
            refused += 1
    engine.wait_for("messages_from_nodes", 50 * 1400)
    assert refused > 0


def test_no_bytes_do_harm(start_engine: StartEngine) -> None:
    engine = start_engine(2, linked=LINKED)
    client = connected(engine)
    client.subscribe("#", 1)

    def try_batch(batch: bytes) -> None:
        with contextlib.suppress(ClusterError):
            assert engine.nodes.give(0, batch)

    @given(st.binary(max_size=200))
    def random_records(rest: bytes) -> None:
        try_batch(HEAD + rest)

    @given(st.integers(0, len(GOOD) - 1), st.integers(0, 255), st.integers(0, len(GOOD)))
    def damaged(at: int, byte: int, end: int) -> None:
        text = bytearray(GOOD)
        text[at] = byte
        try_batch(bytes(text))
        try_batch(bytes(text[:end]))

    tries: list[Callable[[], None]] = [random_records, damaged]
    for each in tries:
        each()
        client.rest()
    answers(engine.nodes)
