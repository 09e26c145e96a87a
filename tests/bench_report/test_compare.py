"""`make bench`: brokers are started, compared and drawn; one that cannot be had is named."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

pytestmark = pytest.mark.skipif(not BENCHMARKS.is_dir(), reason="the source tree is hidden")


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The brokers that can be compared, by name."""
    monkeypatch.syspath_prepend(BENCHMARKS)  # as its programs find it
    import peers

    return peers.PEERS


def compare(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / "compare.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=110)


@pytest.mark.long
def test_a_comparison_leaves_a_page_with_every_workload_and_pictures(tmp_path: Path) -> None:
    stem = tmp_path / "look"
    few = ["--brokers", "tidemq", "--workloads", "one-to-one,one-to-one-qos2,ping"]
    done = compare(*few, "--rounds", "1", "--seconds", "0.5", "--output", str(stem))
    assert done.returncode == 0, done.stderr
    page = stem.with_suffix(".md").read_text()
    for workload in ("fan 1:1, QoS 0", "fan 1:1, QoS 2", "ping by 1 pair"):
        assert f"| {workload}" in page, workload
    assert "> 400 k" in page  # SurgeMQ's, beside one to one
    assert "## Messages delivered per second of the broker's CPU" in page
    assert page.count("tidemq bench compare --workloads") == 2
    for name in ("throughput", "throughput-per-cpu", "latency", "latency-over-time"):
        assert f"![{name}](look/{name}.png)" in page
        assert (stem / f"{name}.png").is_file()
    again = compare("--brokers", "tidemq", "--output", str(stem))
    assert again.returncode == 1
    assert "is there already" in again.stderr


def test_a_broker_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    done = compare("--brokers", "tidemq,nobody", "--output", str(tmp_path / "x"))
    assert done.returncode == 1
    assert done.stderr.startswith("no broker nobody; known: tidemq, ")


def test_what_only_root_can_install_is_named(peers: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from peers.peer import PeerMissingError

    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(shutil, "which", lambda program: None)
    with pytest.raises(PeerMissingError, match=r"^rabbitmqctl is not installed: apt-get install rabbitmq"):
        peers["rabbitmq"].install()


def test_an_installer_that_fails_says_why(peers: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from peers.peer import PeerMissingError, run_installer

    with pytest.raises(PeerMissingError, match=r"^sh -c .* failed: no such package$"):
        run_installer(["sh", "-c", "echo no such package >&2; exit 1"])
    with pytest.raises(PeerMissingError, match=r"^could not run /nowhere/installer: "):
        run_installer(["/nowhere/installer"])


def test_a_broker_that_does_not_start_says_why(
    peers: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from peers.peer import anywhere

    broker = peers["tidemq"]
    monkeypatch.setattr(broker, "store", "nothing")
    with (
        pytest.raises(RuntimeError, match=r"(?s)it ended with status 2 before it listened: .*nothing"),
        broker.started(anywhere()),
    ):
        pytest.fail("it started")
