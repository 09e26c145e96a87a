"""The benchmark of a split, in small: it loses nothing, nodes become the same, and its page says so."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from waiting import WAIT_S

if TYPE_CHECKING:
    from peers.cuttable import Local

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PROGRAM = BENCHMARKS / "cluster_split.py"
PHASES = ("filling", "to same vectors", "to equal digests")
MARKS = ["cut", "filling", "filled", "healed", "same vectors", "equal digests"]


def run(folder: Path, *options: str, each: int = 100, queues: int = 20) -> dict[str, Any]:
    """The tool with `each` messages for each of these queues; what it has written."""
    command = [
        sys.executable,
        str(PROGRAM),
        "--messages",
        f"{each * queues}",
        "--queues",
        f"{queues}",
        *options,
    ]
    command += ["--data", str(folder), "--output", str(folder / "page"), "--limit", f"{WAIT_S}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S * 3, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    content: dict[str, Any] = json.loads((folder / "page.json").read_text())
    return content


def check(content: dict[str, Any], page: str, nodes: int, *, each: int = 100, queues: int = 20) -> None:
    """All that any run has to show."""
    assert content["failures"] == []
    assert content["verdict"] == "equal"
    messages = each * queues
    assert (content["queued"], content["queues"], content["wrong"], content["homes"]) == (
        messages,
        queues,
        0,
        1,
    )
    assert list(content["marks"]) == MARKS
    assert sorted(content["marks"].values()) == list(content["marks"].values())
    assert [side["sent"] for side in content["filled"]] == [messages // 2] * 2
    assert len(content["log"]) == nodes
    text = (
        f"All {messages:,} messages are in their queues, {each:,} in each of {queues:,}, each session at one"
    )
    assert text in page
    samples = content["samples"]
    while_cut = [each for each in samples if each["is_cut"]]
    assert while_cut
    assert not samples[0]["is_cut"]
    assert not samples[-1]["is_cut"]
    filled = [each for each in while_cut if each["at"] > content["marks"]["filled"]]
    assert any(min(each["lacks"].values()) > 0 for each in filled)  # each node lacks what the other side has
    assert set(samples[-1]["lacks"].values()) == {0}


def test_four_nodes_are_one_again(tmp_path: Path) -> None:
    """With so many sessions, and messages right after these were taken over, that nodes have to hurry."""
    content = run(tmp_path, each=100, queues=1000)
    page = (tmp_path / "page.md").read_text()
    check(content, page, 4, each=100, queues=1000)
    for phase in PHASES:
        assert content["cpu_s"][phase]["broker"] > 0
        assert content["cpu_s"][phase]["nats-server"] > 0
    nodes = [f"node{number}" for number in range(1, 5)]
    assert list(content["disk_bytes"]) == nodes
    assert all(size > 0 for size in content["disk_bytes"].values())
    assert all(set(each) == {"broker", "nats-server"} for each in content["memory_bytes"].values())
    assert (tmp_path / "page.svg").exists() == (find_spec("matplotlib") is not None)
    if find_spec("matplotlib") is not None:
        plot = (tmp_path / "page.svg").read_text()
        assert all(text in plot for text in (*nodes, "healed", "equal digests"))


@pytest.fixture
def cuttable(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """How nodes are started."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from peers import cuttable

    return cuttable


@contextmanager
def done_when_asked(folder: Path, acts: dict[str, Callable[[], None]]) -> Iterator[dict[str, str]]:
    """Commands, by name, that have this process do these acts, and end when they are done."""
    ends = threading.Event()

    def serve() -> None:
        while not ends.is_set():
            for name, act in acts.items():
                if (folder / name).exists() and not (folder / f"{name}.done").exists():
                    act()
                    (folder / f"{name}.done").touch()
            time.sleep(0.01)

    thread = threading.Thread(target=serve)
    thread.start()
    script = "touch {0}; until [ -e {0}.done ]; do sleep 0.01; done"
    try:
        yield {name: f"sh -c {shlex.quote(script.format(shlex.quote(str(folder / name))))}" for name in acts}
    finally:
        ends.set()
        thread.join()


@pytest.mark.long
def test_nodes_that_run_elsewhere_are_cut_by_a_command(tmp_path: Path, cuttable: ModuleType) -> None:
    with cuttable.started(2, tmp_path) as nodes:
        local: Local = nodes
        admin = ",".join(each.admin_url for each in local.places)
        mqtt = ",".join(each.target.url for each in local.places)
        with done_when_asked(tmp_path, {"cut": local.cut, "heal": local.heal}) as commands:
            options = ["--cut", commands["cut"], "--heal", commands["heal"]]
            content = run(tmp_path, "--admin", admin, "--mqtt", mqtt, *options)
    page = (tmp_path / "page.md").read_text()
    check(content, page, 2)
    assert content["cpu_s"]["to equal digests"] == {}
    assert "their CPU, memory and disks are not known here" in page


def test_without_matplotlib_the_page_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import cluster_split_report as report
    import machine

    from tidemq.bench.workload import Workload

    stem = tmp_path / "page"
    found = report.Found(report.Split(4, Workload(name="split")))
    monkeypatch.setattr(report, "find_spec", lambda name: None)
    assert report.plot_beside(stem) is None
    assert "pip install 'tidemq[bench]'" in report.markdown(found, machine.describe(), None)
    monkeypatch.undo()
    assert (report.plot_beside(stem) is None) == (find_spec("matplotlib") is None)
