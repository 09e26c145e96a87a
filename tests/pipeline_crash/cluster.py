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
from tidemq.testing.ports import free_port

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
    """`with Cluster(folder) as cluster:` has a master at `cluster.master` and two workers of a core each. The
    master writes down what it knows, so another at the same address takes over.
    """

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self.folder = folder
        self._port = free_port()
        self.master = f"spark://127.0.0.1:{self._port}"
        self._workers = [f"worker-{number}" for number in range(workers)]
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._starts = 0

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
        self._start_master()
        logs = [self._start_worker(name) for name in self._workers]
        for log in logs:
            self._wait(log, r"(Successfully registered) with master")

    def _start_master(self) -> None:
        kept = f"-Dspark.deploy.recoveryMode=FILESYSTEM -Dspark.deploy.recoveryDirectory={self.folder}/master"
        where = ["--host", "127.0.0.1", "--port", str(self._port), "--webui-port", "0"]
        log = self._spawn("master", ["org.apache.spark.deploy.master.Master", *where], kept)
        self._wait(log, r"(I have been elected leader)")

    def _start_worker(self, name: str) -> Path:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        where = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        size = ["--cores", "1", "--memory", "1g", "--work-dir", str(folder)]
        return self._spawn(name, ["org.apache.spark.deploy.worker.Worker", *where, *size, self.master])

    def _spawn(self, name: str, command: list[str], options: str = "") -> Path:
        self._starts += 1
        log = self.folder / f"{name}-{self._starts}.log"
        variables = environment()
        variables["SPARK_DAEMON_JAVA_OPTS"] += f" {options}"
        with log.open("wb") as file:
            self._processes[name] = subprocess.Popen(
                [CLASS, *command], stdout=file, stderr=subprocess.STDOUT, env=variables, cwd=self.folder
            )
        return log

    def _wait(self, log: Path, pattern: str) -> str:
        """What the log says in the pattern's group, when it does."""
        deadline = time.monotonic() + START_S
        while not (found := re.search(pattern, log.read_text(errors="replace"))):
            ended = any(each.poll() is not None for each in self._processes.values())
            if time.monotonic() > deadline or ended:
                raise ClusterError(f"Spark's {log.stem} does not start:\n{log.read_text()[-2000:]}")
            time.sleep(POLL_S)
        return found[1]

    def kill_master(self) -> None:
        """Another takes its place. Jobs go on meanwhile: executors need no master."""
        self._kill("master")
        self._start_master()

    def kill_worker(self, number: int) -> None:
        """Its executors end with it; another one takes its place."""
        name = self._workers[number % len(self._workers)]
        self._kill(name)
        self._start_worker(name)

    def _kill(self, name: str) -> None:
        process = self._processes.pop(name)
        process.kill()
        process.wait()

    def executors(self) -> list[psutil.Process]:
        """Those that run now, whatever their application."""
        children = (child for each in self._processes.values() for child in children_of(each.pid))
        return [child for child in children if "CoarseGrainedExecutorBackend" in _command(child)]

    def stop(self) -> None:
        """Ends it all, executors too."""
        for process in self._processes.values():
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
