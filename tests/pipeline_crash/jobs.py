"""The commands of the pipeline as processes that are killed and started again on the same tables."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from crash.history import History
from pipeline_crash.cluster import children_of, environment
from pipeline_crash.tables import number_of

END_S = 900.0  # of a command that ends by itself
POLL_S = 0.002
STARTS_MAX = 5  # of a command that has ended by itself, as a supervisor starts it
LOCAL = ["--master", "local[1]"]  # of those that need no cluster
TIDEMQ = "from tidemq.cli import main; main()"
# files are put together sooner: a run is short
GATHERING = f"from tidemq.pipeline.lake import compaction; compaction.GATHERED = 4; {TIDEMQ}"
# for proof that a run finds it out: a table that takes a batch again which it has
FORGETFUL = (
    "from tidemq.pipeline.lake.table_log import Snapshot; "
    f"Snapshot.number = lambda self, name: None; {TIDEMQ}"
)


class DriverError(Exception):
    """A command ended where it must go on, or did not end where it must."""


@dataclass(frozen=True, slots=True)
class Job:
    """What is brought where: all of it is below `place`."""

    url: str
    stream: str
    place: Path
    master: str
    rows_max: int
    format: str

    @property
    def tables(self) -> Path:
        return self.place / "lake"

    @property
    def folder(self) -> Path:
        """Of the stream's tables."""
        return self.tables / self.stream

    @property
    def rules(self) -> Path:
        return self.place / "rules.toml"

    @property
    def alert_rules(self) -> Path:
        return self.place / "alerts.toml"

    @property
    def checkpoint(self) -> Path:
        """Of the alerts."""
        return self.place / "alerts"

    def ingest(self) -> list[str]:
        return [
            *("ingest", self.stream, str(self.tables), "--url", self.url),
            *("--master", self.master, "--rules", str(self.rules), "--trigger", "0.2"),
            *("--rows-max", str(self.rows_max), "--maintain-batches", "5", "--format", self.format),
        ]

    def maintain(self) -> list[str]:
        return ["maintain", self.stream, str(self.tables), "--every", "0.5", "--format", self.format]

    def refine(self, rule: str, start: str) -> list[str]:
        made = ["--rules", str(self.rules), "--rule", rule, "--from", start, "--format", self.format]
        return ["refine", self.stream, str(self.tables), *made, "--rows-max", str(self.rows_max), *LOCAL]

    def alerts(self, mqtt: str) -> list[str]:
        watched = ["--rules", str(self.alert_rules), "--checkpoint", str(self.checkpoint)]
        often = ["--start", "earliest", "--trigger", "2", "--partitions", "1"]
        return ["alerts", self.stream, "--url", self.url, "--mqtt", mqtt, *watched, *often, *LOCAL]

    def backtest(self) -> list[str]:
        by = ["--rules", str(self.alert_rules), "--format", self.format]
        return ["backtest", self.stream, str(self.tables), *by, *LOCAL]

    def working(self, table: str) -> int | None:
        """Which of them has begun to make the rows of a rule."""
        rule = table.removeprefix("silver/")
        return number_of(self.folder / table, self.format, f"tidemq/rule/{rule}")

    def alerts_done(self) -> int:
        """The offset up to which the alerts of all messages are out, as the checkpoint says."""
        batches = [int(each.name) for each in (self.checkpoint / "commits").glob("[0-9]*")]
        if not batches:
            return 0
        *_, said = (self.checkpoint / "offsets" / str(max(batches))).read_text().splitlines()
        return int(json.loads(said)["offset"])


class Process:
    """One command. What it has started, Java and Python's workers, is killed with it."""

    def __init__(self, name: str, folder: Path, history: History, code: str = TIDEMQ) -> None:
        self.name, self.folder, self.history = name, folder, history
        self.starts = 0
        self._code = code
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        """What the process started last has written."""
        return self.folder / f"{self.name}-{self.starts}.log"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, arguments: Sequence[str]) -> None:
        assert not self.running
        self.starts += 1
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", self._code, "pipeline", *arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment(),
                start_new_session=True,
            )
        self.history.note(self.name, "starts")

    def kill(self) -> None:
        """Python and Java at once, as a machine's end does; nothing where it has ended."""
        if self._process is not None:
            with suppress(ProcessLookupError):  # it has ended by itself
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self.history.note(self.name, "is killed")
            self._process = None

    def check(self) -> None:
        """DriverError where it has ended by itself, and not well."""
        if self._process is not None and self._process.poll():
            raise DriverError(f"{self.name} has ended by itself with status {self._process.returncode}")

    async def finish(self) -> None:
        """Until it has ended, which it must do well; at once where it does not run."""
        if self._process is None:
            return
        if status := await self.ended(END_S):
            raise DriverError(f"{self.name} ended with status {status}")
        self.history.note(self.name, "has ended")
        self._process = None

    async def ended(self, within_s: float) -> int:
        """Its status, when it has."""
        assert self._process is not None
        deadline = time.monotonic() + within_s
        while self._process.poll() is None:
            if time.monotonic() > deadline:
                raise DriverError(f"{self.name} has not ended after {within_s} s")
            await asyncio.sleep(POLL_S)
        return self._process.returncode

    def logged(self) -> str:
        """The end of the last process's log."""
        return self.log.read_text(errors="replace")[-3000:] if self.starts else ""

    def lines(self) -> list[dict[str, Any]]:
        """Those of JSON that it has printed."""
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]


class Supervised(Process):
    """A command that is started again where it has ended by itself, as one does that finds no broker."""

    def __init__(
        self,
        name: str,
        folder: Path,
        history: History,
        arguments: list[str],
        code: str = TIDEMQ,
    ) -> None:
        super().__init__(name, folder, history, code)
        self._arguments = arguments
        self._failures = 0

    @property
    def begun(self) -> bool:
        return self.starts > 0

    def begin(self) -> None:
        self.start(self._arguments)

    def check(self) -> None:
        if self._process is None or self.running:
            return
        self._failures += 1
        if self._failures > STARTS_MAX:
            raise DriverError(f"{self.name} has ended by itself for the {self._failures}th time")
        self.history.note(self.name, f"has ended by itself: {self.logged().strip().splitlines()[-1:]}")
        self.begin()


class Driver(Process):
    """Ingest, on the cluster."""

    def __init__(self, job: Job, folder: Path, history: History, *, forgetful: bool = False) -> None:
        super().__init__("driver", folder, history, FORGETFUL if forgetful else GATHERING)
        self.job = job

    def begin(self, *, once: bool = False) -> None:
        """For ever, or to end with the last message."""
        self.start([*self.job.ingest(), *(["--once"] if once else [])])

    async def kill_java(self) -> None:
        """Java alone; Python must see that and end, with a line that says so."""
        assert self._process is not None
        for child in children_of(self._process.pid):
            child.kill()
        self.history.note("driver", "its Java is killed")
        status, said = await self.ended(100.0), self.logged().strip().splitlines()[-1]
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


class Jobs:
    """All commands of a run."""

    def __init__(self, job: Job, mqtt: str, history: History, *, forgetful: bool = False) -> None:
        self.job, folder = job, job.place
        self.driver = Driver(job, folder, history, forgetful=forgetful)
        self.alerts = Supervised("alerts", folder, history, job.alerts(mqtt))
        self.maintain = Supervised("maintain", folder, history, job.maintain(), GATHERING)
        self.refine = Process("refine", folder, history)
        self.backtest = Process("backtest", folder, history)

    def __iter__(self) -> Iterator[Process]:
        yield from (self.driver, self.alerts, self.maintain, self.refine, self.backtest)

    def check(self) -> None:
        """DriverError where one has ended that must go on."""
        for each in self:
            each.check()

    def kill(self) -> None:
        for each in self:
            each.kill()

    def logged(self) -> str:
        """The end of each one's log."""
        return "\n".join(f"{each.log.name}:\n{each.logged()}" for each in self if each.starts)
