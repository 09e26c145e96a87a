"""Rules of who may publish and subscribe to what, as users and providers state them.

They are asked in their order and the first that speaks of a case decides it; what none speaks of is refused.
The engine judges (`Engine.set_rules`); `access/judging` asks it without a broker.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Literal

from tidemq.engine.door.rule_row import CLIENT_MARK, PUBLISH, SUBSCRIBE, USER_MARK, RuleRow

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

ACTIONS = {"publish": PUBLISH, "subscribe": SUBSCRIBE, "all": PUBLISH | SUBSCRIBE}
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
            actions=ACTIONS[self.action],
            filter=filter_bytes,
            messages=(0 if self.retain else plain) | (0 if self.retain is False else plain << 3),
            user=None if self.user is None else self.user.encode(),
            no_user=self.anonymous,
            group=None if self.group is None else self.group.encode(),
            client=None if self.client is None else self.client.encode(),
            network=network,
            prefix=prefix,
        )


def packed(address: Address) -> bytes:
    """16 bytes, an IPv4 address as ::ffff:0:0/96."""
    return address.packed if address.version == 6 else _IPV4 + address.packed


def rows_of(rules: Iterable[AclRule]) -> list[RuleRow]:
    """The rules for `Engine.set_rules`."""
    return [rule.row() for rule in rules]
