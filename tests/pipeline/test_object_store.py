"""Tables in an object store: the same promises as in a folder, without Hadoop's connectors."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from object_store import BUCKET, SECRET, ObjectStore
from pipeline.lake import rows, rules_of
from pipeline.streaming import TIDEMQ, Streaming
from pyspark.sql import SparkSession

from tidemq.errors import ConfigError, UsageError
from tidemq.pipeline.alerts.alert_rules import load_alert_rules
from tidemq.pipeline.alerts.handover import Handover
from tidemq.pipeline.alerts.watching import content_of
from tidemq.pipeline.backtest import Backtest, run_backtest
from tidemq.pipeline.lake.compaction import GATHERED, compact
from tidemq.pipeline.lake.day_files import DayFiles
from tidemq.pipeline.lake.ingest import Ingest, run_ingest
from tidemq.pipeline.lake.maintenance import maintain_all
from tidemq.pipeline.lake.plan import Lake
from tidemq.pipeline.lake.progress import Progress
from tidemq.pipeline.lake.rework import rework
from tidemq.pipeline.lake.status import status
from tidemq.pipeline.lake.table import Table
from tidemq.pipeline.lake.table_log import ConflictError, TableError
from tidemq.pipeline.places import ENVIRONMENT, Storage, in_object_store, place_uri, spark_uri
from tidemq.pipeline.replay import table_batches

pytestmark = pytest.mark.timeout(400)

RULES = """
[[rules]]
name = "climate"
filter = "{stream}/#"
format = "json"
columns = "celsius double, at timestamp"
time = "at"
watermark = "1 hour"

[rules.gold]
window = "1 day"
values = ["celsius"]
"""
ALERTS = """
[[alerts]]
name = "hot"
filter = "{stream}/#"
kind = "threshold"
value = "celsius"
above = 30
"""
# a driver that dies when the files of a table are there, and before they are committed
KILLED_AT = """
import os, signal, sys
from tidemq.cli import main
from tidemq.pipeline.lake.table import Table
name, commit = sys.argv.pop(1), Table.commit
def killed(table, attempt, written):
    if written and table.uri.endswith(name):
        os.kill(os.getpid(), signal.SIGKILL)
    return commit(table, attempt, written)
Table.commit = killed
main()
"""


@pytest.mark.parametrize(
    ("place", "uri", "of_spark"),
    [
        ("s3a://lake/plant/", "s3://lake/plant", "s3a://lake/plant"),
        ("s3://lake/plant", "s3://lake/plant", "s3a://lake/plant"),
        ("gs://lake/plant", "gs://lake/plant", "gs://lake/plant"),
        (
            "abfss://lake@plant.dfs.core.windows.net/a",
            "abfss://lake@plant.dfs.core.windows.net/a",
            "abfss://lake@plant.dfs.core.windows.net/a",
        ),
        ("/Volumes/main/plant/lake", "file:///Volumes/main/plant/lake", "/Volumes/main/plant/lake"),
        ("dbfs:/Volumes/main/plant/lake", "file:///Volumes/main/plant/lake", "/Volumes/main/plant/lake"),
        ("/srv/lake", "file:///srv/lake", "file:///srv/lake"),
    ],
)
def test_a_place_has_the_name_that_each_library_takes(place: str, uri: str, of_spark: str) -> None:
    assert (place_uri(place), spark_uri(place)) == (uri, of_spark)
    assert in_object_store(place) == (not uri.startswith("file:"))
    assert ENVIRONMENT.open("/srv/lake")[1] == "/srv/lake"
    with pytest.raises(UsageError, match="has the scheme http; accepted: a path, file, s3"):
        ENVIRONMENT.open("http://lake")


def test_options_are_read_from_a_file_and_never_shown(tmp_path: Path) -> None:
    file = tmp_path / "storage.toml"
    lines = (
        "AWS_SECRET_ACCESS_KEY = 'hidden'",
        "aws_access_key_id = 'me'",
        "aws_endpoint_url = 'http://a:1'",
    )
    file.write_text("\n".join(["[storage_options]", *lines]))
    storage = Storage.load(file)
    lake = Lake(stream="plant", tables="s3://lake", storage=storage)
    assert "hidden" not in f"{storage!r} {lake!r} {lake.bronze!r}"
    assert storage.of_tables["aws_allow_http"] == "true"
    assert storage.of_spark == {
        "spark.hadoop.fs.s3a.access.key": "me",
        "spark.hadoop.fs.s3a.secret.key": "hidden",
        "spark.hadoop.fs.s3a.endpoint": "http://a:1",
        "spark.hadoop.fs.s3a.path.style.access": "true",
    }
    for text, said in (
        (
            '[storage_options]\naws_secret_acces_key = "hidden"',
            "has aws_secret_acces_key; accepted: allow_unsafe",
        ),
        ("[storage_options]\naws_region = 1", "aws_region is not text; accepted: text in quotes"),
        ("[rules]", "has no section storage_options"),
        ("[", "it is no TOML"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError, match=said) as caught:
            Storage.load(file)
        assert "hidden" not in str(caught.value)


def test_who_commits_second_is_refused_and_maintain_removes_what_nobody_needs(store: ObjectStore) -> None:
    table = Table(f"s3a://{BUCKET}/rivals/bronze", storage=store.storage)
    columns = pa.schema({"epoch": pa.int64(), "offset": pa.int64(), "date": pa.date32()})
    progress = Progress("rivals", 1)

    def written(end: int) -> Callable[[], int]:
        attempt = table.attempt(columns, progress)
        found = [{"epoch": 1, "offset": number} for number in range(attempt.reached, end)]
        with DayFiles(store.storage, bytes_max=1) as files:
            dates = pa.array([date(2026, 1, 31)] * len(found))
            files.add(attempt.folder, pa.RecordBatch.from_pylist(found), dates)
        return partial(attempt.commit, files.written)

    second, first = written(10), written(10)
    assert first() == 10
    with pytest.raises(ConflictError, match="somebody else has written"):
        second()
    for end in range(20, GATHERED * 10 + 10, 10):
        assert written(end)() == 10
    assert compact(table, datetime.now(UTC)).files == GATHERED
    table.clean(0)
    assert rows(table, "offset") == [(number,) for number in range(GATHERED * 10)]
    (file,) = table.files()
    there = [path for path in store.objects("rivals/bronze") if not path.startswith("_delta_log/")]
    assert there == [file.path]


@pytest.fixture
def job(streaming: Streaming, store: ObjectStore, tmp_path: Path) -> Callable[[str], Ingest]:
    """`job("stream")` declares it and gives what ingests it; Spark's checkpoint is in a folder."""

    def job(name: str) -> Ingest:
        return Ingest(
            url=streaming.url,
            stream=streaming.declare(name),
            tables=f"s3a://{BUCKET}/tables",
            rules=rules_of(tmp_path, RULES.replace("{stream}", name)),
            rows_max=25,
            checkpoint=str(tmp_path / "checkpoint"),
            storage=store.storage,
        )

    return job


def climate(count: int) -> list[bytes]:
    now = datetime.now(UTC).isoformat()
    return [json.dumps({"celsius": number, "at": now}).encode() for number in range(count)]


def publish(streaming: Streaming, stream: str, payloads: list[bytes]) -> None:
    streaming.publish((f"{stream}/a", payload) for payload in payloads)


def content(job: Ingest) -> tuple[list[int], list[int], list[tuple[int, float]]]:
    """Offsets in bronze and in the decoded table; gold's number of rows, and their sum."""
    (rule,) = job.rules
    bronze = [offset for (offset,) in rows(job.bronze, "offset")]
    silver = [offset for (offset,) in rows(job.silver(rule), "offset")]
    return bronze, silver, rows(job.gold(rule), "celsius_count", "celsius_sum", order="window")


def test_all_that_works_on_tables_works_in_s3(
    spark: SparkSession, streaming: Streaming, job: Callable[[str], Ingest], tmp_path: Path
) -> None:
    """Ingest with rules and gold, a lost checkpoint, maintenance, refine, backtest with its handover, replay
    and status.
    """
    ingest = job("stored")
    publish(streaming, "stored", [*climate(60), b"?"])
    run_ingest(spark, ingest, once=True)
    wanted = (list(range(61)), list(range(60)), [(60, sum(range(60)))])
    assert content(ingest) == wanted
    assert rows(ingest.dead_letters, "offset", "payload") == [(60, b"?")]

    with pytest.raises(TableError, match=r"other/stored/bronze, and the checkpoint .* is beyond messages"):
        run_ingest(spark, replace(ingest, tables=f"s3://{BUCKET}/other"), once=True)
    shutil.rmtree(ingest.checkpoint)
    run_ingest(spark, ingest, once=True)
    assert content(ingest) == wanted

    for line in maintain_all(ingest, keep_h=0):
        assert ": 0 files into 0" in line
    rework(spark, ingest, "climate")
    assert content(ingest) == wanted

    alerts_file = tmp_path / "alerts.toml"
    alerts_file.write_text(ALERTS.replace("{stream}", "stored"))
    handover = f"s3a://{BUCKET}/handover"
    lake = Lake(stream="stored", tables=ingest.tables, storage=ingest.storage)
    backtest = Backtest(lake=lake, rules=load_alert_rules(alerts_file), handover=handover)
    alerts = []
    run_backtest(spark, backtest, lambda rule, row: alerts.append(content_of(rule, row)))
    assert [(alert["state"], alert["offset"]) for alert in alerts] == [("raised", 31)]
    known = Handover.load(handover, ingest.storage)
    assert known.offset == 61
    assert [row.rule for row in known.states(spark, handover, ingest.storage).collect()] == ["hot"]

    batches = table_batches(spark, ingest.bronze)
    assert sum(batch.num_rows for batch in batches) == 61

    found = {each.name: (each.rows, each.reached) for each in status(ingest)}
    assert found == {
        "bronze": (61, 61),
        "dead_letters": (1, None),
        "gold/climate": (1, 61),
        "late/climate": (0, None),
        "silver/climate": (60, 61),
    }


@pytest.mark.parametrize("table", ["bronze", pytest.param("silver/climate", marks=pytest.mark.long)])
def test_a_driver_that_is_killed_between_writing_and_committing_leaves_nothing_twice(
    spark: SparkSession,
    streaming: Streaming,
    store: ObjectStore,
    job: Callable[[str], Ingest],
    tmp_path: Path,
    table: str,
) -> None:
    """It has its credentials from the environment; the one after it from options."""
    ingest = job(f"killed-{table.partition('/')[0]}")
    publish(streaming, ingest.stream, climate(60))
    arguments = ["pipeline", "ingest", ingest.stream, ingest.tables, "--url", streaming.url, "--once"]
    rules, checkpoint = str(tmp_path / "rules.toml"), ["--checkpoint", ingest.checkpoint]
    command = [sys.executable, "-c", KILLED_AT, table, *arguments, "--rules", rules, *checkpoint]
    done = subprocess.run(
        [*command, "--master", "local[1]"], env=store.environment, capture_output=True, text=True
    )
    assert done.returncode == -9, done.stderr
    assert SECRET not in done.stdout + done.stderr
    left = [path for path in store.objects(f"tables/{ingest.stream}/{table}") if path.endswith(".parquet")]
    assert left
    run_ingest(spark, ingest, once=True)
    assert content(ingest) == (list(range(60)), list(range(60)), [(60, sum(range(60)))])
    committed = {file.path for file in ingest.table(table).files()}
    assert committed
    assert committed.isdisjoint(left)


def test_what_cannot_be_reached_is_said_in_a_line(
    spark: SparkSession,
    streaming: Streaming,
    store: ObjectStore,
    job: Callable[[str], Ingest],
    tmp_path: Path,
) -> None:
    ingest = replace(job("unreached"), checkpoint="")
    with pytest.raises(UsageError, match=r"no connector for the checkpoint s3a://lake/.*hadoop-aws"):
        run_ingest(spark, ingest, once=True)
    file = store.write_options(tmp_path / "storage.toml")
    command = [*TIDEMQ, "pipeline", "status", "plant", f"s3://{BUCKET}", "--storage-options", str(file)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"tidemq: there is no table s3://{BUCKET}/plant/bronze with messages\n"
    file.write_text(file.read_text().replace(store.url, "http://127.0.0.1:1"))
    done = subprocess.run([*command], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("tidemq: ")
    assert done.stderr.count("\n") == 1
    assert SECRET not in done.stderr
