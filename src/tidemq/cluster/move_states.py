"""What a node knows of a session that is on its way: while it comes, when it has come, when it has left."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from math import inf

from tidemq.cluster.adoption import Mark
from tidemq.cluster.operations import PutSession
from tidemq.cluster.vectors import Vector


@dataclass(slots=True)
class Coming:
    """A session that is to be at home here, and who waits for it."""

    begun_at: float
    clean: bool = False
    answers: dict[int, Vector] = field(default_factory=dict)  # of nodes that have none, or none any more
    polled_at: float = 0.0
    stays: bool = False  # it comes here, with its client or without
    waiting: list[Future[int]] = field(default_factory=list)
    asked: int = 0  # the home that was asked for it
    asked_at: float = 0.0
    yielded: Vector | None = None  # what that had done when it handed the session over
    marks: list[Mark] = field(default_factory=list)  # and which messages it had taken
    before: list[Mark] | None = None  # those of before, if it is back and still took messages here
    taken: bool = False  # the engine is about to have it

    @property
    def is_left(self) -> bool:
        """Whether all who waited for it have gone."""
        return bool(self.waiting) and all(each.cancelled() for each in self.waiting)


@dataclass(slots=True)
class Come:
    """A session that has come, and whose old home does not know yet that it may forget it."""

    home: int
    is_known: bool = False  # all know that it is here, and what they sent to its old home before has arrived
    told_at: float = 0.0
    gone: Vector | None = None  # it has forgotten it: all that it did has come when this is applied


@dataclass(slots=True)
class Handed:
    """When a session was handed over, and to whom; nobody: it was taken without a word."""

    at: float = -inf
    to: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Begun:
    """A session whose epoch is in the next batch."""

    coming: Coming
    epoch: PutSession
    asked: bool = True  # its home has handed it over
    adopts: bool = False  # the engine is to have it
