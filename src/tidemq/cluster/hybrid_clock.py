"""Time that never goes back and never falls behind what was heard from others.

Source: Kulkarni et al., "Logical Physical Clocks and Consistent Snapshots in Globally Distributed
Databases", 2014. Here the logical part is the lowest bits of the nanoseconds, as in message ids; and a node
whose clock is behind goes on at the pace of the fastest, or a publisher that moves to it between two
heartbeats would overtake itself.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from tidemq.errors import ClusterError

STEP_NS = 64  # ids have the reactor in the bits below


class HybridClock:
    """Nanoseconds of the wall clock, each given once; `raise_to` keeps it above what others have given."""

    def __init__(self, wall_ns: Callable[[], int], *, skew_s_max: float, last_ns: int = 0) -> None:
        self._wall_ns = wall_ns
        self._skew_ns = int(skew_s_max * 1e9)
        self._last_ns = last_ns
        self._lead_ns = 0  # of the fastest clock that was heard, before our own

    @property
    def last_ns(self) -> int:
        """The highest that was given or heard of; `last_ns` of the next one after a restart."""
        return self._last_ns

    def next_ns(self) -> int:
        """A time above all before."""
        now = self._wall_ns() + self._lead_ns
        self._last_ns = max(now // STEP_NS * STEP_NS, self._last_ns + STEP_NS)
        return self._last_ns

    def raise_to(self, heard_ns: int) -> None:
        """Nothing given from now on is below what another node has given, nor, by more than a message takes,
        below what it gives while nothing is heard of it.
        """
        self._last_ns = max(self._last_ns, heard_ns // STEP_NS * STEP_NS)
        self._lead_ns = max(self._lead_ns, heard_ns - self._wall_ns())

    def check(self, wall_ns: int, whose: str) -> None:
        """ClusterError where another node's wall clock is too far from ours to be in one cluster."""
        ours = self._wall_ns()
        if abs(wall_ns - ours) > self._skew_ns:
            theirs, own = (datetime.fromtimestamp(each / 1e9, UTC) for each in (wall_ns, ours))
            raise ClusterError(
                f"the clock of {whose} says {theirs} and ours {own}: they may be at most"
                f" {self._skew_ns / 1e9:g} s apart (cluster_skew_s_max)"
            )
