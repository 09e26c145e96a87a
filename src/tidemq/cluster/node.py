"""One node's decisions, without any I/O: what comes in changes rows, and says what is to go out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tidemq.cluster.applying import Applier
from tidemq.cluster.hybrid_clock import HybridClock
from tidemq.cluster.incoming import Incoming
from tidemq.cluster.members import SUSPECT_S, Heartbeat, Members
from tidemq.cluster.operations import Operation, Stamp
from tidemq.cluster.records import NO_DIGEST, Record, check_payloads
from tidemq.cluster.rows import Rows
from tidemq.cluster.sharing import LATE_S, Sharing
from tidemq.cluster.stability import Stability
from tidemq.cluster.vectors import Dot, Vector
from tidemq.errors import ClusterError


class Node:
    """A member of a cluster over its rows. After each call that changes rows the caller writes what
    `Rows.take_changes` gives as one batch, and when that is durable, says so by `synced`.
    """

    def __init__(
        self, rows: Rows, own: Heartbeat, clock: HybridClock, *, suspect_s: float = SUSPECT_S
    ) -> None:
        self.rows = rows
        self.own = own
        self.clock = clock
        self.applier = Applier(rows)
        self.incoming = Incoming(rows, own.incarnation)
        before = (member for member, _, _ in rows.members.all())
        self.members = Members(
            own,
            clock,
            before,
            suspect_s=suspect_s,
            is_struck=self._is_struck,
            written=lambda: self.rows.written_format,
        )
        self.stability = Stability(rows, self.applier, own.incarnation)
        self._synced: dict[int, int] = rows.vector
        # What had been applied when each message was sent to another node that has not answered. Until then
        # this node may add it to queues itself, as if it knew of nothing since: so none of that is forgotten.
        self.unanswered: dict[int, Vector] = {}
        # whether the batch may get more records of other nodes; those that wait are the next one's
        self.may_grow: Callable[[], bool] = lambda: True
        self._collected: dict[int, int] = {}  # up to where `tidy` has deleted
        self._is_held = False  # and something of that is left, of sessions that move
        self.sharing = Sharing(suspect_s)

    def is_recent(self, epoch: Stamp) -> bool:
        """Whether a session has come where it is so lately that a node which had it before may not know, and
        still take messages for it.
        """
        return epoch.clock > self.clock.last_ns - int(LATE_S * 1e9)

    def _is_struck(self, incarnation: int) -> bool:
        return self.rows.struck.get(incarnation, None) is not None

    @property
    def incarnation(self) -> int:
        return self.own.incarnation

    @property
    def last(self) -> int:
        """The number of its own last record."""
        return self.rows.vector.get(self.incarnation, 0)

    @property
    def format(self) -> int:
        """What its records are written in, and all else that it sends."""
        return self.rows.written_format or self.own.formats.lowest

    def follow_format(self, now: float) -> bool:
        """Goes up to the format that it may write by now; whether there was one to go up to."""
        number = self.members.format_to_write(now)
        if number == self.rows.written_format:
            return False
        self.rows.format.put(None, None, number)
        return True

    def stamp(self) -> Stamp:
        """A new id, epoch or time of a change."""
        return Stamp(self.clock.next_ns(), self.incarnation)

    def write(self, operations: Sequence[Operation]) -> Record:
        """Does this to the rows, and logs it with them. The record goes out when it is durable.

        ClusterError where it adds a message whose payload it does not bring; nothing is changed then.
        """
        check_payloads(operations)
        vector = self.rows.vector
        number, digest = self.rows.applied.get(self.incarnation, None) or (0, NO_DIGEST)
        vector.pop(self.incarnation, None)
        dot = Dot(self.incarnation, number + 1)
        record = Record(dot, digest, self.clock.next_ns(), vector, tuple(operations), self.format)
        self.applier.apply(record, own=True)
        self.rows.log.put(self.incarnation, dot.number, record.encoded)
        self.stability.log_size.add(dot.number, len(record.encoded))
        self.rows.clock.put(None, None, self.clock.last_ns)
        return record

    def receive(self, text: bytes) -> list[Record]:
        """A record of another node; gives those that could be applied now. ClusterError as `Incoming`."""
        self.incoming.receive(text)
        return self.apply_waiting()

    def apply_waiting(self) -> list[Record]:
        """Applies records that have come, as long as the batch may grow; gives them."""
        applied = []
        while self.may_grow() and (record := self.incoming.take()) is not None:
            self.clock.raise_to(record.clock)
            self.applier.apply(record)
            applied.append(record)
        if applied:
            self.rows.clock.put(None, None, self.clock.last_ns)
        return applied

    def synced(self, vector: Vector) -> None:
        """All that had been applied at this vector is durable."""
        self._synced = dict(vector)

    @property
    def applied(self) -> Vector:
        """All that is applied, durably."""
        return self._synced

    @property
    def durable(self) -> int:
        """The last of its own records that may go out."""
        return self._synced.get(self.incarnation, 0)

    def beat(self, now: float, wall_ns: int) -> Heartbeat:
        """The heartbeat of this moment."""
        known = [self._synced, *self.unanswered.values()]
        return replace(
            self.own,
            format=self.rows.written_format,
            common=self.members.common_format(),
            wall_ns=wall_ns,
            hybrid_ns=self.clock.last_ns,
            number=self.durable,
            first=self.stability.first,
            applied={each: min(vector.get(each, 0) for vector in known) for each in self._synced},
            peers=self.members.peers(now),
        )

    def hear(self, beat: Heartbeat, now: float, late_s: float = 0) -> None:
        """Another node's, as in `Members`. ClusterError where it is refused."""
        self._check_history(beat)
        self.members.hear(beat, now, late_s)
        if self.rows.members.get(beat.incarnation, None) != beat.name:
            self.rows.members.put(beat.incarnation, None, beat.name)
        self.incoming.hear_of({**beat.applied, beat.incarnation: beat.number})
        self.stability.hear(beat.incarnation, beat.number, beat.applied)

    def _check_history(self, beat: Heartbeat) -> None:
        """ClusterError where it is of a node that has begun by itself, and no longer has all that it did: the
        two cannot become one cluster, and whoever waited for what is gone would wait for ever.
        """
        applied, known = (
            self.rows.vector.get(beat.incarnation, 0),
            self.rows.members.get(beat.incarnation, None),
        )
        if self.last and known is None and not applied and beat.first > 1:
            raise ClusterError(
                f"{beat.name} ({beat.incarnation:016x}) has stored something of its own before it met this"
                " cluster: it can join with an empty data directory"
            )

    def tidy(self) -> None:
        """Deletes what need not be remembered any more."""
        self.stability.take_in()
        stable = self.stability.stable(self.members.incarnations, self.unanswered.values())
        if stable != self._collected or self._is_held:
            self._collected = stable
            self._is_held = self.stability.collect(stable, self.sharing)

    @property
    def stable(self) -> Vector:
        """The last records of each node that all members are known to have, as of the last `tidy`."""
        return self._collected

    def tidy_again(self) -> None:
        """The batch with what `tidy` has deleted may not be stored."""
        self.stability.begin_anew()
        self._is_held = True

    def record(self, incarnation: int, number: int) -> bytes | None:
        """A record of its own log, for a node that lacks it."""
        return self.rows.log.get(incarnation, number)
