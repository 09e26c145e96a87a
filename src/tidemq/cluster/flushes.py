"""That what nodes sent before they knew of something has arrived.

A node says what it wants of the others' messages from now on. What these sent elsewhere a moment before is
still on its way then, however long that takes. So it may ask them to say when all of it has arrived: a
session that has moved is forgotten at its old home only then.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from tidemq.cluster.mailboxes import Outgoing

SETTLE_S = 0.05  # until what a turn of the engine has written, that did not know yet, is a letter
OWN = 0  # this node, among those that are waited for


@dataclass(slots=True)
class _Asked:
    """By a node, or this one. `letters`: the last that did not know, to each node; None: not yet."""

    source: int
    number: int
    at: float
    letters: list[tuple[Outgoing, int]] | None = None


@dataclass(slots=True)
class Flushes:
    """Of one node. The caller has its lock."""

    # by announcement: nodes that have not answered; None: nobody was asked yet
    _waits: dict[int, set[int] | None] = field(default_factory=dict)
    _asked: list[_Asked] = field(default_factory=list)

    def want(self, number: int) -> None:
        """An announcement is done when all have answered."""
        self._waits[number] = None

    def is_wanted(self, number: int) -> bool:
        """Whether it is one of these."""
        return number in self._waits

    def begin(self, number: int, nodes: Sequence[int]) -> None:
        """These were asked; this node is, too."""
        self._waits[number] = {OWN, *nodes}
        self._asked.append(_Asked(OWN, number, 0.0))

    def ask(self, source: int, number: int, now: float) -> None:
        """A node asks."""
        self._asked.append(_Asked(source, number, now))

    def hear(self, source: int, number: int) -> None:
        """A node has answered; one that was not asked says nothing new."""
        waits = self._waits.get(number)
        if waits is not None:
            waits.discard(source)

    def forget(self, node: int) -> None:
        """It has ended, and with it all that it was about to send, or it begins anew and knows."""
        for number in self._waits:
            self.hear(node, number)
        self._asked = [each for each in self._asked if each.source != node]

    def take_done(
        self, outgoing: Sequence[Outgoing], apart: Collection[int], now: float
    ) -> list[tuple[int, int]]:
        """Who asked, and about which announcement, where all has arrived by now. `outgoing`: to all nodes
        that are there; what goes to others is not waited for. `apart`: nodes to which nothing is sent yet,
        whatever they want: what they ask about begins when that counts.
        """
        done = []
        for each in list(self._asked):
            if each.source in apart:
                each.at = now
                continue
            each.at = each.at or now
            if each.letters is None and now - each.at >= SETTLE_S:
                each.letters = [(one, one.last) for one in outgoing]
            if each.letters is None or any(
                one.answered < last for one, last in each.letters if any(one is there for there in outgoing)
            ):
                continue
            self._asked.remove(each)
            if each.source == OWN:
                self.hear(OWN, each.number)
            else:
                done.append((each.source, each.number))
        return done

    def is_done(self, number: int) -> bool:
        """Whether all that are there have answered; it need not be asked for again then."""
        waits = self._waits.get(number, set())
        if waits is None or waits:
            return False
        self._waits.pop(number, None)
        return True
