"""The benchmark of scaling: who limits a run, which cores are given out, and what is on its page."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from waiting import WAIT_S

from tidemq.bench.workload import Outcome, Workload

if TYPE_CHECKING:
    from scaling_sample import Sample

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
OUTCOME = Outcome(
    end="complete",
    sent=1_000_000,
    expected=1_000_000,
    received=1_000_000,
    lost=0,
    duplicates=0,
    disordered=0,
    foreign=0,
    ack_errors=0,
    seconds=1.0,
    generator_cpu_s=1.0,
    generator_ready_share=0.5,
    latency=None,
    latencies=(),
    ack_latency=None,
    intervals=(),
    shares=8,
)


@pytest.fixture
def scaling(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """How runs are made."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import scaling_sample

    return scaling_sample


@pytest.fixture
def sample(scaling: ModuleType) -> Sample:
    """A run against four reactors, each busy for half of its time, on 16 cores."""
    made: Sample = scaling.Sample(
        scenario="pairs",
        side="tidemq",
        reactors=4,
        shared=False,
        paced=False,
        outcome=OUTCOME,
        took_s=1.0,
        broker_cpu_s=2.0,
        thread_shares=[0.5, 0.5, 0.5, 0.5],
        waited_shares=[0.0, 0.0, 0.0, 0.0],
        others_cpu_s=0.0,
        by_reactor=[scaling.Reactor(turns=10, received=each, sent=each) for each in (400, 200, 200, 0)],
        counters={"messages_received": 800, "messages_mailed": 200, "turns": 40},
    )
    return made


def test_who_limits_a_run(sample: Sample) -> None:
    assert sample.limit(16) == "waits"
    assert replace(sample, broker_cpu_s=3.7).limit(16) == "broker"
    assert replace(sample, thread_shares=[0.95, 0.1]).limit(16) == "one reactor"
    assert replace(sample, outcome=replace(OUTCOME, generator_cpu_s=7.5)).limit(16) == "generator"
    one_thread = replace(OUTCOME, generator_ready_share=0.95)
    assert replace(sample, outcome=one_thread).limit(16) == "one generator thread"
    crowded = replace(sample, reactors=16, broker_cpu_s=11.0, outcome=replace(OUTCOME, generator_cpu_s=4.0))
    assert replace(crowded, shared=True).limit(16) == "all cores"
    assert crowded.limit(16) == "waits"  # each had cores of its own, and did not use them up
    assert replace(sample, paced=True, broker_cpu_s=3.7).limit(16) == "rate"


def test_what_a_run_shows_of_its_reactors(sample: Sample) -> None:
    assert sample.per_s == 1_000_000
    assert sample.per_cpu_s == 500_000
    assert sample.mailed == 0.25
    assert sample.turn_messages == 20
    assert sample.unevenness == 2.0  # 800 of 1,600 messages by one of four
    away = replace(OUTCOME, received=0, expected=0, sent=300_000)  # they are stored
    assert replace(sample, outcome=away).per_s == 300_000


def test_broker_and_generator_get_cores_of_their_own_as_long_as_there_are_some(scaling: ModuleType) -> None:
    cores = list(range(16))
    assert scaling.threads_of(cores) == 8
    assert scaling.cores_of(1, cores) == ({0}, set(range(8, 16)))
    assert scaling.cores_of(8, cores) == (set(range(8)), set(range(8, 16)))
    assert scaling.cores_of(16, cores) == (set(cores), set(cores))
    assert scaling.cores_of(2, [0, 1]) == ({0, 1}, {0, 1})
    assert scaling.threads_of([0]) == 1


def test_a_broker_gets_whole_physical_cores_first(
    scaling: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scaling, "siblings", lambda core: [core // 2 * 2, core // 2 * 2 + 1])
    assert scaling.in_order(range(8)) == [0, 2, 1, 3, 4, 5, 6, 7]


def test_brokers_apart_get_all_pairs(scaling: ModuleType) -> None:
    pairs = Workload(name="pairs", publishers=100, subscribers=100, pairs=True, outstanding_max=1_000)
    parts = scaling.divided(pairs, 16)
    assert sum(part.publishers for part in parts) == sum(part.subscribers for part in parts) == 100
    assert {part.publishers for part in parts} == {6, 7}
    assert {part.outstanding_max for part in parts} == {60, 70}
    assert scaling.divided(pairs, 1) == [pairs]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, install: Callable[[str, str], None]) -> Path:
    """The stem of what a small run wrote."""
    install("mosquitto", "mosquitto")
    folder = tmp_path_factory.mktemp("scaling")
    command = [sys.executable, str(BENCHMARKS / "scaling.py"), "--reactors", "1,2", "--rounds", "1"]
    command += ["--seconds", "0.05", "--data", str(folder), "--output", str(folder / "page")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S * 5, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "page"


@pytest.mark.long
def test_every_load_is_on_the_page(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from scaling_loads import LOADS

    page = written.with_suffix(".md").read_text()
    for load in LOADS:
        (section,) = re.findall(rf"^### {re.escape(load.text)}\n(.*?)\n\n\n", page, re.M | re.S)
        rows = [row.strip("| ").split(" | ") for row in section.splitlines() if row.startswith("| ")][2:]
        names = [row[0] for row in rows]
        assert names[:2] == ["1", "2"], load.name
        assert ("1, Mosquitto" in names) == ("mosquitto" in load.sides)
        assert ("2, as many brokers, apart" in names) == ("apart" in load.sides)
        for row in rows:
            assert all(re.search(r"\d", cell) for cell in (row[1], row[2], row[4], row[5], row[6])), row
            assert "not intact" not in row[1]


@pytest.mark.long
def test_every_run_has_what_its_reactors_did(written: Path) -> None:
    content: dict[str, Any] = json.loads(written.with_suffix(".json").read_text())
    assert content["failures"] == []
    for run in content["samples"]:
        outcome = run["outcome"]
        assert outcome["end"] == "complete"
        assert outcome["sent"] > 0
        assert (outcome["lost"], outcome["duplicates"], outcome["ack_errors"]) == (0, 0, 0)
        assert run["broker_cpu_s"] > 0
        if run["side"] != "mosquitto":
            received = [int(count) for count in run["by_reactor"]["received"].split()]
            assert len(received) == run["reactors"]
            assert sum(received) == run["counters"]["messages_received"]
