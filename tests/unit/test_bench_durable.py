"""The benchmark of durability runs through, and its page and its samples hold every figure."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.long

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "durable.py"
LIMIT_S = 300.0  # some 20 s on two free cores
STORES = ["memory", "rocksdb sync", "rocksdb interval", "rocksdb os", "sqlite sync", "mosquitto"]
RATES = [
    "100 publishers to 100 subscribers, QoS 1",
    "100 publishers to 100 absent subscribers, QoS 1",
    "100 publishers to 100 subscribers, QoS 2",
    "1 publisher to 20 subscribers, QoS 1, 1,000 in flight",
]
KEPT = [
    "stored / s",
    "rise of the broker's memory",
    "the same a message",
    "its peak",
    "on disk, a message",
    "once compacted",
    "start with nothing kept",
    "start after kill -9",
    "stop",
    "start after the stop",
]
DELIVERED = [
    "delivered on return",
    "in",
    "delivered / s",
    "delivered / s while connected, before",
    "share of that",
]
FOUND = [
    "found by a wildcard that matches 10",
    "in",
    "in, first time after a restart",
    "found by a wildcard that matches 1,000",
    "all of them in",
    "a single message before: p50",
    "p99 before",
    "longest before",
    "a single message meanwhile: p50",
    "p99 meanwhile",
    "longest meanwhile",
]
NUMBER = re.compile(r"\d")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, install: Callable[[str, str], None]) -> Path:
    """The stem of what a small run wrote."""
    install("mosquitto", "mosquitto")
    folder = tmp_path_factory.mktemp("durable")
    command = [sys.executable, str(PROGRAM), "--small", "--rounds", "1", "--seconds", "0.2"]
    command += ["--data", str(folder), "--output", str(folder / "page")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "page"


def tables_of(page: str) -> dict[str, dict[str, list[str]]]:
    """By section and first cell, the other cells of a row."""
    sections: dict[str, dict[str, list[str]]] = {}
    for section in page.split("\n## ")[1:]:
        rows = sections[section.split("\n", 1)[0]] = {}
        for line in section.split("\n"):
            if line.startswith("| ") and not line.startswith("| ---"):
                name, *cells = (cell.strip() for cell in line.strip("|").split(" | "))
                rows[name] = cells
    return sections


def test_page_has_every_figure(written: Path) -> None:
    tables = tables_of(written.with_suffix(".md").read_text())
    for section in RATES:
        for store in STORES:
            assert all(NUMBER.search(cell) for cell in tables[section][store]), (section, store)
    for name in ("rate with sync to memory", "in and out / s and core with sync"):
        assert NUMBER.search(tables[RATES[0]][name][0])
    waits = tables["One QoS 1 message at a time"]
    for name in STORES:
        assert all(NUMBER.search(cell) for cell in waits[name]), name
    assert all(NUMBER.search(cell) for cell in waits["fdatasync of the disk itself"][:2])
    for section, names in {
        "1,000 messages for 20 absent clients": KEPT + DELIVERED,
        "2,000 messages for 1 absent client": KEPT + DELIVERED,
        "1,000 retained messages": KEPT + FOUND,
    }.items():
        assert list(tables[section])[1:] == names
        assert all(NUMBER.search(tables[section][name][0]) for name in names), section


def test_nothing_was_lost_on_the_way(written: Path) -> None:
    """Every message kept came back after a kill, and every goal has its verdict."""
    content: dict[str, Any] = json.loads(written.with_suffix(".json").read_text())
    assert content["failures"] == []
    assert [queued["drained"]["received"] for queued in content["queues"]] == [1_000, 2_000]
    assert [queued["drained"]["end"] for queued in content["queues"]] == ["complete"] * 2
    assert [(each["found"], each["flood"]["found"]) for each in content["retained"]] == [(10, 1_000)]
    assert {rate["outcome"]["end"] for rate in content["rates"]} == {"complete"}


def test_goals_have_their_verdicts(written: Path) -> None:
    rows = tables_of(written.with_suffix(".md").read_text())["1,000 messages for 20 absent clients"]
    with_goals = {name for name, (_figure, goal, verdict) in rows.items() if goal and verdict}
    assert with_goals >= {
        "rise of the broker's memory",
        "once compacted",
        "start after kill -9",
        "share of that",
    }
    assert {rows[name][2] for name in with_goals - {""}} <= {"met", "**missed**"}
