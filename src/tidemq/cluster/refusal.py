"""What becomes of publishers when there is no copy and `cluster_degraded` is `refuse`, and of clients of a
node that pauses.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tidemq.broker.providers import IMPLEMENTATION_SPECIFIC_ERROR
from tidemq.cluster.promises import Kept, Promises

if TYPE_CHECKING:
    from tidemq.engine import StoreAccess


class Refusal:
    """Of one node; on the keeper's thread. What is stored stays so (docs/decisions/0011); what comes while
    there is no copy is refused before it is stored, or each publisher would store it again and again.

    `counts`: batches that had no copy, `cluster_acknowledged_degraded` or `cluster_unacknowledged_degraded`.
    """

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts
        self._batches: dict[int, None] = {}  # that were refused, in order
        self._refuses = False

    def note(self, kept: Kept) -> None:
        """A batch's promises are settled."""
        if kept.refused:
            self._counts["cluster_unacknowledged_degraded"] += 1
            self._batches[kept.number] = None
        elif kept.degraded:
            self._counts["cluster_acknowledged_degraded"] += 1

    def covers(self, number: int) -> bool:
        """Whether what is owed for this batch is not to be said."""
        return number in self._batches

    def forget_before(self, number: int) -> None:
        """Nothing is owed for batches before this one."""
        while self._batches and (first := next(iter(self._batches))) < number:
            del self._batches[first]

    def follow(self, promises: Promises, access: StoreAccess, otherwise: int | None, *, pauses: bool) -> None:
        """Has the engine refuse publishers as long as there are no copies; while the node `pauses`, all that
        it would have to store. `otherwise`: the reason that it refuses what it would have to store for
        anyway, 0: for none; None: it refuses more than that.
        """
        if (promises.refuses or pauses) and otherwise is not None:
            access.refuse(IMPLEMENTATION_SPECIFIC_ERROR, messages_only=not pauses)
            self._refuses = True
        elif self._refuses:
            self._refuses = False
            if otherwise is not None:
                access.refuse(otherwise)
