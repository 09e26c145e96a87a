"""What clients saw, and what that owes them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from tidemq.cluster.operations import Stamp


@dataclass(slots=True)
class Published:
    """One application message. `owed`: clients whose subscription its node knew of when it took it."""

    publisher: str
    number: int
    topic: str
    qos: int
    acknowledged: bool = False
    owed: set[str] = field(default_factory=set)
    after: int = 0  # its publisher's messages below this number were acknowledged before it was sent


@dataclass(slots=True)
class History:
    """All of a run. `forked`: clients that were taken over from a node that could not be asked, or served by
    two at once; `renewed`: that began a new session, and when.
    """

    messages: dict[tuple[str, int], Published] = field(default_factory=dict)
    taken: dict[str, list[tuple[str, int]]] = field(default_factory=lambda: defaultdict(list))
    once: dict[str, list[tuple[str, int]]] = field(default_factory=lambda: defaultdict(list))  # at QoS 2
    split: bool = False  # nodes could not hear each other for a while, or one was not there
    forked: set[str] = field(default_factory=set)
    reset: set[str] = field(default_factory=set)
    tried: dict[str, dict[Stamp, bytes | None]] = field(default_factory=lambda: defaultdict(dict))
    retained: dict[str, Stamp] = field(default_factory=dict)  # the last change that was acknowledged
    faults: list[str] = field(default_factory=list)

    def wrong(self, kind: str, text: str) -> None:
        """Something that is wrong whatever else happens."""
        self.faults.append(f"{kind}: {text}")

    def may_be_retained(self, topic: str) -> set[bytes | None]:
        """What the last acknowledged change has left, or one after it, which may be undone or not."""
        last = self.retained[topic]
        return {message for stamp, message in self.tried[topic].items() if stamp >= last}

    def verdict(self) -> list[str]:
        """All that is wrong with what clients got, once everything has come."""
        found = list(self.faults)
        for key, message in self.messages.items():
            for client in message.owed if message.acknowledged else ():
                if client not in self.reset and key not in self.taken[client]:
                    found.append(f"lost: {key} for {client}")
        for client, taken in self.taken.items():
            if client not in self.forked:
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
                if places.get(before, -1) > places[key] and client not in self.forked:
                    found.append(f"out of order: {before} after {key} for {client}")
        return found
