"""Real brokers to be loaded, and the command that loads them, run in this process."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import forks
import pytest
from conftest import RunningBroker, StartBroker, start_mosquitto, wait_until_open

from tidemq.cli import main
from tidemq.testing.ports import free_port

BROKERS = ["tidemq", "mosquitto"]


@dataclass(frozen=True)
class Done:
    """What a command did."""

    code: int
    out: str
    error: str

    @property
    def results(self) -> list[dict[str, Any]]:
        """What `--json` printed."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def result(self) -> dict[str, Any]:
        (only,) = self.results
        return only

    @property
    def summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = self.result["summary"]
        return summary


Bench = Callable[..., Done]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Bench:
    """`bench("fan", "--url", ...)` runs `tidemq bench fan --url ...`."""

    def run(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["tidemq", "bench", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Done(ended.value.code, said.out, said.err)

    return run


@pytest.fixture(scope="session")
def mosquitto(
    tmp_path_factory: pytest.TempPathFactory, install: Callable[[str, str], None]
) -> Iterator[RunningBroker]:
    install("mosquitto", "mosquitto")
    broker = wait_until_open(start_mosquitto(tmp_path_factory.mktemp("mosquitto")))
    yield broker
    broker.stop()


@pytest.fixture(scope="session")
def tidemq(start_broker: StartBroker) -> RunningBroker:
    return start_broker()


@pytest.fixture(params=BROKERS)
def url(request: pytest.FixtureRequest) -> str:
    """Of each broker."""
    broker: RunningBroker = request.getfixturevalue(request.param)
    return f"mqtt://127.0.0.1:{broker.port}"


@pytest.fixture(params=BROKERS)
def mortal(
    request: pytest.FixtureRequest, tmp_path: Path, install: Callable[[str, str], None]
) -> Iterator[RunningBroker]:
    """Each broker in a process of this test's own, to be killed."""
    if request.param == "mosquitto":
        install("mosquitto", "mosquitto")
        broker = start_mosquitto(tmp_path)
    else:
        port, log = free_port(), tmp_path / "broker.log"
        command = ["serve", "--store", "memory", "--host", "127.0.0.1", "--port", str(port)]
        command += ["--admin-port", "0"]  # it is struck as soon as it listens, and is to be ready by then
        process = forks.Tidemq(command, stdout=log.open("wb"), stderr=subprocess.STDOUT)
        broker = RunningBroker(port, process, log, "tidemq")
    yield wait_until_open(broker)
    broker.process.kill()
    broker.process.wait()


@pytest.fixture
def relay() -> Iterator[Callable[[int], str]]:
    """`relay(frame_bytes)` starts the peer that parses nothing; its URL."""
    started: list[subprocess.Popen[bytes]] = []

    def start(frame_bytes: int) -> str:
        port = free_port()
        program = f"from tidemq.bench.peer.relay import Relay; Relay({port}, {frame_bytes}).serve()"
        process = subprocess.Popen([sys.executable, "-c", program])
        started.append(process)
        wait_until_open(RunningBroker(port, process, Path("/dev/null"), "relay"))
        time.sleep(0.05)  # for the end of the probe's connection
        return f"mqtt://127.0.0.1:{port}"

    yield start
    for process in started:
        process.kill()
        process.wait()
