"""What the pipeline's benchmarks work on: dumps of a cluster that was split, and samples of latencies."""

from __future__ import annotations

import itertools
import json
import secrets
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidemq.client.sync import Client
from tidemq.store.tables import MANIFEST, SCHEMAS, VERSION, bucket_of_name, table_path

NODES = 4
BUCKETS = 32  # of 30 million messages; fewer of fewer
BUCKET_MESSAGES = 50_000
CLIENT_MESSAGES = 1000
PAYLOAD_BYTES = 64
TOPIC = b"plant/1/temperature"
STARTED_NS = 1_790_000_000 * 10**9 // 64 * 64
PAIRS = list(itertools.combinations(range(NODES), 2))
SAMPLE_FILES = 16
BROKERS, WORKLOADS = ("one", "two"), ("fan", "mesh")


class Split:
    """Four nodes; each queue lies on two of them, and so do its messages and their payloads.

    Of the time that a queue lasts the last twentieth is after the split: its messages are on the queue's
    first node alone. One in twenty of the others was delivered by the first node, and is on the second alone.
    One in a thousand is in flight on the first.
    """

    def __init__(self, messages: int) -> None:
        self.buckets = max(min(BUCKETS, messages // BUCKET_MESSAGES), 2)
        self.clients = max(messages // CLIENT_MESSAGES // self.buckets, 1)  # of each bucket
        self.rounds = max(messages // self.buckets, 1)  # messages of each bucket
        self.messages = self.rounds * self.buckets
        self.split = self.rounds * 19 // 20

    def write(self, folder: Path) -> list[str]:
        """The nodes' dumps; their paths."""
        dumps = [folder / f"node{node}" for node in range(NODES)]
        for dump in dumps:
            for table in SCHEMAS:
                (dump / table).mkdir(parents=True)
        counts = [dict.fromkeys(SCHEMAS, 0) for _ in dumps]
        names = self._names()
        for bucket in range(self.buckets):
            for node, dump in enumerate(dumps):
                for table, made in self._bucket(bucket, node, names[bucket]).items():
                    write_table(made, table_path(dump, table, bucket))
                    counts[node][table] += made.num_rows
        for node, dump in enumerate(dumps):
            write_table(SCHEMAS["rows"].empty_table(), table_path(dump, "rows", 0))
            manifest: dict[str, Any] = {"version": VERSION, "format": "2", "buckets": self.buckets}
            manifest |= {"incarnation": node + 1, "clock": STARTED_NS * 2, "seen": [], "rows": counts[node]}
            (dump / MANIFEST).write_text(json.dumps(manifest))
        return [str(dump) for dump in dumps]

    def _names(self) -> list[list[str]]:
        """Of each bucket's clients."""
        names: list[list[str]] = [[] for _ in range(self.buckets)]
        for number in itertools.count():
            name = f"device-{number:08}"
            of_bucket = names[bucket_of_name(name, self.buckets)]
            if len(of_bucket) < self.clients:
                of_bucket.append(name)
                if number % 64 == 0 and min(map(len, names)) == self.clients:
                    break
            elif min(map(len, names)) == self.clients:
                break
        return names

    def _bucket(self, bucket: int, node: int, names: list[str]) -> dict[str, pa.Table]:
        first = np.array([pair[0] for pair in PAIRS])
        second = np.array([pair[1] for pair in PAIRS])
        clients = np.arange(self.clients)
        here = (first[clients % len(PAIRS)] == node) | (second[clients % len(PAIRS)] == node)
        numbers = np.cumsum(here) - 1  # of the node's owners
        turns = np.arange(self.rounds)
        owners = turns % self.clients
        entries = self._turns_at(turns, owners, node)
        turns, owners = turns[entries], owners[entries]
        clocks, origins = self._ids(turns, np.full(len(turns), bucket))
        flying = (first[owners % len(PAIRS)] == node) & (turns % 1000 == 500)
        order = np.lexsort((clocks, flying, owners))  # as a store has them: queue, status, id
        zeros = np.zeros(len(turns), np.uint8)
        entry_columns = {
            "owner": numbers[owners][order],
            "clock": clocks[order],
            "origin": origins[order],
            "status": np.where(flying, 2, 1)[order],
            "flags": zeros,
            "qos": zeros + 1,
            "message_bytes": np.full(len(turns), 150),
            "expires_at_ms": np.zeros(len(turns), np.int64),
            "sequence": np.where(flying, turns // 1000, 0)[order],
            "subscription_ids": pa.nulls(len(turns), SCHEMAS["entries"].field("subscription_ids").type),
        }
        of_payloads = np.arange(self.rounds)  # the bucket of a queue and that of a payload differ by the turn
        homes = (bucket - of_payloads) % self.buckets
        held = self._turns_at(of_payloads, of_payloads % self.clients, node)
        clocks, origins = self._ids(of_payloads[held], homes[held])
        order = np.lexsort((origins, clocks))
        payload_columns = {
            "clock": clocks[order],
            "origin": origins[order],
            "references": pa.nulls(len(order), pa.uint32()),
            "message": messages(len(order)),
        }
        own = [name for name, mine in zip(names, here, strict=True) if mine]
        return {
            "entries": made("entries", entry_columns),
            "payloads": made("payloads", payload_columns),
            "owners": owner_table(own, node),
            "seen": self._seen(np.flatnonzero(here), first, node),
            "subscriptions": SCHEMAS["subscriptions"].empty_table(),
            "retained": SCHEMAS["retained"].empty_table(),
        }

    def _turns_at(self, turns: np.ndarray, owners: np.ndarray, node: int) -> np.ndarray:
        """Which of the messages that came to these owners in these turns a node has."""
        pair = owners % len(PAIRS)
        firsts = np.array([pair[0] for pair in PAIRS])[pair] == node
        seconds = np.array([pair[1] for pair in PAIRS])[pair] == node
        delivered = (turns // self.clients) % 20 == 7
        late = turns >= self.split
        found: np.ndarray = (firsts & (late | ~delivered)) | (seconds & ~late)
        return found

    def _ids(self, turns: np.ndarray, buckets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        numbers = buckets + (self.buckets + 1) * turns  # modulo the buckets: the sum of both
        first = -(STARTED_NS // 64) % self.buckets
        return (STARTED_NS + (first + numbers) * 64).astype(np.uint64), (turns % NODES + 1).astype(np.uint64)

    def _seen(self, clients: np.ndarray, first: np.ndarray, node: int) -> pa.Table:
        until = int(self._ids(np.array([self.split]), np.array([0]))[0][0]) - 1
        rows = len(clients) * NODES
        last = np.where(first[clients % len(PAIRS)] == node, 2 * STARTED_NS, until)
        columns = {
            "owner": np.repeat(np.arange(len(clients)), NODES),
            "origin": np.tile(np.arange(1, NODES + 1), len(clients)),
            "first": np.zeros(rows, np.uint64),
            "last": np.repeat(last, NODES),
        }
        return made("seen", columns)


def owner_table(names: list[str], node: int) -> pa.Table:
    count = len(names)
    columns = {
        "owner": np.arange(count),
        "kind": ["session"] * count,
        "name": names,
        **{name: np.zeros(count, np.int64) for name in ("expiry_s", "will_due_at_ms", "will_delay_s")},
        "ends_at_ms": np.full(count, 10**13 - node),
        "will_expiry_s": np.full(count, -1),
        "will": pa.nulls(count, pa.binary()),
        "received": [[]] * count,
    }
    return made("owners", columns)


def made(table: str, columns: dict[str, Any]) -> pa.Table:
    """In the schema's order and types."""
    schema = SCHEMAS[table]
    arrays = [
        pa.array(columns[field.name]).cast(field.type)
        if not isinstance(columns[field.name], pa.Array)
        else columns[field.name]
        for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def messages(count: int) -> pa.Array:
    """As rows of the store have them: head, topic, random payload."""
    head = bytes([1, 0]) + bytes(8) + len(TOPIC).to_bytes(4) + bytes(4) + PAYLOAD_BYTES.to_bytes(4)
    width = len(head) + len(TOPIC) + PAYLOAD_BYTES
    text = np.empty((count, width), np.uint8)
    text[:, : width - PAYLOAD_BYTES] = np.frombuffer(head + TOPIC, np.uint8)
    random = np.random.default_rng(count).integers(0, 256, (count, PAYLOAD_BYTES), np.uint8)
    text[:, width - PAYLOAD_BYTES :] = random
    offsets = (np.arange(count + 1) * width).astype(np.int32)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(text)])


def write_table(table: pa.Table, path: Path) -> None:
    """As `tidemq store dump --arrow` writes them."""
    pq.write_table(
        table, path, compression="lz4", use_dictionary=False, write_page_checksum=True, row_group_size=1 << 15
    )


def write_samples(folder: Path, count: int) -> None:
    """Latencies as brokers have them, lognormal, in some files; as a load tool would write them."""
    folder.mkdir(parents=True)
    draw = np.random.default_rng(1)
    rows = max(count // SAMPLE_FILES, 1)
    for number in range(SAMPLE_FILES):
        broker, workload = BROKERS[number % 2], WORKLOADS[number // 2 % 2]
        columns = {
            "broker": pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), [broker]),
            "workload": pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), [workload]),
            "latency_us": pa.array(draw.lognormal(6 + number % 4 / 4, 1, rows).astype(np.int64)),
        }
        pq.write_table(pa.table(columns), folder / f"{secrets.token_hex(4)}.parquet")


def publish_readings(
    port: int, seconds: float, rate: int, devices: int, rules: int, *, paced: bool = True
) -> None:
    """JSON of so many devices in turn, for each rule as many; until all is acknowledged. The times in it are
    those of a steady rate; unless `paced`, it is published as fast as it goes.
    """
    chunk = rate // 20
    began, began_at = time.monotonic(), datetime.now(UTC)
    with Client(f"mqtt://127.0.0.1:{port}", client_id="gateway") as client:
        for first in range(0, int(rate * seconds), chunk):
            at = (began_at + timedelta(seconds=first / rate)).isoformat()
            client.publish_many(
                (
                    (
                        f"bench/{number % devices}/kind{number % rules}",
                        b'{"celsius": %.2f, "humidity": %.1f, "at": "%s"}'
                        % (number % 4000 / 100, number % 1000 / 10, at.encode()),
                    )
                    for number in range(first, first + chunk)
                ),
                qos=1,
            )
            if paced:
                time.sleep(max(began + (first + chunk) / rate - time.monotonic(), 0))
