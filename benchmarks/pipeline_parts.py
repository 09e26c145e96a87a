"""What the pipeline's benchmark measures, part by part: each is some contenders, who take turns."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from measurement import run_load
from peers.durable import Broker
from pipeline_data import Split, write_samples
from pyspark.sql import SparkSession

from tidemq.bench.workload import Workload
from tidemq.client.streams import COLUMNS, StreamReader
from tidemq.pipeline.alerts.alert_rules import load_alert_rules
from tidemq.pipeline.backtest import Backtest, run_backtest
from tidemq.pipeline.decode.payload_rules import load_rules
from tidemq.pipeline.lake.ingest import Ingest, run_ingest, start_ingest
from tidemq.pipeline.lake.plan import Lake
from tidemq.pipeline.lake.rework import rework
from tidemq.pipeline.load_results import count_latencies, percentiles
from tidemq.pipeline.reconcile.bucket_merging import Counts
from tidemq.pipeline.reconcile.dumps import reconcile, reconcile_by
from tidemq.pipeline.sources.stream import register
from tidemq.testing.ports import free_port

STREAM = "bench"
THREE = ("topic", "received", "payload")
PAYLOAD_BYTES = 64
LATENCY_RATE = 10_000  # messages a second
READ_ROWS = 1 << 16

Figures = dict[str, float]
Run = Callable[[], Figures]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much each part has to do."""

    messages: int  # in the stream
    captured: int  # of a run with and one without a stream
    seconds: float  # of the stream whose latency is measured
    history: int  # messages of bronze that are worked again
    queued: int  # in the split cluster
    samples: int

    @classmethod
    def scaled(cls, scale: float) -> Sizes:
        def of(number: int) -> int:
            return max(int(number * scale), 1000)

        return cls(
            of(6_000_000), of(6_000_000), max(20 * scale, 3.0), of(6_000_000), of(30_000_000), of(100_000_000)
        )


@contextmanager
def broker_with(*streams: str) -> Iterator[tuple[Broker, str]]:
    """`tidemq serve` with its default store, and the URL of its admin listener."""
    with TemporaryDirectory(prefix="tidemq-bench-") as name:
        folder, port, admin = Path(name), free_port(), free_port()
        settings = folder / "settings.toml"
        declared = [f'[[streams]]\nname = "{each}"\nfilters = ["#"]\n' for each in streams]
        settings.write_text(f"admin_port = {admin}\n" + "".join(declared))
        command = [sys.executable, "-c", "from tidemq.cli import main; main()", "serve"]
        command += ["--config", str(settings), "--host", "127.0.0.1", "--port", str(port)]
        command += ["--log-level", "warning", "--data", str(folder / "data")]
        broker = Broker(command, port, folder / "data")
        broker.start()
        try:
            yield broker, f"http://127.0.0.1:{admin}"
        finally:
            broker.stop()


def filled(broker: Broker, url: str, messages: int) -> None:
    """Publishes into the stream, and waits until all of it can be read."""
    publishers = 4
    load = Workload(
        name="fill",
        publishers=publishers,
        subscribers=publishers,
        pairs=True,
        messages=-(-messages // publishers),
        payload_bytes=PAYLOAD_BYTES,
        random=True,
    )
    run_load(load, broker.running, 60.0)
    reader = StreamReader(url, STREAM)
    while reader.describe().next_offset < messages:
        time.sleep(0.05)


@contextmanager
def source_part(spark: SparkSession, sizes: Sizes) -> Iterator[Mapping[str, Run]]:
    """From the broker to Spark, and to nowhere; and on to bronze."""
    register(spark)
    with broker_with(STREAM) as (broker, url), TemporaryDirectory(prefix="tidemq-bench-") as name:
        filled(broker, url, sizes.messages)
        reader = StreamReader(url, STREAM)
        kept = reader.describe().next_offset
        tables = Path(name)

        def through_spark(**more: str) -> Figures:
            frame = spark.read.format("tidemq").options(url=url, stream=STREAM, **more).load()
            return timed(kept, lambda: frame.write.format("noop").mode("overwrite").save())

        def alone(columns: Sequence[str] = COLUMNS) -> Figures:
            read = reader.read(0, kept, columns=columns)
            return timed(kept, lambda: sum(batch.num_rows for batch in read))

        def to_bronze() -> Figures:
            lake = tables / f"lake-{time.monotonic_ns()}"
            ingest = Ingest(url=url, stream=STREAM, tables=str(lake))
            figures = timed(kept, lambda: run_ingest(spark, ingest, once=True))
            rows = DeltaTable(str(lake / STREAM / "bronze")).to_pyarrow_dataset().count_rows()
            assert rows == kept, f"bronze has {rows} of {kept} messages"
            shutil.rmtree(lake)
            return figures

        def to_parquet() -> Figures:
            return timed(kept, lambda: copy_to_parquet(reader, kept, tables / "alone.parquet"))

        yield {
            "source: Spark": through_spark,
            "source: Spark, three columns": lambda: through_spark(columns=",".join(THREE)),
            "source: StreamReader alone, one core": alone,
            "source: StreamReader alone, three columns": lambda: alone(THREE),
            "bronze: ingest": to_bronze,
            "bronze: StreamReader and pyarrow alone": to_parquet,
        }


def copy_to_parquet(reader: StreamReader, end: int, path: Path) -> None:
    """The same rows into one file of the same compression, without Spark and without transactions."""
    writer: pq.ParquetWriter | None = None
    for batch in reader.read(0, end):
        writer = writer or pq.ParquetWriter(path, batch.schema, compression="zstd")
        writer.write_batch(batch)
    if writer:
        writer.close()


def timed(rows: int, work: Callable[[], Any]) -> Figures:
    began = time.monotonic()
    work()
    seconds = time.monotonic() - began
    return {"rows/s": rows / seconds, "s": seconds}


@contextmanager
def capture_part(spark: SparkSession, sizes: Sizes) -> Iterator[Mapping[str, Run]]:
    """QoS 0 through a broker, 1:1, with a stream that takes all of it and without one."""
    with broker_with() as (without, _), broker_with(STREAM) as (capturing, _url):

        def load(broker: Broker) -> Figures:
            outcome = run_load(
                Workload(name="one", messages=sizes.captured, payload_bytes=PAYLOAD_BYTES), broker.running
            )
            assert outcome.intact, outcome
            return {"rows/s": outcome.messages_per_s}

        yield {
            "capture: without a stream": lambda: load(without),
            "capture: with a stream": lambda: load(capturing),
        }


@contextmanager
def latency_part(spark: SparkSession, sizes: Sizes) -> Iterator[Mapping[str, Run]]:
    """From the broker to a row of bronze, while messages come at a steady rate."""
    with broker_with(STREAM) as (broker, url), TemporaryDirectory(prefix="tidemq-bench-") as name:

        def follow() -> Figures:
            lake = Path(name) / f"lake-{time.monotonic_ns()}"
            query = start_ingest(spark, Ingest(url=url, stream=STREAM, tables=str(lake), start="latest"))
            try:
                while not query.lastProgress:
                    time.sleep(0.1)
                messages = int(LATENCY_RATE * sizes.seconds)
                paced = Workload(name="paced", messages=messages, rate_per_s=LATENCY_RATE)
                run_load(paced, broker.running)
                query.processAllAvailable()
            finally:
                query.stop()
            return waits(DeltaTable(str(lake / STREAM / "bronze")))

        yield {f"latency: {LATENCY_RATE:,} messages a second": follow}


def waits(table: DeltaTable) -> Figures:
    """Of all messages, from when the broker had them until the commit that brought them."""
    found = []
    for version in table.history():
        if not version["operation"].startswith("WRITE"):
            continue
        at = DeltaTable(table.table_uri, version=version["version"])
        paths = set(at.file_uris())
        if version["version"]:
            paths -= set(DeltaTable(table.table_uri, version=version["version"] - 1).file_uris())
        for path in paths:
            received = pq.read_table(path.removeprefix("file://"), columns=["received"])["received"]
            found.append(version["timestamp"] / 1000 - received.cast(pa.int64()).to_numpy() / 1e6)
    seconds = np.concatenate(found)
    p50, p99 = np.percentile(seconds, [50, 99])
    return {"p50 s": float(p50), "p99 s": float(p99), "max s": float(seconds.max())}


RULES = 4
DEVICES = 5000
RULE = """
[[rules]]
name = "{name}"
filter = "{filter}"
format = "json"
columns = "celsius double, humidity double, at timestamp"
time = "at"
"""
GOLD = """
[rules.gold]
window = "1 minute"
values = ["celsius", "humidity"]
percentiles = [50, 99]
"""


@contextmanager
def rules_part(spark: SparkSession, sizes: Sizes) -> Iterator[Mapping[str, Run]]:
    """The same to rows of the rules' tables, with gold: the worst of four rules."""
    with broker_with(STREAM) as (broker, url), TemporaryDirectory(prefix="tidemq-bench-") as name:
        file = Path(name) / "rules.toml"
        kinds = [f"kind{number}" for number in range(RULES)]
        file.write_text("".join(RULE.format(name=kind, filter=f"bench/+/{kind}") + GOLD for kind in kinds))

        def follow() -> Figures:
            lake = Path(name) / f"lake-{time.monotonic_ns()}"
            job = Ingest(url=url, stream=STREAM, tables=str(lake), start="latest", rules=load_rules(file))
            query = start_ingest(spark, job)
            try:
                while not query.lastProgress:
                    time.sleep(0.1)
                readings(broker, sizes.seconds * 3)
                query.processAllAvailable()
            finally:
                query.stop()
            each = [waits(DeltaTable(job.silver(rule).uri)) for rule in job.rules]
            rows = sum(gold_rows(DeltaTable(job.gold(rule).uri)) for rule in job.rules)
            assert rows == int(LATENCY_RATE * sizes.seconds * 3), rows
            shutil.rmtree(lake)
            return {figure: max(found[figure] for found in each) for figure in each[0]}

        yield {f"rules: {RULES} with gold, {LATENCY_RATE:,} messages a second": follow}


def readings(broker: Broker, seconds: float, *, paced: bool = True) -> None:
    """Publishes those of some seconds, from a process of its own."""
    given = f"{broker.port}, {seconds}, {LATENCY_RATE}, {DEVICES}, {RULES}, paced={paced}"
    program = f"from pipeline_data import publish_readings; publish_readings({given})"
    subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parent, check=True)


def gold_rows(table: DeltaTable) -> int:
    """How many messages are counted."""
    return sum(table.to_pyarrow_table(columns=["count"])["count"].to_pylist())


ALERTS = """
[[alerts]]
name = "hot"
filter = "bench/+/kind0"
value = "celsius"
kind = "threshold"
above = 39.9
"""
DAY_MESSAGES = 86_400 * LATENCY_RATE


@contextmanager
def history_part(spark: SparkSession, sizes: Sizes) -> Iterator[Mapping[str, Run]]:
    """What bronze has, by a rule that was added later, and by a rule for alerts."""
    with broker_with(STREAM) as (broker, url), TemporaryDirectory(prefix="tidemq-bench-") as name:
        file, alerts = Path(name) / "rules.toml", Path(name) / "alerts.toml"
        alerts.write_text(ALERTS)
        readings(broker, sizes.history / LATENCY_RATE, paced=False)
        run_ingest(spark, Ingest(url=url, stream=STREAM, tables=name), once=True)

        def refined(gold: str) -> Figures:
            file.write_text(RULE.format(name="all", filter="bench/#") + gold)
            lake = Lake(stream=STREAM, tables=name, rules=load_rules(file))
            figures = timed(sizes.history, lambda: rework(spark, lake, "all"))
            rows = DeltaTable(lake.silver(lake.rules[0]).uri).to_pyarrow_dataset().count_rows()
            assert rows == sizes.history, f"{rows} of {sizes.history} messages"
            assert not gold or gold_rows(DeltaTable(lake.gold(lake.rules[0]).uri)) == rows
            for table in ("silver", "gold") if gold else ("silver",):
                shutil.rmtree(Path(name) / STREAM / table)
            return of_a_day(figures)

        def tested() -> Figures:
            job = Backtest(lake=Lake(stream=STREAM, tables=name), rules=load_alert_rules(alerts))
            seen: list[object] = []
            figures = timed(sizes.history, lambda: run_backtest(spark, job, lambda _, row: seen.append(row)))
            assert seen, "no alert"
            return of_a_day(figures)

        yield {
            "history: refine": lambda: refined(""),
            "history: refine, with gold": lambda: refined(GOLD),
            "history: backtest, one rule": tested,
        }


def of_a_day(figures: Figures) -> Figures:
    """With how long a day of messages at `LATENCY_RATE` would take."""
    return figures | {"minutes a day": DAY_MESSAGES / figures["rows/s"] / 60}


@contextmanager
def reconcile_part(spark: SparkSession, sizes: Sizes) -> Iterator[Mapping[str, Run]]:
    """A split cluster's dumps to one."""
    with TemporaryDirectory(prefix="tidemq-bench-") as name:
        folder = Path(name)
        split = Split(sizes.queued)
        dumps = split.write(folder)
        out = str(folder / "out")
        counts: set[int] = set()

        def by(work: Callable[[], int]) -> Figures:
            shutil.rmtree(out, ignore_errors=True)
            figures = timed(split.messages, lambda: counts.add(work()))
            assert len(counts) == 1, f"contenders disagree: {counts}"
            return figures

        yield {
            "reconcile: Spark": lambda: by(lambda: reconcile(spark, dumps, out).entries),
            "reconcile: Polars alone": lambda: by(lambda: reconcile_by(here, dumps, out).entries),
            "reconcile: DuckDB": lambda: by(lambda: reconcile_duckdb(dumps, split.buckets, Path(out))),
        }


def here(buckets: int, work: Callable[[int], Counts]) -> Counts:
    """Bucket after bucket in this process."""
    counts = Counts()
    for bucket in range(buckets):
        counts.add(work(bucket))
    return counts


def reconcile_duckdb(dumps: list[str], buckets: int, out: Path) -> int:
    """The union without what was removed, and its payloads, by SQL; nothing else of what `reconcile` does.
    Gives the number of entries."""
    entries = 0
    (out / "entries").mkdir(parents=True)
    (out / "payloads").mkdir()
    with duckdb.connect() as database:
        for bucket in range(buckets):
            file = f"bucket={bucket:04}.parquet"
            target = out / "entries" / file
            database.execute(UNION.format(**{table: listed(dumps, table, file) for table in TABLES}))
            database.execute(f"COPY (SELECT * FROM merged ORDER BY name, clock, origin) TO '{target}'")
            entries += database.execute("SELECT count(*) FROM merged").fetchall()[0][0]
        database.execute(f"CREATE TABLE ids AS {IDS.format(entries=out / 'entries', buckets=buckets)}")
        for bucket in range(buckets):
            file = f"bucket={bucket:04}.parquet"
            payloads = PAYLOADS.format(payloads=listed(dumps, "payloads", file), bucket=bucket)
            database.execute(f"COPY ({payloads}) TO '{out / 'payloads' / file}'")
    return entries


TABLES = ("entries", "owners", "seen")


def listed(dumps: list[str], table: str, file: str) -> str:
    paths = ", ".join(f"'{dump}/{table}/{file}'" for dump in dumps)
    return f"read_parquet([{paths}], filename='dump', hive_partitioning=false)"


UNION = """
CREATE OR REPLACE TABLE merged AS
WITH owner AS (SELECT owner, name, split_part(dump, '/', -3) AS node FROM {owners}),
entry AS (
  SELECT o.name, e.* EXCLUDE (owner, dump), o.node
  FROM {entries} e JOIN owner o ON e.owner = o.owner AND split_part(e.dump, '/', -3) = o.node),
merged AS (
  SELECT name, clock, origin, max(status) AS status, arg_max(flags, status) AS flags,
    arg_max(sequence, status) AS sequence, any_value(qos) AS qos, any_value(message_bytes) AS message_bytes,
    any_value(expires_at_ms) AS expires_at_ms, list(node) AS nodes
  FROM entry GROUP BY name, clock, origin),
seen AS (
  SELECT o.name, o.node, s.origin, s.first, s.last
  FROM {seen} s JOIN owner o ON s.owner = o.owner AND split_part(s.dump, '/', -3) = o.node)
SELECT * EXCLUDE (nodes) FROM merged m WHERE NOT EXISTS (
  SELECT 1 FROM seen s WHERE s.name = m.name AND s.origin = m.origin
  AND m.clock BETWEEN s.first AND s.last AND NOT list_contains(m.nodes, s.node))
"""
IDS = """
SELECT clock, origin, (clock // 64) % {buckets} AS bucket, count(*) AS count
FROM read_parquet('{entries}/*.parquet', hive_partitioning=false) GROUP BY ALL
"""
PAYLOADS = """
SELECT clock, origin, any_value(count) AS count, any_value(message) AS message
FROM {payloads} JOIN (SELECT * FROM ids WHERE bucket = {bucket}) USING (clock, origin) GROUP BY clock, origin
"""


@contextmanager
def percentile_part(spark: SparkSession, sizes: Sizes) -> Iterator[Mapping[str, Run]]:
    """Exact percentiles of samples of latencies."""
    with TemporaryDirectory(prefix="tidemq-bench-") as name:
        folder = Path(name) / "samples"
        write_samples(folder, sizes.samples)
        found: set[tuple[float, ...]] = set()

        def by(work: Callable[[], list[float]]) -> Figures:
            figures = timed(sizes.samples, lambda: found.add(tuple(work())))
            assert len(found) == 1, f"contenders disagree: {found}"
            return figures

        yield {
            "percentiles: Spark": lambda: by(lambda: percentiles_spark(spark, folder)),
            "percentiles: Polars": lambda: by(lambda: percentiles_polars(folder)),
            "percentiles: DuckDB": lambda: by(lambda: percentiles_duckdb(folder)),
        }


def percentiles_spark(spark: SparkSession, folder: Path) -> list[float]:
    """As `tidemq pipeline bench`, without its plots."""
    counts = count_latencies(spark.read.parquet(str(folder)))
    return percentiles(counts)["p999_us"].to_list()


def percentiles_polars(folder: Path) -> list[float]:
    samples = pl.scan_parquet(folder / "*.parquet").with_columns(pl.col("broker", "workload").cast(pl.String))
    counts = samples.group_by("workload", "broker", "latency_us").len("count").collect()
    found = percentiles(counts.with_columns(exact=True).cast({"latency_us": pl.Float64}))
    return found["p999_us"].to_list()


def percentiles_duckdb(folder: Path) -> list[float]:
    text = f"""SELECT quantile_disc(latency_us, 0.999) FROM '{folder}/*.parquet'
        GROUP BY workload, broker ORDER BY workload, broker"""
    with duckdb.connect() as database:
        return [float(row[0]) for row in database.execute(text).fetchall()]


PARTS = {
    "source": source_part,
    "capture": capture_part,
    "latency": latency_part,
    "rules": rules_part,
    "history": history_part,
    "reconcile": reconcile_part,
    "percentiles": percentile_part,
}


def cores() -> int:
    return len(os.sched_getaffinity(0))
