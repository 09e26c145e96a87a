"""Records of other nodes on their way into this one: checked, put in order, missed where they are missing.

A record comes from wherever there is a copy. It is taken when it is the next of its node, the digest in it is
that of the one before, and all that its node had applied is applied here. What cannot be read, or does not
follow, is set aside and asked for again.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass

from tidemq.cluster.records import NO_DIGEST, Record, parse_record
from tidemq.cluster.rows import Rows
from tidemq.cluster.vectors import Vector, covers
from tidemq.errors import ClusterError

WAITING_MAX = 1024  # records of one node that came before those they follow
WAITING_BYTES_MAX = 64 << 20  # of these, and one record more
REASONS_MAX = 64  # that nobody has taken


class _Waiting:
    """Records of one node, by number."""

    def __init__(self) -> None:
        self.records: dict[int, Record] = {}
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether there is no room for one more."""
        return len(self.records) >= WAITING_MAX or self._bytes >= WAITING_BYTES_MAX

    def put(self, number: int, record: Record) -> None:
        """In the place of what is there by that number."""
        self.drop(number)
        self.records[number] = record
        self._bytes += len(record.encoded)

    def drop(self, number: int) -> None:
        """If it is there."""
        record = self.records.pop(number, None)
        self._bytes -= len(record.encoded) if record is not None else 0

    def make_room(self, number: int) -> int | None:
        """Room for this one: what was asked for comes before what is new, and goes on far from it. Half of
        all goes at once, so that this is seldom: how many did. None: it is the newest itself.
        """
        if number > max(self.records):
            return None
        last = [each for each in sorted(self.records)[len(self.records) // 2 :] if each > number]
        for each in last:
            self.drop(each)
        return len(last)


@dataclass(frozen=True, slots=True)
class Gap:
    """Records that are missing here, the first to the last, of one node."""

    incarnation: int
    first: int
    last: int


class Incoming:
    """What has come and is not applied yet. `own`: the incarnation whose records are made here.

    `counts`: `cluster_records_damaged` (could not be read, or did not follow), `cluster_records_again` (were
    applied already), `cluster_records_held` (came too early, and too many of them did).
    """

    def __init__(self, rows: Rows, own: int) -> None:
        self._rows = rows
        self._own = own
        self._waiting: dict[int, _Waiting] = {}
        self._highest: dict[int, int] = {}  # that exist, as somebody says
        self.counts: Counter[str] = Counter()
        self.aside: deque[str] = deque(maxlen=REASONS_MAX)  # why records were; the caller says so

    def hear_of(self, vector: Vector) -> None:
        """There are records up to these."""
        for incarnation, number in vector.items():
            if incarnation != self._own:
                self._highest[incarnation] = max(self._highest.get(incarnation, 0), number)

    def highest(self, incarnation: int) -> int:
        """The last record of a node that there is, as far as anybody has said."""
        return self._highest.get(incarnation, 0)

    def forget(self, incarnation: int) -> None:
        """Nobody waits for records of this node that are nowhere."""
        self._highest.pop(incarnation, None)
        self._waiting.pop(incarnation, None)

    def receive(self, text: bytes) -> None:
        """A record as it came; what is wrong with it is counted, and it is not applied.

        ClusterError where it shows that two nodes have one incarnation: nothing of it can be trusted then.
        """
        try:
            record = parse_record(text)
        except ClusterError as error:
            self._set_aside(text, str(error))
            return
        incarnation, number = record.dot
        applied, digest = self._rows.applied.get(incarnation, None) or (0, NO_DIGEST)
        if number == applied and record.digest != digest:
            raise ClusterError(
                f"node {incarnation:016x} has made two different records {number}: was its store copied?"
            )
        if number <= applied or incarnation == self._own:
            self.counts["cluster_records_again"] += 1
            return
        self.hear_of({incarnation: number})
        waiting = self._waiting.setdefault(incarnation, _Waiting())
        if waiting.is_full and number not in waiting.records and number != applied + 1:
            held = waiting.make_room(number)
            self.counts["cluster_records_held"] += 1 if held is None else held
            if held is None:
                return  # it is asked for again when those before it are here
        waiting.put(number, record)

    def take(self) -> Record | None:
        """The next that can be applied; None: there is none."""
        vector = self._rows.vector
        for incarnation, waiting in self._waiting.items():
            applied, digest = self._rows.applied.get(incarnation, None) or (0, NO_DIGEST)
            record = waiting.records.get(applied + 1)
            if record is None:
                continue
            if record.previous != digest:
                waiting.drop(applied + 1)
                self._set_aside(record.encoded, f"record {record.dot} does not follow the one before it")
            elif covers(vector, record.vector):
                waiting.drop(applied + 1)
                return record
            else:
                self.hear_of(record.vector)
        return None

    @property
    def is_ready(self) -> bool:
        """Whether the next of some node waits, which may be to be applied."""
        vector = self._rows.vector
        return any(
            record is not None and covers(vector, record.vector)
            for record in (each.records.get(vector.get(who, 0) + 1) for who, each in self._waiting.items())
        )

    def gaps(self) -> list[Gap]:
        """What is missing now; the caller asks one holder after the other."""
        found = []
        for incarnation, highest in sorted(self._highest.items()):
            applied, _ = self._rows.applied.get(incarnation, None) or (0, NO_DIGEST)
            waiting = self._waiting.get(incarnation, _Waiting()).records
            first = applied + 1
            while first in waiting:
                first += 1
            if first <= highest:
                last = min((each for each in waiting if each > first), default=highest + 1) - 1
                found.append(Gap(incarnation, first, min(last, first + WAITING_MAX - 1)))
        return found

    def _set_aside(self, text: bytes, why: str) -> None:
        self.counts["cluster_records_damaged"] += 1
        self.aside.append(f"a record of {len(text)} bytes is set aside, and asked for elsewhere: {why}")
