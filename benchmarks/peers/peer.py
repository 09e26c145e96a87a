"""What a benchmark knows of a broker: how to get it, how to start it, and how to stop it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from tidemq.testing.ports import free_port

START_LIMIT_S = 60.0  # RabbitMQ takes 15
STOP_LIMIT_S = 20.0
INSTALL_LIMIT_S = 600.0
INSTALLED = Path(__file__).parents[2] / "build" / "peers"  # what comes from PyPI and npm


class PeerMissingError(RuntimeError):
    """A broker cannot be installed here; the text says what is missing. Who chose the brokers catches it."""


@dataclass(frozen=True, slots=True)
class Running:
    """A broker that accepts connections on 127.0.0.1:`port`."""

    port: int
    pid: int  # of the process that does the work


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """How a broker is to run, as far as it can be told."""

    cores: frozenset[int]  # its threads stay on these
    reactors: int = 0  # event loops; 0: its default
    nodelay: bool = False  # single messages are timed, so none may wait for company (TCP_NODELAY)
    frame_bytes: int = 0  # of the PUBLISH packets that will come, for the relay, which does not parse


def anywhere() -> Conditions:
    """All cores of this process, everything else as the broker has it by default."""
    return Conditions(cores=frozenset(os.sched_getaffinity(0)))


class Peer(ABC):
    """One broker in one configuration: anonymous, on a free port of the loopback address."""

    name: str

    def install(self) -> None:  # noqa: B027 -- some are there already
        """Make it startable, once; PeerMissingError where that cannot be done."""

    @abstractmethod
    def version(self) -> str:
        """Of what is installed."""

    @abstractmethod
    def command(self, folder: Path, port: int, conditions: Conditions) -> Sequence[str]:
        """What starts it; its settings are written to `folder`, which it may keep its files in."""

    def environment(self, folder: Path) -> Mapping[str, str]:
        """Variables of its process, beside those of this one."""
        return {}

    def clean_up(self, folder: Path) -> None:  # noqa: B027 -- most leave nothing
        """End what outlives its process."""

    @contextmanager
    def started(self, conditions: Conditions) -> Iterator[Running]:
        """It runs while the block does; RuntimeError if it does not come to listen."""
        port = free_port()
        with TemporaryDirectory(prefix=f"{self.name}-") as name:
            folder = Path(name)
            command = self.command(folder, port, conditions)
            process = start_process(command, folder, self.environment(folder), conditions.cores)
            try:
                await_listener(process, port, folder / "output")
                yield Running(port, process.pid)
            finally:
                end_process(process)
                self.clean_up(folder)


def start_process(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], cores: frozenset[int]
) -> subprocess.Popen[bytes]:
    """What it prints goes to the file `output` of the folder."""
    with (folder / "output").open("wb") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            preexec_fn=partial(os.sched_setaffinity, 0, cores),
        )


def end_process(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM; SIGKILL for one that does not heed it."""
    process.terminate()
    try:
        process.wait(STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def await_listener(process: subprocess.Popen[bytes], port: int, output: Path | None = None) -> None:
    """Wait until `port` accepts; RuntimeError with the end of what the process has printed to `output`."""
    deadline = time.monotonic() + START_LIMIT_S
    while process.poll() is None and time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    reason = f"it did not listen within {START_LIMIT_S:g} s"
    if process.returncode is not None:
        reason = f"it ended with status {process.returncode} before it listened"
    printed = output.read_text(errors="replace")[-500:].strip() if output else ""
    raise RuntimeError(f"{reason}: {printed}" if printed else reason)


def install_debian(program: str, package: str) -> None:
    """The Debian package that holds `program`, if it is not there; its service is not started."""
    if shutil.which(program):
        return
    if os.geteuid() != 0:
        raise PeerMissingError(f"{program} is not installed: apt-get install {package}, as root")
    command = ["apt-get", "install", "--yes", "--quiet", "--no-install-recommends", package]
    # in runlevel 1 invoke-rc.d starts nothing
    run_installer(command, {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"})


def run_installer(
    command: Sequence[str], environment: Mapping[str, str] | None = None, folder: Path | None = None
) -> None:
    """Run it quietly; PeerMissingError with the end of what it printed."""
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, **(environment or {})},
            capture_output=True,
            text=True,
            timeout=INSTALL_LIMIT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PeerMissingError(f"could not run {' '.join(command)}: {error}") from error
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[-500:]
        raise PeerMissingError(f"{' '.join(command)} failed: {said}")


def said_by(*command: str) -> str:
    """What a command prints, without the ends' blanks; empty where it cannot be run."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (done.stdout or done.stderr).strip()
