"""What it costs a node to do what it and others did to queues: µs of CPU for each message.

    python benchmarks/cluster_rows.py [--messages 20000] [--batch 500] [--rounds 3]

Two nodes' keepers without their engines and without a `nats-server`, over RocksDB: on the first one rows as
the engine describes them become a record and are written, on the other one the record is applied and
written. Messages are added to queues of sessions, sent, and removed: each in batches of its own, and then all
three in each batch, as with clients that acknowledge after a while. CPU is that of the process, with
RocksDB's threads, and without fsync.
"""

from __future__ import annotations

import argparse
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from tidemq.cluster.conversion import Conversion
from tidemq.cluster.hybrid_clock import HybridClock
from tidemq.cluster.members import Heartbeat
from tidemq.cluster.node import Node
from tidemq.cluster.sharing import Sharing
from tidemq.cluster.stored_rows import StoredRows
from tidemq.store.rocksdb import RocksDBStore

Described = tuple[Any, ...]

SESSIONS = 100
PAYLOAD = struct.pack(">BBqIII", 1, 0, 0, 7, 0, 64) + b"a/topic" + bytes(64)
KINDS = ("add", "send", "remove")


class Side:
    """One node, its rows and its store."""

    def __init__(self, folder: Path, incarnation: int, stack: ExitStack) -> None:
        self.store = stack.enter_context(closing(RocksDBStore(folder)))
        self.store.open()
        self._number = 0
        self.rows = StoredRows(self.store, self._new_number)
        for member in (1, 2):
            self.rows.members.put(member, None, f"n{member}")
        own = Heartbeat("c", 1, f"n{incarnation}", incarnation, 1, 1, "here", 0, 0, 0, {})
        self.node = Node(self.rows, own, HybridClock(time.time_ns, skew_s_max=5, last_ns=0))
        clock = self.node.clock
        self.conversion = Conversion(self.rows, incarnation, self.node.stamp, clock.raise_to, Sharing(1.0))
        self.node.applier.home = self.conversion.home
        self.put()

    def _new_number(self) -> int:
        self._number += 1
        return self._number

    def put(self) -> None:
        """Writes what has been changed."""
        self.store.write(self.rows.take_changes(), sync=False)
        self.rows.confirm()

    def write(self, described: list[Described]) -> bytes:
        """What the engine did; gives the record."""
        operations, plain = self.conversion.convert(described)
        record = self.node.write(operations)
        self.store.write([*self.rows.take_changes(), *plain], sync=False)
        self.rows.confirm()
        return record.encoded

    def receive(self, record: bytes) -> None:
        """What another node did."""
        self.node.receive(record)
        self.put()


def session(number: int) -> Described:
    """A session as the engine puts it."""
    row = struct.pack(">QIqqIqI", number, 3600, 0, 0, 0, -1, 0)
    return ("put", "session", b"device-%04d" % number, row)


def rows_of(index: int, kind: str) -> Described:
    """What the engine does to a message, the one with this index."""
    queue, key = index % SESSIONS + 1, struct.pack(">QQ", (index + 1) << 6, 1)
    if kind == "add":
        return ("add", queue, key, 1, False, len(PAYLOAD), 0, (), None, False, PAYLOAD)
    return (kind, queue, key, index // SESSIONS)


def apart(first: int, count: int, batch: int) -> Iterator[tuple[str, list[Described]]]:
    """Each kind in batches of its own."""
    for kind in KINDS:
        for at in range(first, first + count, batch):
            yield kind, [rows_of(index, kind) for index in range(at, min(at + batch, first + count))]


def mixed(first: int, count: int, batch: int) -> Iterator[tuple[str, list[Described]]]:
    """In a batch some are added, those of the batch before are sent, and those before these removed."""
    for at in range(first, first + count + 2 * batch, batch):
        yield (
            "all three",
            [
                rows_of(index - back * batch, kind)
                for index in range(at, at + batch)
                for back, kind in enumerate(KINDS)
                if first <= index - back * batch < first + count
            ],
        )


def measure(messages: int, batch: int) -> dict[tuple[str, str], float]:
    """µs of CPU for a message, by what is done and where."""
    spent_s: dict[tuple[str, str], float] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        origin, replica = (Side(folder / f"n{each}", each, stack) for each in (1, 2))
        replica.receive(origin.write([session(number + 1) for number in range(SESSIONS)]))
        for kind, described in [*apart(0, messages, batch), *mixed(messages, messages, batch)]:
            record = spend(spent_s, (kind, "origin"), origin.write, described)
            spend(spent_s, (kind, "replica"), replica.receive, record)
        for side in (origin, replica):
            if next(side.store.scan("queue"), None) or next(side.store.scan("payload"), None):
                raise SystemExit("not all messages were removed")
    return {key: seconds / messages * 1e6 for key, seconds in spent_s.items()}


def spend(
    spent_s: dict[tuple[str, str], float], key: tuple[str, str], act: Callable[[Any], Any], on: Any
) -> Any:
    """Acts, and adds up what it takes."""
    began = time.process_time()
    outcome = act(on)
    spent_s[key] = spent_s.get(key, 0.0) + time.process_time() - began
    return outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=500, help="messages")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    rounds = [measure(given.messages, given.batch) for _ in range(given.rounds)]
    print("| | origin | replica |\n|---|---|---|")
    for kind in (*KINDS, "all three"):
        where = [median(each[kind, side] for each in rounds) for side in ("origin", "replica")]
        print(f"| {kind} | {where[0]:.1f} µs | {where[1]:.1f} µs |")


if __name__ == "__main__":
    main()
