"""The benchmark of what a node does to queues, in small: it runs, and says what it is to say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import WAIT_S

PROGRAM = Path(__file__).parents[2] / "benchmarks/cluster_rows.py"

pytestmark = pytest.mark.long


def test_each_step_of_a_message_is_measured() -> None:
    command = [sys.executable, str(PROGRAM), "--messages", "50", "--batch", "20", "--rounds", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=WAIT_S)
    rows = re.findall(r"^\| (.+) \| [\d.]+ µs \| [\d.]+ µs \|$", done.stdout, flags=re.MULTILINE)
    assert rows == ["add", "send", "remove", "all three"]
