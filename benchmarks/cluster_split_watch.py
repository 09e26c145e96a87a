"""Nodes that are looked at twice a second, over their admin listeners, and what was seen."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from peers.cuttable import CLUSTER, Cuttable, Place

from tidemq.cli.admin_request import RequestError

LOOK_S = 0.5
QUEUES_S = 2.0  # and no more than a fifth of the time: a list of clients costs a node CPU
QUEUES_SHARE = 0.2
CLIENTS_MAX = 10_000_000

Vector = dict[str, int]


@dataclass(frozen=True, slots=True)
class Seen:
    """A node at one look. `vector`: the last record of each node that it has. `sees`: members by state.
    `behind`: records that it knows of and lacks.
    """

    vector: Vector
    sees: dict[str, str]
    behind: int
    log_records: int
    log_bytes: int


@dataclass(frozen=True, slots=True)
class Sample:
    """All nodes at one look, `at` so many seconds after the first. None: the node did not answer. `lacks`:
    records that any node has and this one does not. `queued`: messages in queues that are at home there;
    empty: they were not counted since the look before.
    """

    at: float
    is_cut: bool
    nodes: dict[str, Seen | None]
    lacks: dict[str, int | None] = field(default_factory=dict)
    queued: dict[str, int] = field(default_factory=dict)

    @property
    def shown(self) -> dict[str, Any]:
        """What is kept of it."""
        alive = {name: seen is not None for name, seen in self.nodes.items()}
        return {
            "at": round(self.at, 2),
            "is_cut": self.is_cut,
            "alive": alive,
            "lacks": self.lacks,
            "queued": self.queued,
        }


Condition = Callable[[Sample], bool]


class Watch:
    """Looks while the block runs."""

    def __init__(self, cluster: Cuttable) -> None:
        self.samples: list[Sample] = []
        self._cluster = cluster
        self._began = time.monotonic()
        self._queued: dict[str, int] = {}  # since the last look
        self._ends = threading.Event()
        self._sampled = threading.Condition()
        self._pool = ThreadPoolExecutor(len(cluster.places))
        works = (self._look_on, self._count_on)
        self._threads = [threading.Thread(target=each, name="watch", daemon=True) for each in works]

    def __enter__(self) -> Watch:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        for each in self._threads:
            each.join()
        self._pool.shutdown()

    @property
    def now(self) -> float:
        """As `Sample.at`."""
        return time.monotonic() - self._began

    def until(self, holds: Condition, what: str, limit_s: float) -> Sample:
        """The first sample from now on of which it holds; RuntimeError where none is in time."""
        first, deadline = self.now, self.now + limit_s
        known = len(self.samples)
        while self.now < deadline:
            with self._sampled:
                self._sampled.wait(LOOK_S)
            new, known = self.samples[known:], len(self.samples)
            for sample in new:
                if sample.at >= first and holds(sample):
                    return sample
        raise RuntimeError(f"not within {limit_s:g} s: {what}")

    def _look_on(self) -> None:
        while not self._ends.is_set():
            began = self.now
            sample = self._look()
            with self._sampled:
                self.samples.append(sample)
                self._sampled.notify_all()
            self._ends.wait(max(0.0, began + LOOK_S - self.now))

    def _look(self) -> Sample:
        at, is_cut, places = self.now, self._cluster.is_cut, self._cluster.places
        nodes = dict(zip([each.name for each in places], self._pool.map(look, places), strict=True))
        queued, self._queued = self._queued, {}
        return Sample(at, is_cut, nodes, lacking(nodes), queued)

    def _count_on(self) -> None:
        while not self._ends.is_set():
            began = self.now
            with suppress(RequestError):
                self._queued = {each.name: sum(queue_lengths(each).values()) for each in self._cluster.places}
            took = self.now - began
            self._ends.wait(max(QUEUES_S - took, took / QUEUES_SHARE - took))


def look(place: Place) -> Seen | None:
    """Asks one node."""
    try:
        answer = place.api.ask("GET", CLUSTER)
    except RequestError:
        return None
    members: list[dict[str, Any]] = answer["members"]
    own = next((each for each in members if each["is_self"]), None)
    if own is None:
        return None
    return Seen(
        vector=own["applied"],
        sees={each["incarnation"]: each["state"] for each in members},
        behind=own["behind_records"],
        log_records=answer["log_records"],
        log_bytes=answer["log_bytes"],
    )


def queue_lengths(place: Place) -> dict[str, int]:
    """Messages that wait for each session at home there, by client, but those that have none."""
    clients = place.api.pages("/api/v1/clients", "clients", {"connected": "false"}, CLIENTS_MAX)
    return {each["client_id"]: each["queued_messages"] for each in clients if each["queued_messages"]}


def lacking(nodes: dict[str, Seen | None]) -> dict[str, int | None]:
    """Records that any node has and each one does not, by node."""
    top: Vector = {}
    for seen in nodes.values():
        for incarnation, number in seen.vector.items() if seen is not None else ():
            top[incarnation] = max(number, top.get(incarnation, 0))
    return {
        name: None if seen is None else sum(last - seen.vector.get(each, 0) for each, last in top.items())
        for name, seen in nodes.items()
    }


def are_same(seen: Sequence[Seen | None]) -> bool:
    """All answer, lack nothing, and have the same records."""
    there = [each for each in seen if each is not None]
    same = all(each.vector == there[0].vector and not each.behind for each in there)
    return len(there) == len(seen) and same


def are_one(sample: Sample) -> bool:
    """All nodes hear each other, and have the same."""
    seen = list(sample.nodes.values())
    hear = all(each is not None and set(each.sees.values()) == {"alive"} for each in seen)
    return hear and are_same(seen)


def are_sides(sample: Sample, sides: Sequence[Sequence[Place]]) -> bool:
    """The nodes of each side hear each other alone, have the same, and the sessions of all the others."""
    for side in sides:
        seen = [sample.nodes[each.name] for each in side]
        if not are_same(seen):
            return False
        others = len(sample.nodes) - len(side)
        for each in seen:
            states = sorted(each.sees.values()) if each is not None else []
            if states != ["alive"] * len(side) + ["dead"] * others:
                return False
    return True
