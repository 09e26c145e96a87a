"""The benchmark of the log, in small: it runs, and says what it is to say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import WAIT_S

PROGRAM = Path(__file__).parents[3] / "benchmarks/cluster_log.py"

pytestmark = pytest.mark.long


def test_the_log_is_measured() -> None:
    command = [sys.executable, str(PROGRAM), "--records", "64", "--paced", "20", "--rounds", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=WAIT_S)
    rows = re.findall(r"^\| (?:lazy|synced) \|.*$", done.stdout, flags=re.MULTILINE)
    assert len(rows) == 2 * 4 + 2
    assert re.search(r"^goal: 200,000 operations a second, reached [\d,]+; ", done.stdout, flags=re.MULTILINE)
