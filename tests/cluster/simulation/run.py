"""One history by a seed: what happens to the cluster, and the verdict."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from cluster.simulation.broker import Broker
from cluster.simulation.clients import Publisher, Subscriber
from cluster.simulation.world import Machine, World

WORK_S = 8.0
REST_S = 16.0  # at most, until all has come
QUIET_S = 4.0  # at least
PUBLISH_S = (0.02, 0.25)
MISHAP_S = (0.2, 1.5)
BURST = 6  # messages


class Run:
    """A cluster of three or four nodes, its clients, and what befalls them."""

    def __init__(self, seed: int, only: str = "") -> None:
        """`only`: the name of the one thing that goes wrong."""
        self.world = World(seed, 3 + seed % 2)
        choose = self.world.choose
        self.subscribers = [Subscriber(self.world, f"s{each}") for each in range(choose.randint(1, 4))]
        self.publishers = [Publisher(self.world, f"p{each}") for each in range(choose.randint(1, 3))]
        # how much goes wrong: in some runs nothing, in some only links, in some everything
        self._mishaps: list[Callable[[], None]] = []
        for mishap, part in (
            (self._cut, 0.6),
            (self._kill, 0.6),
            (self._lose_copies, 0.4),
            (self._damage_copies, 0.4),
            (self._stop_copying, 0.4),
            (self._set_clock, 0.4),
            (self._renew, 0.3),
        ):
            if only == mishap.__name__ or (not only and choose.random() < part):
                self._mishaps.append(mishap)

    def __call__(self) -> list[str]:
        """Runs it; gives what was wrong."""
        world = self.world
        for machine in world.machines:
            self._start(machine)
        world.run(0.7)
        for subscriber in self.subscribers:
            subscriber.connect()
        self._again(self._publish, PUBLISH_S)
        self._again(self._move, MISHAP_S)
        if self._mishaps:
            self._again(lambda: world.choose.choice(self._mishaps)(), MISHAP_S)
        world.run(WORK_S)
        self._heal()
        world.run(WORK_S + QUIET_S)
        while (found := self._verdict()) and world.now < WORK_S + REST_S:
            world.run(world.now + 1.0)
        return found

    def _again(self, act: Callable[[], None], every: tuple[float, float]) -> None:
        if self.world.now < WORK_S:
            act()
            self.world.at(self.world.choose.uniform(*every), lambda: self._again(act, every))

    def _start(self, machine: Machine) -> None:
        if machine.broker is None:
            machine.broker = Broker(machine)

    def _publish(self) -> None:
        publisher = self.world.choose.choice(self.publishers)
        if self.world.choose.random() < 0.1:
            publisher.retain()
        else:
            publisher.publish()

    def _move(self) -> None:
        subscriber = self.world.choose.choice(self.subscribers)
        if self.world.choose.random() < 0.5:
            subscriber.connect()
        else:
            subscriber.leave()

    # --- what goes wrong ---------------------------------------------------------------------------

    def _cut(self) -> None:
        """Two sides, or one direction, for a while."""
        world, choose = self.world, self.world.choose
        count = len(world.machines)
        world.history.split = True
        pairs = list(itertools.permutations(range(count), 2))
        if choose.random() < 0.3:
            cut = {choose.choice(pairs)}
        else:
            side = {each for each in range(count) if choose.random() < 0.5}
            cut = {(one, other) for one, other in pairs if (one in side) != (other in side)}
        if choose.random() < 0.3:  # clients that see the trouble go elsewhere, in the middle of messages
            for _ in range(BURST):
                choose.choice(self.publishers).publish()
            for subscriber in self.subscribers:
                world.at(choose.uniform(0.01, 0.1), subscriber.connect)
        world.cut |= cut
        world.at(choose.choice((0.3, 1.0, 3.0)), lambda: world.cut.difference_update(cut))

    def _kill(self) -> None:
        """One at a time: two copies are two."""
        world = self.world
        if all(machine.broker for machine in world.machines):
            machine = world.choose.choice(world.machines)
            world.history.split = True
            machine.kill(power=world.choose.random() < 0.5)
            world.at(world.choose.choice((0.1, 1.0, 3.0)), lambda: self._start(machine))

    def _lose_copies(self) -> None:
        self.world.choose.choice(self.world.machines).copies.clear()

    def _damage_copies(self) -> None:
        """A flipped bit, a record that is gone, one in the place of another."""
        choose = self.world.choose
        for copies in choose.choice(self.world.machines).copies.values():
            for number in choose.sample(sorted(copies), min(len(copies), 3)):
                kind = choose.randrange(3)
                text = bytearray(copies[number])
                text[choose.randrange(len(text))] ^= 1 << choose.randrange(8)
                copies[number] = bytes(text) if kind == 0 else copies[choose.choice(sorted(copies))]
                if kind == 2:
                    del copies[number]

    def _stop_copying(self) -> None:
        """Of one `nats-server`, for a while."""
        machine = self.world.choose.choice(self.world.machines)
        machine.copying = False
        self.world.at(self.world.choose.choice((0.2, 1.0)), lambda: setattr(machine, "copying", True))

    def _set_clock(self) -> None:
        machine = self.world.choose.choice(self.world.machines)
        self.world.history.clocks_set = True
        machine.skew_ns = self.world.choose.randint(-2_000_000_000, 2_000_000_000)

    def _renew(self) -> None:
        self.world.choose.choice(self.subscribers).connect(clean=True)

    # --- the end -----------------------------------------------------------------------------------

    def _heal(self) -> None:
        self._mishaps.clear()
        self.world.cut.clear()
        for machine in self.world.machines:
            machine.copying = True
            self._start(machine)
        for subscriber in self.subscribers:
            self.world.at(1.0, subscriber.connect)
        for publisher in self.publishers:
            self.world.at(2.0, publisher.publish)

    def _verdict(self) -> list[str]:
        found = self.world.history.verdict()
        for publisher in self.publishers:
            if not publisher.last_acknowledged:
                found.append(f"stuck: the last message of {publisher.name} is not acknowledged")
        for subscriber in self.subscribers:
            if not subscriber.subscribed:
                found.append(f"stuck: {subscriber.name} has no subscription")
        rows = [machine.rows for machine in self.world.machines]
        if len({each.digest() for each in rows}) > 1:
            found.append("digests differ")
        for machine in self.world.machines:
            kept = machine.rows
            names = ("log", "ends", "removed", "gone", "entries", "payloads")
            left = [name for name in names if any(getattr(kept, name).all())]
            if left:
                found.append(f"stuck: n{machine.index + 1} has {', '.join(left)}")
        for topic in self.world.history.retained:
            for each in rows:
                last = each.retained.get(topic, None)
                if (last.message if last else None) not in self.world.history.may_be_retained(topic):
                    found.append(f"resurrected: what is retained for {topic}")
        return found


def run(seed: int, only: str = "") -> list[str]:
    """What is wrong with the history of this seed; nothing: it is as it should be."""
    return Run(seed, only)()
