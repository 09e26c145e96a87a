"""Names and rules of access as tokens and webhooks state them, in JSON."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from tidemq.broker.acl_rules import AclRule
from tidemq.broker.providers import NAME_CHARACTERS_MAX, is_name
from tidemq.wire.topics import topic_filter_fault

RULES_MAX = 1000  # of one client


def _check_name(text: str) -> str:
    if not is_name(text):
        raise ValueError(f"1 to {NAME_CHARACTERS_MAX} printable characters")
    return text


def _check_filter(text: str) -> str:
    if text.startswith("$share/") or topic_filter_fault(text):
        raise ValueError("a topic filter, without $share/GROUP/")
    return text


Name = Annotated[str, AfterValidator(_check_name)]


class ClaimedRule(BaseModel):
    """One rule: `{"permission": "allow", "action": "publish", "topic": "plant/%u/#"}`."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    permission: Literal["allow", "deny"]
    action: Literal["publish", "subscribe", "all"]
    topic: Annotated[str, Field(min_length=1, max_length=65_535), AfterValidator(_check_filter)]
    qos_max: Annotated[int, Field(ge=0, le=2)] = 2
    retain: bool | None = None


AclClaim = Annotated[list[ClaimedRule], Field(max_length=RULES_MAX)]


def rules_of(claim: list[ClaimedRule]) -> tuple[AclRule, ...]:
    """The rules in their order."""
    return tuple(
        AclRule(each.permission == "allow", each.action, each.topic, each.qos_max, each.retain)
        for each in claim
    )
