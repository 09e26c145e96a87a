"""Rules go by their own progress: what was added, changed or removed has what it would always have had."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType
from pipeline.lake import ingest, rows, rules_of
from pipeline.streaming import TIDEMQ, Streaming
from pyspark.sql import SparkSession
from waiting import wait_until

from tidemq.errors import UsageError
from tidemq.pipeline.lake.ingest import run_ingest, start_ingest
from tidemq.pipeline.lake.plan import Ingest, Lake
from tidemq.pipeline.lake.progress import Progress
from tidemq.pipeline.lake.rework import rework
from tidemq.pipeline.lake.table_log import TableError
from tidemq.pipeline.spark.jobs import JobError

pytestmark = pytest.mark.timeout(400)

LEVEL = """
[[rules]]
name = "level"
filter = "{stream}/#"
format = "number"
"""
CLIMATE = """
[[rules]]
name = "climate"
filter = "{stream}/+"
format = "json"
columns = "celsius double, at timestamp"
time = "at"
watermark = "1 hour"

[rules.gold]
window = "1 day"
values = ["celsius"]
"""
NUMBERED = [b"%d" % number for number in range(40)]
OLD = b'{"celsius": 1, "at": "2020-01-01T00:00:00Z"}'


def folder(parent: Path, name: str) -> Path:
    (parent / name).mkdir()
    return parent / name


def content(table: Any) -> pa.Table:
    """All of a table, in an order of its own."""
    found = pa.table(DeltaTable(table.uri).to_pyarrow_table())
    found = found.select(sorted(found.column_names))
    return found.sort_by([(name, "ascending") for name in found.column_names])


def of_rule(job: Lake, name: str) -> list[pa.Table]:
    """The tables of one rule; of dead letters its own."""
    (rule,) = (each for each in job.rules if each.name == name)
    letters = content(job.dead_letters)
    letters = letters.filter(pa.compute.equal(letters.column("rule"), name))
    tables = [job.silver(rule), *([job.late(rule)] if rule.watermark else [])]
    return [content(each) for each in (*tables, *([job.gold(rule)] if rule.gold else []))] + [letters]


def test_a_rule_that_came_later_has_what_it_would_always_have_had(
    spark: SparkSession, streaming: Streaming, tmp_path: Path
) -> None:
    """Exactly, late rows, dead letters and gold among it; also when nothing more comes."""
    streaming.declare("later")
    payloads = [b'{"celsius": %d}' % each for each in range(20)] + [OLD, b"warm", b"17"]
    streaming.publish([("later/a", payload) for payload in payloads])
    always = ingest(spark, streaming, folder(tmp_path, "always"), "later", LEVEL + CLIMATE)
    ingest(spark, streaming, tmp_path, "later", LEVEL, rows_max=12)
    job = ingest(spark, streaming, tmp_path, "later", LEVEL + CLIMATE, rows_max=12)
    for name in ("level", "climate"):
        assert of_rule(job, name) == of_rule(always, name)
    assert [each.num_rows for each in of_rule(job, "climate")] == [20, 1, 1, 2]
    for gone in ("silver/climate", "gold/climate"):  # comes back whole, and nothing else comes twice
        shutil.rmtree(tmp_path / "lake/later" / gone)
        ingest(spark, streaming, tmp_path, "later", LEVEL + CLIMATE)
        for name in ("level", "climate"):
            assert of_rule(job, name) == of_rule(always, name)


def test_a_changed_rule_is_held_back_until_it_is_worked_again(
    spark: SparkSession, streaming: Streaming, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    streaming.declare("changed")
    payloads = [b'{"celsius": 1, "bar": "x"}', b'{"celsius": 2}', OLD, b"3"]
    streaming.publish([(f"changed/{topic}", payload) for topic in "ab" for payload in payloads])
    ingest(spark, streaming, tmp_path, "changed", LEVEL + CLIMATE)
    streaming.publish([(f"changed/{topic}", payload) for topic in "ab" for payload in payloads])
    changed = LEVEL + CLIMATE.replace("at timestamp", "at timestamp, bar string")
    changed = changed.replace("{stream}/+", "{stream}/a")
    said = r"the rule climate is held back: the table .*silver/climate was made by other settings"
    with pytest.raises(JobError, match=said):
        ingest(spark, streaming, tmp_path, "changed", changed)
    rules = rules_of(tmp_path, changed.replace("{stream}", "changed"))
    job = Ingest(url=streaming.url, stream="changed", tables=str(tmp_path / "lake"), rules=rules)
    assert rows(job.bronze, "offset") == [(number,) for number in range(16)]
    assert rows(job.silver(rules[0]), "offset") == [(3,), (7,), (11,), (15,)]
    assert "the rule climate is held back" in caplog.text
    with pytest.raises(TableError, match="was made by other settings"):
        rework(spark, job, "climate", "3")
    rework(spark, job, "climate")
    always = ingest(spark, streaming, folder(tmp_path, "always"), "changed", changed)
    for name in ("level", "climate"):
        assert of_rule(job, name) == of_rule(always, name)
    run_ingest(spark, job, once=True)
    with pytest.raises(UsageError, match="there is no rule klima; there are: level, climate"):
        rework(spark, job, "klima")


def test_a_column_of_the_owners_stays_empty(
    spark: SparkSession, streaming: Streaming, tmp_path: Path
) -> None:
    streaming.declare("owned")
    streaming.publish([("owned/a", b"1")])
    rules = LEVEL + '[rules.gold]\nwindow = "1 day"\nvalues = ["value"]\n'
    job = ingest(spark, streaming, tmp_path, "owned", rules)
    (rule,) = job.rules
    for table in (job.bronze, job.silver(rule), job.gold(rule)):
        DeltaTable(table.uri).alter.add_columns([Field("site", PrimitiveType("string"))])
    streaming.publish([("owned/a", b"2")])
    ingest(spark, streaming, tmp_path, "owned", rules)
    assert rows(job.bronze, "offset", "site") == [(0, None), (1, None)]
    assert rows(job.silver(rule), "value", "site") == [(1.0, None), (2.0, None)]
    assert rows(job.gold(rule), "count", "site", order="window") == [(1, None), (1, None)]  # two clients


@pytest.fixture
def numbered(
    spark: SparkSession, streaming: Streaming, tmp_path: Path, request: pytest.FixtureRequest
) -> Ingest:
    name = request.node.name
    streaming.declare(name)
    streaming.publish([(f"{name}/a", payload) for payload in [*NUMBERED, b"high"]])
    return ingest(spark, streaming, tmp_path, name, LEVEL)


def test_a_part_is_worked_again(spark: SparkSession, numbered: Ingest) -> None:
    """What was removed by hand in front of it stays so."""
    (rule,) = numbered.rules
    silver = numbered.silver(rule)
    DeltaTable(silver.uri).delete("offset in (5, 25)")
    rework(spark, numbered, "level", "20")
    assert rows(silver, "offset") == [(number,) for number in range(40) if number != 5]
    assert rows(numbered.dead_letters, "offset") == [(40,)]
    received = rows(numbered.bronze, "received")[4][0]
    rework(spark, numbered, "level", received.isoformat())
    assert rows(silver, "offset") == [(number,) for number in range(40)]
    before = DeltaTable(silver.uri).version()
    rework(spark, numbered, "level", "latest")
    assert DeltaTable(silver.uri).version() == before
    with pytest.raises(UsageError, match="the option from is 'noon'; accepted"):
        rework(spark, numbered, "level", "noon")


def test_it_is_worked_again_while_more_comes(
    spark: SparkSession, streaming: Streaming, numbered: Ingest
) -> None:
    """By two at once, each message once."""
    job = replace(numbered, rows_max=20, trigger_s=0.1)
    query = start_ingest(spark, job)
    stop = threading.Event()

    def publish() -> None:
        while not stop.wait(0.5):
            streaming.publish([(f"{job.stream}/b", b"1"), (f"{job.stream}/b", b"low")])

    publisher = threading.Thread(target=publish)
    publisher.start()
    try:
        rework(spark, job, "level")
    finally:
        stop.set()
        publisher.join()
        query.stop()
    run_ingest(spark, job, once=True)
    bronze = dict(rows(job.bronze, "offset", "payload"))
    good = [offset for offset, payload in bronze.items() if payload.isdigit()]
    assert rows(job.silver(job.rules[0]), "offset") == [(offset,) for offset in good]
    assert rows(job.dead_letters, "offset") == [(each,) for each in bronze if each not in good]
    assert job.bronze.reached(Progress(job.stream, job.bronze.epochs()[0])) == len(bronze) > 41


def test_the_command(numbered: Ingest, tmp_path: Path) -> None:
    """Needs no broker."""
    silver = numbered.silver(numbered.rules[0])
    DeltaTable(silver.uri).delete()
    arguments = [numbered.stream, str(tmp_path / "lake"), "--rules", str(tmp_path / "rules.toml")]
    done = command("refine", *arguments, "--rule", "level", "--from", "10", "--master", "local[1]")
    assert done.returncode == 0, done.stderr
    assert rows(silver, "offset") == [(number,) for number in range(10, 40)]
    for more, said in (
        (["--rule", "depth"], "there is no rule depth; there are: level"),
        (
            ["--rule", "level", "--from", "noon"],
            "the option --from is 'noon'; accepted: earliest, latest, an",
        ),
    ):
        done = command("refine", *arguments, *more)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)
        assert said in done.stderr


def test_the_status_says_what_is_there_and_what_is_behind(
    numbered: Ingest, streaming: Streaming, tmp_path: Path
) -> None:
    streaming.publish([(f"{numbered.stream}/a", b"1")] * 5)
    found = {each["name"]: each for each in status(numbered, "--json")}
    assert {name: (each["rows"], each["reached"], each["behind"]) for name, each in found.items()} == {
        "bronze": (41, 41, 5),
        "dead_letters": (1, None, None),
        "silver/level": (40, 41, 0),
    }
    newest = max(rows(numbered.bronze, "received"))[0]
    assert datetime.fromisoformat(found["bronze"]["newest"]) == newest
    DeltaTable(numbered.silver(numbered.rules[0]).uri).delete()
    assert [each["rows"] for each in status(numbered, "--json")] == [41, 1, 0]
    assert re.fullmatch(
        r"table +rows +files +bytes +newest +reached +behind\n"
        r"bronze +41 +1 +\d+ +\S+ +41 +5\ndead_letters +1 +1 +\d+ +\S+\nsilver/level +0 +0 +0 +41 +0\n",
        command("status", numbered.stream, str(tmp_path / "lake"), "--url", numbered.url).stdout,
    )
    done = command("status", "elsewhere", str(tmp_path / "lake"))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "there is no table " in done.stderr


def status(job: Ingest, *arguments: str) -> list[dict[str, Any]]:
    done = command("status", job.stream, job.tables, "--url", job.url, *arguments)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_ingest_finishes_what_a_killed_one_has_begun(
    spark: SparkSession, numbered: Ingest, tmp_path: Path
) -> None:
    silver = numbered.silver(numbered.rules[0])
    before = content(silver), content(numbered.dead_letters)
    version = DeltaTable(silver.uri).version()
    arguments = [numbered.stream, str(tmp_path / "lake"), "--rules", str(tmp_path / "rules.toml")]
    more = ["--rule", "level", "--rows-max", "1", "--master", "local[1]"]
    with subprocess.Popen([*TIDEMQ, "pipeline", "refine", *arguments, *more]) as process:
        wait_until(lambda: DeltaTable(silver.uri).version() > version + 3)
        process.kill()
    assert 0 < content(silver).num_rows < 40
    run_ingest(spark, numbered, once=True)
    assert (content(silver), content(numbered.dead_letters)) == before


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*TIDEMQ, "pipeline", *arguments], capture_output=True, text=True, timeout=300)
