"""What is compared, and when it is a difference: nodes whose stores are as a test says, at each moment."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from queue import SimpleQueue

import pytest
from cluster.nodes import WrittenRows, begun, make_message, make_node, say
from cluster.test_merging import exchange, live_apart
from waiting import WAIT_S

from tidemq.cluster import comparison, witness
from tidemq.cluster import operations as ops
from tidemq.cluster.comparable_rows import (
    KINDS,
    MESSAGES,
    QUEUES,
    RETAINED,
    SESSIONS,
    ComparableRows,
    describe,
    name_of,
)
from tidemq.cluster.comparison import Comparison, Outcome
from tidemq.cluster.digests import (
    CUT,
    END,
    FREEZE,
    Part,
    Question,
    cut,
    parse_part,
    parse_question,
    ranges_that_differ,
)
from tidemq.cluster.forms import decode, encode
from tidemq.cluster.operations import SESSION, Owner
from tidemq.errors import ClusterError
from tidemq.store import MemoryStore, Store
from tidemq.store.rocksdb import RocksDBStore
from tidemq.store.rows import IDLE, IN_FLIGHT

Moments = list[tuple[Mapping[int, int], Mapping[str, bytes]]]
"""Of one node: what it has applied, and what is retained."""


class FrozenMemory(MemoryStore):
    """As `Frozen`."""

    is_open = True


def store_of(vector: Mapping[int, int], retained: Mapping[str, bytes]) -> FrozenMemory:
    store = FrozenMemory()
    store.open()
    put(store, vector, retained)
    return store


def put(store: Store, vector: Mapping[int, int], retained: Mapping[str, bytes]) -> None:
    for incarnation, number in vector.items():
        store.write(
            [("cluster", b"a" + encode("Q", incarnation), encode("Q", number) + bytes(16))], sync=True
        )
    for topic, message in retained.items():
        stamp = bytes(8) + message[:1].rjust(8, b"\0")
        store.write([("retained", topic.encode(), stamp + message)], sync=True)
        store.write([("cluster", b"t" + encode("text", topic), stamp + bytes(16) + b"\1")], sync=True)


class Script:
    """Answers as nodes do that have these moments, one after the other; the last one stays."""

    def __init__(self, *nodes: Moments) -> None:
        self._left = {number: list(moments) for number, moments in enumerate(nodes, 1)}
        self._now: dict[int, witness.Moment] = {}
        self.freezes = 0

    def __call__(self, questions: Mapping[int, Question]) -> dict[int, bytes]:
        if any(each.act == FREEZE for each in questions.values()):
            self.freezes += 1
            for node in questions:
                left = self._left[node]
                store = store_of(*(left.pop(0) if len(left) > 1 else left[0]))
                self._now[node] = witness.Moment(0, questions[node], store, print)
        return {node: self._now[node].read(parse_question(each.encode())) for node, each in questions.items()}


def run(*nodes: Moments, wait_s: float = 10.0) -> Outcome:
    """Time goes on only where it is slept."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    script = Script(*nodes)
    numbers = range(1, len(nodes) + 1)
    return Comparison(numbers, script, wait_s=wait_s, clock=lambda: now[0], sleep=sleep).run()


OLD, NEW = {"t": b"old"}, {"t": b"new"}


def climbing(count: int) -> list[Mapping[int, int]]:
    return [{1: 10 + number} for number in range(count)]


def test_what_differs_where_all_have_applied_the_same_is_a_difference() -> None:
    outcome = run([({1: 5}, OLD)], [({1: 5}, NEW)])
    assert outcome.difference is not None
    assert (outcome.difference.what, outcome.looks) == ("topic t", 1)


def test_who_is_behind_is_waited_for() -> None:
    outcome = run([({1: 5}, NEW)], [({1: 4}, OLD), ({1: 4}, OLD), ({1: 5}, NEW)])
    assert outcome == Outcome(looks=1)


def test_who_stays_behind_leaves_it_open() -> None:
    outcome = run([({1: 5}, NEW)], [({1: 4}, OLD)])
    assert outcome.difference is None
    assert outcome.undecided == (
        "1 rows differ, perhaps by what is still on its way; the first is retained message of topic t"
    )


def test_what_comes_later_was_on_its_way() -> None:
    """Node 2 is always a record behind."""
    one: Moments = [(each, OLD if each[1] < 12 else NEW) for each in climbing(30)]
    two: Moments = [({1: each[1] - 1}, OLD if each[1] < 13 else NEW) for each in climbing(30)]
    outcome = run(one, two)
    assert (outcome.difference, outcome.undecided) == (None, "")
    one = [(each, OLD if each[1] < 12 else NEW) for each in climbing(30)]
    assert one[4][1] == NEW
    late: Moments = [({1: each[1] - 1}, OLD if each[1] < 17 else NEW) for each in climbing(30)]
    outcome = run(one, late)
    assert (outcome.difference is None, outcome.undecided) == (False, ""), "it was not on its way any more"


def test_what_stays_different_under_load_is_a_difference() -> None:
    one: Moments = [(each, {**OLD, "u": b"%d" % each[1]}) for each in climbing(30)]
    two: Moments = [({1: each[1] - 1}, {**NEW, "u": b"%d" % (each[1] - 1)}) for each in climbing(30)]
    outcome = run(one, two)
    assert outcome.difference is not None
    assert (outcome.difference.what, outcome.looks) == ("topic t", 3)


def test_what_comes_and_goes_between_two_looks_is_no_difference() -> None:
    """Node 1 retains it at record 5. Node 2 has none at the first look, then has it and clears it: that is
    its own record 9, which node 1 has not at the second look, nor need have.
    """
    none: Mapping[str, bytes] = {}
    one: Moments = [({1: 5, 2: 8, 3: number}, NEW) for number in range(6)]
    two: Moments = [({1: 4, 2: 8, 3: number}, none) for number in range(5)]
    one.append(({1: 5, 2: 9, 3: 9}, none))
    two.append(({1: 5, 2: 9, 3: 9}, none))
    assert run(one, two) == Outcome(looks=3)
    one[-1] = (one[-1][0], NEW)
    found = run(one, two).difference
    assert found is not None, "node 1 has it still, and has applied what had cleared it"
    assert (found.what, found.has[2]) == ("topic t", "nothing")


def test_a_state_that_comes_back_is_no_difference_until_it_has_stayed_for_long() -> None:
    """A message may wait, be sent, and wait again; what two nodes have of it is looked at many times."""

    def looks_until(kind: str, one: list[bytes], other: list[bytes]) -> int:
        suspect = comparison._Suspect(kind, b"key", [{1: one[0], 2: other[0]}])
        looks = 1
        for digests in zip(one[1:], other[1:], strict=True):
            suspect = suspect.seen_again(dict(zip((1, 2), digests, strict=True)))
            looks += 1
            if suspect.is_different():
                return looks
        return 0

    waits, flies, none = [b"waits"] * 20, [b"flies"] * 20, [b""] * 20
    assert looks_until(QUEUES, waits, flies) == looks_until(SESSIONS, flies, waits) == 12
    assert looks_until(QUEUES, waits, none) == looks_until(QUEUES, none, waits) == 3
    assert looks_until(RETAINED, waits, flies) == 3
    assert looks_until(RETAINED, waits, [b"%d" % number for number in range(20)]) == 3
    assert looks_until(QUEUES, waits, [b"%d" % number for number in range(20)]) == 0
    assert looks_until(QUEUES, waits, [b"flies", b""] * 10) == 3, "none at the second look"
    assert looks_until(QUEUES, waits[:4], [b"flies", b"flies", b"", b""]) == 4
    assert looks_until(QUEUES, waits[:3], [b"", b"flies", b""]) == 0
    assert looks_until(RETAINED, [b"a", b"b"] * 10, none) == 0


def test_what_changes_all_the_time_is_left_open() -> None:
    one: Moments = [(each, {"u": b"%d" % (each[1] % 9)}) for each in climbing(300)]
    two: Moments = [({1: each[1] - 1}, {"u": b"%d" % ((each[1] - 1) % 9)}) for each in climbing(300)]
    outcome = run(one, two)
    assert outcome.difference is None
    assert outcome.undecided.endswith("the first is retained message of topic u")
    assert outcome.looks > 3


def test_the_first_of_many_is_named_and_answers_are_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemq.cluster.digests.PIECES_MAX", 3)
    monkeypatch.setattr(comparison, "PIECE_BITS", 2)
    choose = random.Random(1)
    for _ in range(30):
        topics = {f"t/{number:03}": b"x" for number in range(200)}
        changed = dict(topics)
        wrong = sorted(choose.sample(sorted(topics), choose.randint(1, 5)))
        for each in wrong:
            if choose.random() < 0.5:
                del changed[each]
            else:
                changed[each] = b"xy"
        outcome = run([({1: 5}, topics)], [({1: 5}, changed)], [({1: 5}, topics)])
        assert outcome.difference is not None
        assert outcome.difference.what == f"topic {wrong[0]}"
    assert run([({1: 5}, topics)], [({1: 5}, dict(topics))]).difference is None


def test_pieces_are_cut_in_the_same_places_and_ranges_hold_what_differs() -> None:
    rows = [(b"%05d" % number, b"v") for number in range(5000)]
    without = [row for row in rows if row[0] != b"02500"]

    def pieces(of: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
        return dict(cut(of, b"", 6, lambda: False).pairs)

    assert 40 < len(pieces(rows)) < 160
    [(after, until)] = ranges_that_differ([pieces(rows), pieces(without)])
    assert after < b"02500" <= until
    assert list(ranges_that_differ([pieces(rows), pieces(rows)])) == []


def test_questions_and_answers_are_read_as_they_were_written() -> None:
    question = Question(7, 8, CUT, 2, b"after", b"until", 12, [b"a", b""])
    assert parse_question(question.encode()) == question
    part = Part(b"last", False, 9, [(b"k", b"d")])
    assert parse_part(part.encode()) == part
    for wrong in (question._replace(act=0), question._replace(kind=len(KINDS)), question._replace(bits=33)):
        with pytest.raises(ClusterError, match="a question about rows is"):
            parse_question(wrong.encode())
    with pytest.raises(ClusterError):
        parse_question(question.encode()[:-1])


def test_one_row_is_found_by_its_key() -> None:
    rows = ComparableRows(store_of({}, {"a": b"1", "a\0": b"2", "b": b"3"}))
    every = dict(rows.scan(RETAINED))
    assert list(every) == [b"a", b"a\0", b"b"]
    assert {key: rows.find(RETAINED, key) for key in every} == every
    assert rows.find(RETAINED, b"a\1") is None
    assert rows.find(SESSIONS, encode("text", "ann")) is None


@pytest.mark.parametrize("seed", range(100))
def test_nodes_that_have_applied_the_same_have_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever each remembers of what was removed, and whether it is looked at one by one."""
    choose = random.Random(seed)
    stored = [WrittenRows() for _ in range(choose.randint(2, 4))]
    nodes = [make_node(index, len(stored), rows) for index, rows in enumerate(stored)]
    exchange(nodes, live_apart(nodes, choose))
    for forgotten in (False, True):  # what is stable
        if forgotten:
            for each in nodes[:-1] * 2:
                say(each, [other for other in nodes if other is not each])
        every = [ComparableRows(each.store) for each in stored]
        assert all(each.vector == every[0].vector for each in every)
        for kind in KINDS:
            if kind == MESSAGES:
                continue  # some may be left over
            first, *rest = (list(each.scan(kind)) for each in every)
            assert all(each == first for each in rest), kind
            assert [key for key, _ in first] == sorted({key for key, _ in first})
            assert {key: every[0].find(kind, key) for key, _ in first} == dict(first)
            for after, _ in first[:: max(1, len(first) // 3)]:
                assert list(every[0].scan(kind, after)) == [row for row in first if row[0] > after]
        lines = [line for line in nodes[0].rows.lines() if line.startswith("entry ")]
        queues = list(every[0].scan(QUEUES))
        entries = [key for key, text in queues if text]
        assert len(entries) == len(lines)
        sessions = {b"\1" + key for key, _ in every[0].scan(SESSIONS)}
        assert {key for key, text in queues if not text} == sessions
        with monkeypatch.context() as patched:
            patched.setattr("tidemq.cluster.comparable_rows.join", lambda *_: None)
            assert list(every[0].scan(QUEUES)) == queues
        messages = dict(every[0].scan(MESSAGES))
        assert {key[-16:] for key in entries} <= set(messages)


QUEUE_ROW = bytes([4, 1]) + bytes(20)  # a message of QoS 1 that has been counted


def shown_queues(rows: ComparableRows) -> dict[bytes, bytes]:
    """Of queues; wherever somebody begins to read, and one by one, it is the same."""
    every = list(rows.scan(QUEUES))
    assert [key for key, _ in every] == sorted({key for key, _ in every})
    for number, (key, text) in enumerate(every):
        assert rows.find(QUEUES, key) == text
        assert list(rows.scan(QUEUES, key)) == every[number + 1 :]
    return dict(every)


@pytest.mark.parametrize("seed", range(20))
def test_rows_that_no_record_brought_have_keys_of_their_own(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In whatever queue, also in an empty one: before, between and behind the entries, and beside one."""
    monkeypatch.setattr("tidemq.cluster.comparable_rows.WINDOW", 3)
    choose = random.Random(seed)
    stored = [WrittenRows() for _ in range(2)]
    nodes = [make_node(index, len(stored), rows) for index, rows in enumerate(stored)]
    exchange(nodes, live_apart(nodes, choose))
    rows = ComparableRows(stored[0].store)
    before = shown_queues(rows)
    sessions = {b"\1" + key for key, _ in rows.scan(SESSIONS)}
    wanted: set[bytes] = set()
    for key, text in list(stored[0].store.scan("cluster", b"o")):
        owner = key[1:]
        if owner[0] == SESSION and owner not in sessions:
            continue  # what an ended session has left
        entries = [each[-16:] for each, text in before.items() if text and each.startswith(owner)]
        ids = [b"\0" * 15 + b"\1", b"\xff" * 16, *entries]
        if choose.random() < 0.3:  # in between
            ids.append(choose.choice(ids)[:7] + choose.randbytes(9))
        for message_id in choose.sample(ids, choose.randint(1, len(ids))):
            row = text[-8:] + bytes([choose.choice([IDLE, IN_FLIGHT])]) + message_id
            if stored[0].store.get("queue", row) is None:
                stored[0].store.write([("queue", row, QUEUE_ROW)], sync=True)
                name = owner.replace(b"elsewhere/", b"")
                group = owner[:1] + (len(name) - 5).to_bytes(4) + name[5:]
                served = stored[0].store.get("cluster", b"o" + group) or [
                    each for each in before if each.startswith(group)
                ]
                wanted.add((group if served else owner) + message_id)
    found = shown_queues(rows)
    assert {key for key, text in found.items() if before.get(key) != text} == wanted
    assert wanted
    for key in wanted:
        assert "which no record has brought" in describe(QUEUES, found[key])
        assert name_of(QUEUES, key).endswith(f", message {key[-16:].hex()}")


class Live:
    """Answers as nodes do whose stores go on; each freeze is heard of before."""

    def __init__(self, stored: list[WrittenRows], goes_on: Callable[[], object]) -> None:
        self._stored = stored
        self._goes_on = goes_on
        self._now: list[witness.Moment] = []

    def __call__(self, questions: Mapping[int, Question]) -> dict[int, bytes]:
        if any(each.act == FREEZE for each in questions.values()):
            self._goes_on()
            self._now = []
            for rows in self._stored:
                copy = FrozenMemory()
                copy.open()
                for family in ("cluster", "queue", "session", "payload"):
                    copy.write([(family, *row) for row in rows.store.scan(family)], sync=True)
                self._now.append(witness.Moment(0, Question(0, 0, FREEZE), copy, print))
        return {
            node: self._now[node - 1].read(parse_question(each.encode())) for node, each in questions.items()
        }


@pytest.mark.parametrize("entries", [0, 3])
@pytest.mark.parametrize("is_busy", [False, True])
def test_a_row_that_no_record_brought_is_a_difference(entries: int, is_busy: bool) -> None:
    """Where nodes have applied the same, and where one is always behind, in an empty queue and in others."""
    stored = [WrittenRows() for _ in range(2)]
    one, two = (make_node(index, 2, rows) for index, rows in enumerate(stored))
    late: list[bytes] = []

    def write(operations: list[ops.Operation], lag: int = 0) -> None:
        late.append(one.write(operations).encoded)
        stored[0].take_changes()
        one.synced(one.rows.vector)
        while len(late) > lag:
            two.receive(late.pop(0))
            stored[1].take_changes()
            two.synced(two.rows.vector)

    ids = [one.stamp() for _ in range(entries + 2)]
    operations: list[ops.Operation] = [begun("ann", one.stamp())]
    for each in ids[:entries]:
        add = ops.Add(Owner(SESSION, "ann"), each, 0, 1, 9, 0)
        operations += [ops.Payload(each, make_message("a", b"x")), add]
    write(operations)
    number = stored[0].owners.current(Owner(SESSION, "ann")).to_bytes(8)
    stray = (ids[0].clock - 1).to_bytes(8) + bytes(8)
    stored[0].store.write([("queue", number + bytes([IDLE]) + stray, QUEUE_ROW)], sync=True)

    def goes_on() -> None:
        if is_busy:
            write([ops.Retain("busy", one.stamp(), b"x")], lag=1)

    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    asking = Live(stored, goes_on)
    outcome = Comparison([1, 2], asking, wait_s=10.0, clock=lambda: now[0], sleep=sleep).run()
    assert outcome.difference is not None
    assert outcome.difference.what == f"client ann, message {stray.hex()}"
    assert outcome.difference.has[1].startswith("a row in the queue, which no record has brought")
    assert outcome.difference.has[2] == "nothing"
    assert outcome.looks == (3 if is_busy else 1)


class Witnessed:
    """A node that is asked, and its store."""

    def __init__(self, folder: Path) -> None:
        self.store = RocksDBStore(folder)
        self.store.open()
        self._said: SimpleQueue[bytes] = SimpleQueue()
        self._node = witness.Witness(self.store, lambda _to, _kind, body: self._said.put(body))

    def ask(self, question: Question) -> bytes:
        self._node.hear(9, question.encode())
        return self._said.get(timeout=WAIT_S)

    def end(self, nonce: int, turn: int) -> None:
        self._node.hear(9, Question(nonce, turn, END).encode())
        self.store.close()


def test_a_node_whose_store_was_closed_says_so(tmp_path: Path) -> None:
    """Also while it answers, and whether or not it may be asked again."""
    node = Witnessed(tmp_path)
    store = node.store

    def ask(question: Question) -> str:
        _, turn, problem, _ = decode("Q Q text bytes", node.ask(question))
        assert turn == question.turn
        return str(problem)

    assert ask(Question(1, 1, FREEZE)) == ""
    assert ask(Question(1, 2, CUT)) == ""
    store.close()
    assert "closed" in ask(Question(1, 3, CUT))
    assert "closed" in ask(Question(1, 4, CUT))
    assert "is not open" in ask(Question(2, 1, FREEZE))
    store.open()
    assert ask(Question(2, 2, FREEZE)) == ""
    node.end(2, 3)


def test_a_node_that_is_told_twice_to_freeze_stays_at_the_first_moment(tmp_path: Path) -> None:
    """Who asks may have the first answer already, and takes what is said of rows for that moment's."""
    node = Witnessed(tmp_path)

    def look(turn: int) -> bytes:
        answer = node.ask(Question(1, turn, CUT, KINDS.index(RETAINED)))
        return bytes(decode("Q Q text bytes", answer)[3])

    first = node.ask(Question(1, 1, FREEZE))
    nothing = look(2)
    put(node.store, {9: 1}, {"t": b"1"})
    assert node.ask(Question(1, 1, FREEZE)) == first
    assert look(2) == nothing
    node.ask(Question(1, 3, FREEZE))
    assert look(4) != nothing
    node.end(1, 5)
