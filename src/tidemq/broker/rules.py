"""Rules of who may publish and subscribe to what: the model, and a decision with the rule that made it.

The rules are asked in their order and the first that speaks of a case decides it; what none speaks of is
refused. The engine judges (`engine/rules.py`), here too.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Literal

from tidemq.engine.rule_row import CLIENT_MARK, PUBLISH, SUBSCRIBE, USER_MARK, RuleRow

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
Action = Literal["publish", "subscribe"]

_ACTIONS = {"publish": PUBLISH, "subscribe": SUBSCRIBE, "all": PUBLISH | SUBSCRIBE}
_IPV4 = bytes(10) + b"\xff\xff"  # in front of an IPv4 address, ::ffff:0:0/96 (RFC 4291 section 2.5.5.2)


@dataclass(frozen=True, slots=True)
class AclRule:
    """Allows or refuses an action on what a topic filter covers. None: whoever it is."""

    allows: bool
    action: Literal["publish", "subscribe", "all"]
    topic_filter: str
    qos_max: int = 2
    retain: bool | None = None  # messages that are retained, that are not; None: all
    user: str | None = None
    anonymous: bool = False  # clients without a user name only
    group: str | None = None
    client: str | None = None  # `*` stands for any characters
    network: Network | None = None
    fills_in: bool = True  # %u and %c stand for the client's names
    line: int = 0  # of its file

    def row(self) -> RuleRow:
        """The rule as the engine takes it."""
        filter_bytes = self.topic_filter.encode()
        if self.fills_in:
            filter_bytes = filter_bytes.replace(b"%u", USER_MARK).replace(b"%c", CLIENT_MARK)
        plain = (1 << self.qos_max + 1) - 1
        network, prefix = None, 0
        if self.network is not None:
            network = packed(self.network.network_address)
            prefix = self.network.prefixlen + (96 if self.network.version == 4 else 0)
        return RuleRow(
            allows=self.allows,
            actions=_ACTIONS[self.action],
            filter=filter_bytes,
            messages=(0 if self.retain else plain) | (0 if self.retain is False else plain << 3),
            user=None if self.user is None else self.user.encode(),
            no_user=self.anonymous,
            group=None if self.group is None else self.group.encode(),
            client=None if self.client is None else self.client.encode(),
            network=network,
            prefix=prefix,
        )


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


def packed(address: Address) -> bytes:
    """16 bytes, an IPv4 address as ::ffff:0:0/96."""
    return address.packed if address.version == 6 else _IPV4 + address.packed


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
    tail = RuleRow(True, _ACTIONS[action], topic.encode())
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
    from tidemq.engine.rule_book import judge_rows  # late: it loads a part of the engine

    return judge_rows(
        rows,
        _ACTIONS[action],
        topic.encode(),
        user=None if client.user is None else client.user.encode(),
        client_id=client.client_id.encode(),
        groups=[group.encode() for group in client.groups],
        address=None if client.address is None else packed(client.address),
    )


def rows_of(rules: Iterable[AclRule]) -> list[RuleRow]:
    """The rules for `Engine.set_rules`."""
    return [rule.row() for rule in rules]
