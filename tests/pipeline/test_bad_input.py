"""What goes wrong around a job is said in a line, and nothing is lost by it: a broker that is away or behind
a proxy that asks for credentials, a full disk.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from deltalake import DeltaTable
from pipeline.streaming import TIDEMQ, Streaming
from pyspark.sql import SparkSession
from small_disk import small_disk

from tidemq.client.errors import ConnectError
from tidemq.client.streams import StreamError, StreamReader, UnknownStreamError
from tidemq.errors import UsageError
from tidemq.pipeline.lake import plan
from tidemq.pipeline.lake.ingest import Ingest, run_ingest, start_ingest
from tidemq.pipeline.lake.progress import Progress
from tidemq.pipeline.spark import jobs
from tidemq.pipeline.spark.jobs import JobError
from tidemq.pipeline.spark.workers import check_workers
from tidemq.testing.ports import free_port
from tidemq.testing.proxy import Proxy

pytestmark = pytest.mark.timeout(300)

DISK_MIB = 6


def offsets(job: Ingest) -> list[int]:
    """Of bronze, by another reader."""
    return sorted(DeltaTable(job.bronze.uri).to_pyarrow_table(columns=["offset"])["offset"].to_pylist())


def wait_until(reached: Callable[[], bool], within_s: float = 60) -> None:
    deadline = time.monotonic() + within_s
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_stream_that_is_not_there_is_told_before_spark_starts(streaming: Streaming, tmp_path: Path) -> None:
    """There is no Java that it could start."""
    rules = tmp_path / "alerts.toml"
    rules.write_text('[[alerts]]\nname = "a"\nfilter = "a"\nkind = "absence"\nafter_s = 1\n')
    environment = {name: text for name, text in os.environ.items() if name != "JAVA_HOME"}
    mqtt = f"mqtt://127.0.0.1:{streaming.broker.port}"
    for command in (
        ["ingest", "nowhere", str(tmp_path / "lake")],
        ["alerts", "nowhere", "--mqtt", mqtt, "--rules", str(rules), "--checkpoint", str(tmp_path / "c")],
    ):
        done = subprocess.run(
            [*TIDEMQ, "pipeline", *command, "--url", streaming.url],
            capture_output=True,
            text=True,
            env={**environment, "PATH": str(tmp_path)},
        )
        assert done.returncode == 1
        assert "there is no stream 'nowhere'" in done.stderr


def test_workers_without_tidemq_are_told_of_in_a_line(tmp_path: Path) -> None:
    bare = tmp_path / "python3"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')
    bare.chmod(0o755)
    for named in (str(bare), "no-such-python"):
        with pytest.raises(
            UsageError, match=f"workers run {named}, which has no TideMQ; set PYSPARK_PYTHON="
        ):
            check_workers(session_with(named))
    check_workers(session_with(sys.executable))
    whole = tmp_path / "another"
    whole.symlink_to(sys.executable)
    with pytest.raises(UsageError):  # a link into an environment is outside of it
        check_workers(session_with(str(whole)))
    whole.unlink()
    whole.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    whole.chmod(0o755)
    check_workers(session_with(str(whole)))


def session_with(python: str) -> Any:
    """A session whose workers run this."""
    return SimpleNamespace(sparkContext=SimpleNamespace(pythonExec=python))


def test_a_broker_that_is_not_there_or_lacks_the_stream_is_named(
    spark: SparkSession, streaming: Streaming, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "RETRY_S", 0.3)
    nobody = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(ConnectError, match=rf"^{nobody}: the broker's admin listener: .*refused$"):
        run_ingest(spark, Ingest(url=nobody, stream="any", tables=str(tmp_path)))
    with pytest.raises(UnknownStreamError, match="no stream 'any'"):
        run_ingest(spark, Ingest(url=streaming.url, stream="any", tables=str(tmp_path)))


async def test_a_broker_that_is_away_for_a_while_is_waited_for(
    spark: SparkSession, streaming: Streaming, tmp_path: Path
) -> None:
    streaming.declare("away")
    async with Proxy(streaming.admin_port) as proxy:
        job = Ingest(url=f"http://127.0.0.1:{proxy.port}", stream="away", tables=str(tmp_path), trigger_s=0.1)
        query = await asyncio.to_thread(start_ingest, spark, job)
        try:
            await asyncio.to_thread(streaming.publish, [("away/a", b"x")] * 10)
            epoch = StreamReader(streaming.url, "away").describe().epoch
            await asyncio.to_thread(wait_until, lambda: job.bronze.reached(Progress("away", epoch)) == 10)
            proxy.refuse()
            proxy.cut()
            await asyncio.to_thread(streaming.publish, [("away/a", b"x")] * 10)
            await asyncio.sleep(3)
            assert job.bronze.reached(Progress("away", epoch)) == 10
            await proxy.open()
            await asyncio.to_thread(wait_until, lambda: job.bronze.reached(Progress("away", epoch)) == 20)
            assert query.isActive
        finally:
            await asyncio.to_thread(query.stop)
    assert offsets(job) == list(range(20))


def test_where_nothing_can_be_written_is_said(
    spark: SparkSession, streaming: Streaming, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "FAILURES_MAX", 1)
    job = Ingest(url=streaming.url, stream=streaming.declare("unwritable"), tables="/proc/lake")
    with pytest.raises(JobError, match=r"^java.io.IOException: mkdir of file:/proc/lake.* failed$"):
        run_ingest(spark, job)


class Guard(BaseHTTPRequestHandler):
    """A proxy before the broker, which answers for it when it is told to."""

    broker = ""
    status = 0  # of all answers; 0: those of the broker

    def do_GET(self) -> None:
        if self.status:
            self.send_error(self.status)
            return
        try:
            with urllib.request.urlopen(self.broker + self.path) as answer:
                body, status, headers = answer.read(), 200, answer.headers
        except urllib.error.HTTPError as error:
            body, status, headers = error.read(), error.code, error.headers
        self.send_response(status)
        for name in ("X-First-Offset", "X-Next-Offset", "X-Messages"):
            if name in headers:
                self.send_header(name, headers[name])
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def guarded(streaming: Streaming) -> Iterator[tuple[str, type[Guard]]]:
    """The URL of a proxy, and what it is told by."""
    guard = type("GuardOfTest", (Guard,), {"broker": streaming.url})
    with ThreadingHTTPServer(("127.0.0.1", 0), guard) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", guard
        server.shutdown()


def test_a_proxy_that_does_not_reach_the_broker_is_asked_again(
    streaming: Streaming, guarded: tuple[str, type[Guard]]
) -> None:
    streaming.declare("behind")
    url, guard = guarded
    guard.status = 503
    with pytest.raises(ConnectError, match=rf"^{url}: the broker's admin listener: 503 Service Unavailable$"):
        StreamReader(url, "behind").describe()
    threading.Timer(0.5, setattr, (guard, "status", 0)).start()
    assert StreamReader(url, "behind", retry_s=20).describe().name == "behind"


def test_who_asks_for_credentials_ends_the_job_at_once(
    spark: SparkSession, streaming: Streaming, guarded: tuple[str, type[Guard]], tmp_path: Path
) -> None:
    streaming.declare("guarded")
    streaming.publish([("guarded/a", b"x")] * 10)
    url, guard = guarded
    job = Ingest(url=url, stream="guarded", tables=str(tmp_path), trigger_s=0.1)
    ended: list[BaseException] = []

    def run() -> None:
        try:
            run_ingest(spark, job)
        except JobError as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    epoch = StreamReader(streaming.url, "guarded").describe().epoch
    wait_until(lambda: job.bronze.reached(Progress("guarded", epoch)) == 10)
    guard.status = 401
    thread.join(30)
    [error] = ended
    assert str(error).startswith(f"{url}: 401 Unauthorized")
    with pytest.raises(StreamError, match=r"401 Unauthorized: .*a proxy .*wants credentials"):
        run_ingest(spark, job)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, with little room."""
    with small_disk(tmp_path / "disk", DISK_MIB) as path:
        yield path


def test_a_full_disk_is_said_and_overcome(
    spark: SparkSession, streaming: Streaming, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No room for a table's files, then none for Spark's checkpoint; then there is room again."""
    monkeypatch.setattr(jobs, "FAILURES_MAX", 1)
    job = Ingest(url=streaming.url, stream=streaming.declare("full"), tables=str(disk), rows_max=200)
    streaming.publish([("full/a", b"x")] * 100)
    run_ingest(spark, job, once=True)
    streaming.publish(("full/a", random.randbytes(2000)) for _ in range(400))
    ballast = disk / "ballast"
    for left_bytes in (300_000, 0):
        with ballast.open("ab") as file:
            there = os.statvfs(disk)
            file.write(bytes(max(there.f_bavail * there.f_bsize - left_bytes, 0)))
        with pytest.raises(JobError, match=r"No space left on device$"):
            run_ingest(spark, job, once=True)
    ballast.unlink()
    run_ingest(spark, job, once=True)
    assert offsets(job) == list(range(500))
