"""What plugins are told of sessions that both sides of a split cluster have had."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SessionForked:
    """A session that two nodes have had, as in a split, neither knowing of the other. One of the two goes on:
    the name and the incarnation (16 hexadecimal digits) of its node; empty: it has ended since. `is_here`:
    that is the node that says so.
    """

    client_id: str
    node: str
    incarnation: str
    is_here: bool


OnForks = Callable[[list[SessionForked]], None]
