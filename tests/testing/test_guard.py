"""Nothing that a test started is left when its process has been killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from waiting import WAIT_S

TESTS = Path(__file__).parents[1]

# A broker from a thread that ends, and a process in a session of its own, whose parent ends.
TEST = """
import os, subprocess, sys, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
ORPHAN = f"import subprocess; print(subprocess.Popen({SLEEP}, start_new_session=True, stdout=2).pid)"

def test_that_does_not_end(start_broker):
    with ThreadPoolExecutor() as pool:
        broker = pool.submit(start_broker).result()
    orphan = int(subprocess.run([sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE, check=True).stdout)
    said = Path(__file__).with_suffix(".said")
    said.with_suffix(".tmp").write_text(f"{os.getpid()} {broker.process.pid} {orphan}")
    said.with_suffix(".tmp").rename(said)
    time.sleep(600)
"""


def is_running(process: int) -> bool:
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


@contextmanager
def running_tests(folder: Path, *options: str) -> Iterator[tuple[subprocess.Popen[bytes], list[int]]]:
    """A pytest in the midst of a test, and what belongs to it: who runs the test, the broker, the orphan."""
    test = folder / "test_endless.py"
    test.write_text(TEST)
    said, log = test.with_suffix(".said"), folder / "log"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "conftest",
        "-p",
        "no:cacheprovider",
        *options,
        str(test),
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["PYTHONPATH"] = str(TESTS)
    with (
        log.open("wb") as out,
        subprocess.Popen(command, cwd=folder, stdout=out, stderr=out, env=environment) as process,
    ):
        try:
            deadline = time.monotonic() + WAIT_S
            while not said.exists() and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.02)
            assert said.exists(), log.read_text()
            yield process, [int(word) for word in said.read_text().split()]
        finally:
            process.kill()


def wait_until_gone(processes: list[int]) -> None:
    deadline = time.monotonic() + WAIT_S
    while any(map(is_running, processes)):
        assert time.monotonic() < deadline, [each for each in processes if is_running(each)]
        time.sleep(0.02)


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["alone", "xdist"])
def test_nothing_is_left_of_a_killed_pytest(tmp_path: Path, options: tuple[str, ...]) -> None:
    with running_tests(tmp_path, *options) as (pytest_itself, processes):
        assert all(map(is_running, processes))
        pytest_itself.kill()
        wait_until_gone([pytest_itself.pid, *processes])


def test_nothing_is_left_of_a_killed_worker(tmp_path: Path) -> None:
    with running_tests(tmp_path, "-n", "1") as (pytest_itself, [worker, *processes]):
        assert worker != pytest_itself.pid
        os.kill(worker, 9)
        wait_until_gone([worker, *processes])
