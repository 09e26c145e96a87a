"""One history by a seed of sessions that move between nodes as they really do, and the verdict."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from unittest import mock

from cluster.simulation.engine import ToldWronglyError
from cluster.simulation.history import QUICK_S
from cluster.simulation.process import OPEN_S, Host, Hosts, Process, SimulatedGiver
from cluster.simulation.visitors import Publisher, Sent, Subscriber

from tidemq.cluster import departures, sharing

WORK_S = 4.0
REST_S = 25.0  # at most, until all has come
QUIET_S = 3.0  # at least
PUBLISH_S = (0.01, 0.25)
MOVE_S = (0.05, 0.8)
MISHAP_S = (0.3, 1.5)
BURST = 4  # messages
# in place of longer times, as histories are short: a disk stands still for longer than two of these
DOUBLES_S = 2.0
REMIND_S = REMIND_S_MAX = 0.7
HELD_S = (0.0, 0.05, 0.6, 2.5)  # for so long something of sessions that are to leave is open
STEADY_S = 0.8  # between two breaks of a connection
SPLIT_S = (1.7, 2.0, 2.5, 3.5)
HOPS_S = (0.002, 0.02, 0.05, 0.15)  # until a client that is in a hurry goes on
ON_ITS_WAY_S = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.3, 0.6)  # what befalls a session, after CONNECT


@contextmanager
def simulated(world: Hosts) -> Iterator[None]:
    """Clocks and what is drawn at random are the world's."""
    numbers = iter(range(1, 1000))  # incarnations

    def wall_ns() -> int:
        return world.wall_ns(world.current)

    def monotonic() -> float:
        return world.now

    def token_bytes(size: int) -> bytes:
        return next(numbers).to_bytes(size)

    with (
        mock.patch("time.monotonic", monotonic),
        mock.patch("time.time_ns", wall_ns),
        mock.patch("secrets.randbits", world.choose.getrandbits),
        mock.patch("secrets.token_bytes", token_bytes),
        mock.patch("tidemq.cluster.keeping.Giver", SimulatedGiver),
        mock.patch.multiple(departures, REMIND_S=REMIND_S, REMIND_S_MAX=REMIND_S_MAX),
        mock.patch.object(sharing, "DOUBLES_S", DOUBLES_S),
    ):
        before = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(before)


class Run:
    """A cluster of three or four nodes, its clients, and what befalls them."""

    def __init__(self, seed: int, only: str = "") -> None:
        """`only`: the name of the one thing that goes wrong."""
        self.world = Hosts(seed, 3 + (seed % 3 == 0))
        choose, journal = self.world.choose, self.world.journal
        self.subscribers = [
            Subscriber(self.world, journal, f"s{each}") for each in range(choose.randint(1, 4))
        ]
        self.publishers = [Publisher(self.world, journal, f"p{each}") for each in range(choose.randint(1, 3))]
        self._steady_at: dict[tuple[int, int], float] = {}  # links that have been broken
        self._mishaps: list[Callable[[], None]] = [
            mishap
            for mishap, part in (
                (self._kill, 0.5),
                (self._set_clock, 0.4),
                (self._renew, 0.4),
                (self._slow, 0.5),
                (self._lose_records, 0.5),
                (self._break, 0.4),
                (self._stand, 0.3),
                (self._hold, 0.4),
                (self._split, 0.4),
            )
            if only == mishap.__name__ or (not only and choose.random() < part)
        ]
        if self._hold in self._mishaps:
            journal.settled_s += max(HELD_S)
        if self._renew in self._mishaps and self._split in self._mishaps:
            self._mishaps.remove(self._renew)  # on the other side the session that has ended goes on
        self._on_the_way: dict[Callable[[], None], Callable[[int, int], None]] = {
            self._kill: self._kill_one,
            self._break: self._break_between,
            self._stand: self._stand_of_one,
        }

    def __call__(self) -> list[str]:
        """Runs it; gives what was wrong."""
        with simulated(self.world):
            try:
                return self._run()
            except ToldWronglyError as error:
                return [f"told wrongly: {error}"]

    def _run(self) -> list[str]:
        world = self.world
        for host in world.machines:
            host.start()
        world.run(1.2)
        for subscriber in self.subscribers:
            subscriber.connect()
        world.run(1.6)
        self._ends_at = world.now + WORK_S
        self._again(self._publish, PUBLISH_S)
        self._again(self._move, MOVE_S)
        if self._mishaps:
            self._again(lambda: world.choose.choice(self._mishaps)(), MISHAP_S)
        world.run(self._ends_at)
        self._heal()
        world.run(self._ends_at + QUIET_S)
        while (found := self._verdict()) and world.now < self._ends_at + REST_S:
            for publisher in self.publishers:
                publisher.publish_again(self.subscribers)
            world.run(world.now + 1.0)
        return found

    def _again(self, act: Callable[[], None], every: tuple[float, float]) -> None:
        if self.world.now < self._ends_at:
            act()
            self.world.at(self.world.choose.uniform(*every), lambda: self._again(act, every))

    def _publish(self) -> None:
        self.world.choose.choice(self.publishers).publish(self.subscribers)

    def _move(self) -> None:
        """Elsewhere; now and then at once once more; or away for a while."""
        choose = self.world.choose
        subscriber = choose.choice(self.subscribers)
        if choose.random() < 0.25:
            subscriber.leave()
            self.world.at(choose.uniform(0.05, 1.0), subscriber.come_back)
            return
        subscriber.connect()
        self._befall(subscriber)
        for _ in range(choose.choice((0, 0, BURST))):
            self.world.at(choose.uniform(0.0, 0.2), self._publish)
        chance = choose.random()
        if chance < 0.4:
            self.world.at(choose.choice((0.002, 0.03, 0.1, 0.3)), subscriber.connect)
        elif chance < 0.55:
            self._hurry(subscriber, choose.randint(2, 3))
        elif chance < 0.7:
            self.world.at(choose.choice((0.005, 0.02, 0.1)), subscriber.give_up)

    def _hurry(self, subscriber: Subscriber, hops: int) -> None:
        """From node to node."""
        choose, delay_s = self.world.choose, 0.0
        for _ in range(hops):
            delay_s += choose.choice(HOPS_S)
            self.world.at(delay_s, subscriber.connect)

    def _befall(self, subscriber: Subscriber) -> None:
        """What goes wrong with one of the two nodes, or between them, while the session is on its way."""
        acts = [act for mishap, act in self._on_the_way.items() if mishap in self._mishaps]
        if subscriber.visit is None or not acts or self.world.choose.random() < 0.6:
            return
        new = subscriber.visit.process
        session = new.keeper.rows.sessions.get(subscriber.name, None)
        old = self.world.hosts.get(session.row.home) if session is not None else None
        if old is not None and old != new.host.index:
            act = partial(self.world.choose.choice(acts), old, new.host.index)
            delay_s = self.world.choose.choice(ON_ITS_WAY_S)
            if self.world.now + delay_s < self._ends_at:
                self.world.at(delay_s, act)

    # --- what goes wrong ---------------------------------------------------------------------------

    def _hosts(self) -> list[Host]:
        return self.world.machines

    def _kill(self) -> None:
        self._kill_one(*range(len(self._hosts())))

    def _kill_one(self, *indices: int) -> None:
        """One at a time: two copies are two."""
        world = self.world
        if all(host.broker is not None and host.broker.serves for host in self._hosts()):
            host = self._hosts()[world.choose.choice(indices)]
            world.journal.unquiet = True
            host.kill()
            world.at(world.choose.choice((0.1, 1.0, 3.0)), host.start)

    def _break(self) -> None:
        self._break_between(*self._link())

    def _break_between(self, one: int, other: int) -> None:
        """The connections of two nodes, or one of them, for less time than a node may be silent."""
        choose = self.world.choose
        links = choose.choice(([(one, other)], [(other, one)], [(one, other), (other, one)]))
        for link in links:
            for_s = choose.choice((0.01, 0.1, 0.3, 0.7))
            if self._is_steady(link):
                self._steady_at[link] = self.world.now + for_s + STEADY_S
                self.world.cut_off(link)
                self.world.at(for_s, partial(self.world.connect, link))

    def _split(self) -> None:
        """Some nodes do not hear the others for longer than a node may be silent, or are not heard. Both
        sides go on.
        """
        choose, world, count = self.world.choose, self.world, len(self._hosts())
        side, for_s = choose.sample(range(count), choose.randint(1, count - 1)), choose.choice(SPLIT_S)
        across = [
            link for link in itertools.permutations(range(count), 2) if (link[0] in side) != (link[1] in side)
        ]
        links = [link for link in across if link[0] in side] if choose.random() < 0.25 else across
        if all(map(self._is_steady, links)) and world.now + for_s < self._ends_at:
            world.journal.unquiet = True
            for link in links:
                self._steady_at[link] = world.now + for_s + STEADY_S
                world.cut_off(link)
                world.at(for_s, partial(world.connect, link))

    def _is_steady(self, link: tuple[int, int]) -> bool:
        """Whether heartbeats have come on it, so that it may be silent again."""
        return link not in self.world.slow and self.world.now >= self._steady_at.get(link, 0.0)

    def _stand(self) -> None:
        self._stand_of_one(*range(len(self._hosts())))

    def _stand_of_one(self, *indices: int) -> None:
        """A disk stands still, for longer than much is waited for; heartbeats go on."""
        host = self._hosts()[self.world.choose.choice(indices)]
        if host.broker is not None and host.broker.serves:
            host.broker.stand(self.world.choose.choice((0.2, 0.7, 1.2, 2.4)))

    def _hold(self) -> None:
        """Something of sessions that are to leave stays open."""
        self.world.open_s = HELD_S
        self.world.at(self.world.choose.uniform(0.5, 1.5), partial(setattr, self.world, "open_s", OPEN_S))

    def _link(self) -> tuple[int, int]:
        return self.world.choose.choice(list(itertools.permutations(range(len(self._hosts())), 2)))

    def _slow(self) -> None:
        """All that goes one way, so that heartbeats come in time still."""
        link = self._link()
        if not self._is_steady(link):
            return
        self.world.slow[link] = self.world.choose.choice((0.05, 0.3, 0.8))
        self.world.at(self.world.choose.choice((0.5, 1.2)), partial(self.world.restore, link))

    def _lose_records(self) -> None:
        """They are fetched later."""
        link = self._link()
        self.world.losing.add(link)
        self.world.at(self.world.choose.choice((0.1, 0.5)), partial(self.world.losing.discard, link))

    def _set_clock(self) -> None:
        host = self.world.choose.choice(self._hosts())
        self.world.journal.clocks_set = True
        host.skew_ns = self.world.choose.randint(-2_000_000_000, 2_000_000_000)

    def _renew(self) -> None:
        """A new session, here or there, or the end of the one that there is."""
        subscriber = self.world.choose.choice(self.subscribers)
        if self.world.choose.random() < 0.5:
            subscriber.connect(clean=True)
        else:
            subscriber.leave(ends=True)
            self.world.at(self.world.choose.uniform(0.01, 0.5), subscriber.come_back)

    # --- the end -----------------------------------------------------------------------------------

    def _heal(self) -> None:
        self._mishaps.clear()
        self.world.slow.clear()
        self.world.losing.clear()
        for link in list(self.world.cut):
            self.world.connect(link)
        for host in self._hosts():
            host.start()
        for subscriber in self.subscribers:
            self.world.at(0.5, subscriber.come_back)
        for publisher in self.publishers:
            self.world.at(2.5, lambda each=publisher: each.publish(self.subscribers))  # type: ignore[misc]

    def _verdict(self) -> list[str]:
        journal, found = self.world.journal, list(self.world.journal.faults)
        for key, sent in journal.sent.items():
            for subscriber in self.subscribers if sent.acknowledged else ():
                owed = sent.owed.get(subscriber.name) == subscriber.session
                if owed and key not in journal.taken[subscriber.name]:
                    found.append(f"lost: {key} for {subscriber.name}")
        for subscriber in self.subscribers:
            if not subscriber.subscribed or subscriber.visit is None:
                found.append(f"stuck: {subscriber.name} is not served")
            if not journal.unquiet:
                found += self._disordered(subscriber.name)
        running = [host.broker for host in self._hosts() if host.broker is not None]
        for publisher in self.publishers:
            if not publisher.last_acknowledged:
                found.append(f"stuck: the last message of {publisher.name} is not acknowledged")
        for process in running:
            if not process.serves:
                found.append(f"stuck: {process.host.name} {process.phase}")
                continue
            found += self._left_over(process)
        if len({process.keeper.rows.digest() for process in running}) > 1:
            found.append("digests differ")
        return found

    def _left_over(self, process: Process) -> list[str]:
        keeper, name = process.keeper, process.host.name
        names = ("log", "ends", "gone", "entries", "payloads", "removed")
        left = [each for each in names if any(True for _ in getattr(keeper.rows, each).all())]
        found = [f"stuck: {name} has {', '.join(left)}"] if left else []
        if not keeper.moves.is_quiet:
            found.append(f"stuck: {name} has sessions on their way")
        return found

    def _disordered(self, name: str) -> list[str]:
        """Of one publisher, a message before one that was acknowledged before it was even sent."""
        journal = self.world.journal
        places = {key: place for place, key in reversed(list(enumerate(journal.taken[name])))}
        return [
            f"out of order: {publisher}:{number} after {publisher}:{later} for {name}"
            for publisher, later in places
            for number in range(journal.sent[publisher, later].after)
            if places.get((publisher, number), -1) > places[publisher, later]
            and (name, (publisher, number)) not in journal.early
            and not self._is_too_quick(journal.sent[publisher, number], journal.sent[publisher, later])
        ]

    def _is_too_quick(self, before: Sent, after: Sent) -> bool:
        """Whether it went to another node before that could hear of a clock that had just been set."""
        quick = after.sent_at - before.sent_at < QUICK_S
        return self.world.journal.clocks_set and before.node != after.node and quick


def run(seed: int, only: str = "") -> list[str]:
    """What is wrong with the history of this seed; nothing: it is as it should be."""
    return Run(seed, only)()
