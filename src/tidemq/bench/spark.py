"""A load from many machines: Spark's executors drive it, each its share of the clients.

Spark starts the tasks, and collects what came of them; everything between, the common start, what each has
sent and received, an early end, goes through a `Coordinator` in the driver. So the loss of an executor ends a
run as the loss of the broker does: the others say what they have seen, and what is missing is known.

Executors need TideMQ, at the same version, and must reach the broker by the same URL, and the driver.
Needs pyspark and Java (`pip install 'tidemq[bench-spark]'`).
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from tidemq.bench.catalogue import OUTSTANDING_BYTES_MAX, Plan
from tidemq.bench.load.board import Board
from tidemq.bench.load.generator import Generator
from tidemq.bench.load.share import Share
from tidemq.bench.measurement import Broker, description, summary
from tidemq.bench.peer.target import DEFAULT_SECURITY, Security, parse_url
from tidemq.bench.report.files import BUCKET, INTERVAL
from tidemq.bench.result import Bucket, Interval, Result, latency_of
from tidemq.bench.shares.coordinator import Coordinator
from tidemq.bench.shares.exchange import Exchange, Status
from tidemq.bench.shares.sharing import merge_connecting, merge_outcomes, share_out
from tidemq.bench.workload import Connecting, Outcome, Workload
from tidemq.errors import RefusedError, TideMQError, UsageError

FAR = 10  # times the messages under way of a run in one process
COUNTS = ("sent", "expected", "received", "lost", "duplicates", "disordered", "foreign", "ack_errors")
SAME = (  # of a share's outcome, as they are
    *COUNTS,
    "end",
    "reason",
    "seconds",
    "generator_cpu_s",
    "generator_ready_share",
    "clock_error_s",
    "word_s",
)
SHARES = pa.schema(  # what a task returns: one row; all but the first three are null where it has a fault
    [
        ("share", pa.int32()),
        ("host", pa.string()),
        ("fault", pa.string()),  # why nothing was sent; empty where something was
        ("end", pa.string()),
        ("reason", pa.string()),
        *[(name, pa.int64()) for name in COUNTS],
        ("seconds", pa.float64()),
        ("generator_cpu_s", pa.float64()),
        ("generator_ready_share", pa.float64()),
        ("clock_error_s", pa.float64()),
        ("word_s", pa.float64()),
        ("connections", pa.int64()),
        ("connect_s", pa.float64()),
        ("connect_latencies", pa.list_(pa.struct(BUCKET))),
        ("latencies", pa.list_(pa.struct(BUCKET))),
        ("latency_max_us", pa.float64()),
        ("intervals", pa.list_(pa.struct(INTERVAL))),
    ]
)
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Task:
    """What every task is sent; its share is the one of its number."""

    workload: Workload
    shares: tuple[Share, ...]
    url: str
    timeout_s: float
    coordinator: tuple[str, int]
    token: str
    security: Security = DEFAULT_SECURITY  # files of the executors' machines

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Runs in an executor, for the row with its number."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield pa.RecordBatch.from_pylist([self.row(number)], SHARES)

    def row(self, number: int) -> Row:
        row: Row = {"share": number, "host": socket.gethostname(), "fault": ""}
        try:
            return row | self.drive(number)
        except (TideMQError, OSError) as error:
            return row | {"fault": str(error)}

    def drive(self, number: int) -> Row:
        """Connect, wait for the others, run."""
        far = [share for each, share in enumerate(self.shares) if each != number]
        board = Board(self.workload, [self.shares[number]], far)
        exchange = Exchange(self.coordinator, self.token, number, board)
        generator: Generator | None = None
        end = ""
        try:
            try:
                generator = Generator(self.workload, parse_url(self.url, self.security), board)
                connecting = generator.connect(self.timeout_s)
            except (TideMQError, OSError) as error:
                exchange.agree(str(error))
                raise
            start_ns = exchange.agree(tend=generator.tend)
            outcome = generator.run(self.timeout_s, None, start_ns, exchange.clock.offset_ns)
            end = outcome.end
        finally:
            exchange.close(end)
            if generator is not None:
                generator.close()
        outcome = replace(
            outcome, clock_error_s=exchange.clock.error_s, word_s=outcome.word_s + exchange.word_s
        )
        return outcome_row(connecting, outcome)


def outcome_row(connecting: Connecting, outcome: Outcome) -> Row:
    """A share's outcome as values of SHARES."""
    return {name: getattr(outcome, name) for name in SAME} | {
        "connections": connecting.connections,
        "connect_s": connecting.seconds,
        "connect_latencies": [asdict(bucket) for bucket in connecting.latencies],
        "latencies": [asdict(bucket) for bucket in outcome.latencies],
        "latency_max_us": outcome.latency.max_us if outcome.latency else None,
        "intervals": [asdict(interval) for interval in outcome.intervals],
    }


def row_connecting(row: Row) -> Connecting:
    buckets = tuple(Bucket(**bucket) for bucket in row["connect_latencies"])
    return Connecting(
        connections=row["connections"],
        seconds=row["connect_s"],
        latency=latency_of(buckets),
        latencies=buckets,
    )


def row_outcome(row: Row) -> Outcome:
    buckets = tuple(Bucket(**bucket) for bucket in row["latencies"])
    return Outcome(
        **{name: row[name] for name in SAME},
        latency=latency_of(buckets, round((row["latency_max_us"] or 0.0) * 1000)),
        latencies=buckets,
        ack_latency=None,
        intervals=tuple(Interval(**interval) for interval in row["intervals"]),
    )


def lost_outcome(number: int, count: int, status: Status) -> Outcome:
    """Of a share that was lost: what it said last. What has arrived there since is missing."""
    return Outcome(
        **dict.fromkeys(COUNTS, 0) | {"sent": status.sent, "received": status.arrived},
        end="share lost",
        reason=f"share {number + 1} of {count}",
        seconds=0.0,
        generator_cpu_s=0.0,
        generator_ready_share=0.0,
        latency=None,
        latencies=(),
        ack_latency=None,
        intervals=(),
    )


@contextmanager
def spark_session(master: str) -> Iterator[SparkSession]:
    """A session on `master`, quiet and without a web page; UsageError where Spark does not start."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master).appName("tidemq bench")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    try:
        spark = builder.getOrCreate()
    except Exception as error:  # of Java, of its gateway, of the master: they have no common class
        text = f"Spark does not start on {master} (it needs Java 17 or newer): {root_cause(error)}"
        raise UsageError(text) from error
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


def measure_on_spark(
    spark: SparkSession, plan: Plan, broker: Broker, url: str, timeout_s: float = 30.0
) -> Result:
    """Run `plan` on all cores of the executors, as many as it has clients for.

    `url` is that of `broker`, with its password. Raises as `measurement.measure`.
    """
    started_at = datetime.now(UTC)
    workload = with_room(plan.workload)
    shares = share_out(workload, spark.sparkContext.defaultParallelism)
    host = spark.conf.get("spark.driver.host") or ""
    bound = spark.conf.get("spark.driver.bindAddress", host) or host
    with Coordinator(workload, shares, bound) as coordinator:
        there = (host, coordinator.port)
        security = broker.target.security or DEFAULT_SECURITY
        task = Task(workload, tuple(shares), url, timeout_s, there, coordinator.token, security)
        rows = collect_rows(run_shares(spark, task))
    if coordinator.fault:
        raise ConnectionError(coordinator.fault)
    connecting, outcome = merge_rows(workload, rows, coordinator)
    hosts = ", ".join(sorted({row["host"] for row in rows}))
    run = description(plan, broker, started_at, 1)
    return Result(
        run=replace(run, machine=f"{len(rows)} Spark tasks on {hosts}"),
        summary=summary(workload, connecting, outcome, None, None),
        intervals=outcome.intervals,
        latencies=outcome.latencies,
    )


def with_room(workload: Workload) -> Workload:
    """More may be under way where publishers learn later what has arrived."""
    if workload.single:
        return workload
    more = min(workload.outstanding_max * FAR, OUTSTANDING_BYTES_MAX // workload.payload_bytes)
    return replace(workload, outstanding_max=max(more, workload.outstanding_max))


def run_shares(spark: SparkSession, task: Task) -> DataFrame:
    """A row of SHARES for each; they run when it is read, all at once, so it is to be read once."""
    numbers = spark.range(0, len(task.shares), 1, len(task.shares))
    return numbers.mapInArrow(task.__call__, from_arrow_schema(SHARES))


def merge_rows(
    workload: Workload, rows: Sequence[Row], coordinator: Coordinator
) -> tuple[Connecting, Outcome]:
    """One outcome of all shares, those too that were lost. RefusedError where none is left."""
    ran = [row for row in rows if not row["fault"]]
    if not ran:
        raise RefusedError(f"Spark could not run the load: {rows[0]['fault']}")
    outcomes = [row_outcome(row) for row in ran]
    outcomes += [
        lost_outcome(row["share"], len(rows), coordinator.last_word(row["share"]))
        for row in rows
        if row["fault"]
    ]
    return merge_connecting([row_connecting(row) for row in ran]), merge_outcomes(workload, outcomes)


def collect_rows(frame: DataFrame) -> list[Row]:
    """Let the shares run; RefusedError where Spark could not run them, all at once, to their end."""
    try:
        return list(frame.toArrow().to_pylist())
    except Exception as error:  # of Spark, or of Java on its behalf: they have no common class
        raise RefusedError(f"Spark could not run the load: {root_cause(error)}") from error


def root_cause(error: Exception) -> str:
    """The line of an error of Spark's, often a Java stack of them, that says what the matter was."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    return causes[-1] if causes else lines[0]
