"""What a node does to its rows, written down as it does it: each record that it applies, its own among them,
and up to where it deletes what nobody can contradict any more. Records are deleted from logs and stores; a
failure that is found at the end of a run is mostly about one of them.

`python tests/cluster/processes/tracing.py FILE CLIENT ...` prints what a trace says of some clients.
"""

from __future__ import annotations

import base64
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tidemq.cluster.applying import Applier
from tidemq.cluster.operations import Operation, Run
from tidemq.cluster.records import Record, parse_record, read_run
from tidemq.cluster.stability import Stability


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


def main() -> None:
    path, *clients = sys.argv[1:]
    for line in Path(path).read_text().splitlines():
        what = json.loads(line)
        if "record" not in what:
            print(f"{what['at']:.3f} collects up to {what['stable']}")
            continue
        record = parse_record(base64.b64decode(what["record"]))
        found = [each for each in _operations(record) if _is_about(each, clients)]
        if found:
            seen = {f"{each:016x}": number for each, number in record.vector.items()}
            print(f"{what['at']:.3f} {record.dot.incarnation:016x} {record.dot.number}, which knew {seen}")
        for each in found:
            print(f"    {each}")


if __name__ == "__main__":
    main()
