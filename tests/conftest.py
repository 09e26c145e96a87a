"""The broker under test: started once a session, and with special settings where a test needs them.

`TIDEMQ_TEST_BROKER=mosquitto` starts Mosquitto instead, to check the tests themselves.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling

from tidemq.testing.ports import free_port

sys.path.insert(0, str(Path(__file__).parent))  # so that tests find `conformance`

import forks
from assertions.apart import TESTS as APART
from guard import guard_this_process
from quick import examples
from waiting import WAIT_S

UNDER_TEST = os.environ.get("TIDEMQ_TEST_BROKER", "tidemq")
INSTALL_S = 300  # for a Debian package
ROOT = Path(__file__).parents[1]

# Others may have the core meanwhile, so the clock says nothing about an example.
hypothesis.settings.register_profile(
    "tests", max_examples=examples(), deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("tests")

# What takes longest begins first.
FIRST = [
    *(
        "sessions",
        "clusters",
        "assertions/",
        "wheel/",
        "crash/test_crash.py",
        "bench/test_generator.py",
    ),
    *("bench/test_workloads.py", "durable/test_clock.py", "adversity/test_attack.py", "cli/test_cli.py"),
    *("client/test_exactly_once.py", "unit/test_wire_roundtrip.py", "fuzz/"),
]


@cache
def scope_of(file: str) -> str:
    """Whose tests stay in one process. Those of a file; but files that share Spark's session, or would start
    several clusters at once, stay together. The session's are two halves that take about as long: a session
    leaves its settings to the next one of a process.
    """
    path = Path(file)
    if path.parent.name in ("spark", "pipeline_crash"):
        return "clusters"
    if path.parent.name == "pipeline" and "spark: SparkSession" in (ROOT / file).read_text():
        return f"sessions {int(path.name > 'test_l')}"
    return file


class ByFile(LoadScopeScheduling):  # type: ignore[misc]
    """`pytest -n 4`: the tests of a file stay together, in their order, see `scope_of`."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid.split("::")[0])


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background jobs
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not config.option.collectonly:
        guard_this_process()


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    config.option.loadscopereorder = False
    return ByFile(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sorts them, and leaves out what tests/assertions runs in a build that holds more, if that runs too."""
    if any("/assertions/test_turns.py::test_many" in item.nodeid for item in items):
        again = [item for item in items if item.nodeid.startswith(tuple(APART))]
        config.hook.pytest_deselected(items=again)
        items[:] = [item for item in items if not item.nodeid.startswith(tuple(APART))]

    def place(item: pytest.Item) -> int:
        scope = f"/{scope_of(item.nodeid.split('::')[0])}"
        return next((place for place, part in enumerate(FIRST) if f"/{part}" in scope), len(FIRST))

    items.sort(key=place)


class RunningBroker(NamedTuple):
    """A broker process; `log` is what it has written to standard output and error."""

    port: int
    process: subprocess.Popen[bytes]
    log: Path
    name: str

    def stop(self) -> int:
        """SIGTERM; returns the exit status."""
        self.process.terminate()
        try:
            self.process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(
                f"broker still ran {WAIT_S} s after SIGTERM\n{self.log.read_text()}"
            ) from None
        return self.process.returncode


def start_mosquitto(folder: Path) -> RunningBroker:
    port, log, config = free_port(), folder / "broker.log", folder / "mosquitto.conf"
    settings = "allow_anonymous true\nmax_queued_messages 0\nmax_inflight_messages 0\n"
    config.write_text(f"listener {port} 127.0.0.1\n{settings}")
    process = subprocess.Popen(
        ["mosquitto", "-c", str(config)], stdout=log.open("wb"), stderr=subprocess.STDOUT
    )
    return RunningBroker(port, process, log, "mosquitto")


def start_tidemq(folder: Path, settings: str, reactors: int, import_from: Path | None) -> RunningBroker:
    """`tidemq serve` on a port of its own choice, which it prints."""
    log, config = folder / "broker.log", folder / "tidemq.toml"
    config.write_text(settings)
    command = ["serve", "--host", "127.0.0.1"]
    if "store = " not in settings:
        command += ["--store", "memory"]
    command += ["--port", "0", "--reactors", str(reactors), "--config", str(config)]
    if import_from is None:
        process = forks.Tidemq(command, stdout=log.open("wb"), stderr=subprocess.STDOUT)
        return RunningBroker(printed_port(process, log), process, log, "tidemq")
    path = os.pathsep.join([str(import_from), os.environ.get("PYTHONPATH", "")])
    with_more = subprocess.Popen(
        [sys.executable, "-c", "from tidemq.cli import main; main()", *command],
        stdout=log.open("wb"),
        stderr=subprocess.STDOUT,
        env=os.environ | {"PYTHONPATH": path},
    )
    return RunningBroker(printed_port(with_more, log), with_more, log, "tidemq")


def printed_port(process: subprocess.Popen[bytes], log: Path) -> int:
    """The port in the line that says the broker is ready."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        if found := re.search(r"ready on 127\.0\.0\.1:(\d+)", log.read_text()):
            return int(found[1])
        if process.poll() is not None:
            break
        time.sleep(0.01)
    process.kill()
    raise AssertionError(f"the broker (exit status {process.wait()}) printed no port:\n{log.read_text()}")


def wait_until_open(broker: RunningBroker) -> RunningBroker:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline and broker.process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", broker.port), timeout=1).close()
            return broker
        except ConnectionRefusedError:
            time.sleep(0.01)
    broker.process.kill()
    raise AssertionError(f"the broker does not listen on port {broker.port}:\n{broker.log.read_text()}")


StartBroker = Callable[..., RunningBroker]


@pytest.fixture(scope="session")
def start_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartBroker]:
    """Starts brokers: `start_broker(settings="TOML text", reactors=2)`. Those that still run at the end are
    stopped; none may have ended badly, or with a live object of the engine left."""
    started: list[RunningBroker] = []

    def start(settings: str = "", reactors: int = 1, import_from: Path | None = None) -> RunningBroker:
        folder = tmp_path_factory.mktemp("broker")
        if UNDER_TEST == "mosquitto":
            if settings:
                pytest.skip("these settings are TideMQ's")
            broker = start_mosquitto(folder)
        else:
            broker = start_tidemq(folder, settings, reactors, import_from)
        started.append(broker)
        return wait_until_open(broker)

    yield start
    with ThreadPoolExecutor() as pool:
        statuses = list(pool.map(RunningBroker.stop, started))
    for broker, status in zip(started, statuses, strict=True):
        log = broker.log.read_text()
        assert status == 0, f"a broker ended with status {status}:\n{log[-4000:]}"
        assert "left objects behind" not in log, log[-4000:]


@contextmanager
def installing() -> Iterator[None]:
    """One process of this machine at a time, and not in the time of the test that asks for it."""
    left_s, _ = signal.setitimer(signal.ITIMER_REAL, 0)  # of pytest-timeout
    with Path(tempfile.gettempdir(), "tidemq-tests-install.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    signal.setitimer(signal.ITIMER_REAL, left_s)


def install_package(command: str, package: str) -> None:
    # RUNLEVEL: the package must not start a server of its own
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    for arguments in (["update"], ["install", "-y", "--no-install-recommends", package]):
        done = subprocess.run(
            ["apt-get", "-q", *arguments],
            capture_output=True,
            text=True,
            timeout=INSTALL_S,
            env=environment,
        )
    if done.returncode:
        pytest.fail(f"the tests need the command {command}, and apt-get failed:\n{done.stderr[-2000:]}")


@pytest.fixture(scope="session")
def install() -> Callable[[str, str], None]:
    """`install(command, package)` makes a command of a Debian package available."""

    def need(command: str, package: str) -> None:
        if shutil.which(command):
            return
        if os.geteuid() != 0 or not shutil.which("apt-get"):
            pytest.fail(f"the tests need the command {command}: install the package {package}")
        with installing():
            if not shutil.which(command):  # another process may have been first
                install_package(command, package)

    return need


@pytest.fixture
def admin_port() -> int:
    """A free port for a broker's admin listener, to be put into its settings."""
    return free_port()


@pytest.fixture
def unused_tcp_port() -> int:
    """In place of pytest-asyncio's, which another process may be given before the test uses it."""
    return free_port()


@pytest.fixture(scope="session")
def session_broker(start_broker: StartBroker) -> RunningBroker:
    return start_broker(reactors=int(os.environ.get("TIDEMQ_TEST_REACTORS", "1")))


@pytest.fixture
def broker(session_broker: RunningBroker) -> RunningBroker:
    """The broker of the whole session, with default settings; it must be alive after each test as well."""
    assert session_broker.process.poll() is None, (
        f"the broker has ended:\n{session_broker.log.read_text()[-4000:]}"
    )
    return session_broker


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test shows the end of its broker's log."""
    report = yield
    brokers = [value for value in getattr(item, "funcargs", {}).values() if isinstance(value, RunningBroker)]
    if report.when == "call" and report.failed:
        for each in brokers:
            report.sections.append((f"log of {each.name} on {each.port}", each.log.read_text()[-2000:]))
    return report
