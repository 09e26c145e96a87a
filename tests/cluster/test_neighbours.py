"""What a node tells others of what it wants, and what it takes from them, without an engine."""

from __future__ import annotations

import json
from typing import Any

import pytest
from waiting import wait_until

from tidemq.cluster import flushes, neighbours
from tidemq.cluster.interest import COUNT_MAX, GONE, encode_interest, parse_interest
from tidemq.cluster.mailboxes import BATCH, FLUSH, FLUSHED, INTEREST, LIVES_BITS, PART, Outgoing
from tidemq.cluster.neighbours import ANSWER, LETTER, Neighbours
from tidemq.engine.door.node_access import NODES_MAX
from tidemq.errors import ClusterError, RefusedError, UsageError

TWO, THREE = 2, 3  # nodes


class Access:
    """In the place of the engine's `NodeAccess`."""

    def __init__(self) -> None:
        self.filters: set[str] = set()  # of the other node
        self.fewest: int | None = None  # of these, at any time
        self.settled: list[tuple[int, int]] = []
        self.batches: list[bytes] = []
        self.numbers_used_again: list[int] = []

    def change_filters(self, _node: int, removed: list[str], added: list[str]) -> None:
        self.filters = (self.filters - set(removed)) | set(added)
        if self.fewest is not None:
            self.fewest = min(self.fewest, len(self.filters))

    def change_groups(self, _node: int, groups: list[tuple[str, int]]) -> None:
        assert not groups

    def members_online(self, groups: list[str]) -> list[int]:
        return [0] * len(groups)

    def interest_changes(self) -> list[tuple[str, bool]]:
        return []

    def give(self, _node: int, batch: bytes) -> bool:
        self.batches.append(batch)
        return True

    def drop_node(self, _node: int) -> None:
        self.filters.clear()

    def reset_node(self, node: int) -> None:
        assert self.settled[-1] == (node, 0x80)
        self.numbers_used_again.append(node)

    def sent(self, _node: int, _size: int) -> None:
        """There is room for more."""

    def taken_so_far(self) -> list[tuple[int, int, int]]:
        raise UsageError("the engine's links to other nodes are closed")

    def settle(self, node: int, reason: int) -> None:
        self.settled.append((node, reason))

    def poke(self) -> None:
        """Nobody waits."""


def refuse(_node: int, _removed: list[str], _added: list[str]) -> None:
    """In the place of `change_filters`."""
    raise RefusedError("too many filters")


class Node:
    """One node's neighbours, another node's letters to them, and what they have sent."""

    def __init__(self) -> None:
        self.access = Access()
        self.sent: list[tuple[int, str, bytes]] = []
        self.said: list[tuple[int, str, bytes]] = []  # in all turns
        access: Any = self.access
        self.neighbours = Neighbours(access, lambda *message: self.sent.append(message))
        self.neighbours.meet(TWO)
        self.turn()

    def turn(self, *taken: tuple[int, bytes]) -> list[tuple[int, str, bytes]]:
        """What it sends in a turn."""
        self.sent.clear()
        self.neighbours.turn(list(taken))
        self.said += self.sent
        return list(self.sent)

    def take(self, outgoing: Outgoing) -> None:
        """All that the other node has to send."""
        for text in outgoing.due(0.0):
            self.neighbours.take(LETTER, TWO, text)
        self.turn()


def other(process: int, *filters: str) -> Outgoing:
    """The other node, as it begins, and what it wants."""
    return again(process, *filters, lives=0)


def again(process: int, *filters: str, void: int = 0, lives: int = 1) -> Outgoing:
    """The other node, as it begins anew: up to this life it takes nothing any more."""
    outgoing = Outgoing((process << LIVES_BITS) + lives)
    outgoing.put(PART, void.to_bytes(8))
    for each in filters:
        outgoing.put(INTEREST, json.dumps([[each, 0]]).encode())
    outgoing.put(INTEREST, b"[]")
    return outgoing


def open_to(node: Node, *others: int) -> None:
    """All have met."""
    for each in others:
        node.neighbours.open(each)
    node.turn()
    wait_until(lambda: node.turn() is not None and not node.neighbours.apart())


def answer_all(node: Node, *others: int) -> None:
    """The other node says that all has arrived, or these do."""
    for other in others or (TWO,):
        outgoing = node.neighbours._nodes[other].outgoing
        text = outgoing.life.to_bytes(8) + outgoing.last.to_bytes(8)
        node.neighbours.take(ANSWER, other, text)
    node.turn()


def beside_a_dead_one() -> Node:
    """The other node wanted "a", was parted with, and nobody waits for it."""
    node = Node()
    node.take(other(7, "a"))
    answer_all(node)
    node.neighbours.part(TWO)
    node.neighbours.settle(TWO)
    node.turn()
    return node


def is_live(_node: int) -> bool:
    return True


def test_two_nodes_have_met_when_each_knows_what_the_other_wants() -> None:
    node = Node()
    assert not node.neighbours.has_met(TWO)
    answer_all(node)
    assert not node.neighbours.has_met(TWO)
    node.take(other(7, "a", "b"))
    assert node.neighbours.has_met(TWO)
    assert node.access.filters == {"a", "b"}


def test_what_a_node_wants_all_the_time_it_gets_all_the_time() -> None:
    node = Node()
    node.take(other(7, "a", "b", "c"))
    node.access.fewest = len(node.access.filters)
    node.take(other(8, "c", "d", "a"))
    assert node.access.filters == {"a", "c", "d"}
    assert node.access.fewest == 3


def test_a_new_process_is_told_anew_and_what_the_old_one_was_asked_is_refused() -> None:
    node = Node()
    first = other(7, "a")
    node.take(first)
    sent = node.turn((0, b"for the old one"))
    assert [text[-15:] for _, kind, text in sent if kind == LETTER] == [b"for the old one"]
    node.take(other(8, "a"))
    assert node.access.settled == [(0, 0x80)]
    assert not node.neighbours.has_met(TWO), "it does not know yet what is wanted here"
    answer_all(node)
    assert node.neighbours.has_met(TWO)
    assert b"for the new one" in node.turn((0, b"for the new one"))[0][2]


def test_what_a_node_that_is_not_there_would_want_waits_for_it() -> None:
    """This one has not heard it since it began, and knows its sessions' subscriptions."""
    node = Node()
    node.neighbours.expect(THREE, ["a", "b"])
    assert node.neighbours.apart() == set()
    node.turn()
    assert node.neighbours.apart() == {THREE}
    assert node.access.filters == {"a", "b"}
    assert not [text for _, _, text in node.turn((1, b"a batch")) if b"a batch" in text]
    assert node.access.settled == [], "who published it is not answered"
    node.neighbours.settle(THREE)
    node.turn()
    assert node.access.settled == [(1, 0x80)]
    assert node.access.filters == set()


def test_more_filters_of_a_node_that_is_not_there_than_there_may_be_are_said_and_the_thread_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node()

    with monkeypatch.context() as patch:
        patch.setattr(node.access, "change_filters", refuse)
        node.neighbours.expect(THREE, ["a", "b"])
        node.turn()
    assert "too many filters" in caplog.text
    assert node.neighbours.apart() == {THREE}
    assert node.neighbours.counts["cluster_letters_refused"] == 1


def test_a_node_that_was_expected_and_comes_is_parted_with_until_all_have_met() -> None:
    node = Node()
    node.neighbours.expect(TWO, ["a", "b"])
    node.turn()
    answer_all(node)
    node.take(other(7, "b", "c"))
    assert node.neighbours.apart() == {TWO}
    open_to(node, TWO)
    assert node.access.filters == {"b", "c"}
    node.neighbours.expect(TWO, ["d"])
    node.turn()
    assert node.neighbours.apart() == set(), "it has said what it wants"
    assert node.access.filters == {"b", "c"}


def test_what_was_on_its_way_between_nodes_that_were_parted_is_refused_when_they_go_on() -> None:
    """And what is meant for the other one until then: it may be meant for a session that is elsewhere now."""
    node = Node()
    node.take(other(7, "a"))
    answer_all(node)
    assert b"a batch" in node.turn((0, b"a batch"))[0][2]
    node.neighbours.part(TWO)
    assert not node.neighbours.has_met(TWO)
    assert node.neighbours.apart() == {TWO}
    parting, *_ = node.turn((0, b"another one"))
    assert [text for _, _, text in node.said if b"another one" in text] == []
    assert node.access.settled == []
    node.take(late := other(7, "a"))
    late.put(BATCH, b"of before")
    node.take(late)
    assert node.access.batches == []
    node.take(again(7, "a", void=int.from_bytes(parting[2][:8]) - 1))
    answer_all(node)
    assert node.neighbours.has_met(TWO)
    node.neighbours.open(TWO)
    open_to(node, TWO)
    assert node.access.settled == [(0, 0x80)]
    assert b"a third one" in node.turn((0, b"a third one"))[0][2]


def test_who_was_parted_with_begins_anew_and_not_again_and_again() -> None:
    node = Node()
    node.take(other(7, "a"))
    answer_all(node)
    life = node.neighbours._nodes[TWO].outgoing.life
    node.take(back := again(7, "a", void=life))
    assert node.neighbours.apart() == {TWO}
    assert node.neighbours._nodes[TWO].outgoing.life == life + 1
    back.put(BATCH, b"a batch")
    node.take(back)
    assert node.access.batches == [], "not before all have met"
    node.take(again(7, "a", void=life, lives=2))
    assert node.neighbours._nodes[TWO].outgoing.life == life + 1


def test_a_new_process_of_who_was_parted_with_is_told_so() -> None:
    """Else it takes for known here what it says that it wants, which counts when all have met."""
    node = Node()
    node.take(other(7, "a"))
    answer_all(node)
    node.neighbours.part(TWO)
    node.turn()
    before = node.neighbours._nodes[TWO].outgoing.life
    new = other(8, "a", "b")
    node.take(new)
    assert node.neighbours.apart() == {TWO}
    assert node.neighbours._nodes[TWO].outgoing.life == before + 1
    assert node.neighbours._nodes[TWO].arriving.void == new.life, "it begins a life that knows"
    node.take(again(8, "a", "b"))
    assert node.neighbours._nodes[TWO].outgoing.life == before + 1
    open_to(node, TWO)
    assert node.access.filters == {"a", "b"}


def test_what_a_node_wants_no_more_it_gets_until_those_who_do_are_known() -> None:
    node = Node()
    node.take(other(7, "a", "b"))
    answer_all(node)
    node.take(again(7, "b", "c", void=node.neighbours._nodes[TWO].outgoing.life))
    assert node.access.filters == {"a", "b", "c"}
    answer_all(node)
    open_to(node, TWO)
    assert node.access.filters == {"b", "c"}


def test_a_node_that_was_dead_gets_nothing_before_all_have_met() -> None:
    node = beside_a_dead_one()
    node.neighbours.meet(TWO)
    node.turn()
    assert node.access.filters == set()
    node.take(again(7, "a", "b", void=node.neighbours._nodes[TWO].outgoing.life - 1))
    answer_all(node)
    assert node.access.filters == set()
    open_to(node, TWO)
    assert node.access.filters == {"a", "b"}


def test_what_is_for_a_session_in_no_engine_waits_for_a_node_that_is_dead_and_is_refused() -> None:
    """Nothing is sent there."""
    node = beside_a_dead_one()
    hold = node.neighbours.holding.hold
    assert not hold("ann", TWO, ["b", "c"])
    assert not hold("bob", TWO, ["c"])
    node.turn()
    assert hold("ann", TWO, ["b", "c"])
    assert node.access.filters == {"b", "c"}
    assert [kind for _, kind, _ in node.turn((0, b"batch"))] == []
    node.access.settled.clear()
    node.neighbours.holding.let_go("ann")
    node.turn()
    assert node.access.filters == {"c"}, "bob's session is not here yet"
    assert node.access.settled == [(0, 0x80)]
    node.neighbours.holding.let_go("bob")
    node.turn()
    assert node.access.filters == set()
    node.neighbours.meet(TWO)
    node.take(again(7, "a", "b", void=node.neighbours._nodes[TWO].outgoing.life - 1))
    answer_all(node)
    assert not hold("ann", TWO, ["b"])
    open_to(node, TWO)
    node.neighbours.holding.let_go("ann")
    node.turn()
    assert node.access.filters == {"a", "b"}, "the node wants it, too"


def test_what_waits_for_a_node_may_wait_for_another_one_then(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node()
    hold = node.neighbours.holding.hold
    for incarnation in (TWO, THREE):
        node.neighbours.meet(incarnation)
    node.turn()
    slots = {each: node.neighbours._nodes[each].slot for each in (TWO, THREE)}
    hold("ann", TWO, ["b"])
    node.turn()
    changed: list[tuple[int, list[str], list[str]]] = []
    monkeypatch.setattr(node.access, "change_filters", lambda *change: changed.append(change))
    node.access.settled.clear()
    assert not hold("ann", THREE, ["b"])
    node.turn()
    assert hold("ann", THREE, ["b"])
    assert changed == [(slots[THREE], [], ["b"]), (slots[TWO], ["b"], [])], "never in between"
    assert node.access.settled == [(slots[TWO], 0x80)]


def test_a_session_is_taken_although_the_engine_takes_no_more_filters(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node()

    monkeypatch.setattr(node.access, "change_filters", refuse)
    assert not node.neighbours.holding.hold("ann", TWO, ["b"])
    node.turn()
    assert node.neighbours.holding.hold("ann", TWO, ["b"])
    assert [each.levelname for each in caplog.records] == ["WARNING"]


def test_what_cannot_be_taken_when_all_have_met_is_said_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node()
    node.take(other(7, "a"))
    answer_all(node)
    node.neighbours.part(TWO)
    parting, *_ = node.turn()
    void = int.from_bytes(parting[2][:8])
    node.take(again(7, void=void - 1))
    answer_all(node)

    with monkeypatch.context() as patch:
        patch.setattr(node.access, "change_filters", refuse)
        node.neighbours.open(TWO)
        node.turn()
    assert "too many filters" in caplog.text
    assert node.neighbours.counts["cluster_letters_refused"] == 1
    node.turn()
    node.take(again(7, void=void, lives=2))
    answer_all(node)
    open_to(node, TWO)
    assert node.access.filters == set()


def test_a_subscription_that_was_announced_is_known_to_a_new_process_before_it_is_acknowledged() -> None:
    node = Node()
    answer_all(node)
    node.take(other(7))
    number = node.neighbours.announce()
    node.neighbours._interest["a"] = 0
    node.turn()
    node.take(other(8))
    assert node.neighbours.announced(number, is_live) is None
    answer_all(node)
    assert node.neighbours.announced(number, is_live) == set()


def test_a_session_has_moved_when_what_was_sent_to_its_old_home_before_has_arrived() -> None:
    """By this node, and by another, which says so."""
    node = Node()
    others = other(7)
    node.take(others)
    answer_all(node)
    node.turn((0, b"on its way"))
    number = node.neighbours.announce(flush=True)
    node.turn()
    others.put(FLUSHED, number.to_bytes(8))
    assert node.neighbours.announced(number, is_live) is None
    node.take(others)
    assert node.neighbours.announced(number, is_live) is None, "this node's own batch is on its way"
    answer_all(node)
    assert node.neighbours.announced(number, is_live) == set()


def test_what_was_taken_is_not_known_any_more_when_all_is_closed() -> None:
    assert Node().neighbours.taken_so_far() is None


def test_who_has_not_said_that_all_has_arrived_is_waited_for_while_it_is_there() -> None:
    node = Node()
    node.take(other(7))
    number = node.neighbours.announce(flush=True)
    node.turn()
    answer_all(node)
    answer_all(node)
    assert node.neighbours.announced(number, is_live) is None
    node.neighbours.part(TWO)
    node.turn()
    assert node.neighbours.announced(number, lambda each: each != TWO) == {TWO}


def test_any_number_of_nodes_come_and_go() -> None:
    """Each that is drained comes back as a new one. Two stay."""
    node = Node()
    node.neighbours.meet(THREE)
    node.turn()
    staying = {node.neighbours._nodes[each].slot for each in (TWO, THREE)}
    for incarnation in range(10, 10 + 3 * NODES_MAX):
        node.neighbours.meet(incarnation)
        wait_until(lambda: node.turn() is not None and incarnation in node.neighbours._nodes)  # noqa: B023
        slot = node.neighbours._nodes[incarnation].slot
        assert 0 <= slot < NODES_MAX
        assert slot not in staying
        letters = node.turn((slot, b"a batch"))
        assert [(to, text[17:]) for to, _, text in letters] == [(incarnation, b"a batch")]
        number = node.neighbours.announce()
        node.neighbours.forget(incarnation)
        answer_all(node, TWO, THREE)
        assert node.neighbours.announced(number, is_live) == set()
    assert len(node.access.numbers_used_again) == 2 + 3 * NODES_MAX - NODES_MAX


def test_a_number_is_given_again_when_nothing_goes_to_who_had_it(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node()
    monkeypatch.setattr(neighbours, "SETTLE_S", 1000.0)
    for incarnation in range(10, 10 + NODES_MAX):
        node.neighbours.meet(incarnation)
        node.turn()
        node.neighbours.forget(incarnation)
        node.turn()
    assert 10 + NODES_MAX - 1 not in node.neighbours._nodes
    assert node.turn((1, b"late")) == []
    assert node.access.numbers_used_again == []


def test_a_node_says_that_all_has_arrived_when_a_third_one_has_it() -> None:
    node = Node()
    node.neighbours.meet(THREE)
    node.turn()
    answer_all(node, TWO, THREE)
    asking = other(7, "a")
    asking.put(FLUSH, (5).to_bytes(8))
    node.turn((1, b"before it knew"))
    node.take(asking)
    assert not flushed(node)
    answer_all(node, THREE)
    assert flushed(node) == [5]


def test_a_node_to_which_nothing_goes_yet_is_not_told_that_all_has_arrived() -> None:
    """It has opened to this one, which knows what it wants, and still sends that elsewhere: a session would
    be forgotten there too early.
    """
    node = Node()
    node.take(other(7, "a"))
    answer_all(node)
    node.neighbours.settle(TWO)
    node.turn()
    node.neighbours.meet(TWO)
    node.turn()
    back = again(7, "a", void=node.neighbours._nodes[TWO].outgoing.life)
    back.put(FLUSH, (5).to_bytes(8))
    node.take(back)
    answer_all(node)
    assert not flushed(node)
    assert node.access.filters == set()
    open_to(node, TWO)
    assert node.access.filters == {"a"}
    assert flushed(node) == [5]


def flushed(node: Node) -> list[int]:
    """About what it has told the other node that all has arrived."""
    node.turn()
    letters = [text for to, kind, text in node.said if (to, kind) == (TWO, LETTER)]
    return [int.from_bytes(text[17:]) for text in letters if text[16] == FLUSHED]


@pytest.fixture(autouse=True)
def _few_filters_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "FILTERS_AT_ONCE", 2)
    monkeypatch.setattr(flushes, "SETTLE_S", 0.0)


NOT_WANTED = [
    b"",
    b"5",
    b"null",
    b"[" * 100_000,
    b'["a"]',
    b'[["a"]]',
    b'[["a",null]]',
    b'[["a",true]]',
    b'[["a",1.5]]',
    b'[["a",1e999]]',
    b'[["a",-2]]',
    b'[["a",%d]]' % (COUNT_MAX + 1),
    b"[[1,1]]",
    b"\xff",
]


@pytest.mark.parametrize("body", NOT_WANTED, ids=lambda body: str(body[:20]))
def test_what_is_no_list_of_filters_is_refused(body: bytes) -> None:
    with pytest.raises(ClusterError):
        parse_interest(body)


def test_what_a_node_wants_is_read_as_it_was_written() -> None:
    changes = [("a/#", 0), ("$share/g/b", COUNT_MAX), ("\u00e9", GONE)]
    assert parse_interest(encode_interest(changes)) == changes


@pytest.mark.parametrize(("kind", "body"), [(INTEREST, b"5"), (FLUSH, b"\xff" * 9), (99, b"")])
def test_a_letter_that_is_none_is_refused_and_counted_and_the_thread_goes_on(kind: int, body: bytes) -> None:
    node = Node()
    letter = Outgoing(1 << LIVES_BITS)
    letter.put(kind, body)
    node.take(letter)
    assert node.neighbours.counts["cluster_letters_refused"] == 1
    node.turn()
