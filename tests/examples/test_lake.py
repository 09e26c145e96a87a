"""The parts of `make demo`; the whole of it, which takes a minute or two, checks itself."""

from __future__ import annotations

import io
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tidemq.pipeline.alerts.alert_rules import load_alert_rules
from tidemq.pipeline.alerts.states import Reading, State, expire, step
from tidemq.pipeline.decode.payload_rules import load_rules
from tidemq.wire.filters import matches

LAKE = Path(__file__).parents[2] / "examples" / "lake"
HOUR_US = 3_600_000_000


def test_the_rules_are_rules() -> None:
    assert [rule.name for rule in load_rules(LAKE / "rules.toml")] == ["readings"]
    assert [rule.name for rule in load_alert_rules(LAKE / "alerts.toml")] == ["gone"]


def test_a_device_that_is_only_slow_raises_no_alarm() -> None:
    """However long its readings stay away; only the broker's word that it is gone does."""
    [rule] = load_alert_rules(LAKE / "alerts.toml")
    assert not matches(rule.filter, "hosts/press/load")
    state, alerts = State(), []
    for hour, online in enumerate([1, 1, 0, 1]):
        now_us = hour * HOUR_US
        state, late = expire(rule.condition, state, now_us)
        state, said = step(
            rule.condition, state, Reading(7, hour, now_us, "hosts/press/status", "press", online)
        )
        alerts += [*late, *said]
    assert [(alert.state, alert.reading.offset) for alert in alerts] == [("raised", 2), ("cleared", 3)]


@pytest.fixture(scope="module")
def lake() -> dict[str, Any]:
    """What the program defines."""
    return runpy.run_path(str(LAKE))


def test_progress_is_lines_where_there_is_no_terminal(lake: dict[str, Any]) -> None:
    said = io.StringIO()
    shown = lake["Shown"](Console(file=said, width=200), every_s=0.0)
    with shown.bars:
        for counts in ((1, 0, 0, 0), (1, 0, 0, 0), (5, 5, 4, 2)):
            shown.update(counts)
        shown.every_s = 3600.0
        for count in (6, 7, 8):
            shown.update((count, 5, 4, 2))
    assert said.getvalue().splitlines() == [
        "1 acknowledged, 0 in the stream, 0 in bronze, 0 in silver",
        "5 acknowledged, 5 in the stream, 4 in bronze, 2 in silver",
        "6 acknowledged, 5 in the stream, 4 in bronze, 2 in silver",
    ]


def test_progress_is_bars_on_a_terminal(lake: dict[str, Any]) -> None:
    said = io.StringIO()
    shown = lake["Shown"](Console(file=said, width=80, force_terminal=True))
    with shown.bars:
        shown.update((5, 5, 4, 2))
    assert "in bronze" in said.getvalue()
    assert "5 acknowledged" not in said.getvalue()


def test_all_that_it_needs_is_installed() -> None:
    done = subprocess.run([sys.executable, str(LAKE), "--help"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "--rounds" in done.stdout


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_whole_without_a_terminal(install: Callable[[str, str], None], tmp_path: Path) -> None:
    install("java", "default-jre-headless")
    done = subprocess.run(
        [sys.executable, str(LAKE), "--rounds", "20"], capture_output=True, text=True, cwd=tmp_path
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout[-3000:]
    assert sum(line.endswith(" in silver") for line in lines) > 2
    alarms = [line.split() for line in lines if line.startswith(("raised", "cleared"))]
    assert alarms[0] == ["raised", "alerts/gone/hosts/spare/status"]
    assert [state for state, topic in alarms if topic == "alerts/gone/hosts/press/status"][:2] == [
        "raised",
        "cleared",
    ]
