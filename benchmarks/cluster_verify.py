"""What it costs to compare nodes' rows: µs of CPU for each queue entry.

    python benchmarks/cluster_verify.py [--messages 100000] [--sessions 1000] [--fan-out 1]

One node's store over RocksDB is filled with messages that wait in queues of sessions, and all of it is read
as a node does that is asked for it: the digests of its rows, in order, on one thread, pauses included. An
entry is three rows, or two and a part of one where several queues have the message.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from cluster_rows import PAYLOAD, Side

from tidemq.cluster import operations as ops
from tidemq.cluster.comparable_rows import KINDS
from tidemq.cluster.digests import CUT, FREEZE, PIECE_BITS, Question, parse_part
from tidemq.cluster.operations import SESSION, Owner, PutSession
from tidemq.cluster.witness import Moment

BATCH = 1000


def fill(side: Side, messages: int, sessions: int, fan_out: int) -> None:
    """Each message waits in so many queues."""
    names = [f"device-{number:07}" for number in range(sessions)]
    for at in range(0, sessions, BATCH):
        some = names[at : at + BATCH]
        side.node.write([PutSession(each, side.node.stamp(), 1, True, 0, 3600, 0, 0, 0, 0) for each in some])
        side.put()
    turn = 0
    for at in range(0, messages, BATCH):
        operations: list[ops.Operation] = []
        for _ in range(at, min(at + BATCH, messages)):
            message_id = side.node.stamp()
            operations.append(ops.Payload(message_id, PAYLOAD))
            for _ in range(fan_out):
                owner = Owner(SESSION, names[turn % sessions])
                operations.append(ops.Add(owner, message_id, 0, 1, len(PAYLOAD), 0))
                turn += 1
        side.node.write(operations)
        side.put()


def measure(side: Side) -> dict[str, tuple[int, float, float]]:
    """Rows of each kind, seconds of CPU and seconds."""
    moment = Moment(0, Question(1, 1, FREEZE), side.store.freeze(), lambda *_: None)
    found: dict[str, tuple[int, float, float]] = {}
    for number, kind in enumerate(KINDS):
        began, cpu, count, after, is_end = time.perf_counter(), time.process_time(), 0, b"", False
        while not is_end:
            question = Question(1, 2, CUT, number, after=after, bits=PIECE_BITS)
            part = parse_part(moment.read(question))
            count, after, is_end = count + part.rows, part.last, part.is_end
        found[kind] = count, time.process_time() - cpu, time.perf_counter() - began
    moment.close()
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--fan-out", type=int, default=1)
    given = parser.parse_args(arguments)
    with TemporaryDirectory() as folder, ExitStack() as stack:
        side = Side(Path(folder), 1, stack)
        fill(side, given.messages, given.sessions, given.fan_out)
        print("| kind | rows | µs of CPU a row | µs a row |\n|---|---|---|---|")
        for kind, (count, cpu_s, took_s) in measure(side).items():
            if count:
                print(f"| {kind} | {count} | {cpu_s / count * 1e6:.2f} | {took_s / count * 1e6:.2f} |")


if __name__ == "__main__":
    main()
