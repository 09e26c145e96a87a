"""What nodes must agree on at the end of a run is looked at: each thing that can be wrong is found."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cluster.processes import agreement
from cluster.processes.agreement import PATH, compare, look_for_tombstones
from crash.history import History

from tidemq.store.rocksdb import RocksDBStore


class OneNode:
    """As `Nodes`."""

    all = (SimpleNamespace(name="broker 1"),)

    def __iter__(self) -> Iterator[SimpleNamespace]:
        return iter(self.all)


async def kinds_of(monkeypatch: pytest.MonkeyPatch, outcome: str, records: list[int]) -> list[str]:
    """The failures where a comparison comes to this, and logs have so many records, one after the other."""
    monkeypatch.setattr(agreement, "TRIM_S", 0.5)
    monkeypatch.setattr(agreement, "TIDY_S", 0.0)
    left, outcomes = iter(records), iter(["running", "running", outcome])

    async def ask(_node: Any, method: str, path: str, _body: Any = None) -> Any:
        if path == PATH:
            return {"log_records": next(left, records[-1])}
        return {"outcome": next(outcomes) if method == "GET" else "running"}

    monkeypatch.setattr(agreement, "_ask", ask)
    history = History()
    nodes: Any = OneNode()
    await compare(nodes, history)
    return [each.kind for each in history.failures]


@pytest.mark.parametrize(
    ("outcome", "records", "kinds"),
    [
        ("equal", [0], []),
        ("equal", [7, 3, 0], []),
        ("different", [0], ["digests"]),
        ("unknown", [0], ["digests"]),
        ("equal", [7], ["long log"]),
    ],
)
async def test_rows_that_differ_and_logs_that_stay(
    monkeypatch: pytest.MonkeyPatch, outcome: str, records: list[int], kinds: list[str]
) -> None:
    assert await kinds_of(monkeypatch, outcome, records) == kinds


@pytest.mark.parametrize(
    ("letter", "patient", "found"),
    [(b"e", False, 1), (b"g", False, 1), (b"r", False, 0), (b"r", True, 1), (b"q", True, 0)],
)
def test_what_is_still_remembered(tmp_path: Path, letter: bytes, patient: bool, found: int) -> None:
    store = RocksDBStore(tmp_path / "node")
    store.open()
    store.write([("cluster", letter + b"row", b"x")], sync=True)
    store.close()
    history = History()
    node: Any = SimpleNamespace(name="broker 1", data=tmp_path / "node")
    look_for_tombstones(node, history, patient=patient)
    assert [each.kind for each in history.failures] == ["tombstones"] * found
