"""What a node knows of a session that is on its way: while it comes, when it has come, when it has left."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple

from tidemq.cluster.adoption import Mark
from tidemq.cluster.operations import PutSession, Stamp
from tidemq.cluster.reunions import MEET_S
from tidemq.cluster.vectors import Vector

LATELY_S = 20.0  # no CONNECT waits for longer


@dataclass(slots=True)
class Coming:
    """A session that is to be at home here, and who waits for it."""

    begun_at: float
    came: int  # the time of the newest CONNECT that waits
    clean: bool = False
    answers: dict[int, Vector] = field(default_factory=dict)  # of nodes that have none, or none any more
    polled_at: float = 0.0
    stays: bool = False  # it comes here, with its client or without
    is_orphan: bool = False  # and so does this one, while its home is not there
    returns: bool = False  # it was handed over, and goes on here unless somebody takes it
    waiting: list[Future[int]] = field(default_factory=list)
    asked: int = 0  # the home that was asked for it
    asked_at: float = 0.0
    yielded: Vector | None = None  # what that had done when it handed the session over
    marks: list[Mark] = field(default_factory=list)  # and which messages it had taken
    shares: bool = False  # another node still takes messages for it, or for a session before it
    taken: bool = False  # the engine is about to have it

    @property
    def is_left(self) -> bool:
        """Whether nobody waits for it, or nobody any more."""
        return all(each.cancelled() for each in self.waiting)

    def ask_anew(self) -> None:
        """What was answered is of an earlier CONNECT: the session may have been elsewhere since then."""
        self.asked, self.yielded = 0, None
        self.answers.clear()
        self.polled_at = 0.0


@dataclass(slots=True)
class Come:
    """A session that has come, and whose old home does not know yet that it may forget it."""

    home: int
    rank: tuple[int, ...]  # of the session as it is here since then, by `clocks_of`
    came_at: float
    is_known: bool = False  # all know that it is here, and what they sent to its old home before has arrived
    passed_over: list[int] = field(default_factory=list)  # but these nodes
    told_at: float = 0.0
    again_s: float = 0.0  # until it is told again
    gone: Vector | None = None  # it has forgotten it: all that it did has come when this is applied

    def may_wait(self, now: float) -> bool:
        """Whether nodes that are about to meet may still be waited for."""
        return now - self.came_at < MEET_S


def clocks_of(rank: Iterable[Stamp]) -> tuple[int, ...]:
    """Of `PutSession.rank`, as nodes tell it each other."""
    return tuple(each.clock for each in rank)


class Asker(NamedTuple):
    """A node to which a client has come, and when. Of several the last has its session."""

    came: int
    node: int


class Visits:
    """When clients have come to this node, of those that have done so lately."""

    def __init__(self) -> None:
        self._came: dict[str, int] = {}  # in this order

    def note(self, client: str, came: int) -> None:
        """One that has come, by the hybrid clock."""
        self._came.pop(client, None)
        self._came[client] = came
        while self._came[oldest := next(iter(self._came))] < came - int(LATELY_S * 1e9):
            del self._came[oldest]

    def last(self, client: str) -> int:
        """When one came; 0: long ago, or never."""
        return self._came.get(client, 0)


class Round:
    """Goes through many, some at a time, and then anew."""

    def __init__(self) -> None:
        self._rest: deque[str] = deque()

    def some(self, of: Iterable[str], at_most: int) -> Iterator[str]:
        """The next ones; who has gone meanwhile may be among them."""
        if not self._rest:
            self._rest.extend(of)
        for _ in range(min(at_most, len(self._rest))):
            yield self._rest.popleft()


@dataclass(slots=True)
class Handed:
    """To whom a session was handed over, and to whom last; nobody: it was taken without a word."""

    to: set[int] = field(default_factory=set)
    last: Asker | None = None


class Reminders:
    """About which sessions that were handed over their new homes are to be asked, and when: each ever more
    seldom, for there may be many, and nodes that have much to do.
    """

    def __init__(self, first_s: float, at_most_s: float) -> None:
        self._first_s, self._at_most_s = first_s, at_most_s
        self._due: list[
            tuple[float, int, str, float, Handed]
        ] = []  # a heap; the second of its own, for order
        self._count = itertools.count()

    def add(self, client: str, handed: Handed, now: float) -> None:
        """One that was handed over just now."""
        self._push(now, client, self._first_s, handed)

    def _push(self, now: float, client: str, pause_s: float, handed: Handed) -> None:
        heapq.heappush(self._due, (now + pause_s, next(self._count), client, pause_s, handed))

    def due(self, there: Mapping[str, Handed], now: float, at_most: int) -> Iterator[str]:
        """Clients whose sessions still are `there`, so many of them at most."""
        for _ in range(at_most):
            if not self._due or self._due[0][0] > now:
                return
            _, _, client, pause_s, handed = heapq.heappop(self._due)
            if there.get(client) is handed:
                self._push(now, client, min(2 * pause_s, self._at_most_s), handed)
                yield client


@dataclass(frozen=True, slots=True)
class Begun:
    """A session whose epoch is in the next batch."""

    coming: Coming
    epoch: PutSession
    asked: bool = True  # its home has handed it over
    adopts: bool = False  # the engine is to have it
