"""The benchmarks of rows of queues, in small: they run, and say what they are to say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import WAIT_S

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

pytestmark = pytest.mark.long


def test_each_step_of_a_message_is_measured() -> None:
    command = [
        sys.executable,
        str(BENCHMARKS / "cluster_rows.py"),
        "--messages",
        "50",
        "--batch",
        "20",
        "--rounds",
        "1",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=WAIT_S)
    rows = re.findall(r"^\| (.+) \| [\d.]+ µs \| [\d.]+ µs \|$", done.stdout, flags=re.MULTILINE)
    assert rows == ["add", "send", "remove", "all three"]


def test_each_kind_of_rows_that_are_compared_is_measured() -> None:
    command = [sys.executable, str(BENCHMARKS / "cluster_verify.py"), "--messages", "50", "--sessions", "5"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=WAIT_S)
    rows = re.findall(r"^\| (.+) \| (\d+) \| [\d.]+ \| [\d.]+ \|$", done.stdout, flags=re.MULTILINE)
    assert rows == [("session", "5"), ("queue entry", "50"), ("message", "50")]
