"""What nodes tell each other and decide, piece by piece."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from cluster.nodes import START_NS, Actor, make_node
from hypothesis import given
from hypothesis import strategies as st

from tidemq.cluster import operations as ops
from tidemq.cluster.formats import Formats
from tidemq.cluster.hybrid_clock import HybridClock
from tidemq.cluster.incoming import Gap, Incoming
from tidemq.cluster.members import (
    MEMBERS_MAX,
    SUSPECT_S,
    Heartbeat,
    Members,
    encode_heartbeat,
    parse_heartbeat,
)
from tidemq.cluster.memory_rows import MemoryRows
from tidemq.cluster.operations import SESSION, Operation, Owner, PutSession, Run, Stamp
from tidemq.cluster.promises import DEGRADED_S, UNDER_WAY_MAX, Kept, Promises
from tidemq.cluster.records import LAYOUTS, NO_DIGEST, Layout, Record, parse_record, read_run
from tidemq.cluster.refusal import Refusal
from tidemq.cluster.vectors import Dot, covers, has_seen, raised
from tidemq.errors import ClusterError
from tidemq.store.checksums import crc32c

U16, U32, U64 = st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(max_size=8)
STAMP = st.builds(Stamp, U64, U64)
OWNER = st.builds(Owner, st.integers(1, 2), TEXT)
BYTE = st.integers(0, 255)
FLIGHT = st.builds(ops.Flight, STAMP, U64, st.booleans())
OPERATION = st.one_of(
    st.builds(ops.Payload, STAMP, st.binary(max_size=8)),
    st.builds(
        ops.Add, OWNER, STAMP, BYTE, BYTE, U32, I64, st.booleans(), st.lists(U32, max_size=3).map(tuple)
    ),
    st.builds(ops.Remove, OWNER, STAMP),
    st.builds(ops.Send, OWNER, STAMP, STAMP, U64),
    st.builds(ops.Release, OWNER, STAMP, STAMP),
    st.builds(ops.Return, OWNER, STAMP, STAMP),
    st.builds(
        PutSession,
        *(TEXT, STAMP, U64, st.booleans(), U64, U32, I64, I64, U32, I64, st.binary(max_size=8)),
        st.lists(U16, max_size=3).map(tuple),
        st.lists(FLIGHT, max_size=3).map(tuple),
    ),
    st.builds(ops.EndSession, TEXT, STAMP),
    st.builds(ops.Receive, TEXT, STAMP, U16),
    st.builds(ops.Forget, TEXT, STAMP, U16),
    st.builds(ops.Subscribe, TEXT, TEXT, STAMP, BYTE, U32),
    st.builds(ops.Serve, TEXT, TEXT, STAMP),
    st.builds(ops.Unsubscribe, TEXT, TEXT, STAMP),
    st.builds(ops.Retain, TEXT, STAMP, st.binary(max_size=8)),
    st.builds(ops.Clear, TEXT, STAMP),
)


def with_payloads(operations: list[ops.Operation]) -> tuple[ops.Operation, ...]:
    """Each message that is added comes first."""
    return (*(ops.Payload(each.id, b"m") for each in operations if isinstance(each, ops.Add)), *operations)


RECORD = st.builds(
    Record,
    st.builds(Dot, U64, U64),
    st.binary(min_size=16, max_size=16),
    U64,
    st.dictionaries(U64, U64, max_size=4),
    st.lists(OPERATION, max_size=6).map(with_payloads),
)


@given(RECORD)
def test_a_record_is_read_as_it_was_written(record: Record) -> None:
    again = parse_record(record.encoded)
    operations: list[Operation] = []
    for each in again.operations:
        operations += read_run(each.text) if isinstance(each, Run) else [each]
    assert replace(again, operations=tuple(operations)) == record
    assert again.digest == record.digest


@given(RECORD, st.data())
def test_a_damaged_record_is_refused(record: Record, data: st.DataObject) -> None:
    text = bytearray(record.encoded)
    text[data.draw(st.integers(0, len(text) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(ClusterError):
        parse_record(bytes(text))
    with pytest.raises(ClusterError):
        parse_record(record.encoded[: data.draw(st.integers(0, len(text) - 1))])


@given(st.binary(max_size=80), RECORD)
def test_no_bytes_do_more_than_be_refused(garbage: bytes, record: Record) -> None:
    """With a right checksum, as somebody who means harm would have it."""
    for text in (garbage, record.encoded[4:46] + garbage):
        try:
            parse_record(crc32c(text).to_bytes(4) + text)
        except ClusterError as error:
            assert str(error)  # noqa: PT017 - it may also be a record


def sealed(text: bytes) -> bytes:
    return crc32c(text).to_bytes(4) + text


def test_what_is_wrong_with_a_record_is_said() -> None:
    record = Record(Dot(1, 1), NO_DIGEST, 5, {}, (ops.Clear("t", Stamp(1, 1)),))
    body = record.encoded[4:]
    remove = ops.Remove(Owner(SESSION, "ann"), Stamp(1, 1))
    owned = Record(Dot(1, 1), NO_DIGEST, 5, {}, (remove,)).encoded[4:]
    for text, said in (
        (b"short", "at least"),
        (b"\0\0\0\0" + body, "checksum"),
        (sealed(b"\0\x09" + body[2:]), "format 9; this version reads 1"),
        (sealed(body + b"x"), "1 bytes behind"),
        (sealed(body[:-3]), "ends after"),
        (sealed(owned.replace(b"\x03\x01\0", b"\x03\x05\0")), "owner of kind 5; 1 and 2"),
        (sealed(body.replace(b"\x0e\0\0\0\x01t", b"\x63\0\0\0\x01t")), "kind 99"),
        (sealed(body.replace(b"\x01t", b"\x01\xff")), "no UTF-8"),
    ):
        with pytest.raises(ClusterError, match=said):
            parse_record(text)


# --- clocks, vectors ---------------------------------------------------------------------------


def test_a_clock_never_goes_back_and_keeps_up_with_others() -> None:
    wall = [1_000_000_000]
    clock = HybridClock(lambda: wall[0], skew_s_max=5, last_ns=64)
    first = clock.next_ns()
    wall[0] -= 500_000_000
    assert clock.next_ns() > first
    clock.raise_to(3_000_000_000)  # 2.5 s ahead
    assert clock.next_ns() > 3_000_000_000
    wall[0] += 400_000_000
    assert clock.next_ns() >= 3_400_000_000  # and so it stays
    assert HybridClock(lambda: 0, skew_s_max=5, last_ns=clock.last_ns).next_ns() > clock.last_ns


def test_a_node_whose_clock_is_far_off_is_refused() -> None:
    clock = HybridClock(lambda: START_NS, skew_s_max=5)
    clock.check(START_NS + 4_999_000_000, "n2")
    for skew_ns in (5_001_000_000, -5_001_000_000):
        with pytest.raises(ClusterError, match=r"the clock of n2 says 2027.* and ours 2027.*at most 5 s"):
            clock.check(START_NS + skew_ns, "n2")


def test_vectors() -> None:
    assert has_seen({1: 2}, Dot(1, 2))
    assert not has_seen({1: 2}, Dot(1, 3))
    assert not has_seen({}, Dot(1, 1))
    assert covers({1: 2, 2: 1}, {1: 2})
    assert not covers({1: 2}, {1: 2, 2: 1})
    assert raised({1: 2, 2: 3}, {2: 1, 3: 4}) == {1: 2, 2: 3, 3: 4}


# --- members -----------------------------------------------------------------------------------


def beat(incarnation: int, **changes: Any) -> Heartbeat:
    made = Heartbeat("c", 1, f"n{incarnation}", incarnation, 1, incarnation, "there", START_NS, 0, 0, {})
    return replace(made, **changes)


@pytest.fixture
def members() -> Members:
    return Members(beat(1), HybridClock(lambda: START_NS, skew_s_max=5))


def test_a_heartbeat_that_was_read_late_says_nothing_of_clocks(members: Members) -> None:
    """As where this node stood still, or waited for copies."""
    old = beat(2, wall_ns=START_NS - 8 * 10**9)
    members.hear(old, 0.0, 8.0)
    assert members.is_live(2, 0.0)
    with pytest.raises(ClusterError, match="the clock of n2"):
        members.hear(old, 0.0)


def test_members_are_heard_suspected_and_heard_again(members: Members) -> None:
    members.hear(beat(2), 0.0)
    members.hear(beat(3), 1.0)
    assert members.live(1.0) == [1, 2, 3]
    assert (members.replica(1.0), members.replica(SUSPECT_S)) == (2, 3)
    assert members.live(SUSPECT_S) == [1, 3]
    assert members.incarnations == [1, 2, 3]
    assert members.replica(9.0) is None
    members.hear(beat(2, hybrid_ns=5), 9.0)
    assert members.live(9.0) == [1, 2]


def test_who_does_not_hear_this_node_is_not_there_for_long(members: Members) -> None:
    """It counts this one as dead, and takes its sessions. Who has just come, or was silent, may be about to
    hear it.
    """
    hears = {1: (1, True)}
    members.hear(beat(2, peers=hears), 0.0)
    for now in (1.0, 2.0, 2.4):
        members.hear(beat(2), now)
        assert members.live(now) == [1, 2]
    members.hear(beat(2), 1.0 + SUSPECT_S)
    assert members.live(1.0 + SUSPECT_S) == [1]
    assert members.is_heard(2, 1.0 + SUSPECT_S)
    assert members.peers(1.0 + SUSPECT_S) == {2: (1, True)}
    members.hear(beat(2, peers=hears), 3.0)
    assert members.live(3.0) == [1, 2]
    members.hear(beat(2), 9.0)
    assert members.live(9.0) == [1, 2]
    members.hear(beat(2, boot=2, nonce=5), 9.0 + SUSPECT_S)
    assert members.live(9.0 + SUSPECT_S) == [1, 2]


def test_a_node_has_met_all_when_it_hears_all_that_others_hear_and_is_heard(members: Members) -> None:
    assert members.has_met_all(0.0), "there is nobody else"
    members.reached = {2}
    assert not members.has_met_all(0.0), "it has not heard a node that it reaches"
    members.hear(beat(2), 0.0)
    assert not members.has_met_all(0.0), "it has not heard this node"
    members.hear(beat(2, peers={1: (1, False)}), 0.0)
    assert not members.has_met_all(0.0), "it knows it of old"
    members.hear(beat(2, peers={1: (0, True)}), 0.0)
    assert not members.has_met_all(0.0), "it heard the process of before"
    members.hear(beat(2, peers={1: (1, True)}), 0.0)
    assert members.has_met_all(0.0)
    members.hear(beat(2, peers={1: (1, True), 3: (1, True)}), 0.0)
    assert not members.has_met_all(0.0), "node 3 is there"
    members.hear(beat(3, peers={1: (1, True), 2: (1, True)}), 0.0)
    assert members.has_met_all(0.0)
    members.hear(beat(2, peers={1: (1, True), 3: (1, False), 4: (1, False)}), SUSPECT_S)
    assert members.has_met_all(SUSPECT_S), "nodes 3 and 4 are not there"


def test_what_all_members_read_is_written_when_the_last_one_reads_it() -> None:
    """This node and n2 read 1 to 2; n3 reads 1 until it is upgraded."""
    both = {"formats": Formats(1, 2)}
    members = Members(beat(1, **both), HybridClock(lambda: START_NS, skew_s_max=5), before=[2, 3])
    assert (members.common_format(), members.format_to_write(0.0)) == (1, 1)
    members.hear(beat(2, common=1, **both), 0.0)
    assert members.common_format() == 1, "nothing is known of n3"
    members.hear(beat(3, common=1, formats=Formats(1, 1)), 0.0)
    assert members.format_to_write(SUSPECT_S) == 1, "n3 is away, and reads 1"
    members.hear(beat(3, boot=2, common=1, **both), 9.0)
    assert (members.common_format(), members.format_to_write(9.0)) == (2, 1), "they do not know it yet"
    members.hear(beat(2, common=2, **both), 9.0)
    members.hear(beat(3, boot=2, common=2, **both), 9.0)
    assert members.format_to_write(9.0) == 2


def test_what_one_writes_already_all_read() -> None:
    both = {"formats": Formats(1, 2)}
    members = Members(beat(1, **both), HybridClock(lambda: START_NS, skew_s_max=5), before=[2, 3])
    members.hear(beat(2, format=2, common=1, **both), 0.0)
    assert (members.common_format(), members.format_to_write(0.0)) == (1, 2)


@pytest.mark.parametrize("written", [0, 1])
def test_a_node_that_cannot_read_its_cluster_goes_but_not_for_a_stranger(written: int) -> None:
    """It was of the cluster, or is about to join (`written` 0)."""
    for before, ends in (([], not written), ([2], True)):
        own = beat(1, format=written)
        members = Members(own, HybridClock(lambda: START_NS, skew_s_max=5), before=before)
        with pytest.raises(ClusterError, match="n2 writes format 2, this node's version reads 1"):
            members.hear(beat(2, format=2, formats=Formats(2, 2)), 0.0)
        assert bool(members.unreadable) == ends


def test_the_end_of_a_heartbeat_is_for_later_versions() -> None:
    said = beat(2, format=3, common=4, formats=Formats(2, 4), peers={1: (3, True)})
    assert parse_heartbeat(encode_heartbeat(said) + b"more") == said
    with pytest.raises(ClusterError, match="a heartbeat ends after"):
        parse_heartbeat(encode_heartbeat(said)[:-1])


def test_a_record_has_what_its_format_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the first format had no `Strike`, and no last field in `PutSession`."""
    forms = LAYOUTS[1].forms
    kind, form = forms[PutSession]
    first = {**forms, PutSession: (kind, form.removesuffix(" ?"))}
    del first[ops.Strike]
    monkeypatch.setitem(LAYOUTS, 2, LAYOUTS[1])
    monkeypatch.setitem(LAYOUTS, 1, Layout(first))
    flights = (ops.Flight(Stamp(1, 1), 1, False),)
    session = PutSession(
        "ann",
        Stamp(1, 1),
        1,
        False,
        0,
        60,
        0,
        0,
        0,
        -1,
        flights=flights,
        replaces=True,
        connected=Stamp(1, 1),
    )
    strike = Record(Dot(1, 1), NO_DIGEST, 5, {}, (ops.Strike(3, "n3"),))
    for record in (strike, replace(strike, operations=(session,))):
        assert record.format == 2
        assert parse_record(record.encoded) == record
    old = parse_record(replace(strike, operations=(session,), format=1).encoded)
    assert (old.format, old.operations) == (1, (replace(session, replaces=False),))
    with pytest.raises(ClusterError, match="format 1 of records has no Strike"):
        _ = replace(strike, format=1).encoded
    with pytest.raises(ClusterError, match="kind 15"):
        parse_record(sealed(b"\0\x01" + strike.encoded[6:]))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"cluster": "d"}, "belongs to the cluster 'd', this node to 'c'"),
        ({"format": 7}, "n2 writes format 7, this node's version reads 1"),
        ({"formats": Formats(2, 3), "format": 0}, "n2 reads format 2 to 3, this cluster writes 1"),
        ({"wall_ns": START_NS + 6_000_000_000}, "the clock of n2"),
        ({"incarnation": 1}, "another node has this one's incarnation"),
        ({"peers": {1: (2, True)}}, "another node has this one's incarnation"),
    ],
)
def test_who_does_not_belong_is_refused(members: Members, wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ClusterError, match=said):
        members.hear(replace(beat(2), **wrong), 0.0)
    assert members.live(0.0) == [1]


def test_a_second_process_of_a_node_is_refused_and_a_restart_is_not(members: Members) -> None:
    members.hear(beat(2, boot=4), 0.0)
    members.hear(beat(2, boot=5, nonce=9), 0.1)  # it was started again
    members.hear(beat(2, boot=4), 0.2)  # an old one that comes late
    assert members.known()[0].beat.boot == 5
    with pytest.raises(ClusterError, match="was the data directory copied"):
        members.hear(beat(2, boot=5, nonce=8), 0.3)
    with pytest.raises(ClusterError, match="was the data directory copied"):
        members.hear(beat(2, boot=4), 0.1 + SUSPECT_S)


def test_there_are_at_most_so_many_members(members: Members) -> None:
    for incarnation in range(2, MEMBERS_MAX + 1):
        members.hear(beat(incarnation), 0.0)
    with pytest.raises(ClusterError, match=f"one more than {MEMBERS_MAX} members"):
        members.hear(beat(MEMBERS_MAX + 1), 0.0)


# --- promises ----------------------------------------------------------------------------------


def test_promises_wait_for_the_disk_and_a_copy_and_are_kept_in_order() -> None:
    promises = Promises("two", "acknowledge")
    for number in (1, 2, 3):
        promises.begin(number, 0.0)
    promises.copied(2)
    assert promises.take(0.1) == []
    promises.durable(3)
    assert promises.take(0.1) == [Kept(1, False, False), Kept(2, False, False)]
    assert promises.take(DEGRADED_S - 0.1) == []
    promises.copied(3)
    assert promises.take(0.2) == [Kept(3, False, False)]


@pytest.mark.parametrize(("degraded", "refused"), [("acknowledge", False), ("refuse", True)])
def test_without_a_copy_it_is_said_after_a_while(degraded: Any, refused: bool) -> None:
    promises = Promises("two", degraded)
    promises.begin(1, 0.0)
    promises.durable(1)
    assert promises.take(DEGRADED_S) == [Kept(1, True, refused)]
    assert promises.is_degraded
    promises.begin(2, DEGRADED_S)
    promises.durable(2)
    assert promises.take(DEGRADED_S) == [Kept(2, True, refused)]  # at once: nobody waits again and again
    promises.begin(3, DEGRADED_S)
    promises.durable(3)
    promises.copied(3)
    assert promises.take(DEGRADED_S) == [Kept(3, False, False)]
    assert not promises.is_degraded


def test_all_that_was_refused_together_is_known_until_it_is_answered() -> None:
    """Batches that no work has asked for are under way besides."""
    promises, refusal = Promises("two", "refuse", degraded_s=1.5), Refusal(Counter())
    last = UNDER_WAY_MAX + 6
    for number in range(1, last + 1):
        promises.begin(number, 0.0)
    promises.durable(last)
    for kept in promises.take(2.0):
        assert kept.refused
        refusal.note(kept)
    assert all(map(refusal.covers, range(1, last + 1)))
    refusal.forget_before(last - 1)
    assert [number for number in range(1, last + 1) if refusal.covers(number)] == [last - 1, last]


@pytest.mark.parametrize(("copy_s", "ends"), [(0.001, True), (0.02, True), (2.0, False)])
def test_copies_in_time_are_waited_for_again_while_batches_come_one_after_the_other(
    copy_s: float, ends: bool
) -> None:
    """The last one never has a copy when it is settled."""
    promises = Promises("two", "acknowledge", degraded_s=1.5)
    under_way: list[tuple[float, int]] = []
    degraded: list[int] = []
    for number in range(1, 2001):
        now = number * 0.005
        promises.begin(number, now)
        promises.durable(number)
        degraded += [each.number for each in promises.take(now) if each.degraded]
        if now > 3.0:  # the replica is there from now on
            under_way.append((now + copy_s, number))
        while under_way and under_way[0][0] <= now:
            promises.copied(under_way.pop(0)[1])
        degraded += [each.number for each in promises.take(now) if each.degraded]
    assert (max(degraded) < 650) == ends
    assert promises.is_degraded != ends


def test_one_copy_is_enough_where_it_was_said_so_and_only_so_many_are_under_way() -> None:
    promises = Promises("one", "refuse")
    for number in range(UNDER_WAY_MAX):
        assert promises.may_begin
        promises.begin(number + 1, 0.0)
    assert not promises.may_begin
    promises.durable(1)
    assert promises.take(0.0) == [Kept(1, False, False)]
    assert promises.may_begin


# --- records on their way ----------------------------------------------------------------------


def test_records_are_put_in_order_and_missed() -> None:
    actor = Actor(make_node(0, 2), random.Random(1), [])
    texts = [record.encoded for _ in range(40) if (record := actor.act())]
    node = make_node(1, 2)
    node.receive(texts[3])
    assert node.incoming.gaps() == [Gap(1, 1, 3)]
    node.receive(texts[0])
    assert node.incoming.gaps() == [Gap(1, 2, 3)]
    node.receive(texts[0])
    assert node.incoming.counts["cluster_records_again"] == 1
    assert len(node.receive(texts[2]) + node.receive(texts[1])) == 3
    assert node.incoming.gaps() == []
    node.incoming.hear_of({1: len(texts)})
    assert node.incoming.gaps() == [Gap(1, 5, len(texts))]


def test_a_record_that_does_not_follow_is_set_aside_and_asked_for_again() -> None:
    actor = Actor(make_node(0, 2), random.Random(1), [])
    texts = [record.encoded for _ in range(9) if (record := actor.act())]
    node = make_node(1, 2)
    node.receive(texts[0])
    node.receive(replace(parse_record(texts[1]), previous=bytes(16)).encoded)
    node.receive(texts[1][:-1])
    assert node.incoming.counts["cluster_records_damaged"] == 2
    assert [each.partition(": ")[2] for each in node.incoming.aside] == [
        "record Dot(incarnation=1, number=2) does not follow the one before it",
        "a record's checksum is wrong",
    ]
    assert node.incoming.gaps() == [Gap(1, 2, 2)]
    assert len(node.receive(texts[1])) == 1


def test_two_nodes_of_one_incarnation_are_noticed_by_their_records() -> None:
    first = make_node(0, 2).write([ops.Clear("t", Stamp(1, 1))])
    second = make_node(0, 2).write([ops.Clear("u", Stamp(1, 1))])
    incoming = Incoming(MemoryRows(), 2)
    incoming._rows.applied.put(1, None, (1, first.digest))
    with pytest.raises(ClusterError, match="two different records 1: was its store copied"):
        incoming.receive(second.encoded)


def test_what_is_added_needs_its_payload() -> None:
    node, add = make_node(0, 2), ops.Add(Owner(SESSION, "ann"), Stamp(7, 1), 0, 2, 1, 0)
    with pytest.raises(ClusterError, match="without its payload"):
        node.write([ops.Clear("t", Stamp(1, 1)), add])
    assert node.rows.vector == {}
    with pytest.raises(ClusterError, match="without its payload"):
        parse_record(Record(Dot(1, 1), NO_DIGEST, 5, {}, (add,)).encoded)


def test_what_nobody_asks_about_any_more_is_forgotten_though_nothing_else_happens() -> None:
    node = make_node(0, 1)
    node.unanswered[1] = {}
    node.write([ops.Retain("t", node.stamp(), b"r")])
    node.write([ops.Clear("t", node.stamp())])
    node.tidy()
    assert list(node.rows.gone.all())
    del node.unanswered[1]
    node.tidy()
    assert not list(node.rows.gone.all())
    assert not list(node.rows.log.all())


def test_what_is_held_for_a_session_that_moves_is_forgotten_though_nothing_else_happens() -> None:
    node = make_node(0, 1)
    owner, message_id = Owner(SESSION, "ann"), node.stamp()
    node.sharing.begin("ann")
    node.write([ops.Payload(message_id, b"m"), ops.Add(owner, message_id, 0, 1, 1, 0, shared=True)])
    node.write([ops.Remove(owner, message_id)])
    node.tidy()
    node.tidy()
    assert list(node.rows.removed.all())
    node.sharing.end("ann")
    node.tidy()
    assert not list(node.rows.removed.all())


@pytest.mark.parametrize("is_sent", [False, True])
def test_what_two_sides_add_of_which_one_does_not_know_of_the_other_is_on_all_nodes_or_on_none(
    is_sent: bool,
) -> None:
    """After a split, before the home of before has heard that the session was taken: it removes what it has
    added alone. What the new home has added stays on all nodes, until it removes that as well.
    """
    one, two, three = (make_node(index, 3) for index in range(3))
    owner, epoch = Owner(SESSION, "ann"), one.stamp()
    begun = PutSession("ann", epoch, 1, True, 0, 60, 0, 0, 0, -1, connected=epoch)
    first = one.write([begun]).encoded
    two.receive(first)
    three.receive(first)
    message_id = one.stamp()
    payload = ops.Payload(message_id, b"m")
    added: list[Operation] = [payload, ops.Add(owner, message_id, 0, 1, 1, 0, shared=False)]
    taken = two.write([replace(begun, epoch=two.stamp(), home=2, begins=False)])
    shared: list[Operation] = [payload, ops.Add(owner, message_id, 0, 1, 1, 0, shared=True)]
    sent: list[Operation] = [ops.Send(owner, epoch, message_id, 0)] if is_sent else []
    of_one = [one.write([*added, *sent]).encoded, one.write([ops.Remove(owner, message_id)]).encoded]
    of_two = [taken.encoded, two.write(shared).encoded]
    for text in of_two:
        one.receive(text)
    for text in of_one:
        two.receive(text)
    for text in (of_one[0], *of_two, of_one[1]):
        three.receive(text)
    for node in (one, two, three):
        assert [(each, entry.sequence) for each, entry in node.rows.queue(owner)] == [(message_id, -1)]
    assert len({node.rows.digest() for node in (one, two, three)}) == 1
    last = two.write([ops.Remove(owner, message_id)]).encoded
    one.receive(last)
    three.receive(last)
    for node in (one, two, three):
        assert not node.rows.queue(owner)
        assert not list(node.rows.payloads.all())
