"""A cluster that was split, made at random, and what a plain model says its queues are afterwards."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tidemq.store import MemoryStore
from tidemq.store.rows import IDLE, IN_FLIGHT, RELEASED
from tidemq.store.tables import SCHEMAS, bucket_of_name, table_path, write_tables

NOW_MS = 5_000
BUCKETS = 2
SPLIT = 100  # ids up to here all nodes of a queue have seen


@dataclass(frozen=True)
class Entry:
    """A message in a queue on one side."""

    status: int = IDLE
    released: bool = False
    sequence: int = 0
    expires_at_ms: int = 0


@dataclass
class Node:
    """`queues`: by client, the entries by id, an id being clock and origin; `seen`: by client and origin the
    clocks."""

    origin: int
    ends_at_ms: dict[str, int] = field(default_factory=dict)
    queues: dict[str, dict[tuple[int, int], Entry]] = field(default_factory=dict)
    seen: dict[tuple[str, int], list[tuple[int, int]]] = field(default_factory=dict)

    def has_seen(self, client: str, id: tuple[int, int]) -> bool:
        return any(first <= id[0] <= last for first, last in self.seen.get((client, id[1]), []))


def draw_nodes(seed: int) -> list[Node]:
    """Two to four nodes; each has some of the queues, what came before the split, of what came since then
    something, and has delivered some of it."""
    draw = random.Random(seed)
    nodes = [Node(number) for number in range(1, draw.randint(2, 4) + 1)]
    origins = [node.origin for node in nodes]
    for client in (f"client {number}" for number in range(draw.randint(1, 6))):
        ids = [
            (clock * 64, draw.choice(origins)) for clock in draw.sample(range(1, 300), draw.randint(0, 40))
        ]
        expiry = {id: draw.choice([0, 0, NOW_MS - 1, NOW_MS + 1]) for id in ids}
        for node in draw.sample(nodes, draw.randint(1, len(nodes))):
            node.ends_at_ms[client] = draw.choice([0, 10, 20, 30])
            queue = node.queues[client] = {}
            for origin in origins:
                gap = draw.randint(SPLIT, 200)
                until = draw.choice([gap, 300]) if origin != node.origin else 300
                node.seen[client, origin] = [(0, gap * 64), (gap * 64 + 65, until * 64)]
            places = draw.sample(range(65500, 65600), 40) if draw.random() < 0.3 else list(range(40))
            for id in sorted(ids):
                if node.has_seen(client, id) and draw.random() < 0.8:
                    flying = draw.random() < 0.3
                    released = flying and draw.random() < 0.3
                    place = places.pop() if flying else 0
                    queue[id] = Entry(IN_FLIGHT if flying else IDLE, released, place, expiry[id])
    return nodes


def expected(nodes: list[Node]) -> dict[str, dict[tuple[int, int], Entry]]:
    """The merged queues, by the plainest means."""
    merged: dict[str, dict[tuple[int, int], Entry]] = {}
    for client in {client for node in nodes for client in node.queues}:
        holders = [node for node in nodes if client in node.queues]
        home = max(holders, key=lambda node: (not node.ends_at_ms[client], node.ends_at_ms[client]))
        queue: dict[tuple[int, int], Entry] = {}
        near: set[tuple[int, int]] = set()  # of which the session's side's row is taken
        for id in sorted({id for node in holders for id in node.queues[client]}):
            if any(node.has_seen(client, id) and id not in node.queues[client] for node in holders):
                continue
            rows = [(node is home, node.queues[client][id]) for node in holders if id in node.queues[client]]
            at_home, entry = max(rows, key=lambda row: (row[1].released, row[1].status, row[0]))
            if entry.expires_at_ms and entry.expires_at_ms <= NOW_MS:
                continue
            queue[id] = entry
            if at_home:
                near.add(id)
        merged[client] = settle(queue, near)
    return merged


def settle(queue: dict[tuple[int, int], Entry], near: set[tuple[int, int]]) -> dict[tuple[int, int], Entry]:
    """No two in flight under one packet identifier, and all within 65535 places."""
    flying = {id: entry for id, entry in queue.items() if entry.status == IN_FLIGHT}
    base = min([each.sequence for id, each in flying.items() if id in near] or
               [each.sequence for each in flying.values()] or [0])  # fmt: skip
    taken: set[int] = set()
    settled = dict(queue)
    for id, entry in sorted(
        flying.items(), key=lambda item: (not item[1].released, item[0] not in near, item[0])
    ):
        place = base + (entry.sequence - base) % 65535
        if place not in taken:
            taken.add(place)
            settled[id] = replace(entry, sequence=place)
        elif entry.released:
            del settled[id]
        else:
            settled[id] = replace(entry, status=IDLE, sequence=0)
    return settled


def message_of(id: tuple[int, int]) -> bytes:
    text = b"%d-%d" % id
    return struct.pack(">BBqIII", 1, 0, 0, 1, 0, len(text)) + b"t" + text


def store_of(node: Node) -> MemoryStore:
    """Its rows as a broker writes them; messages that several queues have are counted."""
    store = MemoryStore()
    store.open()
    rows = [("meta", b"format", b"2"), ("meta", b"incarnation", node.origin.to_bytes(8))]
    rows.append(("meta", b"clock", (300 * 64).to_bytes(8)))
    numbers = {client: number for number, client in enumerate(sorted(node.queues, reverse=True), 50)}
    for client, number in numbers.items():
        head = struct.pack(">QIqqIqI", number, 60, node.ends_at_ms[client], 0, 0, -1, 0)
        rows.append(("session", client.encode(), head))
        name = client.encode()
        rows.append(
            ("subscription", len(name).to_bytes(2) + name + b"t", struct.pack(">BI", node.origin % 3, 0))
        )
        rows.append(("received", struct.pack(">QH", number, node.origin), b""))
    ids = [id for queue in node.queues.values() for id in queue]
    for id in set(ids):
        rows.append(("payload", struct.pack(">QQ", *id), message_of(id)))
        if ids.count(id) > 1:
            rows.append(("reference", struct.pack(">QQ", *id), ids.count(id).to_bytes(4)))
    for client, queue in node.queues.items():
        for id, entry in queue.items():
            flags = (RELEASED if entry.released else 0) | (4 if ids.count(id) > 1 else 0)
            key = struct.pack(">QBQQ", numbers[client], entry.status, *id)
            value = struct.pack(">BBIqQ", flags, 1, 100, entry.expires_at_ms, entry.sequence)
            rows.append(("queue", key, value))
            if entry.expires_at_ms:
                expiry = struct.pack(">qQQQ", entry.expires_at_ms, numbers[client], *id)
                rows.append(("expiry", expiry, b""))
    store.write(rows, sync=False)
    return store


def dump(node: Node, folder: Path) -> str:
    """As `tidemq store dump --arrow`, with what a node of a cluster would write into `seen`."""
    write_tables(store_of(node), folder, BUCKETS)
    for bucket in range(BUCKETS):
        owners = pq.read_table(table_path(folder, "owners", bucket)).to_pylist()
        rows = [
            {"owner": each["owner"], "origin": origin, "first": first, "last": last}
            for each in owners
            for (client, origin), intervals in node.seen.items()
            for first, last in intervals
            if client == each["name"] and bucket_of_name(client, BUCKETS) == bucket
        ]
        pq.write_table(pa.Table.from_pylist(rows, SCHEMAS["seen"]), table_path(folder, "seen", bucket))
    return str(folder)
