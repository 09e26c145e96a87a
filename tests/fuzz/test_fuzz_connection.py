"""Whole connections survive a short fuzz run, the driver is the same for a seed, and it can find."""

from __future__ import annotations

import importlib.util
import itertools
import os
import subprocess
import sys
from functools import partialmethod
from pathlib import Path
from types import ModuleType

import pytest
from conformance.kit import Client

SCRIPT = Path(__file__).with_name("fuzz_connection.py")
SECONDS = os.environ.get("TIDEMQ_FUZZ_SECONDS", "10")


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fuzz_connection", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


fuzz_connection = load()


def run(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *options], capture_output=True, text=True)


@pytest.mark.timeout(float(SECONDS) + 100)
def test_short_run_finds_nothing(tmp_path: Path) -> None:
    done = run("--seconds", SECONDS, "--seed", "5", "--crash-dir", str(tmp_path))
    assert done.returncode == 0, done.stdout
    assert int(done.stdout.split()[1]) > len(list(fuzz_connection.CORPUS.iterdir()))
    assert not list(tmp_path.iterdir())


def test_scenarios_are_the_same_for_a_seed() -> None:
    first, again, other = (list(itertools.islice(fuzz_connection.scenarios(seed), 60)) for seed in (7, 7, 8))
    assert first == again != other


def test_a_scenario_is_kept_as_it_was(tmp_path: Path) -> None:
    for _, scenario in itertools.islice(fuzz_connection.scenarios(3), 60):
        fuzz_connection.save(tmp_path / "kept.json", scenario)
        assert fuzz_connection.load(tmp_path / "kept.json") == scenario


def test_driver_keeps_the_steps_that_ended_the_player(tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    fuzz_connection.save(kept, [("send", 0, "00")])
    dying = [sys.executable, "-c", "import os, sys; print(4, file=sys.stderr, flush=True); os.abort()"]
    assert fuzz_connection.guarded(dying, 9, kept, tmp_path) == 1
    assert fuzz_connection.load(tmp_path / "crash-connection-9-4.json") == [("send", 0, "00")]


def test_a_good_pair_that_loses_a_message_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = fuzz_connection.Stage(fuzz_connection.random.Random(1))
    stage.play([])
    stage.receiver.unsubscribe(stage.topic)
    monkeypatch.setattr(
        Client, "receive", partialmethod(Client.receive, wait_s=1.0)
    )  # it would wait for long
    with pytest.raises(Exception, match="nothing came"):
        stage.play([])
    stage.end()


def test_a_finding_ends_the_player(tmp_path: Path) -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(SCRIPT.parent)!r}); import fuzz_connection, pathlib;"
        "fuzz_connection.Stage.check = lambda stage: 1 / 0;"
        f"fuzz_connection.play_all(1, 9, 9, pathlib.Path({str(tmp_path / 'kept.json')!r}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr
    assert (tmp_path / "kept.json").exists()
