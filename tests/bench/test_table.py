"""Results as text: figures a reader can check, and marks on what he must not trust."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from bench.test_parquet import RESULT
from conftest import RunningBroker

from tidemq.bench.report.terminal import comparison_text, run_text
from tidemq.bench.result import Result


def of_broker(name: str, per_s: float, **change: object) -> Result:
    summary = replace(RESULT.summary, received_per_s=per_s, **change)  # type: ignore[arg-type]
    return replace(RESULT, run=replace(RESULT.run, broker=name), summary=summary)


def test_a_run_in_surgemqs_form() -> None:
    lines = run_text(RESULT).splitlines()
    assert lines[:4] == [
        "fan 1:2, QoS 0, MQTT 5.0: here, some 1.2",
        "  total sent      50 messages in 2.000 s, 40,000,000 ns a message, 25 messages a second",
        "  total received 100 messages in 2.000 s, 20,000,000 ns a message, 50 messages a second",
        "  lost 0, repeated 0, out of order 0",
    ]
    assert (
        "sent to received: p50 0.101 µs, p90 0.203 µs, p99 0.405 µs, p99.9 0.405 µs, max 0.405 µs" in lines[4]
    )
    assert "cannot be looked at" in lines[-1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"limited_by_generator": True, "generator_cpu_s": 1.9}, "LIMITED BY THE GENERATOR: it was busy"),
        (
            {"limited_by_generator": True, "generator_ready_share": 0.9, "generator_cpu_s": 0.2},
            "LIMITED BY THE GENERATOR: it waited for a core",
        ),
        (
            {"limited_by_generator": True, "limited_by_exchange": True},
            "LIMITED BY THE GENERATOR: shares learned too late what had arrived at others",
        ),
        (  # three threads were busy for half a second each
            {"limited_by_generator": True, "shares": 3, "seconds": 1.0, "generator_cpu_s": 1.6},
            "LIMITED BY THE GENERATOR: it was busy (more --threads",
        ),
        ({"shares": 3}, "generator, 3 shares: "),
        ({"clock_error_us": 42.0}, "latencies between them may be off by 42 µs"),
        (
            {"end": "share lost", "reason": "share 1 of 2", "lost": 7},
            "A SHARE OF THE LOAD WAS LOST (share 1 of 2): 7 of",
        ),
        ({"end": "stalled", "lost": 7}, "NOTHING CAME ANY MORE: 7 of 100 messages are missing"),
        (
            {"end": "disconnected", "reason": "tired", "lost": 7},
            "THE BROKER CLOSED A CONNECTION (tired): 7 of",
        ),
        ({"duplicates": 1}, "NOT INTACT"),
        ({"foreign": 3}, "foreign 3"),
        ({"ack_errors": 3}, "acknowledgements out of order 3"),
        ({"end": "interrupted"}, "interrupted"),
    ],
)
def test_what_a_reader_must_know(change: dict[str, object], said: str) -> None:
    assert said not in run_text(RESULT)
    changed = replace(RESULT, summary=replace(RESULT.summary, **change))  # type: ignore[arg-type]
    assert said in run_text(changed)


def test_brokers_side_by_side() -> None:
    results = [of_broker("one", rate) for rate in (3e6, 1e6, 2.5e6)]
    results += [of_broker("two", 100, limited_by_generator=True), of_broker("two", 300, lost=1)]
    lines = comparison_text(results).splitlines()
    assert lines[0].split() == ["one", "two"]
    assert re.split(r"\s{2,}", lines[1]) == [
        "fan 1:2, QoS 0: messages/s",
        "2.5 M (1 M - 3 M)",
        "200 (100 - 300)!*",
    ]
    assert lines[-2].startswith("* limited by the generator")
    assert lines[-1].startswith("! lost")


def test_a_broker_of_which_nothing_came_is_marked() -> None:
    dead = of_broker("two", 0, end="stalled", received=0, lost=100, latency=None)
    line = comparison_text([of_broker("one", 1e6), dead]).splitlines()[2]
    assert line.startswith("fan 1:2, QoS 0: p99")
    assert line.endswith("—!")


def test_a_load_and_its_text_need_no_extra() -> None:
    program = """
import sys
for name in ("matplotlib", "pyarrow", "rich", "pyspark"):
    sys.modules[name] = None
import tidemq.bench.comparison, tidemq.bench.report.terminal
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_progress_is_shown_on_a_terminal_only(tidemq: RunningBroker) -> None:
    program = [sys.executable, "-c", "from tidemq.cli import main; main()", "bench", "fan"]
    command = [*program, "--url", f"mqtt://127.0.0.1:{tidemq.port}", "--seconds", "0.6"]
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command, stderr=theirs, stdout=subprocess.PIPE, env=os.environ | {"TERM": "xterm", "COLUMNS": "160"}
    )
    os.close(theirs)
    shown = b""
    try:
        while data := os.read(ours, 65_536):
            shown += data
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    out, _ = process.communicate()
    assert process.returncode == 0
    assert re.search(rb"sent [\d,]+ \([\d.]+ [kM]/s\)  received [\d,]+ \([\d.]+ [kM]/s\)  p50", shown)
    assert b"sent" in out
    assert b"\x1b" not in out
    silent = subprocess.run(command, capture_output=True, check=True)
    assert silent.stderr == b""
