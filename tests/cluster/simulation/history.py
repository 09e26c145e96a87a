"""What clients saw, and what that owes them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from tidemq.cluster.members import BEAT_S
from tidemq.cluster.operations import Stamp

QUICK_S = BEAT_S + 0.1


@dataclass(slots=True)
class Published:
    """One application message. `owed`: clients whose subscription its node knew of when it took it."""

    publisher: str
    number: int
    topic: str
    qos: int
    acknowledged: bool = False
    owed: set[str] = field(default_factory=set)
    sent_at: float = 0.0
    node: int = 0
    after: int = 0  # its publisher's messages below this number were acknowledged before it was sent


@dataclass(slots=True)
class History:
    """All of a run. Of clients: `unasked`, whose session was taken over from a node that could not be asked,
    or closed because another node had it; `forked`, that were served by nodes that did not know of each
    other; `reset`, that began a new session.
    """

    messages: dict[tuple[str, int], Published] = field(default_factory=dict)
    taken: dict[str, list[tuple[str, int]]] = field(default_factory=lambda: defaultdict(list))
    once: dict[str, list[tuple[str, int]]] = field(default_factory=lambda: defaultdict(list))  # at QoS 2
    clocks_set: bool = False
    split: bool = False  # nodes could not hear each other for a while, or one was not there
    unasked: set[str] = field(default_factory=set)
    forked: set[str] = field(default_factory=set)
    swallowed: set[tuple[str, tuple[str, int]]] = field(default_factory=set)  # of clients that forked
    parents: dict[Stamp, Stamp | None] = field(default_factory=dict)  # of epochs: which it went on from
    reset: set[str] = field(default_factory=set)
    tried: dict[str, dict[Stamp, bytes | None]] = field(default_factory=lambda: defaultdict(dict))
    retained: dict[str, Stamp] = field(default_factory=dict)  # the last change that was acknowledged
    faults: list[str] = field(default_factory=list)

    def wrong(self, kind: str, text: str) -> None:
        """Something that is wrong whatever else happens."""
        self.faults.append(f"{kind}: {text}")

    def goes_on(self, epoch: Stamp, before: Stamp | None) -> bool:
        """Whether a session's epoch came, over others or not, of one before."""
        at: Stamp | None = epoch
        while at is not None and before is not None and at != before:
            at = self.parents[at]
        return at is not None

    def swallow(self, client: str, key: tuple[str, int], other: tuple[str, int]) -> None:
        """A client takes a message for another one, which it has, by its identifier. Where it was served by
        nodes that did not know of each other, that can be: identifiers cannot tell.
        """
        if client in self.forked:
            self.swallowed.add((client, key))
        else:
            self.wrong("swallowed", f"{key} for {client}, as {other}")

    def may_be_retained(self, topic: str) -> set[bytes | None]:
        """What the last acknowledged change has left, or one after it, which may be undone or not."""
        last = self.retained[topic]
        return {message for stamp, message in self.tried[topic].items() if stamp >= last}

    def verdict(self) -> list[str]:
        """All that is wrong with what clients got, once everything has come."""
        found = list(self.faults)
        for key, message in self.messages.items():
            for client in message.owed if message.acknowledged else ():
                excused = client in self.reset or (client, key) in self.swallowed
                if not excused and key not in self.taken[client]:
                    found.append(f"lost: {key} for {client}")
        for client, taken in self.taken.items():
            if client not in self.unasked | self.forked | self.reset:
                once = self.once[client]
                found += [f"repeated: {key} for {client}" for key in sorted(set(once)) if once.count(key) > 1]
            if not self.split:  # a message may come from the other side when a later one has come
                found += self._disordered(client, taken)
        return found

    def _disordered(self, client: str, taken: list[tuple[str, int]]) -> list[str]:
        """Of one publisher, a message before one that was acknowledged before it was even sent."""
        found = []
        first = list(dict.fromkeys(taken))
        places = {key: place for place, key in enumerate(first)}
        for key in first:
            publisher, _ = key
            for number in range(self.messages[key].after):
                before = (publisher, number)
                if places.get(before, -1) <= places[key] or client in self.unasked | self.forked:
                    continue
                if not self._is_too_quick(self.messages[before], self.messages[key]):
                    found.append(f"out of order: {before} after {key} for {client}")
        return found

    def _is_too_quick(self, before: Published, after: Published) -> bool:
        """Whether it went to another node before that could hear of a clock that had just been set."""
        return self.clocks_set and before.node != after.node and after.sent_at - before.sent_at < QUICK_S
