"""What the rules say of a case, and which of them decided it, without a broker: for the tools and the review.

The engine judges, here too; this finds the rule.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tidemq.broker.acl_rules import ACTIONS, AclRule, Address, packed, rows_of
from tidemq.engine.door.rule_row import RuleRow

Action = Literal["publish", "subscribe"]


@dataclass(frozen=True, slots=True)
class Client:
    """Whom a decision is about."""

    client_id: str
    user: str | None = None
    groups: tuple[str, ...] = ()
    address: Address | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether it is allowed, and by which rule; None: none speaks of it, so it is refused."""

    allowed: bool
    rule: AclRule | None


class RulesByUser:
    """Rules by whom they are about: of a hundred thousand few are about one client."""

    def __init__(self, rules: Sequence[AclRule]) -> None:
        self._rules = rules
        self._named: dict[str | None, list[int]] = {None: []}  # None: of clients without a user name
        self._all: list[int] = []
        for place, rule in enumerate(rules):
            if rule.user is None and not rule.anonymous:
                self._all.append(place)
            else:
                self._named.setdefault(rule.user, []).append(place)

    def of(self, user: str | None) -> list[AclRule]:
        """Those that may decide of this user, in their order."""
        return [self._rules[place] for place in sorted(self._named.get(user, []) + self._all)]


def is_allowed(rules: Sequence[AclRule], client: Client, action: Action, topic: str) -> bool:
    """As `decide` at QoS 0, and much quicker, but not by which rule."""
    return bool(_judge(rows_of(rules), client, action, topic) & 1)


def decide(
    rules: Sequence[AclRule],
    client: Client,
    action: Action,
    topic: str,
    *,
    qos: int = 0,
    retain: bool = False,
) -> Decision:
    """What the rules say of a message to a topic, or of a subscription to a filter at this QoS or below.

    Topics that begin with `$` are refused to publishers before any rule is asked: that is not decided here.
    """
    rows = rows_of(rules)
    # the last of all: what a rule has decided, this one cannot change
    tail = RuleRow(True, ACTIONS[action], topic.encode())
    messages = (1 << qos + 1) - 1 if action == "subscribe" else 1 << qos + 3 * retain

    def is_decided(count: int) -> bool:
        """Whether one of the first rules has decided it."""
        found = (_judge([*rows[:count], *more], client, action, topic) for more in ([], [tail]))
        return len({bool(each & messages) for each in found}) == 1

    first = bisect_left(range(len(rows) + 1), True, key=is_decided)
    if first > len(rows):
        return Decision(False, None)
    return Decision(bool(_judge(rows, client, action, topic) & messages), rules[first - 1])


def _judge(rows: Sequence[RuleRow], client: Client, action: Action, topic: str) -> int:
    from tidemq.engine.door.rule_book import judge_rows  # late: it loads a part of the engine

    return judge_rows(
        rows,
        ACTIONS[action],
        topic.encode(),
        user=None if client.user is None else client.user.encode(),
        client_id=client.client_id.encode(),
        groups=[group.encode() for group in client.groups],
        address=None if client.address is None else packed(client.address),
    )
