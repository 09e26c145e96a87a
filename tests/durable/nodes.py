"""Engines between which sessions move, each with a store and keeper of its own, as the nodes of a cluster
have them: the test takes the part of the cluster, and brings the rows over.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import Any

from conformance.kit import Client, kept
from conformance.packets import PUBACK, PUBLISH, acknowledge, connect
from durable.server import Server
from waiting import wait_until

from tidemq.engine import Engine, Event, SessionRequest, StoreAccess, StoreWork
from tidemq.store import Write
from tidemq.store.rows import IDLE, IN_FLIGHT

COUNTED = 4  # flag of a queue row
ID = slice(9, 25)  # of a queue row's key


class Moves(StoreAccess):
    """Remembers, on the keeper's thread, which sessions have left and which have arrived; what has become of
    messages that were given to shared groups, and which of their queues were let go.
    """

    def __init__(self, _: Engine) -> None:
        self.left: list[tuple[bytes, int, bool]] = []
        self.arrived: list[tuple[bytes, bool]] = []
        self.given: dict[int, int] = {}
        self.let_go: list[int] = []
        self._late: list[tuple[bytes, int, bool]] = []  # in works that failed

    def take_work(self, timeout_s: float, *, described: bool = False) -> StoreWork | None:
        work = super().take_work(timeout_s, described=described)
        if work is not None:
            self.arrived += work.arrived
        return work

    def rest_of(self, work: StoreWork) -> StoreWork:
        rest = super().rest_of(work)
        self._late += rest.left
        return rest

    def answer(self, work: StoreWork, reason: int = 0) -> None:
        super().answer(work, reason)
        self.given.update(work.given)
        self.let_go += work.let_go
        if reason == 0:
            self.left += self._late + work.left
            self._late.clear()


class AskingMoves(Moves):
    """Each CONNECT waits for `session_ready`."""

    def loaded(self, *, crashed: bool) -> None:
        self.ask_for_sessions()
        super().loaded(crashed=crashed)


@dataclass(frozen=True, slots=True)
class Rows:
    """All that a store has of a session."""

    client_id: bytes
    value: bytes
    subscriptions: list[tuple[bytes, bytes]]
    received: list[bytes]  # keys, with their values behind them
    inflight: list[tuple[bytes, bytes, bytes | None]]  # in the order of their places
    idle: list[tuple[bytes, bytes, bytes | None]]

    @property
    def queue(self) -> int:
        return int.from_bytes(self.value[:8])

    @property
    def counts(self) -> tuple[int, int, int]:
        """Of the idle rows, as `adopt` takes them."""
        clocks = [int.from_bytes(key[9:17]) for key, _, _ in self.idle] or [0]
        size = sum(int.from_bytes(value[2:6]) for _, value, _ in self.idle)
        return len(self.idle), size, min(clocks)

    def renumbered(self, queue: int) -> Rows:
        """The same under another number."""
        number = struct.pack(">Q", queue)
        return replace(
            self,
            value=number + self.value[8:],
            received=[number + key[8:] for key in self.received],
            inflight=[(number + key[8:], value, payload) for key, value, payload in self.inflight],
            idle=[(number + key[8:], value, payload) for key, value, payload in self.idle],
        )

    def writes(self) -> list[Write]:
        """What a store gets of it that has nothing of it yet."""
        writes: list[Write] = [("session", self.client_id, self.value)]
        writes += [("subscription", key, value) for key, value in self.subscriptions]
        writes += [("received", row[:10], row[10:]) for row in self.received]
        for key, value, payload in self.inflight + self.idle:
            writes += [("queue", key, value), ("payload", key[ID], payload)]
            if value[0] & COUNTED:
                writes.append(("reference", key[ID], struct.pack(">I", 1)))
            if any(value[6:14]):
                writes.append(("expiry", value[6:14] + key[:8] + key[ID], b""))
        return writes


class Node(Server):
    """One of several engines."""

    access_kind = Moves
    access: Moves

    def session_rows(self, client_id: str) -> Rows:
        name = client_id.encode()
        value = self.rows("session")[name]
        prefix = struct.pack(">H", len(name)) + name
        payloads = self.rows("payload")
        queue = [
            (key, row, payloads.get(key[ID]))
            for key, row in self.rows("queue").items()
            if key[:8] == value[:8]
        ]
        return Rows(
            name,
            value,
            [each for each in self.rows("subscription").items() if each[0].startswith(prefix)],
            [key + mark for key, mark in self.rows("received").items() if key[:8] == value[:8]],
            sorted((each for each in queue if each[0][8] == IN_FLIGHT), key=lambda each: each[1][14:22]),
            [each for each in queue if each[0][8] == IDLE],
        )

    def release(self, client_id: str) -> tuple[int, bool]:
        """The session leaves; returns the next place of its outbox, and whether it was here."""
        before = len(self.access.left)
        assert self.access.release(client_id.encode())
        wait_until(lambda: len(self.access.left) > before, f"{client_id} has left")
        name, place, here = self.access.left[before]
        assert name == client_id.encode()
        return place, here

    def write(self, writes: list[Write]) -> None:
        """As another node's records are applied: by the keeper, the engine knows nothing of it."""
        self.keeper.ask(lambda: self.store.write(writes, sync=False)).result()

    def adopt(self, rows: Rows, place: int = 0, *, crashed: bool = False, **more: Any) -> bool:
        """A session arrives whose rows are in the store; whether it is here."""
        before = len(self.access.arrived)
        unreadable = self.access.adopt(
            rows.client_id,
            rows.value,
            rows.subscriptions,
            rows.received,
            rows.inflight,
            idle=rows.counts,
            next_place=place,
            crashed=crashed,
            **more,
        )
        assert not unreadable
        wait_until(lambda: len(self.access.arrived) > before, f"{rows.client_id!r} has arrived")
        name, here = self.access.arrived[before]
        assert name == rows.client_id
        return here

    def hand_over(self, client_id: str, target: Node, *, gap: int = 0, **more: Any) -> Rows:
        """A session goes to another node, as a cluster has it; returns its rows there."""
        place, here = self.release(client_id)
        assert here
        rows = self.session_rows(client_id).renumbered(target.access.new_queue())
        target.write(rows.writes())
        assert target.adopt(rows, place + gap, **more)
        return rows

    def forget(self, client_id: str) -> None:
        """Removes what is left of a session that has gone: in a cluster the rows stay, as a copy."""
        rows = self.session_rows(client_id)
        self.write([(family, key, None) for family, key, _ in rows.writes()])


class AskingNode(Node):
    """Each CONNECT waits until its session may be found or made."""

    access_kind = AskingMoves

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        self.others: list[Event] = []
        super().__init__(*arguments, **settings)

    def requests(self, count: int = 1) -> list[SessionRequest]:
        """Waits for so many requests, in the order in which they came."""
        found: list[SessionRequest] = []

        def look() -> bool:
            for event in self.engine.events():
                if isinstance(event, SessionRequest):
                    found.append(event)
                else:
                    self.others.append(event)
            return len(found) >= count

        wait_until(look, f"{count} requests")
        assert len(found) == count
        return found


def asking(node: AskingNode, client_id: str, version: int = 5, **named: Any) -> tuple[Client, SessionRequest]:
    """A client whose CONNECT waits, and what is asked."""
    client = Client(node.port, version)
    client.client_id = client_id
    client.send(connect(client_id, version, **(kept(version) | named)))
    [request] = node.requests()
    return client, request


def taken(client: Client, count: int) -> list[bytes]:
    """The payloads of so many messages at QoS 1, which are acknowledged."""
    found = []
    for _ in range(count):
        packet = client.expect(PUBLISH)
        client.send(acknowledge(PUBACK, packet.packet_id))
        found.append(packet.payload)
    return found
