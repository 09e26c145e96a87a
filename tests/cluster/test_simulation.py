"""Histories of a simulated cluster are as they should be; where a rule is broken on purpose, some are not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from cluster.simulation.broker import Broker, Connection
from cluster.simulation.planting import expect
from cluster.simulation.run import run

from tidemq.cluster import operations as ops
from tidemq.cluster.applying import Applier
from tidemq.cluster.hybrid_clock import HybridClock
from tidemq.cluster.incoming import Incoming
from tidemq.cluster.promises import Promises
from tidemq.cluster.stability import Stability

SEEDS_AT_ONCE = 100

PLANTED_SEEDS = 400


@pytest.mark.parametrize("first", range(0, 1900, SEEDS_AT_ONCE))
def test_histories(first: int) -> None:
    wrong = {seed: found for seed in range(first, first + SEEDS_AT_ONCE) if (found := run(seed))}
    assert not wrong


def acknowledged_too_soon(patch: pytest.MonkeyPatch) -> None:
    """Before the batch is durable."""
    write = Broker.write

    def write_and_say_so(
        self: Broker, operations: list[ops.Operation], then: Callable[[bool], None] | None = None
    ) -> int:
        number = write(self, operations)
        if then is not None:
            self.world.at(0, lambda: then(True))
        return number

    patch.setattr(Broker, "write", write_and_say_so)


def removals_are_not_remembered(patch: pytest.MonkeyPatch) -> None:
    """So that the other side's copy of a message that was taken comes again."""
    remove = Applier._remove

    def forget(self: Applier, op: ops.Remove) -> None:
        remove(self, op)
        self._rows.removed.put(op.owner, op.id, None)

    patch.setattr(Applier, "_remove", forget)


def identifiers_go_back(patch: pytest.MonkeyPatch) -> None:
    """To the first, when nothing is in flight."""
    resume = Broker._resume

    def resume_from_the_first(self: Broker, connection: Connection) -> None:
        connection.next_sequence = 0
        resume(self, connection)

    patch.setattr(Broker, "_resume", resume_from_the_first)


def clocks_are_not_raised(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HybridClock, "raise_to", lambda self, heard_ns: None)


def all_is_stable(patch: pytest.MonkeyPatch) -> None:
    """As if every node had heard of everything."""
    patch.setattr(Stability, "stable", lambda self, members, unanswered: self._rows.vector)


def gaps_are_not_asked_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Incoming, "gaps", lambda self: [])


def causes_are_not_waited_for(patch: pytest.MonkeyPatch) -> None:
    """A record is applied though what its node knew is not known here."""
    patch.setattr("tidemq.cluster.incoming.covers", lambda vector, other: True)


def mail_overtakes_records(patch: pytest.MonkeyPatch) -> None:
    """A node says for whom a message is before it knows what its sender knew."""
    patch.setattr("cluster.simulation.broker.covers", lambda vector, other: True)


def topics_do_not_matter(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("cluster.simulation.broker.matches", lambda topic_filter, topic: True)


def flights_are_not_handed_over(patch: pytest.MonkeyPatch) -> None:
    """What was in flight is sent as something new."""
    put = Applier._put_session

    def put_without(self: Applier, op: ops.PutSession) -> None:
        put(self, replace(op, flights=()))

    patch.setattr(Applier, "_put_session", put_without)


def nothing_is_settled(patch: pytest.MonkeyPatch) -> None:
    """No promise is ever kept."""
    patch.setattr(Promises, "take", lambda self, now: [])


def unanswered_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Removals are forgotten while this node may still add the message itself."""
    stable = Stability.stable
    patch.setattr(Stability, "stable", lambda self, members, unanswered: stable(self, members, ()))


# what it leads to, and the one thing that goes wrong then: only once in hundreds of histories of all kinds
PLANTED: dict[Callable[[pytest.MonkeyPatch], None], tuple[str, str]] = {
    acknowledged_too_soon: ("lost", "_kill"),
    removals_are_not_remembered: ("repeated", "_cut"),
    identifiers_go_back: ("swallowed", "_kill"),
    clocks_are_not_raised: ("out of order", "_set_clock"),
    all_is_stable: ("resurrected", ""),
    gaps_are_not_asked_for: ("stuck", ""),
    causes_are_not_waited_for: ("digests differ", "_cut"),
    mail_overtakes_records: ("lost", "_cut"),
    topics_do_not_matter: ("phantom", ""),
    flights_are_not_handed_over: ("repeated", "_cut"),
    nothing_is_settled: ("stuck", ""),
    unanswered_is_forgotten: ("repeated", "_cut"),
}


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_broken_rule_is_found(plant: Callable[[pytest.MonkeyPatch], None]) -> None:
    """One that is left in each kind of thing that can go wrong."""
    kind, only = PLANTED[plant]
    expect(kind, plant, lambda seed: run(seed, only), PLANTED_SEEDS)
