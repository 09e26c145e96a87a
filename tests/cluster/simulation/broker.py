"""A broker of the simulation: the node's decisions are the real ones, and what is around them is as small as
it can be: one filter a client, windows of a few messages, queues that are looked through whole.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from cluster.simulation.world import COMMIT_S, Machine

from tidemq.cluster import operations as ops
from tidemq.cluster.hybrid_clock import HybridClock
from tidemq.cluster.members import BEAT_S, SUSPECT_S, Heartbeat
from tidemq.cluster.node import Node
from tidemq.cluster.operations import SESSION, Operation, Owner, PutSession, Stamp
from tidemq.cluster.promises import Acks, Degraded, Promises
from tidemq.cluster.records import Record
from tidemq.cluster.sessions import connect
from tidemq.cluster.vectors import Vector, covers, has_seen
from tidemq.errors import ClusterError
from tidemq.wire.filters import matches

if TYPE_CHECKING:
    from cluster.simulation.clients import Subscriber

WINDOW = 8
Key = tuple[str, int]


@dataclass(slots=True)
class Mail:
    """A message for the sessions whose home was `home` as of `vector`, until it has answered."""

    message: bytes
    topic: str
    qos: int
    id: Stamp
    home: int
    vector: Vector
    sent_at: float
    done: Callable[[], None]


@dataclass(slots=True)
class Connection:
    """A client's, from CONNECT on; `epoch` when its session is here."""

    client: Subscriber
    clean: bool
    asked: int = 0  # the node that was asked for the session
    yielded: Vector | None = None  # what it had applied when it handed the session over
    epoch: Stamp | None = None
    ready: bool = False
    next_sequence: int = 0
    flights: dict[int, Stamp] = field(default_factory=dict)  # by packet identifier


def packet_id(sequence: int) -> int:
    return sequence % 65535 + 1


class Broker:
    """One process."""

    acks: Acks = "two"
    degraded: Degraded = "acknowledge"

    def __init__(self, machine: Machine) -> None:
        self.machine, self.world, self.rows = machine, machine.world, machine.rows
        boot = (self.rows.boots.get(None, None) or 0) + 1
        self.rows.boots.put(None, None, boot)
        for each in range(machine.count):
            self.rows.members.put(each + 1, None, f"n{each + 1}")
        last_ns = self.rows.clock.get(None, None) or 0
        clock = HybridClock(lambda: machine.wall_ns, skew_s_max=5, last_ns=last_ns)
        own = Heartbeat(
            "c",
            1,
            f"n{machine.index + 1}",
            machine.index + 1,
            boot,
            self.world.choose.getrandbits(64),
            "",
            0,
            0,
            0,
            {},
        )
        machine.sync(machine.written())
        self.node = Node(self.rows, own, clock)
        self.promises = Promises(self.acks, self.degraded)
        self.connections: dict[str, Connection] = {}
        self._sent = self._copied = self.node.durable
        self._after: dict[int, list[Callable[[bool], None]]] = defaultdict(list)
        self._acked: set[int] = set()
        self._committing = self._ended = False
        self._mails: dict[int, Mail] = {}
        self._mail_numbers = itertools.count(boot * 1_000_000)
        self._heard: dict[int, int] = defaultdict(int)  # of this node's records, by member
        self._interests: list[tuple[int, Callable[[], None]]] = []
        self._yields: list[tuple[int, int, str]] = []
        self._fetched = 0
        self._received: list[tuple[Mail, Callable[[], None]]] = []
        self._beat()

    @property
    def own(self) -> int:
        return self.node.incarnation

    def end(self) -> None:
        """The process is gone."""
        self._ended = True
        for connection in list(self.connections.values()):
            self._close(connection)

    def take(self, source: int, kind: str, *body: object) -> None:
        getattr(self, f"_on_{kind}")(source, *body)

    def _send(self, incarnation: int, kind: str, *body: object) -> None:
        self.world.send(self.machine.index, incarnation - 1, kind, *body)

    def _others(self) -> list[int]:
        return [each for each in self.node.members.incarnations if each != self.own]

    # --- batches, copies and promises --------------------------------------------------------------

    def write(self, operations: Sequence[Operation], then: Callable[[bool], None] | None = None) -> int:
        """One batch; `then` is told when its promises are settled, and whether they can be kept."""
        record = self.node.write(operations)
        if then is not None:
            self._after[record.dot.number].append(then)
        self.promises.begin(record.dot.number, self.world.now)
        self._commit()
        return record.dot.number

    def _commit(self) -> None:
        if self._committing or self._ended:
            return
        count, vector = self.machine.written(), self.rows.vector
        self._committing = True
        self.world.at(self.world.choose.uniform(*COMMIT_S), lambda: self._committed(count, vector))

    def _committed(self, count: int, vector: Vector) -> None:
        if self._ended:
            return
        self._committing = False
        self.machine.sync(count)
        self.node.synced(vector)
        self.promises.durable(self.node.durable)
        for number in range(self._sent + 1, self.node.durable + 1):
            text = self.node.record(self.own, number)
            if text is not None:
                for each in self._others():
                    self._send(each, "record", text)
        self._sent = self.node.durable
        self._send_copies()
        for owed in [each for each in self._yields if each[0] <= self.node.durable]:
            self._yields.remove(owed)
            self._send(owed[1], "yield", owed[2], self.rows.vector)
        self.settle()
        if self.rows.has_changes:
            self._commit()

    def _send_copies(self) -> None:
        replica = self.node.members.replica(self.world.now)
        for number in range(self._copied + 1, self.node.durable + 1):
            text = self.node.record(self.own, number)
            if replica is not None and text is not None and number not in self._acked:
                self._send(replica, "copy", number, text)

    def settle(self) -> None:
        """Keeps the promises that can be kept."""
        for kept in self.promises.take(self.world.now):
            for then in self._after.pop(kept.number, ()):
                then(not kept.refused)

    def _on_copy(self, source: int, number: int, text: bytes) -> None:
        if self.machine.copying:
            self.machine.copies.setdefault(source + 1, {})[number] = text
            self._send(source + 1, "copied", number)

    def _on_copied(self, _source: int, number: int) -> None:
        self._acked.add(number)
        while self._copied + 1 in self._acked:
            self._copied += 1
            self._acked.discard(self._copied)
        self.promises.copied(self._copied)
        self.settle()

    # --- other nodes -------------------------------------------------------------------------------

    def _beat(self) -> None:
        if self._ended:
            return
        for each in self._others():
            self._send(each, "beat", self.node.beat(self.world.now, self.machine.wall_ns))
        self._send_copies()
        for connection in self.connections.values():  # the question or the answer may have been lost
            if connection.epoch is None and connection.asked and connection.yielded is None:
                self._send(connection.asked, "ask", connection.client.name)
        self._fetch()
        self._do_unanswered()
        self.node.tidy()
        if self.rows.has_changes:
            self._commit()
        self._advance()
        self.world.at(BEAT_S, self._beat)

    def _fetch(self) -> None:
        """Asks one holder after the other."""
        gaps = self.node.incoming.gaps()
        live = [each for each in self.node.members.live(self.world.now) if each != self.own] if gaps else []
        for gap in gaps if live else ():
            self._fetched += 1
            holders = [gap.incarnation] * (gap.incarnation in live) + live
            holder = holders[self._fetched % len(holders)]
            self._send(holder, "fetch", gap.incarnation, gap.first, gap.last)

    def _on_fetch(self, source: int, incarnation: int, first: int, last: int) -> None:
        for number in range(first, last + 1):
            text = self.machine.copies.get(incarnation, {}).get(number) if self.machine.copying else None
            if incarnation == self.own and number <= self.node.durable:
                text = self.node.record(incarnation, number)
            if text is not None:
                self._send(source + 1, "record", text)

    def _on_beat(self, _source: int, beat: Heartbeat) -> None:
        try:
            self.node.hear(beat, self.world.now)
        except ClusterError as error:
            self.world.history.wrong("refused", str(error))

    def _on_record(self, _source: int, text: bytes) -> None:
        try:
            applied = self.node.receive(text)
        except ClusterError as error:
            self.world.history.wrong("forked", str(error))
            return
        if applied:
            self._commit()
            self._tell_applied(applied)
            self._advance()

    def _tell_applied(self, applied: list[Record]) -> None:
        for incarnation in {record.dot.incarnation for record in applied}:
            self._send(incarnation, "applied", self.rows.vector[incarnation])

    def _on_applied(self, source: int, number: int) -> None:
        self._heard[source + 1] = max(self._heard[source + 1], number)
        self._advance()

    def _advance(self) -> None:
        """What waited for others, or for what they did, goes on if it can."""
        self.settle()
        if self._interests:
            live = [each for each in self.node.members.live(self.world.now) if each != self.own]
            for each in list(self._interests):
                if all(self._heard[member] >= each[0] for member in live):
                    self._interests.remove(each)
                    each[1]()
        if self._received:
            vector = self.rows.vector
            for received in [each for each in self._received if covers(vector, each[0].vector)]:
                self._received.remove(received)
                self._queue(*received)
        for connection in list(self.connections.values()):
            if connection.epoch is None:
                self._try_to_begin(connection)
            else:
                self._look_after(connection)

    # --- sessions ----------------------------------------------------------------------------------

    def connect(self, client: Subscriber, *, clean: bool) -> Connection:
        """CONNECT; the client hears of CONNACK, or that the connection has ended."""
        before = self.connections.get(client.name)
        if before is not None:
            self._close(before)
        connection = self.connections[client.name] = Connection(client, clean)
        self._try_to_begin(connection)
        return connection

    def disconnect(self, connection: Connection) -> None:
        """The client has gone."""
        if self.connections.get(connection.client.name) is connection:
            del self.connections[connection.client.name]

    def _close(self, connection: Connection) -> None:
        self.disconnect(connection)
        connection.client.on_closed(connection)

    def _on_ask(self, source: int, client: str) -> None:
        connection = self.connections.get(client)
        if connection is not None:
            self._close(connection)
        number = self.rows.vector.get(self.own, 0)
        self._yields.append((number, source + 1, client))
        self._commit()

    def _on_yield(self, source: int, client: str, vector: Vector) -> None:
        connection = self.connections.get(client)
        if connection is not None and connection.asked == source + 1:
            connection.yielded = vector
            self._advance()

    def _try_to_begin(self, connection: Connection) -> None:
        """As soon as the node that has the session has handed it over, or is not there."""
        before = self.rows.sessions.get(connection.client.name, None)
        home = before.row.home if before is not None else self.own
        if home != self.own and connection.asked != home:
            connection.asked, connection.yielded = home, None
            self._send(home, "ask", connection.client.name)
        asked = connection.yielded is not None
        if home != self.own and not asked and self.node.members.is_live(home, self.world.now):
            return
        if home != self.own and connection.yielded and not covers(self.rows.vector, connection.yielded):
            return
        client, epoch = connection.client, self.node.stamp()
        wish = PutSession(client.name, epoch, self.own, False, 0, 3600, 0, 0, 0, -1, connected=epoch)
        begun = connect(self.rows, wish, clean=connection.clean, asked=asked)
        if before is not None and before.row.home != self.own and not asked:
            self.world.history.unasked.add(client.name)
        parent = before.row.epoch if before is not None and not begun.begins else None
        self.world.history.parents[epoch] = parent
        connection.epoch, connection.next_sequence = epoch, begun.next_sequence

        def connack(kept: bool) -> None:
            if kept and self.connections.get(client.name) is connection:
                connection.ready = True
                client.on_connack(connection, present=not begun.begins)
                self._resume(connection)

        self.write([begun], connack)

    def _look_after(self, connection: Connection) -> None:
        session = self.rows.sessions.get(connection.client.name, None)
        if session is None or session.row.epoch != connection.epoch:
            self.world.history.unasked.add(connection.client.name)
            self._close(connection)
        else:
            self.pump(connection)

    def subscribe(self, connection: Connection, topic_filter: str, qos: int) -> None:
        """SUBSCRIBE; SUBACK when all nodes that are there know of it."""
        client = connection.client
        operation = ops.Subscribe(client.name, topic_filter, self.node.stamp(), qos, 0)

        def suback(kept: bool) -> None:
            if kept:
                self._interests.append((number, lambda: client.on_suback(connection)))
                self._advance()

        number = self.write([operation], suback)

    # --- messages in -------------------------------------------------------------------------------

    def publish(self, message: bytes, topic: str, qos: int, done: Callable[[], None]) -> set[str]:
        """PUBLISH; `done` when it may be acknowledged. Gives the clients that it is for."""
        message_id, homes = self.node.stamp(), set()
        vector, now = self.rows.vector, self.world.now
        found = self._matching(topic)
        for client in found:
            session = self.rows.sessions.get(client, None)
            assert session is not None
            homes.add(session.row.home)
        parts = {"local", *homes}

        def finish(part: object) -> None:
            parts.discard(part)
            if not parts:
                done()

        for home in sorted(homes):
            done_here = partial(finish, home)
            self._deliver(Mail(message, topic, qos, message_id, home, vector, now, done_here))
        finish("local")
        return set(found)

    def _matching(self, topic: str) -> dict[str, int]:
        """QoS by client."""
        return {
            client: each.options or 0
            for client, _, _ in self.rows.sessions.all()
            for topic_filter, each in self.rows.filters(client)
            if matches(topic_filter, topic)
        }

    def _deliver(self, mail: Mail) -> None:
        """To the sessions' home; where it is not there, this node does its work."""
        if mail.home == self.own or not self.node.members.is_live(mail.home, self.world.now):
            self._queue(mail, mail.done)
            return
        number = next(self._mail_numbers)
        self._mails[number] = mail
        self.node.unanswered[number] = mail.vector
        self._send(mail.home, "mail", number, mail)

    def _queue(self, mail: Mail, done: Callable[[], None]) -> None:
        """Adds it to the queues of the sessions of `home`, and of those that its sender does not know."""
        operations: list[Operation] = [ops.Payload(mail.id, mail.message)]
        for client, qos in self._matching(mail.topic).items():
            session = self.rows.sessions.get(client, None)
            assert session is not None
            owner = Owner(SESSION, client)
            if has_seen(mail.vector, session.dot) and session.row.home != mail.home:
                continue
            if self.rows.entries.get(owner, mail.id) or self.rows.removed.get(owner, mail.id):
                continue
            operations.append(
                ops.Add(owner, mail.id, 0, min(qos, mail.qos), len(mail.message), 0, shared=True)
            )
        if len(operations) == 1:
            done()
            return

        def stored(kept: bool) -> None:
            if kept:
                done()

        self.write(operations, stored)
        for connection in list(self.connections.values()):
            self.pump(connection)

    def _on_mail(self, source: int, number: int, mail: Mail) -> None:
        """Before what its sender knew is known here, it cannot be said whom it is for."""
        self.node.clock.raise_to(mail.id.clock)
        self._received.append((mail, partial(self._send, source + 1, "kept", number)))
        self._advance()

    def _on_kept(self, _source: int, number: int) -> None:
        mail = self._mails.pop(number, None)
        if mail is not None:
            del self.node.unanswered[number]
            mail.done()

    def _do_unanswered(self) -> None:
        """What another node has not answered for long is done here."""
        for number, mail in list(self._mails.items()):
            late = self.world.now - mail.sent_at > SUSPECT_S
            if late or not self.node.members.is_live(mail.home, self.world.now):
                del self._mails[number], self.node.unanswered[number]
                self._queue(mail, mail.done)

    # --- messages out ------------------------------------------------------------------------------

    def pump(self, connection: Connection) -> None:
        """Sends what waits, as far as the window goes."""
        if not connection.ready or connection.epoch is None:
            return
        owner = Owner(SESSION, connection.client.name)
        for packet, message_id in list(connection.flights.items()):
            if self.rows.entries.get(owner, message_id) is None:  # another node had it, and was answered
                del connection.flights[packet]
        for message_id, entry in self.rows.queue(owner):
            if len(connection.flights) >= WINDOW:
                return
            if entry.sequence < 0:
                self._send_one(connection, owner, message_id)

    def _send_one(self, connection: Connection, owner: Owner, message_id: Stamp) -> None:
        sequence, connection.next_sequence = connection.next_sequence, connection.next_sequence + 1
        connection.flights[packet_id(sequence)] = message_id
        assert connection.epoch is not None
        operation = ops.Send(owner, connection.epoch, message_id, sequence)
        # at QoS 1, too, so that no message overtakes one before it
        self.write([operation], lambda kept: self._pass_on(connection, sequence, message_id, kept))

    def _pass_on(self, connection: Connection, sequence: int, message_id: Stamp, kept: bool) -> None:
        entry = self.rows.entries.get(Owner(SESSION, connection.client.name), message_id)
        payload = self.rows.payloads.get(message_id, None)
        if kept and entry is not None and payload is not None and self._is_here(connection):
            connection.client.on_publish(connection, packet_id(sequence), payload.message, entry.adds[0].qos)

    def _is_here(self, connection: Connection) -> bool:
        return self.connections.get(connection.client.name) is connection

    def _resume(self, connection: Connection) -> None:
        """What is in flight comes again."""
        queue = self.rows.queue(Owner(SESSION, connection.client.name))
        for message_id, entry in sorted(queue, key=lambda each: each[1].sequence):
            if entry.sequence >= 0:
                connection.flights[packet_id(entry.sequence)] = message_id
                if entry.released:
                    connection.client.on_pubrel(connection, packet_id(entry.sequence))
                else:
                    self._pass_on(connection, entry.sequence, message_id, True)
        self.pump(connection)

    def acknowledge(self, connection: Connection, packet: int) -> None:
        """PUBACK or PUBCOMP."""
        message_id = connection.flights.pop(packet, None)
        if message_id is not None:
            self.write([ops.Remove(Owner(SESSION, connection.client.name), message_id)])
            self.pump(connection)

    def receive(self, connection: Connection, packet: int) -> None:
        """PUBREC."""
        message_id = connection.flights.get(packet)
        if message_id is not None and connection.epoch is not None:
            owner = Owner(SESSION, connection.client.name)

            def released(kept: bool) -> None:
                if kept and self._is_here(connection):
                    connection.client.on_pubrel(connection, packet)

            # before that a copy of this node's would send the message again, as a new one
            self.write([ops.Release(owner, connection.epoch, message_id)], released)
