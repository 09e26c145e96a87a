"""Which side of a split goes on, where only one shall: `cluster_split = "pause_minority"`."""

from __future__ import annotations

from math import inf
from typing import Literal

from tidemq.cluster.members import Members

Split = Literal["go_on", "pause_minority"]


class Minority:
    """Of one node, on the keeper's thread.

    A node that is in touch with no more than half of the members, itself among them, pauses: it stores
    nothing for clients, and takes nobody's sessions. In touch are nodes that hear each other: where links
    carry one way only, who is not heard is dead for the others. It judges earlier than members are taken for
    dead: the first of those whom it does not hear any more is not to be taken over before the last is missed.
    For the same reason it goes on only when it has heard enough for as long: all that are there have been
    heard then.
    """

    def __init__(self, members: Members, split: Split) -> None:
        self._members = members
        self._split = split
        self._touched = self._all = 1
        self._few_at = -inf  # when there were no more than half
        self.pauses = False

    def look(self, now: float) -> bool:
        """Whether it begins to pause now."""
        before = self.pauses
        self._touched = self._members.in_touch(now)
        self._all = len(self._members.incarnations)
        if 2 * self._touched <= self._all:
            self._few_at = now
        wanted = self._split == "pause_minority"
        self.pauses = wanted and now - self._few_at < self._members.suspect_s / 3
        return self.pauses and not before

    @property
    def problem(self) -> str:
        """Why it pauses, in words; empty: it does not."""
        if not self.pauses:
            return ""
        if 2 * self._touched > self._all:
            return f"{self._touched} of {self._all} nodes are in touch here again: it goes on in a moment"
        return (
            f"{self._touched} of {self._all} nodes are in touch here, no more than half: what would have to"
            " be stored is refused"
        )
