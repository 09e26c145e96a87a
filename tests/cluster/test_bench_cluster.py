"""The benchmark of clusters, in small: it runs through, and its page and its samples hold every figure."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from waiting import WAIT_S

PROGRAM = Path(__file__).parents[2] / "benchmarks/cluster.py"
GOALS = [
    "1:1, QoS 0, across nodes: messages per CPU-second, to one node's",
    "fan-in 20:1, QoS 0, across nodes: messages per CPU-second, to one node's",
    "fan-out 1:20, QoS 0, across nodes: messages per CPU-second, to one node's",
    "100 publishers to 100 absent subscribers, QoS 1: messages per CPU-second, to one node's",
    "PUBACK of two copies, `nats-server` lazy: p50, ms",
    "PUBACK of two copies, `nats-server` synced: p50, ms",
    "operations a second through the log, `nats-server` lazy",
    "operations a second through the log, `nats-server` synced",
    "failover of a subscriber's node, s",
]

pytestmark = pytest.mark.long


def test_page_and_samples_have_every_figure(tmp_path: Path) -> None:
    command = [sys.executable, str(PROGRAM), "--rounds", "1", "--seconds", "0.05"]
    command += ["--data", str(tmp_path), "--output", str(tmp_path / "page")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S * 3, check=False)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "page.md").read_text()
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in re.findall(r"^\|.*$", page, re.M)]
    figures = {row[0]: row[1:] for row in rows}
    for goal in GOALS:
        assert re.search(r"\d", figures[goal][0]), goal
        assert figures[goal][2] in ("met", "**missed**")
    content: dict[str, Any] = json.loads((tmp_path / "page.json").read_text())
    assert content["failures"] == []
    assert {run["side"] for run in content["runs"]} == {"one node", "two nodes"}
    for run in content["runs"]:
        outcome = run["outcome"]
        assert outcome["sent"] > 0
        assert (outcome["lost"], outcome["duplicates"], outcome["ack_errors"]) == (0, 0, 0)
        assert run["cpu_s"]["brokers"] > 0
        assert (run["cpu_s"]["nats-servers"] > 0) == (run["side"] == "two nodes")
