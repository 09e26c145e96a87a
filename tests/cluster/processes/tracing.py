"""What a node does to its rows, written down as it does it: each record that it applies, its own among them,
and up to where it deletes what nobody can contradict any more. Records are deleted from logs and stores; a
failure that is found at the end of a run is mostly about one of them.

`python tests/cluster/processes/tracing.py FILE CLIENT ...` prints what a trace says of some clients. A run
that has failed leaves its folder, traced or not, and there the servers' copies of the logs: `tracing.py
FOLDER CLIENT ...` prints what of these is there still, in the order of hybrid times.
"""

from __future__ import annotations

import base64
import json
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tidemq.cluster.applying import Applier
from tidemq.cluster.operations import Operation, Run
from tidemq.cluster.records import Record, parse_record, read_run
from tidemq.cluster.stability import Stability
from tidemq.errors import ClusterError

_COPY = struct.Struct(">I4xHQ")  # size, checksum, format and incarnation: how a copy of a record begins


def trace(path: str) -> None:
    """From now on this process writes into that file, a line of JSON for each; before its node starts."""
    lines = Path(path).open("a", buffering=1)  # noqa: SIM115 - until the process ends
    apply, collect = Applier.apply, Stability.collect

    def write(**what: Any) -> None:
        lines.write(json.dumps({"at": round(time.time(), 3), **what}) + "\n")

    def traced_apply(self: Applier, record: Record, *, own: bool = False) -> None:
        write(own=own, record=base64.b64encode(record.encoded).decode())
        apply(self, record, own=own)

    def traced_collect(self: Stability, stable: Any, moving: Any) -> bool:
        write(stable={f"{each:016x}": number for each, number in stable.items()})
        return collect(self, stable, moving)

    Applier.apply = traced_apply  # type: ignore[method-assign]
    Stability.collect = traced_collect  # type: ignore[method-assign]


def _operations(record: Record) -> Iterator[Operation]:
    for each in record.operations:
        yield from read_run(each.text) if isinstance(each, Run) else (each,)


def _is_about(operation: Operation, clients: list[str]) -> bool:
    owner = getattr(operation, "owner", None)
    return (owner.name if owner is not None else getattr(operation, "client", None)) in clients


def kept_in(folder: Path) -> list[Record]:
    """The records that the blocks of JetStream streams have which are somewhere in this folder, each once;
    none that is in pieces. What is not a record has no right checksum.
    """
    found = {}
    for block in folder.rglob("streams/C_*/msgs/*.blk"):
        text, incarnation = block.read_bytes(), int(block.parts[-3].removeprefix("C_"), 16)
        name = incarnation.to_bytes(8)
        at = text.find(name)
        while at >= 0:
            begin = at + len(name) - _COPY.size
            if begin >= 0:
                size = _COPY.unpack_from(text, begin)[0]
                with suppress(ClusterError):
                    record = parse_record(text[begin + 4 : begin + 4 + size])
                    found[record.dot] = record
            at = text.find(name, at + 1)
    return sorted(found.values(), key=lambda each: each.clock)


def _print(at: str, record: Record, clients: list[str]) -> None:
    found = [each for each in _operations(record) if _is_about(each, clients)]
    if found:
        seen = {f"{each:016x}": number for each, number in record.vector.items()}
        print(f"{at} {record.dot.incarnation:016x} {record.dot.number}, which knew {seen}")
    for each in found:
        print(f"    {each}")


def main() -> None:
    path, *clients = sys.argv[1:]
    if Path(path).is_dir():
        for record in kept_in(Path(path)):
            _print(datetime.fromtimestamp(record.clock / 1e9, UTC).strftime("%H:%M:%S.%f"), record, clients)
        return
    for line in Path(path).read_text().splitlines():
        what = json.loads(line)
        if "record" not in what:
            print(f"{what['at']:.3f} collects up to {what['stable']}")
        else:
            _print(f"{what['at']:.3f}", parse_record(base64.b64decode(what["record"])), clients)


if __name__ == "__main__":
    main()
