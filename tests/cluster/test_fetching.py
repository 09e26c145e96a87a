"""When records that are missing are asked for again: not while the answer to the last question goes on."""

from __future__ import annotations

import itertools
import math
import struct
from dataclasses import replace
from typing import Any

import pytest
from cluster.nodes import START_NS, make_node, say
from cluster.test_membership import written

from tidemq.cluster import incoming as incoming_module
from tidemq.cluster.exchange import APPLIED, FETCH, RECORDS, RESEND_S, Exchange
from tidemq.cluster.fetching import (
    FETCH_S_MAX,
    GIVEN_S,
    UNREAD_S_MAX,
    Fetch,
    Holder,
    RecentRecords,
)
from tidemq.cluster.incoming import WAITING_MAX, Gap
from tidemq.cluster.members import BEAT_S
from tidemq.cluster.node import Node
from tidemq.cluster.operations import Clear, Operation, Retain, Strike
from tidemq.cluster.promises import Promises
from tidemq.cluster.records import parse_record


class Links:
    """What was sent: to whom, and what; and which records were copied."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, str, bytes]] = []
        self.copied: list[int] = []

    def send(self, to: int, kind: str, body: bytes) -> None:
        self.sent.append((to, kind, body))

    def copy(self, _to: int, records: list[tuple[int, bytes]]) -> None:
        self.copied += [number for number, _ in records]

    def fetch(self, _holder: int, incarnation: int, _first: int, _last: int) -> None:
        self.sent.append((incarnation, FETCH, b""))

    def __getattr__(self, _name: str) -> Any:
        return lambda *_args, **_options: None


def exchange_of(node: Node) -> tuple[Exchange, Links]:
    links: Any = Links()
    giver: Any = None
    promises = Promises("two", "acknowledge", degraded_s=math.inf)
    return Exchange(node, promises, links, giver, lambda: START_NS, 0.0), links


def asked_at(node: Node, exchange: Exchange, links: Links, until: float) -> list[float]:
    """When records were asked for, of a node whose clock ticks ten times a second."""
    found = []
    for step in range(int(until * 10)):
        links.sent.clear()
        exchange.tick(step / 10)
        if any(kind == FETCH for _, kind, _ in links.sent):
            found.append(step / 10)
    return found


def two_nodes(records: int, operation: Any) -> tuple[Node, Node, list[bytes]]:
    one, two = make_node(0, 2), make_node(1, 2)
    texts = [written(one, operation(one, number)) for number in range(records)]
    return one, two, texts


def clear(node: Node, number: int) -> Operation:
    return Clear(f"t/{number}", node.stamp())


def test_without_an_answer_they_are_asked_for_ever_more_seldom() -> None:
    one, two, _ = two_nodes(5, clear)
    exchange, links = exchange_of(two)
    two.incoming.hear_of({one.incarnation: 5})
    times = asked_at(two, exchange, links, 12.0)
    pauses = [round(after - before, 1) for before, after in itertools.pairwise(times)]
    assert pauses[0] >= BEAT_S
    assert all(after > before - 0.35 for before, after in itertools.pairwise(pauses))  # of a tick
    assert FETCH_S_MAX <= pauses[-1] <= FETCH_S_MAX + 2 * BEAT_S


def test_while_the_answer_goes_on_nothing_is_asked_for() -> None:
    one, two, texts = two_nodes(40, clear)
    exchange, links = exchange_of(two)
    two.incoming.hear_of({one.incarnation: 40})
    found = []
    for step, text in enumerate(texts[:30]):
        exchange.tick(step * BEAT_S)
        found += [step for _, kind, _ in links.sent if kind == FETCH]
        links.sent.clear()
        two.receive(text)
    assert found == [0]
    for late_s in (0.0, 1.0):  # the rest does not come
        exchange.tick(31 * BEAT_S + late_s)
    assert [kind for _, kind, _ in links.sent].count(FETCH) == 1
    assert two.incoming.gaps() == [Gap(one.incarnation, 31, 40)]


ITSELF, COPIES, OTHER = ALL = Holder(1), Holder(2, copies=True), Holder(3)


def test_who_answers_in_part_is_asked_for_the_rest() -> None:
    fetch = Fetch()
    for step in range(4):
        gap = Gap(1, 1 + 20 * step, 100)
        if step:
            assert not fetch.is_due(gap, step * 100.0, ALL)  # it has come just now
        assert fetch.is_due(gap, step * 100.0 + 50.0, ALL)
        assert fetch.choose(ALL, ITSELF) == ITSELF


def asked_in_turn(fetch: Fetch, holders: list[Holder], count: int) -> list[Holder]:
    """Who is asked one after the other, where nobody answers."""
    found = []
    for step in range(count):
        assert fetch.is_due(Gap(1, 1, 100), step * 100.0, holders)
        found.append(fetch.choose(holders, ITSELF))
    return found


def test_who_does_not_answer_is_passed_over_until_nobody_is_left() -> None:
    assert asked_in_turn(Fetch(), [COPIES, OTHER], 5) == [COPIES, OTHER, COPIES, OTHER, COPIES]


def test_the_node_itself_is_asked_three_times() -> None:
    found = asked_in_turn(Fetch(), list(ALL), 6)
    assert found == [ITSELF, ITSELF, ITSELF, COPIES, OTHER, ITSELF]


def test_a_node_that_is_there_again_is_asked_next() -> None:
    fetch = Fetch()
    assert asked_in_turn(fetch, [COPIES, OTHER], 1) == [COPIES]
    assert fetch.is_due(Gap(1, 1, 100), 100.0, ALL)
    assert fetch.choose(ALL, ITSELF) == ITSELF


def pauses(fetch: Fetch, holders: tuple[Holder, ...], until: float) -> list[float]:
    """Between two questions, where nobody answers."""
    found, last = [], 0.0
    for now in itertools.takewhile(lambda each: each < until, itertools.count(0.0, 0.05)):
        if fetch.is_due(Gap(1, 1, 100), now, holders):
            fetch.choose(holders, ITSELF)
            found.append(round(now - last, 2))
            last = now
    return found[1:]


def test_who_is_asked_next_is_not_waited_for_as_long_as_who_did_not_answer() -> None:
    """Until all have been asked."""
    found = pauses(Fetch(), ALL, 12.0)
    assert found == pytest.approx([0.6, 1.2, 2.4, 0.6, 0.6, 1.2, 2.4, 1.2, 1.2], abs=0.11)


def test_for_who_has_gone_nobody_waits() -> None:
    fetch, gap = Fetch(), Gap(1, 1, 100)
    assert fetch.is_due(gap, 0.0, ALL)
    assert fetch.choose(ALL, ITSELF) == ITSELF
    assert not fetch.is_due(gap, 0.1, ALL)
    assert fetch.is_due(gap, 0.1, [COPIES, OTHER])
    assert fetch.choose([COPIES, OTHER], ITSELF) == COPIES


def test_nobody_is_asked_while_the_answer_may_be_unread() -> None:
    fetch, gap = Fetch(), Gap(1, 1, 100)
    assert fetch.is_due(gap, 0.0, ALL)
    assert fetch.choose(ALL, ITSELF) == ITSELF
    assert not fetch.is_due(gap, UNREAD_S_MAX - 0.1, ALL, unread=True)
    assert fetch.is_due(gap, UNREAD_S_MAX + 0.1, ALL, unread=True)


def test_what_was_sent_lately_is_not_sent_again() -> None:
    one, two, _ = two_nodes(5, clear)
    exchange, links = exchange_of(one)
    first_four, all_five = ((1).to_bytes(8) + (1).to_bytes(8) + each.to_bytes(8) for each in (4, 5))
    for question, at in ((first_four, 0.0), (all_five, 0.5), (all_five, 0.6), (all_five, 0.7 + GIVEN_S)):
        exchange.receive(FETCH, 2, question, at)
    other, _ = exchange_of(two)
    came = [other.receive(RECORDS, 1, body, 0.0) for _, kind, body in links.sent if kind == RECORDS]
    assert [len(each) for each in came] == [4, 1, 0]  # the last had all five again
    assert two.incoming.counts["cluster_records_again"] == 5


def test_what_was_lost_is_sent_again_in_time_although_more_has_been_sent_since() -> None:
    one, two, _ = two_nodes(6, clear)
    exchange, links = exchange_of(one)
    for last, at in ((4, 0.0), (5, 1.0), (6, GIVEN_S + 0.1)):
        links.sent.clear()
        exchange.receive(FETCH, 2, b"".join(each.to_bytes(8) for each in (1, 1, last)), at)
    other, _ = exchange_of(two)
    for _, kind, body in links.sent:
        if kind == RECORDS:
            other.receive(RECORDS, 1, body, 0.0)
    assert two.rows.vector.get(1) == 6


def test_an_answer_has_a_bound(monkeypatch: Any) -> None:
    monkeypatch.setattr("tidemq.cluster.exchange.FETCHED_BYTES_MAX", 100_000)
    monkeypatch.setattr("tidemq.cluster.exchange.SENT_BYTES", 30_000)

    def retain(node: Node, number: int) -> Operation:
        return Retain(f"t/{number}", node.stamp(), b"x" * 10_000)

    one, two, _ = two_nodes(40, retain)
    exchange, links = exchange_of(one)
    exchange.receive(FETCH, 2, b"".join(each.to_bytes(8) for each in (1, 1, 40)), 0.0)
    sent = [body for _, kind, body in links.sent if kind == RECORDS]
    assert 100_000 < sum(map(len, sent)) < 100_000 + 40_000 + 20_000
    other, _ = exchange_of(two)
    for body in sent:
        other.receive(RECORDS, 1, body, 0.0)
    assert 8 <= two.rows.vector[1] < 20


def test_a_node_on_one_side_of_a_split_gets_from_another_what_it_did_not_hear() -> None:
    """Else it could apply nothing of the other's any more, which has done all upon it."""
    one, two, three = (make_node(index, 3) for index in range(3))
    (first, first_links), (second, second_links) = exchange_of(one), exchange_of(two)
    lost = written(three, clear(three, 1))
    first.records_came(3, [lost])  # and then nobody hears the third any more, nor whoever has its copies
    upon = written(one, clear(one, 2))
    say(one, [two])
    say(two, [one])
    second.records_came(1, [upon])
    assert two.rows.vector.get(1) is None
    for step in range(1, 100):
        second.tick(step / 10)
        for to, kind, body in second_links.sent:
            if (to, kind) == (1, FETCH):
                first.receive(kind, 2, body, step / 10)
        for to, kind, body in first_links.sent:
            if (to, kind) == (2, RECORDS):
                second.receive(kind, 1, body, step / 10)
        second_links.sent.clear()
        first_links.sent.clear()
        say(one, [two], step / 10)
    assert (two.rows.vector[3], two.rows.vector[1]) == (1, 1)


def test_so_much_is_kept_for_others_and_what_all_have_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the node first of which there is most."""
    most = 6_000_000
    monkeypatch.setattr("tidemq.cluster.fetching.RECENT_BYTES_MAX", most)
    recent = RecentRecords()
    one, two = make_node(0, 2), make_node(1, 2)
    for node, count in ((one, 10), (two, 100)):
        for _ in range(count):
            recent.note(written(node, Retain("t", node.stamp(), b"x" * 100_000)))
    recent.note(b"none")
    assert [number for number, _ in recent.find(1, 1, 10)] == list(range(1, 11))
    found = [number for number, _ in recent.find(2, 1, 100)]
    assert found == list(range(101 - len(found), 101))
    kept = sum(len(text) for who, last in ((1, 10), (2, 100)) for _, text in recent.find(who, 1, last))
    assert most - 110_000 < kept <= most
    assert [number for number, _ in recent.find(2, 98, 99)] == [98, 99]
    recent.drop_stable({1: 4, 2: 100})
    assert [number for number, _ in recent.find(1, 1, 10)] == list(range(5, 11))
    assert not list(recent.find(2, 1, 100))
    recent.keep([1])
    assert list(recent.find(1, 1, 60))
    recent.keep([2])
    assert list(recent.find(1, 1, 60)) == []
    recent.note(written(two, Retain("t", two.stamp(), b"x" * 2 * most)))
    assert list(recent.find(2, 1, 101)), "one more"


def test_what_is_kept_for_others_comes_in_pieces() -> None:
    one, two, three = (make_node(index, 3) for index in range(3))
    texts = [written(one, Retain("t", one.stamp(), b"x" * 100_000)) for _ in range(20)]
    exchange, links = exchange_of(two)
    exchange.records_came(1, texts)
    exchange.receive(FETCH, 3, struct.pack(">QQQ", 1, 1, 20), 0.0)
    pieces = [body for to, kind, body in links.sent if (to, kind) == (3, RECORDS)]
    assert len(pieces) > 2
    assert all(len(each) < 700_000 for each in pieces)
    other, _ = exchange_of(three)
    for each in pieces:
        other.receive(RECORDS, 2, each, 0.0)
    assert three.rows.vector[1] == 20


def node_with_a_log(monkeypatch: pytest.MonkeyPatch, records: int) -> tuple[Node, Exchange, Links]:
    """Of 10,000 bytes each, of which some 100,000 may be on their way to its replica, which is node 2."""
    monkeypatch.setattr("tidemq.cluster.exchange.COPIED_BYTES_MAX", 100_000)
    monkeypatch.setattr("tidemq.cluster.exchange.SENT_BYTES", 30_000)

    def retain(node: Node, number: int) -> Operation:
        return Retain(f"t/{number}", node.stamp(), b"x" * 10_000)

    one, two, _ = two_nodes(records, retain)
    exchange, links = exchange_of(one)
    two.hear(one.beat(0.0, START_NS), 0.0)
    one.hear(two.beat(0.0, START_NS), 0.0)
    return one, exchange, links


def test_a_new_replica_gets_a_long_log_a_piece_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    _, exchange, links = node_with_a_log(monkeypatch, 40)
    ends: list[int] = []
    for step in range(9):
        exchange.tick(step * BEAT_S)
        ends.append(links.copied[-1])
        exchange.copied(2, ends[-1])
    assert links.copied == list(range(1, 41))
    assert 3 <= len(set(ends)) <= 5


def test_a_replica_that_is_slow_is_not_sent_more_than_it_can_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is sent again, because no word comes, is ever more seldom sent."""
    node, exchange, links = node_with_a_log(monkeypatch, 40)
    sent_at = []
    for step in range(1, 120):
        node.hear(replace(node.members.known()[0].beat, wall_ns=START_NS), step / 10)
        before = len(links.copied)
        exchange.send_new(step / 10)
        if len(links.copied) > before:
            sent_at.append(step / 10)
    assert set(links.copied) == set(range(1, 13))  # 100,000 bytes, and a message more
    pauses = [after - before for before, after in itertools.pairwise(sent_at)]
    assert [round(each) for each in pauses] == [1, 2, 4]
    exchange.copied(2, 12)
    exchange.send_new(12.0)
    assert links.copied[-12:] == list(range(13, 25))


def test_a_replica_that_has_lost_copies_has_them_no_more_and_gets_them_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node, exchange, links = node_with_a_log(monkeypatch, 10)
    exchange.tick(0.0)
    exchange.receive(APPLIED, 2, struct.pack(">Q", 10), 0.0)
    exchange.copied(2, 10)
    assert exchange.all_have(10, 0.0)
    links.copied.clear()
    exchange.copied(2, 3)
    assert not exchange.all_have(10, 0.0)
    for now in (0.1, 0.2 + RESEND_S):
        node.hear(replace(node.members.known()[0].beat, wall_ns=START_NS), now)
        exchange.send_new(now)
    assert links.copied == list(range(4, 11))
    exchange.copied(2, 10)
    assert exchange.all_have(10, 0.0)


def test_records_that_were_asked_for_are_kept_before_those_that_are_new() -> None:
    """However many new ones wait, and although none can be applied between two pieces of work."""
    _, two, texts = two_nodes(3 * WAITING_MAX, clear)
    incoming = two.incoming
    for text in texts[WAITING_MAX + 500 : 3 * WAITING_MAX]:  # as they are made, while this node lags behind
        incoming.receive(text)
    held = incoming.counts["cluster_records_held"]
    assert held == 2 * WAITING_MAX - 500 - WAITING_MAX
    for text in texts[:WAITING_MAX]:
        incoming.receive(text)
    taken = []
    while (record := incoming.take()) is not None:
        two.applier.apply(record)
        taken.append(record.dot.number)
    assert taken == list(range(1, WAITING_MAX + 1))
    [gap] = incoming.gaps()
    assert gap.first == WAITING_MAX + 1
    for text in texts[WAITING_MAX:]:
        two.receive(text)
    assert incoming.gaps() == []


def test_what_waits_is_bounded_in_bytes_and_what_was_asked_for_comes_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, two, texts = two_nodes(60, clear)
    most = 10 * len(texts[-1])
    monkeypatch.setattr(incoming_module, "WAITING_BYTES_MAX", most)
    incoming = two.incoming
    (origin,) = {parse_record(text).dot.incarnation for text in texts}

    def check() -> None:
        waiting = incoming._waiting[origin]
        assert waiting._bytes == sum(len(each.encoded) for each in waiting.records.values())
        assert waiting._bytes < most + len(texts[-1])

    for text in texts[20:60]:
        incoming.receive(text)
        check()
    assert incoming.counts["cluster_records_held"] == 40 - len(incoming._waiting[origin].records)
    for _ in range(10):
        for gap in incoming.gaps():
            for text in texts[gap.first - 1 : gap.last]:
                two.receive(text)
                check()
    assert incoming.gaps() == []
    assert two.rows.vector[origin] == 60
    assert not incoming._waiting[origin]._bytes


def test_what_a_node_did_that_is_a_member_no_more_is_kept_until_all_have_it() -> None:
    """Or each that has ever left would cost memory for ever."""
    one, two, three = (make_node(index, 3) for index in range(3))
    text = one.write([Clear("t", one.stamp())]).encoded
    exchange, _ = exchange_of(two)
    exchange.records_came(1, [text])
    two.synced(two.rows.vector)
    two.write([Strike(1, "n1")])
    strike = two.record(2, 1)
    assert strike is not None
    two.synced(two.rows.vector)
    now = 0.0

    def tick() -> bool:
        nonlocal now
        now += BEAT_S
        three.synced(three.rows.vector)
        two.hear(three.beat(now, START_NS), now)
        three.hear(two.beat(now, START_NS), now)
        exchange.tick(now)
        return bool(list(exchange._recent.find(1, 1, 1)))

    assert tick()
    assert tick(), "a member lacks it"
    three.receive(text)
    three.receive(strike)
    tick()
    assert not tick()
