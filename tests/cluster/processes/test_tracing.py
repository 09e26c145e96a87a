"""What is found of logs in the folder of a run."""

from __future__ import annotations

from pathlib import Path

from cluster.processes.tracing import kept_in

from tidemq.cluster.operations import EndSession, Stamp
from tidemq.cluster.records import NO_DIGEST, Record
from tidemq.cluster.transport.frames import pack_copies
from tidemq.cluster.vectors import Dot

NODE = 0x1234
_PIECE_BYTES = 1 << 20


def record(number: int, client: str, clock: int) -> Record:
    return Record(Dot(NODE, number), NO_DIGEST, clock, {}, (EndSession(client, Stamp(clock, NODE)),))


def test_records_are_found_once_in_the_order_of_their_times(tmp_path: Path) -> None:
    later, first = record(1, "ann", 20), record(2, "eve", 10)
    for name in ("broker-1", "broker-2"):
        folder = tmp_path / name / "nats" / "streams" / f"C_{NODE:016x}" / "msgs"
        folder.mkdir(parents=True)
        frames = pack_copies(1, [each.encoded for each in (later, first)], _PIECE_BYTES)
        noise = NODE.to_bytes(8) + b"no record"
        (folder / "1.blk").write_bytes(noise + b"".join(frames) + noise)
    assert kept_in(tmp_path) == [first, later]
