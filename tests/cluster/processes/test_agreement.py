"""What nodes must agree on at the end of a run is looked at: each thing that can be wrong is found."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cluster.processes import agreement, logs
from cluster.processes import nodes as processes
from cluster.processes.agreement import PATH, compare, look_for_tombstones
from cluster.processes.logs import FEW, LogWatch
from crash.history import NEVER, History, Split

from tidemq.store.rocksdb import RocksDBStore


class OneNode:
    """As `Nodes`."""

    all = (SimpleNamespace(name="broker 1"),)
    is_whole = True

    def __iter__(self) -> Iterator[SimpleNamespace]:
        return iter(self.all)


async def kinds_of(
    monkeypatch: pytest.MonkeyPatch,
    outcome: str,
    records: list[int],
    states: Sequence[str] = ("alive",),
    left_out: Sequence[str] = (),
) -> list[str]:
    """The failures where a comparison comes to this, and logs have so many records, one after the other, as
    have another node's states.
    """
    monkeypatch.setattr(agreement, "TRIM_S", 0.5)
    monkeypatch.setattr(agreement, "WAIT_S", 1.0)
    monkeypatch.setattr(agreement, "TIDY_S", 0.0)
    left, outcomes, state = iter(records), iter(["running", "running", outcome]), iter(states)
    is_heard = False

    async def ask(_node: Any, method: str, path: str, _body: Any = None) -> Any:
        nonlocal is_heard
        if path == PATH and not is_heard:
            now = next(state, states[-1])
            is_heard = now == "alive"
            return {"members": [{"state": "alive"}, {"state": now}]}
        if path == PATH:
            return {"log_records": next(left, records[-1])}
        return {"outcome": next(outcomes) if method == "GET" else "running", "left_out": left_out}

    monkeypatch.setattr(agreement, "ask", ask)
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


async def test_nodes_that_do_not_hear_each_other_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the machine has just stood still. None may be left out."""
    assert await kinds_of(monkeypatch, "equal", [0], states=["suspected", "dead", "alive"]) == []
    assert await kinds_of(monkeypatch, "equal", [0], states=["suspected"]) == ["apart"]
    assert await kinds_of(monkeypatch, "equal", [0], left_out=["broker 2"]) == ["digests"]


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


@pytest.mark.parametrize(
    ("counts", "kinds"),
    [
        ([500, 900, 400] * 20, []),  # it is trimmed now and then
        ([FEW] * 60, []),
        ([FEW + number for number in range(60)], ["long log"] * 4),
    ],
)
async def test_a_log_that_only_grows_while_clients_are_at_work(
    monkeypatch: pytest.MonkeyPatch, counts: list[int], kinds: list[str]
) -> None:
    left = [*counts]

    async def ask(*_: Any) -> Any:
        if not left:
            raise EOFError
        return {"log_records": left.pop(0)}

    monkeypatch.setattr(logs, "ask", ask)
    monkeypatch.setattr(logs, "LOOK_S", 0.001)
    monkeypatch.setattr(logs, "GROWS_S", 0.0135)
    history = History()
    nodes: Any = OneNode()
    with pytest.raises(EOFError):
        await LogWatch(nodes, history).watch()
    assert [each.kind for each in history.failures] == kinds


@pytest.mark.parametrize(("is_apart", "kinds"), [(False, []), (True, ["stalled"])])
async def test_nodes_that_do_not_meet_after_a_split(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_apart: bool, kinds: list[str]
) -> None:
    monkeypatch.setattr(processes, "MEET_S", 0.3)
    monkeypatch.setattr(processes, "HEARD_S", 0.1)
    monkeypatch.setattr(processes, "WATCH_S", 0.05)
    monkeypatch.setattr(processes.Node, "is_apart", lambda _: is_apart)
    history = History()
    split = Split(frozenset({"broker 1"}), history.note("broker 1", "is split from the others"))
    history.splits.append(split)
    split.ended_at = history.note("broker 1", "is reached again")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(processes.Nodes(tmp_path, 2, history).watch(3.0), 1.0)
    assert [each.kind for each in history.failures] == kinds
    assert (split.met_at == NEVER) == is_apart
