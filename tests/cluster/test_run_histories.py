"""Random histories of queues, done together and one by one: the same rows to the byte, the same words."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from cluster.nodes import WrittenRows, begun, make_message
from cluster.test_message_runs import content, singly, written

from tidemq.cluster import operations as ops
from tidemq.cluster.applying import Applier
from tidemq.cluster.message_runs import run_end
from tidemq.cluster.operations import GROUP, SESSION, Flight, Operation, Owner, PutSession, Run, Stamp
from tidemq.cluster.records import NO_DIGEST, Record, parse_record, read_run
from tidemq.cluster.stability import Stability
from tidemq.cluster.stored_rows import StoredRows
from tidemq.cluster.vectors import Dot

CLIENTS = ("ann", "bob", "cem", "zoë")  # the last is never in a run
GROUP_OWNER = Owner(GROUP, "$share/g/a")
BATCHES = 10


class History:
    """What several nodes do to a few queues, mostly as an engine would."""

    def __init__(self, choose: random.Random) -> None:
        self._choose = choose
        self._clock = 0
        self._epochs: dict[str, Stamp] = {}
        self._ended: set[str] = set()
        self._is_calm = False
        self._known: list[tuple[Owner, Stamp]] = []
        self._late: list[Stamp] = []  # ids that no message had yet, or that some queues have not

    def batch(self) -> list[tuple[Operation, ...]]:
        """The operations of some records. In most nothing happens to sessions, as mostly."""
        acts = [self._message] * 3 + [self._send] * 4 + [self._remove] * 6
        acts += [self._release, self._return, self._flood]
        self._is_calm = self._choose.random() < 0.8 and len(self._epochs) == len(CLIENTS) and not self._ended
        if not self._is_calm:
            acts += [self._put, self._put, self._end, self._shared, self._again]
        return [self._record(acts) for _ in range(self._choose.randint(1, 3))]

    def _record(self, acts: list[Callable[[], list[Operation]]]) -> tuple[Operation, ...]:
        steps = self._choose.choice((3, 12, 25))
        return tuple(each for _ in range(steps) for each in self._choose.choice(acts)())

    def _stamp(self, source: int = 1) -> Stamp:
        self._clock += 1
        return Stamp(self._clock << 6 | source & 1, source)

    def _put(self) -> list[Operation]:
        client = self._choose.choice(sorted(self._ended) or CLIENTS)
        anew = client in self._ended or client not in self._epochs
        self._ended.discard(client)
        if anew or self._choose.random() < 0.7:
            self._epochs[client] = self._stamp()
        known = [id_ for owner, id_ in self._known if owner.name == client]
        flights = tuple(
            Flight(each, place, self._choose.random() < 0.5) for place, each in enumerate(known[-3:])
        )
        begins = anew or self._choose.random() < 0.1
        received = tuple(self._choose.sample([1, 2, 7 << 16 | 3, (1 << 48) - 1 << 16 | 4], 2))
        times = (0, 60, 0, 0, 0, -1)
        epoch = self._epochs[client]
        row = PutSession(client, epoch, 1, begins, *times, b"", received, flights, connected=epoch)
        return [replace(row, replaces=begins and self._choose.random() < 0.5)]

    def _end(self) -> list[Operation]:
        client = self._choose.choice(CLIENTS)
        if client not in self._epochs:
            return []
        self._ended.add(client)
        return [ops.EndSession(client, self._epochs[client])]

    def _message(self, shared: bool = False) -> list[Operation]:
        among = CLIENTS[: 3 if self._is_calm else 4]
        owners = [Owner(SESSION, each) for each in self._choose.sample(among, self._choose.randint(1, 3))]
        if not self._is_calm and self._choose.random() < 0.1:
            owners.append(GROUP_OWNER)
        return self._adds(self._id(), owners, shared)

    def _id(self) -> Stamp:
        """Of a new message, or of one that comes late, behind later ones of its source; perhaps once more for
        other queues.
        """
        self._late.append(self._stamp(self._choose.randint(1, 2)))
        if self._choose.random() < 0.4:
            return self._stamp(self._choose.randint(1, 2))
        found = self._choose.choice(self._late[-9:])
        if self._choose.random() < 0.7:
            self._late.remove(found)
        return found

    def _shared(self) -> list[Operation]:
        return self._message(shared=True)

    def _flood(self) -> list[Operation]:
        """Many for one client, and what follows from it."""
        owner = Owner(SESSION, self._choose.choice(CLIENTS[:3]))
        ids = [self._stamp() for _ in range(5)]
        adds = [each for id_ in ids for each in self._adds(id_, [owner], False)]
        epoch = self._epochs.get(owner.name, Stamp(1, 1))
        sends = [ops.Send(owner, epoch, id_, place) for place, id_ in enumerate(ids)]
        removes = [ops.Remove(owner, id_) for id_ in ids[: self._choose.randint(0, 5)]]
        return [*adds, *sends, *removes]

    def _again(self) -> list[Operation]:
        """A message that is there, or was."""
        if not self._known:
            return []
        owner, message_id = self._choose.choice(self._known)
        return self._adds(message_id, [owner], self._choose.random() < 0.5)

    def _adds(self, message_id: Stamp, owners: Iterable[Owner], shared: bool) -> list[Operation]:
        made: list[Operation] = [ops.Payload(message_id, make_message("a", b"%d" % message_id.clock))]
        expires = self._choose.choice((0, 0, 5_000_000))
        ids = self._choose.choice(((), (), (7, 9)))
        for owner in owners:
            self._known.append((owner, message_id))
            made.append(ops.Add(owner, message_id, self._choose.randint(0, 1), 1, 9, expires, shared, ids))
            if self._choose.random() < 0.2 and owner.name in self._epochs:
                made.append(ops.Send(owner, self._epoch(owner), message_id, self._choose.randint(0, 99)))
        return made

    def _epoch(self, owner: Owner) -> Stamp:
        newest = self._epochs.get(owner.name, Stamp(1, 1))
        return newest if self._is_calm or self._choose.random() < 0.95 else Stamp(1, 2)

    def _one(self) -> tuple[Owner, Stamp] | None:
        return self._choose.choice(self._known[-20:]) if self._known else None

    def _send(self) -> list[Operation]:
        one = self._one()
        place = self._choose.randint(0, 99)
        return [ops.Send(one[0], self._epoch(one[0]), one[1], place)] if one else []

    def _release(self) -> list[Operation]:
        one = self._one()
        return [ops.Release(one[0], self._epoch(one[0]), one[1])] if one else []

    def _return(self) -> list[Operation]:
        one = self._one()
        return [ops.Return(one[0], self._epoch(one[0]), one[1])] if one else []

    def _remove(self) -> list[Operation]:
        """Of one queue, or of all that have the message."""
        one = self._one()
        if one is None:
            return []
        if self._choose.random() < 0.6:
            return [ops.Remove(*one)]
        return [ops.Remove(owner, id_) for owner, id_ in dict.fromkeys(self._known) if id_ == one[1]]


class Side:
    """A node that does runs together, or one by one."""

    def __init__(self, splits: bool, home: tuple[str, ...]) -> None:
        self._splits = splits
        self.rows = WrittenRows()
        self.applier = Applier(self.rows)
        self.applier.home = dict.fromkeys(home, Stamp(0, 0))
        self._stability = Stability(self.rows, self.applier, 9)

    def apply(self, record: Record, own: bool) -> None:
        if self._splits:
            record = replace(record, operations=singly(record.operations))
        self.applier.apply(record, own=own)

    def collect(self, stable: dict[int, int]) -> None:
        self._stability.collect(stable, set())

    def told(self) -> list[Any]:
        """Of clients at home, and of groups."""
        applier = self.applier
        there = [
            [each for each in told if each[0].kind == GROUP or each[0].name in applier.home]
            for told in (applier.added, applier.removed)
        ]
        said: list[Any] = [*there, applier.retained, applier.sessions, dict(applier.counts)]
        applier.forget_changes()
        return said


def check(seed: int) -> None:
    """One history, done both ways."""
    choose = random.Random(seed)
    history = History(choose)
    home = tuple(choose.sample(CLIENTS, choose.choice((0, 1, 2))))
    sides = [Side(splits, home) for splits in (False, True)]
    numbers = {1: 0, 2: 0}
    for _ in range(BATCHES):
        records = []
        for operations in history.batch():
            node = choose.randint(1, 2)
            numbers[node] += 1
            vector = {3 - node: choose.randint(0, numbers[3 - node])}
            made = Record(Dot(node, numbers[node]), NO_DIGEST, 1, vector, operations)
            records.append((parse_record(made.encoded), choose.random() < 0.3))
        fails, collects, stable = choose.random() < 0.1, choose.random() < 0.6, dict(numbers)
        for side in sides:
            if fails:
                before = side.applier.counts.copy()
                for record, own in records:
                    side.apply(record, own)
                side.rows.discard()
                side.applier.forget_changes()
                side.applier.counts.clear()
                side.applier.counts.update(before)
            for index, (record, own) in enumerate(records):
                side.apply(record, own)
                if collects and index == 0:
                    side.collect(stable)
            side.rows.take_changes()
        together, single = sides
        assert written(together.rows) == written(single.rows)
        assert content(together.rows) == content(single.rows)
        assert together.told() == single.told()


@pytest.mark.parametrize("seed", range(30))
def test_together_is_one_by_one(seed: int) -> None:
    check(seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(30, 390, 40))
def test_together_is_one_by_one_in_many_histories(seed: int) -> None:
    for each in range(seed, seed + 40):
        check(each)


def test_most_of_a_calm_history_is_done_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the tests above would compare nothing."""
    together = StoredRows.do_run
    kinds: Counter[type[Any]] = Counter()
    left: Counter[type[Any]] = Counter()

    def do_run(rows: StoredRows, run: Run, dot: Dot, seen: Any, apart: Any, added: Any) -> Iterator[bytes]:
        kinds.update(map(type, read_run(run.text)))
        for text in together(rows, run, dot, seen, apart, added):
            left.update(map(type, read_run(text)))
            yield text

    monkeypatch.setattr(StoredRows, "do_run", do_run)
    for seed in range(6):
        check(seed)
    for kind in (ops.Add, ops.Send, ops.Remove, ops.Release, ops.Return):
        assert 0.1 < left[kind] / kinds[kind] < 0.9, kind


EVERY = (
    ops.Payload(Stamp(640, 1), make_message("a", b"x")),
    ops.Add(Owner(SESSION, "ann"), Stamp(640, 1), 0, 1, 9, 5_000_000, False, (7, 9)),
    ops.Send(Owner(SESSION, "ann"), Stamp(1, 1), Stamp(640, 1), 3),
    ops.Add(Owner(SESSION, "bob"), Stamp(640, 1), 0, 1, 9, 0, False, ()),
    ops.Release(Owner(SESSION, "ann"), Stamp(1, 1), Stamp(640, 1)),
    ops.Return(Owner(SESSION, "ann"), Stamp(1, 1), Stamp(640, 1)),
    ops.Send(Owner(SESSION, "bob"), Stamp(1, 1), Stamp(640, 1), 7),
    ops.Remove(Owner(SESSION, "ann"), Stamp(640, 1)),
    ops.Remove(Owner(SESSION, "bob"), Stamp(640, 1)),
)


def text_of(operations: tuple[Operation, ...]) -> bytes:
    """A record's operations."""
    empty, whole = (Record(Dot(1, 1), NO_DIGEST, 1, {}, each).encoded for each in ((), operations))
    return whole[len(empty) :]


def test_every_operation_on_a_queue_is_in_a_run() -> None:
    text = text_of(EVERY)
    assert run_end(text, 0, len(EVERY)) == (len(text), len(EVERY))
    assert read_run(text) == list(EVERY)


def test_a_run_has_no_more_operations_than_its_record() -> None:
    text, ends = text_of(EVERY), {0: 0}
    for count in range(1, len(EVERY) + 1):
        ends[len(text_of(EVERY[:count]))] = count
    for most in range(len(EVERY) + 1):
        end, count = run_end(text, 0, most)
        assert count <= most
        assert ends[end] == count


def test_bytes_that_are_cut_or_changed_are_read_within_their_bounds() -> None:
    """What a run takes the record's own reader takes as well, and it does the same."""
    choose, text = random.Random(1), text_of(EVERY)
    for _ in range(500):
        changed = bytearray(text[: choose.choice((len(text), choose.randint(1, len(text))))])
        for _ in range(choose.randint(0, 3)):
            value = choose.choice((0, 1, 4, 0x7F, 0xFF, choose.randrange(256)))
            changed[choose.randrange(len(changed))] = value
        end, count = run_end(bytes(changed), 0, 0xFFFFFFFF)
        assert end <= len(changed)
        run = Run(bytes(changed[:end]), count)
        assert len(read_run(run.text)) == count
        sides = [Side(splits, ()) for splits in (False, True)]
        for side in sides:
            sessions = tuple(begun(client, Stamp(1, 1)) for client in ("ann", "bob"))
            records: list[tuple[Operation, ...]] = [sessions, (run,)]
            for number, operations in enumerate(records, 1):
                side.apply(Record(Dot(1, number), NO_DIGEST, 1, {}, operations), own=True)
                side.rows.take_changes()
        assert written(sides[0].rows) == written(sides[1].rows)
