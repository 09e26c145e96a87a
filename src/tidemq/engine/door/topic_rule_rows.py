"""Rules of topics as the engine takes them, see `EngineView.change_topic_rules`."""

from __future__ import annotations

from typing import NamedTuple

REWRITES_PUBLISH = 1  # the actions
REWRITES_SUBSCRIBE = 2


class TopicRuleRows(NamedTuple):
    """All of them.

    `rewrites`: filter, new name, actions. `lifetimes`: filter, ms. `subscriptions`: filter with the marks of
    `rule_row` for the client's names, options as in SUBSCRIBE. No delay (`delay_s_max` 0): nothing may be
    delayed.
    """

    rewrites: tuple[tuple[bytes, bytes, int], ...] = ()
    lifetimes: tuple[tuple[bytes, int], ...] = ()
    subscriptions: tuple[tuple[bytes, int], ...] = ()
    exclusive: bool = False
    delay_s_max: int = 0
    delayed_max: int = 0
    delayed_bytes_max: int = 0
