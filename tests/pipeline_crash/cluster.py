"""Spark's own cluster on one machine, as the pip package has it: a standalone master and its workers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

import psutil
import pyspark

import tidemq
from tidemq.pipeline.spark.java import use_java

CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # starts sooner, and computes more slowly
START_S = 120.0
POLL_S = 0.02


class ClusterError(Exception):
    """A process of Spark's did not start; the message has the end of its log."""


def environment() -> dict[str, str]:
    """Of every process of Spark's: workers run in folders of their own, and must find what we import."""
    use_java()
    path = str(Path(tidemq.__file__).parents[1])
    options = f"--conf 'spark.driver.defaultJavaOptions={QUICK_JAVA}' --conf spark.ui.enabled=false"
    options += (
        f" --conf 'spark.executor.defaultJavaOptions={QUICK_JAVA}' --conf spark.sql.shuffle.partitions=2"
    )
    return os.environ | {
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([path, os.environ.get("PYTHONPATH", "")]),
        "SPARK_DAEMON_JAVA_OPTS": QUICK_JAVA,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_SUBMIT_ARGS": f"{options} pyspark-shell",
    }


class Cluster:
    """`with Cluster(folder) as cluster:` has a master at `cluster.master` and two workers of a core each."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self.folder = folder
        self.master = ""
        self._count = workers
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start(self) -> None:
        where = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        log = self._spawn("master", "org.apache.spark.deploy.master.Master", *where)
        self.master = self._wait(log, r"Starting Spark master at (spark://\S+)")
        logs = []
        for number in range(self._count):
            folder = self.folder / f"worker-{number}"
            folder.mkdir()
            size = ["--cores", "1", "--memory", "1g", "--work-dir", str(folder)]
            kind = "org.apache.spark.deploy.worker.Worker"
            logs.append(self._spawn(f"worker-{number}", kind, *where, *size, self.master))
        for log in logs:
            self._wait(log, r"(Successfully registered) with master")

    def _spawn(self, name: str, *command: str) -> Path:
        log = self.folder / f"{name}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [CLASS, *command], stdout=file, stderr=subprocess.STDOUT, env=environment(), cwd=self.folder
            )
        self._processes.append(process)
        return log

    def _wait(self, log: Path, pattern: str) -> str:
        """What the log says in the pattern's group, when it does."""
        deadline = time.monotonic() + START_S
        while not (found := re.search(pattern, log.read_text(errors="replace"))):
            if time.monotonic() > deadline or any(each.poll() is not None for each in self._processes):
                raise ClusterError(f"Spark's {log.stem} does not start:\n{log.read_text()[-2000:]}")
            time.sleep(POLL_S)
        return found[1]

    def executors(self) -> list[psutil.Process]:
        """Those that run now, whatever their application."""
        children = (child for each in self._processes for child in children_of(each.pid))
        return [child for child in children if "CoarseGrainedExecutorBackend" in _command(child)]

    def stop(self) -> None:
        """Ends it all, executors too."""
        for process in self._processes:
            for each in children_of(process.pid, every=True):
                with suppress(psutil.NoSuchProcess):
                    each.kill()
            process.kill()
            process.wait()
        self._processes.clear()


def children_of(pid: int, *, every: bool = False) -> list[psutil.Process]:
    """A process's children, or `every` descendant; none of one that has ended."""
    try:
        return psutil.Process(pid).children(recursive=every)
    except psutil.NoSuchProcess:
        return []


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return ""
