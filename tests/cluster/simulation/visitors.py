"""Clients that go from node to node, and what they see."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cluster.simulation.process import Hosts, Process

TOPICS = ("a", "b")
FILTERS = ("a", "b", "+")
ANSWER_S = ((0.0001, 0.002), (0.0005, 0.03))
AWAY_S = (0.02, 0.4)
SETTLED_S = 1.5  # after a CONNECT that began a session
LATER_S = 0.1  # more than clocks differ
PATIENCE_S = (0.3, 3.0, 3.0, 7.0)  # without CONNACK


@dataclass
class Sent:
    """A message, and who is owed it: those whose subscription had been acknowledged when it was sent."""

    topic: str
    owed: dict[str, int]  # with which of its sessions
    after: int  # messages of its publisher below this number were acknowledged before
    node: int  # where it was published
    sent_at: float
    acknowledged: bool = False
    acknowledged_at: float = 0.0
    refused: bool = False


@dataclass
class Journal:
    """All that clients saw, by names and numbers."""

    sent: dict[tuple[str, int], Sent] = field(default_factory=dict)
    taken: dict[str, list[tuple[str, int]]] = field(default_factory=lambda: defaultdict(list))
    answered: dict[str, dict[tuple[str, int], Process]] = field(default_factory=lambda: defaultdict(dict))
    early: set[tuple[str, tuple[str, int]]] = field(default_factory=set)  # whose session had just begun
    again: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    unquiet: bool = False  # a node died, or was cut off
    settled_s: float = SETTLED_S  # or longer, where something of a session that leaves stays open
    clocks_set: bool = False
    joined_at: float = -1000.0  # when a connection of two nodes that had broken was last there again

    def wrong(self, kind: str, text: str) -> None:
        """Something that is wrong whatever else happens."""
        self.faults.append(f"{kind}: {text}")


class Visit:
    """A connection: what goes to the client arrives in order."""

    def __init__(self, process: Process, client: Subscriber, *, clean: bool) -> None:
        self.process = process
        self.client = client
        self.clean = clean
        self.sent: set[int] = set()  # places of messages that went out on it
        self.is_over = False
        self.begun_at = self._last = process.world.now
        self.before = client.came_at  # when its client had come before

    def send(self, place: int, payload: bytes) -> None:
        """PUBLISH."""
        self.sent.add(place)
        world = self.process.world
        self._last = max(self._last, world.now + world.choose.uniform(*world.choose.choice(ANSWER_S)))
        world.at(self._last - world.now, lambda: self.client.on_publish(self, place, payload))

    def end(self) -> None:
        """The broker ends it, or its client."""
        if not self.is_over:
            self.is_over = True
            self.client.on_end(self)

    def drive_away(self) -> None:
        """The broker ends it, for its session is to go to another node."""
        if not self.is_over:
            self.client.on_driven_away(self)
        self.end()


class Subscriber:
    """Has one session after the other, each with one subscription."""

    def __init__(self, world: Hosts, journal: Journal, name: str) -> None:
        self.name = name
        self.session = 1  # how many it has had
        self.visit: Visit | None = None
        self.subscribed = False
        self.came_at = -1000.0
        self._has_session = False
        self._begun_at = self._ended_at = 0.0
        self._world = world
        self._journal = journal
        self.topic_filter = world.choose.choice(FILTERS)

    def connect(self, *, clean: bool = False) -> None:
        """To any node that serves; else later."""
        self.leave()
        world = self._world
        serving = [host.broker for host in world.machines if host.broker and host.broker.serves]
        if clean:
            self._forget()  # it may be over from now on
        if not serving:
            world.at(0.2, self.come_back)
            return
        self.connect_to(world.choose.choice(serving), clean=clean)

    def connect_to(self, process: Process, *, clean: bool = False) -> None:
        """To this node, which serves."""
        self.leave()
        visit = self.visit = process.connect(self, clean=clean)
        self.came_at = visit.begun_at
        self._world.at(self._world.choose.choice(PATIENCE_S), lambda: self._give_up(visit))

    def come_back(self) -> None:
        """If it is away."""
        if self.visit is None:
            self.connect()

    def give_up(self) -> None:
        """If it waits for CONNACK: it comes again, elsewhere perhaps."""
        if self.visit is not None:
            self._give_up(self.visit)

    def _give_up(self, visit: Visit) -> None:
        if visit is self.visit and not visit.process.engine.is_here(visit):
            visit.end()

    def _forget(self) -> None:
        self.session += 1
        self._ended_at = self._world.now  # perhaps
        self.subscribed = self._has_session = False

    def leave(self, *, ends: bool = False) -> None:
        """Goes, and with `ends` has its session end."""
        visit, self.visit = self.visit, None
        if visit is None:
            return
        visit.is_over = True
        if not visit.process.is_over:
            if ends and visit.process.engine.is_here(visit):
                self._forget()
            visit.process.engine.disconnect(visit, ends=ends)

    def on_end(self, visit: Visit) -> None:
        if visit is self.visit:
            self.visit = None
            self._world.at(self._world.choose.uniform(*AWAY_S), self.come_back)

    def on_driven_away(self, visit: Visit) -> None:
        """It has not come anywhere since then. Where no connection was broken since, the node that it came
        to before has heard that it came here.
        """
        journal = self._journal
        long_ago = visit.begun_at - visit.before > LATER_S
        is_told = not self._world.cut and journal.joined_at < visit.before
        if visit is self.visit and long_ago and is_told and not (journal.unquiet or journal.clocks_set):
            journal.wrong("driven away", f"{self.name} from {visit.process.host.name}")

    def on_connack(self, visit: Visit, *, present: bool) -> None:
        if visit is not self.visit:
            return
        if self._has_session and not present:
            self._journal.wrong("session lost", self.name)
            self._forget()
        if not present:
            self._begun_at = visit.begun_at
            if self.session > 1:
                self.topic_filter = self._world.choose.choice(FILTERS)
            self._journal.answered[self.name].clear()
        self._has_session = True
        if not self.subscribed:
            visit.process.engine.subscribe(visit, self.topic_filter)

    def on_suback(self, visit: Visit) -> None:
        if visit is self.visit:
            self.subscribed = True

    def on_publish(self, visit: Visit, place: int, payload: bytes) -> None:
        if visit is not self.visit:
            return
        publisher, _, number = payload.decode().partition(":")
        key, journal = (publisher, int(number)), self._journal
        before, sent = journal.answered[self.name].get(key), journal.sent.get(key)
        # what a session gets that has just begun, its old home may add, too, until it has heard of the end
        settled = sent is not None and sent.sent_at - max(self._begun_at, self._ended_at) > journal.settled_s
        if not settled:
            journal.early.add((self.name, key))
        if before is not None and not before.is_over and settled and not journal.unquiet:
            journal.wrong("repeated", f"{key} for {self.name}")
        if sent is None or (settled and self.topic_filter not in (sent.topic, "+")):
            journal.wrong("phantom", f"{key} for {self.name}")
        elif sent.acknowledged and sent.acknowledged_at < self._begun_at:
            journal.wrong("resurrected", f"{key} for {self.name}, whose session began later")
        journal.taken[self.name].append(key)
        world = self._world

        def answer() -> None:
            here = visit is self.visit and not visit.process.is_over and visit.process.engine.is_here(visit)
            if here and visit.process.engine.acknowledge(visit, place):
                journal.answered[self.name][key] = visit.process

        world.at(world.choose.uniform(*world.choose.choice(ANSWER_S)), answer)


class Publisher:
    """Publishes anywhere, each message once: what is refused may have come or not."""

    def __init__(self, world: Hosts, journal: Journal, name: str) -> None:
        self.name = name
        self._world = world
        self._journal = journal
        self._number = self._acknowledged = 0

    @property
    def last_acknowledged(self) -> bool:
        """Whether its last message was."""
        return self._journal.sent[self.name, self._number - 1].acknowledged

    def publish_again(self, subscribers: list[Subscriber]) -> None:
        """If its last message was refused."""
        if self._journal.sent[self.name, self._number - 1].refused:
            self.publish(subscribers)

    def publish(self, subscribers: list[Subscriber]) -> None:
        """The next message."""
        world = self._world
        serving = [host.broker for host in world.machines if host.broker and host.broker.serves]
        if not serving:
            return
        key, topic = (self.name, self._number), world.choose.choice(TOPICS)
        self._number += 1
        owed = {
            each.name: each.session
            for each in subscribers
            if each.subscribed and each.topic_filter in (topic, "+")
        }
        process = world.choose.choice(serving)
        sent = self._journal.sent[key] = Sent(topic, owed, self._acknowledged, process.own, world.now)

        def done(kept: bool) -> None:
            sent.acknowledged, sent.acknowledged_at, sent.refused = kept, world.now, not kept
            if kept and key[1] == self._acknowledged:
                self._acknowledged += 1

        process.engine.publish(topic, b"%s:%d" % (key[0].encode(), key[1]), done)
