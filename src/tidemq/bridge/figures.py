"""What is shown of a bridge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidemq.bridge.upkeep import BridgeStatus


@dataclass(frozen=True, slots=True)
class BridgeFigures:
    """One bridge now. `queued_…`: what waits here for the other side, in flight included, as of the last
    look. `counts`: since the bridge was made, by name.
    """

    name: str
    client_id: str  # of its session here
    status: BridgeStatus
    queued_messages: int
    queued_bytes: int
    counts: Mapping[str, int]
