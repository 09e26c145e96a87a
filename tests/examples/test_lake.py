"""The parts of `make demo`; the whole of it, which takes a minute or two, checks itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tidemq.pipeline.alerts.alert_rules import load_alert_rules
from tidemq.pipeline.decode.payload_rules import load_rules

LAKE = Path(__file__).parents[2] / "examples" / "lake"


def test_the_rules_are_rules() -> None:
    assert [rule.name for rule in load_rules(LAKE / "rules.toml")] == ["readings"]
    assert [rule.name for rule in load_alert_rules(LAKE / "alerts.toml")] == ["silent"]


def test_all_that_it_needs_is_installed() -> None:
    done = subprocess.run([sys.executable, str(LAKE), "--help"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "--rounds" in done.stdout
