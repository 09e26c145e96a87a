"""Histories of sessions that move between simulated nodes are as they should be; some are not where a rule is
broken on purpose.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from cluster.simulation.engine import Engine
from cluster.simulation.moving import run, simulated
from cluster.simulation.planting import expect
from cluster.simulation.process import Hosts
from cluster.simulation.visitors import Sent, Subscriber

from tidemq.cluster import mailboxes
from tidemq.cluster.departures import Departures
from tidemq.cluster.move_states import Asker, Handed
from tidemq.cluster.moves import Moves
from tidemq.cluster.neighbours import LETTER, Neighbours
from tidemq.cluster.stability import Stability

SEEDS_AT_ONCE = 20

PLANTED_SEEDS = 60  # from the named one on


@pytest.mark.parametrize("first", range(0, 100, SEEDS_AT_ONCE))
def test_histories(first: int) -> None:
    wrong = {seed: found for seed in range(first, first + SEEDS_AT_ONCE) if (found := run(seed))}
    assert not wrong


def test_a_message_is_not_lost_on_its_way_to_a_node_to_which_its_session_has_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another node, which had the session meanwhile, has had the message for somebody else before."""
    world, send = Hosts(1, 3), Hosts.send

    def lose_letters(self: Hosts, source: int, target: int, kind: str, *body: object) -> None:
        if (source, target, kind) != (2, 0, LETTER):
            send(self, source, target, kind, *body)

    ann, other = (Subscriber(world, world.journal, name) for name in ("ann", "other"))
    ann.topic_filter = other.topic_filter = "a"
    with simulated(world):
        for host in world.machines:
            host.start()
        world.run(1.2)
        first, second, third = (host.broker for host in world.machines)
        for client, process in ((ann, first), (other, second)):
            client.connect_to(process)
        world.run(1.6)
        monkeypatch.setattr(Hosts, "send", lose_letters)
        world.journal.sent["p", 0] = Sent("a", {}, 0, third.own, world.now)
        third.engine.publish("a", b"p:0", lambda kept: None)
        for process, is_here in ((second, True), (first, False)):
            ann.connect_to(process)
            world.run(world.now + 1.0)
            assert ann.visit is not None
            assert process.engine.is_here(ann.visit) == is_here  # not before what was on its way has come
        assert world.journal.taken["ann"] == []
        monkeypatch.undo()
        world.run(world.now + 2.0)
    assert world.journal.taken["ann"] == [("p", 0)]


def the_old_home_forgets_at_once(patch: pytest.MonkeyPatch) -> None:
    """It takes no messages any more as soon as it has handed a session over."""
    release = Engine.release
    patch.setattr(Engine, "release", lambda self, client, *, keep=False: release(self, client))


def what_waits_goes_out_before_all_has_come(patch: pytest.MonkeyPatch) -> None:
    adopt = Engine.adopt

    def send_at_once(self: Engine, *args: Any, **options: Any) -> list[Any]:
        return adopt(self, *args, **{**options, "older_may_come": False})

    patch.setattr(Engine, "adopt", send_at_once)


def what_is_held_is_kept(patch: pytest.MonkeyPatch) -> None:
    """Removals of a session that moved are not looked at again when it has come."""
    collect = Stability.collect
    patch.setattr(Stability, "collect", lambda self, *known: bool(collect(self, *known)) and False)


def old_homes_do_not_ask(patch: pytest.MonkeyPatch) -> None:
    """Where a new home is killed before it has told the old one that it may forget a session."""
    patch.setattr(Departures, "_remind", lambda self, now: None)


def what_was_taken_without_a_word_is_forgotten_at_once(patch: pytest.MonkeyPatch) -> None:
    """A client that has been let in a moment ago begins a new session then."""

    def lose(self: Departures, client: str, _session: object) -> None:
        self._handed[client] = Handed()
        self.release(client)

    patch.setattr(Departures, "_lose", lose)


def a_connect_that_was_given_up_counts(patch: pytest.MonkeyPatch) -> None:
    """Its client, which is where it was by then, is disconnected there."""

    def hear(self: Moves, asker: int, client: str, came: int) -> None:
        self.departures.hand_over(client, Asker(came, asker))

    patch.setattr(Moves, "_hear_ask", hear)


def nodes_that_meet_again_go_on_where_they_were(patch: pytest.MonkeyPatch) -> None:
    """What was sent to old homes of sessions arrives there when these are elsewhere."""
    patch.setattr(Neighbours, "part", lambda self, node: None)
    # so that more is still on its way when they meet: of a thousand histories one shows it otherwise
    patch.setattr(mailboxes, "RESEND_S", 1.2)
    patch.setattr(Moves, "_bring_back", lambda self, client, came: None)


# what it leads to, the one thing that goes wrong then, and a seed from which on it is found soon
PLANTED: dict[Callable[[pytest.MonkeyPatch], None], tuple[str, str, int]] = {
    the_old_home_forgets_at_once: ("lost", "moves", 0),
    what_waits_goes_out_before_all_has_come: ("out of order", "_lose_records", 255),
    what_is_held_is_kept: ("stuck", "moves", 0),
    old_homes_do_not_ask: ("stuck", "_kill", 0),
    what_was_taken_without_a_word_is_forgotten_at_once: ("lost", "", 2025),
    nodes_that_meet_again_go_on_where_they_were: ("lost", "", 3100),
    a_connect_that_was_given_up_counts: ("driven away", "_stand", 0),
}


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_broken_rule_is_found(plant: Callable[[pytest.MonkeyPatch], None]) -> None:
    kind, only, first = PLANTED[plant]
    expect(kind, plant, lambda seed: run(seed, only), PLANTED_SEEDS, first)
