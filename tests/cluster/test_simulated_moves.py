"""Histories of sessions that move between simulated nodes are as they should be; some are not where a rule is
broken on purpose.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from cluster.simulation.engine import Engine
from cluster.simulation.moving import run
from cluster.simulation.planting import expect

from tidemq.cluster.moves import Moves
from tidemq.cluster.stability import Stability

SEEDS_AT_ONCE = 20

PLANTED_SEEDS = 60


@pytest.mark.parametrize("first", range(0, 100, SEEDS_AT_ONCE))
def test_histories(first: int) -> None:
    wrong = {seed: found for seed in range(first, first + SEEDS_AT_ONCE) if (found := run(seed))}
    assert not wrong


def the_old_home_forgets_at_once(patch: pytest.MonkeyPatch) -> None:
    """It takes no messages any more as soon as it has handed a session over."""
    release = Engine.release
    patch.setattr(Engine, "release", lambda self, client, *, keep=False: release(self, client))


def what_waits_goes_out_before_all_has_come(patch: pytest.MonkeyPatch) -> None:
    adopt = Engine.adopt

    def send_at_once(self: Engine, *args: Any, **options: Any) -> list[Any]:
        return adopt(self, *args, **{**options, "older_may_come": False})

    patch.setattr(Engine, "adopt", send_at_once)


def ends_are_not_told_to_old_homes(patch: pytest.MonkeyPatch) -> None:
    """A session that has ended and begun anew elsewhere goes on to take messages where it was."""
    moved = Moves.moved

    def passed_over(self: Moves, client: str) -> None:
        if client not in self._handed or self._node.rows.sessions.get(client, None) is None:
            moved(self, client)

    patch.setattr(Moves, "moved", passed_over)


def what_is_held_is_kept(patch: pytest.MonkeyPatch) -> None:
    """Removals of a session that moved are not looked at again when it has come."""
    collect = Stability.collect
    patch.setattr(Stability, "collect", lambda self, *known: bool(collect(self, *known)) and False)


def old_homes_do_not_ask(patch: pytest.MonkeyPatch) -> None:
    """Where a new home is killed before it has told the old one that it may forget a session."""
    patch.setattr(Moves, "_remind", lambda self, now: None)


# what it leads to, and the one thing that goes wrong then
PLANTED: dict[Callable[[pytest.MonkeyPatch], None], tuple[str, str]] = {
    the_old_home_forgets_at_once: ("lost", "moves"),
    what_waits_goes_out_before_all_has_come: ("out of order", "_slow"),
    ends_are_not_told_to_old_homes: ("repeated", "_renew"),
    what_is_held_is_kept: ("stuck", "moves"),
    old_homes_do_not_ask: ("stuck", "_kill"),
}


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_broken_rule_is_found(plant: Callable[[pytest.MonkeyPatch], None]) -> None:
    kind, only = PLANTED[plant]
    expect(kind, plant, lambda seed: run(seed, only), PLANTED_SEEDS)
