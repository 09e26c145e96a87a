"""`tidemq pipeline ingest` as a process that is killed and started again on the same tables."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
from crash.history import History
from pipeline_crash.cluster import children_of, environment

END_S = 400.0  # of a run with --once
POLL_S = 0.002
TIDEMQ = "from tidemq.cli import main; main()"
# for proof that a run finds it out: a table that takes a batch again which it has
FORGETFUL = (
    "from deltalake import DeltaTable; DeltaTable.transaction_version = lambda table, writer: None; " + TIDEMQ
)


class DriverError(Exception):
    """The job ended where it must go on, or did not end where it must."""


@dataclass(frozen=True, slots=True)
class Job:
    """What is ingested, and where; `tables` is a folder."""

    url: str
    stream: str
    tables: Path
    rules: Path
    master: str
    rows_max: int

    @property
    def folder(self) -> Path:
        """Of the stream's tables."""
        return self.tables / self.stream

    def arguments(self) -> list[str]:
        return [
            *("pipeline", "ingest", self.stream, str(self.tables), "--url", self.url),
            *("--master", self.master, "--rules", str(self.rules), "--trigger", "0.2"),
            *("--rows-max", str(self.rows_max), "--maintain-batches", "5"),
        ]


class Driver:
    """The job's process, with Java as its child; both are killed together unless it is said otherwise."""

    def __init__(self, job: Job, folder: Path, history: History, *, forgetful: bool = False) -> None:
        self.job, self.folder, self.history = job, folder, history
        self.starts = 0
        self._code = FORGETFUL if forgetful else TIDEMQ
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        """What the process started last has written."""
        return self.folder / f"driver-{self.starts}.log"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, *, once: bool = False) -> None:
        assert not self.running
        self.starts += 1
        command = [sys.executable, "-c", self._code, *self.job.arguments(), *(["--once"] if once else [])]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env=environment(), start_new_session=True
            )
        self.history.note("driver", "starts" + (", to end with the last message" if once else ""))

    def kill(self) -> None:
        """Python and Java at once, as a machine's end does; nothing where it has ended."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self.history.note("driver", "is killed")
            self._process = None

    async def kill_java(self) -> None:
        """Java alone; Python must see that and end, with a line that says so."""
        assert self._process is not None
        for child in children_of(self._process.pid):
            child.kill()
        self.history.note("driver", "its Java is killed")
        status, said = await self._ended(100.0), self.logged().strip().splitlines()[-1]
        if status != 1 or not said.startswith("tidemq: Spark's Java process does not answer"):
            raise DriverError(f"the job ended without its Java with status {status}")
        self._process = None

    def planners(self) -> list[psutil.Process]:
        """The processes in which Java has Python plan batches."""
        assert self._process is not None
        java = children_of(self._process.pid)
        return [each for child in java for each in children_of(child.pid, every=True)]

    def check(self) -> None:
        """DriverError where it has ended by itself."""
        if not self.running:
            raise DriverError("the job has ended by itself")

    async def finish(self) -> None:
        """Until it has ended, which it must do well."""
        if status := await self._ended(END_S):
            raise DriverError(f"the job ended with status {status}")
        self.history.note("driver", "has ended")
        self._process = None

    async def _ended(self, within_s: float) -> int:
        assert self._process is not None
        deadline = time.monotonic() + within_s
        while self._process.poll() is None:
            if time.monotonic() > deadline:
                raise DriverError(f"the job has not ended after {within_s} s")
            await asyncio.sleep(POLL_S)
        return self._process.returncode

    def logged(self) -> str:
        """The end of the last process's log."""
        return self.log.read_text(errors="replace")[-3000:] if self.starts else ""
