"""Subscriptions that rules end because they refuse a part of them, before a broker runs with the rules.

Mosquitto takes every SUBSCRIBE and leaves out at delivery what a client may not read; here a filter is
allowed as a whole or not at all. So who comes from there has to know which filters that concerns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tidemq.broker.access.judging import Client, RulesByUser, decide, is_allowed
from tidemq.broker.acl_rules import AclRule

SOMEBODY = "somebody"  # a name for whom a rule does not name; one that no file of rules would


class Cut(NamedTuple):
    """The filter of a rule that allows to subscribe, to which nobody may subscribe for another rule."""

    allowed: AclRule
    refused: AclRule

    def __str__(self) -> str:
        whose = f" of user {self.refused.user!r}" if self.refused.user else ""
        return (
            f"line {self.allowed.line}: a subscription to {self.allowed.topic_filter!r} is refused "
            f"as a whole, for line {self.refused.line} refuses {self.refused.topic_filter!r}{whose}, "
            "a part of it"
        )


def find_cuts(rules: Sequence[AclRule]) -> list[Cut]:
    """Those of the rules' own filters, each once for each rule that refuses."""
    refusing = [rule for rule in rules if not rule.allows and rule.action != "publish"]
    users = {rule.user for rule in refusing if rule.user is not None}
    all_by_user, refusing_by_user = RulesByUser(rules), RulesByUser(refusing)
    cuts: dict[tuple[int, int], Cut] = {}
    for rule in rules:
        if not rule.allows or rule.action == "publish":
            continue
        for client in _clients_of(rule, users):
            topic_filter = rule.topic_filter
            if rule.fills_in:
                topic_filter = topic_filter.replace("%u", client.user or "").replace("%c", client.client_id)
            if _is_untouched(refusing_by_user.of(client.user), client, topic_filter):
                continue
            decision = decide(all_by_user.of(client.user), client, "subscribe", topic_filter)
            if decision.rule is not None and not decision.allowed:
                cuts[rule.line, decision.rule.line] = Cut(rule, decision.rule)
    return list(cuts.values())


def _is_untouched(refusing: Sequence[AclRule], client: Client, topic_filter: str) -> bool:
    """Whether none of these rules refuses a part of the filter to this client."""
    whole = AclRule(True, "subscribe", topic_filter, fills_in=False)
    return not refusing or is_allowed([*refusing, whole], client, "subscribe", topic_filter)


def _clients_of(rule: AclRule, refusing: set[str]) -> Iterator[Client]:
    """Clients that the rule is about: one, and of a rule for all users each whom another refuses something
    to.
    """
    client_id = (rule.client or SOMEBODY).replace("*", SOMEBODY)
    groups = () if rule.group is None else (rule.group,)
    address = None if rule.network is None else rule.network.network_address
    users: list[str | None] = [rule.user]
    if rule.user is None and not rule.anonymous:
        users = [SOMEBODY, *sorted(refusing)]
    for user in users:
        yield Client(client_id, user, groups, address)
