"""Clients of the simulation: they do as the specification says, and note what they saw."""

from __future__ import annotations

from cluster.simulation.broker import Broker, Connection
from cluster.simulation.history import Published
from cluster.simulation.world import World

from tidemq.cluster import operations as ops
from tidemq.cluster.operations import Stamp

TOPICS = ("a", "b")
ANSWER_S = (0.0005, 0.03)
AWAY_S = (0.02, 1.5)


class Subscriber:
    """Has a session that is kept, and one subscription."""

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self._world = world
        self._topic = world.choose.choice(TOPICS)
        self._qos = world.choose.choice((1, 2))
        self._connection: Connection | None = None
        self._broker: Broker | None = None
        self.subscribed = False
        self._unreleased: dict[int, tuple[str, int]] = {}
        self._epoch: Stamp | None = None  # of the session that it was served with last
        self._turn = 0  # so that nothing happens on a connection that has ended

    def connect(self, *, clean: bool = False) -> None:
        """To any broker that runs; else later."""
        self.leave()
        running = [each.broker for each in self._world.machines if each.broker is not None]
        if not running:
            self._world.at(0.1, self.connect)
            return
        self._turn += 1
        if clean:
            self.subscribed, self._epoch = False, None
            self._world.history.reset.add(self.name)
        broker = self._broker = self._world.choose.choice(running)
        self._connection = broker.connect(self, clean=clean)

    def leave(self) -> None:
        """Without a word."""
        if self._broker is not None and self._connection is not None:
            self._broker.disconnect(self._connection)
        self._broker = self._connection = None
        self._turn += 1

    def on_closed(self, connection: Connection) -> None:
        """The connection has ended."""
        if connection is self._connection or self._connection is None:
            self._broker = self._connection = None
            self._turn += 1
            turn = self._turn
            self._world.at(
                self._world.choose.uniform(*AWAY_S), lambda: self.connect() if turn == self._turn else None
            )

    def on_connack(self, connection: Connection, *, present: bool) -> None:
        if connection is not self._connection or self._broker is None:
            return
        history = self._world.history
        if not present:
            if self._epoch is not None:
                history.reset.add(self.name)
                if not history.split:
                    history.wrong("session lost", self.name)
            self.subscribed = False
            self._unreleased.clear()
        if present and connection.epoch and not history.goes_on(connection.epoch, self._epoch):
            history.forked.add(self.name)
        self._epoch = connection.epoch
        if not self.subscribed:
            self._broker.subscribe(connection, self._topic, self._qos)

    def on_suback(self, connection: Connection) -> None:
        if connection is self._connection:
            self.subscribed = True

    def on_publish(self, connection: Connection, packet: int, message: bytes, qos: int) -> None:
        if connection is not self._connection:
            return
        publisher, _, number = message.decode().partition(":")
        key = (publisher, int(number))
        history = self._world.history
        if key not in history.messages or history.messages[key].topic != self._topic:
            history.wrong("phantom", f"{key} for {self.name}")
        if qos == 1:
            history.taken[self.name].append(key)
            self._answer(connection, lambda broker: broker.acknowledge(connection, packet))
            return
        if packet not in self._unreleased:
            history.taken[self.name].append(key)
            history.once[self.name].append(key)
            self._unreleased[packet] = key
        elif self._unreleased[packet] != key:
            history.swallow(self.name, key, self._unreleased[packet])
        self._answer(connection, lambda broker: broker.receive(connection, packet))

    def on_pubrel(self, connection: Connection, packet: int) -> None:
        if connection is self._connection:
            self._unreleased.pop(packet, None)
            self._answer(connection, lambda broker: broker.acknowledge(connection, packet))

    def _answer(self, connection: Connection, act: object) -> None:
        turn = self._turn

        def answer() -> None:
            if turn == self._turn and self._broker is not None:
                act(self._broker)  # type: ignore[operator]

        self._world.at(self._world.choose.uniform(*ANSWER_S), answer)


class Publisher:
    """Publishes anywhere, each message once: what is not acknowledged may have come or not."""

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self._world = world
        self._number = 0
        self._acknowledged = 0

    @property
    def last_acknowledged(self) -> bool:
        """Whether its last message was."""
        return self._world.history.messages[self.name, self._number - 1].acknowledged

    def publish(self) -> None:
        """The next message."""
        running = [each.broker for each in self._world.machines if each.broker is not None]
        if not running:
            return
        choose, history = self._world.choose, self._world.history
        broker = choose.choice(running)
        topic, qos = choose.choice(TOPICS), choose.choice((1, 2))
        key = (self.name, self._number)
        self._number += 1
        message = history.messages[key] = Published(self.name, key[1], topic, qos)
        message.after = self._acknowledged
        message.sent_at, message.node = self._world.now, broker.own

        def done() -> None:
            message.acknowledged = True
            if key[1] == self._acknowledged:
                self._acknowledged += 1

        message.owed = broker.publish(f"{self.name}:{key[1]}".encode(), topic, qos, done)

    def retain(self) -> None:
        """Changes what is retained for a topic."""
        running = [each.broker for each in self._world.machines if each.broker is not None]
        if not running:
            return
        choose, broker = self._world.choose, self._world.choose.choice(running)
        topic, stamp = choose.choice(TOPICS), broker.node.stamp()
        text = None if choose.random() < 0.4 else b"%d" % stamp.clock

        history = self._world.history
        history.tried[topic][stamp] = text

        def done(kept: bool) -> None:
            if kept:
                history.retained[topic] = max(stamp, history.retained.get(topic, stamp))

        broker.write([ops.Clear(topic, stamp) if text is None else ops.Retain(topic, stamp, text)], done)
