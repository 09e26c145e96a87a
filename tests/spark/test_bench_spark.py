"""Executors of a Spark cluster load a broker together: two workers, each a process of its own."""

from __future__ import annotations

import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme
from bench.fake_broker import FakeBroker, listening
from bench.test_faults import await_load
from conftest import RunningBroker
from pyspark.sql import SparkSession
from waiting import LATE_S

import tidemq
from tidemq.bench.catalogue import Plan, Terms, fan, many, mesh, pairs, subscribers, ticktock
from tidemq.bench.comparison import open_broker
from tidemq.bench.measurement import Broker
from tidemq.bench.peer.target import Security, parse_url
from tidemq.bench.report.runs import read_runs
from tidemq.bench.shares.coordinator import Coordinator
from tidemq.bench.shares.sharing import share_out
from tidemq.bench.spark import SHARES, Task, measure_on_spark, root_cause, run_shares, spark_session
from tidemq.cli import main

CLUSTER = "local-cluster[2,1,1024]"
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
TIDEMQ = [sys.executable, "-c", "from tidemq.cli import main; main()"]
LIMIT_S = 300  # three Java processes on a busy machine

pytestmark = pytest.mark.timeout(LIMIT_S)


@pytest.fixture(scope="module")
def spark(install: Callable[[str, str], None]) -> Iterator[SparkSession]:
    """Two workers; the commands below start Java in the same quick way."""
    install("java", "default-jre-headless")
    options = (f'--conf "spark.{who}.defaultJavaOptions={QUICK_JAVA}"' for who in ("driver", "executor"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_SUBMIT_ARGS", f"{' '.join(options)} pyspark-shell")
        # workers run in folders of their own: what this process imports they must find, too
        patch.setenv("PYTHONPATH", str(Path(tidemq.__file__).parents[1]))
        with spark_session(CLUSTER) as session:
            yield session


@pytest.fixture
def url(broker: RunningBroker) -> str:
    return f"mqtt://127.0.0.1:{broker.port}"


def test_two_workers_share_the_clients_and_miss_nothing(spark: SparkSession, url: str) -> None:
    plan = pairs(Terms(qos=1, messages=2000), 10)
    result = measure_on_spark(spark, plan, open_broker("", url, 4, 10), url)
    assert result.summary.intact
    assert (result.summary.sent, result.summary.received) == (20_000, 20_000)
    assert result.summary.connections == 20
    assert sum(bucket.count for bucket in result.latencies) == 20_000
    assert sum(interval.received for interval in result.intervals) == 20_000
    assert result.run.label == "10 pairs, QoS 1, 64 bytes"
    assert result.run.machine.startswith("2 Spark tasks on ")


def test_workers_speak_tls_with_the_files_that_are_named(spark: SparkSession, tmp_path: Path) -> None:
    authority, cafile = trustme.CA(), tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(cafile)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    plan = fan(Terms(messages=300), 1, 2)
    with listening(FakeBroker().serve, context) as port:
        url = f"mqtts://localhost:{port}"
        broker = Broker("double", parse_url(url, Security(cafile=str(cafile))), "")
        result = measure_on_spark(spark, plan, broker, url)
    assert result.summary.intact
    assert (result.summary.sent, result.summary.received) == (300, 600)


@pytest.mark.parametrize(
    ("plan", "sent", "received"),
    [
        (fan(Terms(qos=1, messages=1000), 3, 2), 3000, 6000),
        (mesh(Terms(messages=500), 6), 3000, 18_000),
        (ticktock(Terms(messages=5, rate=20.0), 9), 5, 45),
        (subscribers(Terms(), 40), 5, 200),
    ],
    ids=lambda value: value.workload.name if hasattr(value, "workload") else None,
)
def test_a_worker_hears_what_the_other_publishes(
    spark: SparkSession, url: str, plan: Plan, sent: int, received: int
) -> None:
    result = measure_on_spark(spark, plan, open_broker("", url, 4, 10), url)
    summary = result.summary
    assert (summary.end, summary.intact, summary.shares) == ("complete", True, 2)
    assert (summary.sent, summary.expected, summary.received) == (sent, received, received)
    assert summary.latency is not None
    assert summary.latency.count == received
    assert 0 < summary.latency.p50_us < LATE_S * 1e6
    assert summary.clock_error_us == 0  # both are on this machine
    assert summary.connections == plan.workload.connections


def test_what_they_say_is_one_data_frame(spark: SparkSession, url: str) -> None:
    workload = fan(Terms(messages=50, rate=100.0), 1, 1).workload
    shares = tuple(share_out(workload, 2))
    with Coordinator(workload, shares, "127.0.0.1") as coordinator:
        task = Task(workload, shares, url, 30, ("127.0.0.1", coordinator.port), coordinator.token)
        frame = run_shares(spark, task)
        assert frame.columns == SHARES.names
        rows = sorted(frame.toArrow().to_pylist(), key=lambda row: row["share"])
    assert [(row["sent"], row["received"], row["lost"]) for row in rows] == [(50, 0, 0), (0, 50, 0)]
    assert 0.45 < rows[1]["seconds"] < LATE_S


def executors(spark: SparkSession) -> list[int]:
    """Processes of this session that run tasks, of all on the machine: they are told the driver's address."""
    driver = f"spark://CoarseGrainedScheduler@{spark.conf.get('spark.driver.host')}"
    address = f"{driver}:{spark.conf.get('spark.driver.port')}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and address in (entry / "cmdline").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue  # gone
    return found


def kill_under_load(process: int, port: int) -> None:
    await_load(port)
    time.sleep(1)
    os.kill(process, signal.SIGKILL)


def test_idle_connections_come_from_both(spark: SparkSession, url: str) -> None:
    plan = many(Terms(seconds=0.5), 51)
    result = measure_on_spark(spark, plan, open_broker("", url, 4, 10), url)
    assert (result.summary.connections, result.summary.end) == (51, "complete")


def test_a_broker_that_is_not_there_is_named_by_all_as_one(
    spark: SparkSession, url: str, unused_tcp_port: int
) -> None:
    there = open_broker("", url, 4, 10)
    gone = f"mqtt://127.0.0.1:{unused_tcp_port}"
    with pytest.raises(ConnectionError, match=rf"^{gone}: nobody listens there"):
        measure_on_spark(spark, pairs(Terms(messages=10), 4), there, gone)


def test_a_master_that_is_none_is_one_sentence(spark: SparkSession, url: str) -> None:
    command = [*TIDEMQ, "bench", "pairs", "--url", url, "--spark", "nowhere"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=os.environ)
    assert done.returncode == 2
    errors = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1
    assert "Spark does not start on nowhere" in errors[0]


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("one line", "one line"),
        (
            "Job failed\n\tat java.x\nCaused by: a: first\n\tat b\nCaused by: c: no slots\n\tat d",
            "c: no slots",
        ),
        ("", "ValueError"),
    ],
)
def test_of_a_stack_of_errors_the_last_cause_is_shown(text: str, cause: str) -> None:
    assert root_cause(ValueError(text)) == cause


def test_the_command_says_what_is_missing_when_an_executor_is_lost(
    spark: SparkSession,
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The last one: it takes the session that runs, and ends it."""
    command = ["tidemq", "bench", "fan", "--seconds", "60", "--rate", "500"]
    monkeypatch.setattr(sys, "argv", [*command, "--url", url, "--spark", CLUSTER, "--out", str(tmp_path)])
    killer = threading.Thread(target=kill_under_load, args=(executors(spark)[0], int(url.rpartition(":")[2])))
    killer.start()
    with pytest.raises(SystemExit) as ended:
        main()
    killer.join()
    assert ended.value.code == 1
    assert "A SHARE OF THE LOAD WAS LOST (share " in capsys.readouterr().out
    (run,) = read_runs([tmp_path]).all
    assert run.machine.startswith("2 Spark tasks on ")
    assert run.end == "share lost"
    assert run.received > 100
    assert spark.sparkContext._jsc is None  # it is stopped
