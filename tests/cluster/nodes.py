"""Nodes over rows alone, which do at random what brokers do with their rows."""

from __future__ import annotations

import itertools
import random
import struct
from dataclasses import replace

from tidemq.cluster import operations as ops
from tidemq.cluster.hybrid_clock import HybridClock
from tidemq.cluster.members import Heartbeat
from tidemq.cluster.memory_rows import MemoryRows
from tidemq.cluster.node import Node
from tidemq.cluster.operations import GROUP, SESSION, Operation, Owner, PutSession, Stamp
from tidemq.cluster.records import Record
from tidemq.cluster.rows import Entry, Rows
from tidemq.cluster.sessions import connect
from tidemq.cluster.stored_rows import StoredRows
from tidemq.store import Write
from tidemq.store.memory import MemoryStore
from tidemq.store.rows import BACKLOG

CLIENTS = ("ann", "bob", "cem")
FILTERS = ("a/+", "b/#")
TOPICS = ("a/1", "b/1")
GROUPS = (Owner(GROUP, "$share/g/a/#"),)
START_NS = 1_800_000_000_000_000_000


def make_node(index: int, count: int, rows: Rows | None = None, skew_ns: int = 0) -> Node:
    """A node of a cluster of so many, with the incarnations 1, 2, 3..."""
    rows = rows or MemoryRows()
    for each in range(count):
        rows.members.put(each + 1, None, f"n{each + 1}")
    clock = HybridClock(lambda: START_NS + skew_ns, skew_s_max=5, last_ns=rows.clock.get(None, None) or 0)
    own = Heartbeat("c", 1, f"n{index + 1}", index + 1, 1, index, "here", 0, 0, 0, {})
    return Node(rows, own, clock)


def make_message(topic: str, payload: bytes) -> bytes:
    """A message as the store has it."""
    return struct.pack(">BBqIII", 1, 0, 0, len(topic), 0, len(payload)) + topic.encode() + payload


class WrittenRows(StoredRows):
    """Rows in a store, where each batch is written at once."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        numbers = itertools.count(1)
        super().__init__(self.store, lambda: next(numbers))

    def take_changes(self) -> list[Write]:
        writes = super().take_changes()
        self.store.write(writes, sync=True)
        self.confirm()
        return writes


def begun(client: str, epoch: Stamp, home: int = 1) -> PutSession:
    """A session that begins with a CONNECT."""
    return PutSession(client, epoch, home, True, 0, 60, 0, 0, 0, -1, connected=epoch)


class Actor:
    """A broker without clients: each act is one batch. `published`: ids and messages that any node has given,
    of which others may add one again, in doubt whether it was.
    """

    def __init__(self, node: Node, choose: random.Random, published: list[tuple[Owner, Stamp]]) -> None:
        self.node = node
        self._choose = choose
        self._published = published

    def act(self) -> Record | None:
        """Does something, if it finds something to do."""
        acts = [self._connect] * 2 + [self._end, self._subscribe, self._serve, self._retain, self._receive]
        acts += [self._add] * 4 + [self._take] * 4
        operations = self._choose.choice(acts)()
        record = self.node.write(operations) if operations else None
        self.node.rows.take_changes()
        self.node.synced(self.node.rows.vector)
        return record

    def _mine(self) -> PutSession | None:
        """A session that is here."""
        rows = [session.row for _, _, session in self.node.rows.sessions.all()]
        mine = [row for row in rows if row.home == self.node.incarnation]
        return self._choose.choice(mine) if mine else None

    def _connect(self) -> list[Operation]:
        client, epoch = self._choose.choice(CLIENTS), self.node.stamp()
        wish = PutSession(client, epoch, self.node.incarnation, False, 0, 60, 0, 0, 0, -1, connected=epoch)
        before = self.node.rows.sessions.get(client, None)
        if before is not None and self._choose.random() < 0.4:  # it is taken without its client
            taken = replace(wish, connected=before.row.connected)
            return [connect(self.node.rows, taken, clean=False, asked=self._choose.random() < 0.5)]
        clean = self._choose.random() < 0.3
        begun: list[Operation] = [
            connect(self.node.rows, wish, clean=clean, asked=self._choose.random() < 0.5)
        ]
        if self._choose.random() < 0.3:  # in the same batch
            topic_filter = self._choose.choice(FILTERS)
            begun.append(ops.Subscribe(wish.client, topic_filter, self.node.stamp(), 1, 0))
        return begun

    def _end(self) -> list[Operation]:
        row = self._mine()
        return [ops.EndSession(row.client, row.connected)] if row else []

    def _subscribe(self) -> list[Operation]:
        row = self._mine()
        if row is None:
            return []
        topic_filter = self._choose.choice(FILTERS)
        if self._choose.random() < 0.4:
            return [ops.Unsubscribe(row.client, topic_filter, self.node.stamp())]
        options = self._choose.randint(0, 2) | self._choose.choice((0, BACKLOG))
        return [ops.Subscribe(row.client, topic_filter, self.node.stamp(), options, 0)]

    def _serve(self) -> list[Operation]:
        row = self._mine()
        filters = self.node.rows.filters(row.client) if row else []
        if row is None or not filters:
            return []
        topic_filter, each = self._choose.choice(filters)
        return [ops.Serve(row.client, topic_filter, each.stamp)]

    def _retain(self) -> list[Operation]:
        topic, stamp = self._choose.choice(TOPICS), self.node.stamp()
        there = self.node.rows.retained.get(topic, None)
        if there is not None and there.message is not None and self._choose.random() < 0.3:  # it expires
            return [ops.Clear(topic, there.id)]
        return [
            ops.Clear(topic, stamp)
            if self._choose.random() < 0.4
            else ops.Retain(topic, stamp, make_message(topic, b"r"))
        ]

    def _receive(self) -> list[Operation]:
        row = self._mine()
        if row is None:
            return []
        if row.received and self._choose.random() < 0.5:
            return [ops.Forget(row.client, row.epoch, ops.packet_id_of(row.received[0]))]
        mark = self._choose.randint(0, 1 << 47) << 16 | self._choose.randint(1, 5)
        return [ops.Receive(row.client, row.epoch, mark)]

    def _add(self) -> list[Operation]:
        """A message that was published here for a queue that is here; or one on its way between nodes, which
        the node that has the queue adds, and perhaps another in its place that does not know. After a split
        either may think that it is the only one.
        """
        sessions = [Owner(SESSION, client) for client, _, _ in self.node.rows.sessions.all()]
        owner = self._choose.choice([*sessions, *GROUPS])
        message_id = self.node.stamp()
        shared = False
        if self._choose.random() < 0.3:
            self._published.append((owner, message_id))
            return []
        if self._published and self._choose.random() < 0.5:
            owner, message_id = self._choose.choice(self._published)
            shared = self._choose.random() < 0.7
            if owner not in {*sessions, *GROUPS} or self._knows(owner, message_id):
                return []
        payload = ops.Payload(message_id, make_message("a/1", b"m%d" % message_id.clock))
        return [payload, ops.Add(owner, message_id, 0, 1, 9, 0, shared)]

    def _knows(self, owner: Owner, message_id: Stamp) -> bool:
        rows = self.node.rows
        return bool(rows.entries.get(owner, message_id) or rows.removed.get(owner, message_id))

    def _take(self) -> list[Operation]:
        """Sends a message on, or ends one."""
        row = self._mine()
        queues = [*GROUPS, *([Owner(SESSION, row.client)] if row else [])]
        owner = self._choose.choice(queues)
        queue = self.node.rows.queue(owner)
        if not queue:
            return []
        message_id, entry = self._choose.choice(queue)
        epoch = entry.epoch if owner.kind == GROUP else row.epoch if row else None
        assert epoch is not None
        return [self._step(owner, message_id, entry, epoch)]

    def _step(self, owner: Owner, message_id: Stamp, entry: Entry, epoch: Stamp) -> Operation:
        chance = self._choose.random()
        if chance < 0.4:
            return ops.Remove(owner, message_id)
        if owner.kind == GROUP and entry.sequence >= 0 and epoch.incarnation != self.node.incarnation:
            return ops.Return(owner, self.node.stamp(), message_id)  # its node is thought to be dead
        if entry.sequence < 0:
            epoch = self.node.stamp() if owner.kind == GROUP else epoch
            return ops.Send(owner, epoch, message_id, self._choose.randint(0, 9))
        if chance < 0.7:
            return ops.Release(owner, epoch, message_id)
        return ops.Return(owner, epoch, message_id)


def say(node: Node, others: list[Node], now: float = 0.0) -> None:
    """A node's heartbeat reaches the others, who tidy up."""
    beat = node.beat(now, START_NS)
    for other in others:
        other.hear(replace(beat, wall_ns=START_NS), now)
        other.tidy()
        other.rows.take_changes()
