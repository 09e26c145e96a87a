"""Who a node is, and what it does where it has not the copies, or the others, that it should have."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidemq.cluster.members import SUSPECT_S
from tidemq.cluster.membership import Patience
from tidemq.cluster.minority import Split
from tidemq.cluster.promises import Acks, Degraded


@dataclass(frozen=True, slots=True)
class Identity:
    """`acks`: how many copies a message has when it is safe; `degraded`: and where there are not so many.
    `split`: where not all nodes hear each other.
    """

    cluster: str
    name: str
    address: str
    acks: Acks = "two"
    degraded: Degraded = "acknowledge"
    skew_s_max: float = 5.0
    suspect_s: float = SUSPECT_S  # without a word of a node, or a copy of a record
    split: Split = "go_on"
    patience: Patience = field(default_factory=Patience)
