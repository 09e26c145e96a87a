"""A job says what it does: rows, dead letters by cause, how far it is behind; as numbers and as lines."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pipeline.lake import rules_of
from pipeline.streaming import TIDEMQ, Streaming
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import SparkSession

from tidemq.pipeline.lake.filing import cause_of, count_causes
from tidemq.pipeline.lake.ingest import Ingest, run_ingest, start_ingest
from tidemq.pipeline.lake.measures import CAUSES_MAX, OTHER, Measures
from tidemq.pipeline.service.board import Board
from tidemq.pipeline.service.exposition import exposed

pytestmark = pytest.mark.timeout(300)

RULES = """
[[rules]]
name = "climate"
filter = "{stream}/+/climate"
format = "json"
columns = "celsius double, at timestamp"
time = "at"

[rules.gold]
window = "1 minute"
values = ["celsius"]
"""
WRONG = ("celsius: double is wanted", 2), ("not JSON", 1)


def publish(streaming: Streaming, stream: str) -> None:
    """Five rows, one of them late, three dead letters, and two messages of no rule."""
    now = datetime.now(UTC)
    times = [now, now, now, now, now - timedelta(days=2)]
    good = [json.dumps({"celsius": 20.5, "at": at.isoformat()}).encode() for at in times]
    bad = [b'{"celsius": "warm"}', b'{"celsius": "cold"}', b"{"]
    streaming.publish((f"{stream}/1/climate", payload) for payload in (*good, *bad))
    streaming.publish([(f"{stream}/1/other", b"")] * 2)


def samples(port: int) -> dict[tuple[str, ...], float]:
    """By the name and the values of all labels but the stream."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    return {
        (
            sample.name,
            *(value for name, value in sorted(sample.labels.items()) if name != "stream"),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_numbers_for_prometheus(spark: SparkSession, streaming: Streaming, tmp_path: Path) -> None:
    stream = streaming.declare("measured")
    publish(streaming, stream)
    rules = rules_of(tmp_path, RULES.replace("{stream}", stream))
    job = Ingest(url=streaming.url, stream=stream, tables=str(tmp_path / "lake"), rules=rules)
    board = Board([stream])
    with exposed([job], board, "127.0.0.1", 0) as port:
        run_ingest(spark, job, once=True, measures=board.measures[stream])
        found = samples(port)
        streaming.publish([(f"{stream}/1/other", b"")] * 3)
        later = samples(port)
    rows = {
        labels[0]: found[name, *labels] for name, *labels in found if name == "tidemq_pipeline_rows_total"
    }
    assert rows == {"bronze": 10, "silver/climate": 4, "late/climate": 1, "dead_letters": 3}
    letters = {
        (cause[0], found[name, *cause])
        for name, *cause in found
        if name == "tidemq_pipeline_dead_letters_total"
    }
    assert letters == set(WRONG)
    assert found["tidemq_pipeline_batches_total",] == 1
    for part in ("bronze", "rules", "climate", "gold"):
        assert found["tidemq_pipeline_part_seconds_count", part] >= 1
        assert found["tidemq_pipeline_part_seconds_sum", part] > 0
    for table, number in rows.items():
        assert found["tidemq_pipeline_table_rows", table] == number
        assert found["tidemq_pipeline_table_files", table] >= 1
        assert found["tidemq_pipeline_table_bytes", table] > 100
    behind = [("tidemq_pipeline_behind_messages", table) for table in ("bronze", "silver/climate")]
    assert [found[each] for each in behind] == [0, 0]
    assert found["tidemq_pipeline_behind_seconds", "bronze"] == 0
    assert [later[each] for each in behind] == [3, 0]
    assert 0 < later["tidemq_pipeline_behind_seconds", "bronze"] < 300


def test_sparks_progress_says_how_many_messages(
    spark: SparkSession, streaming: Streaming, tmp_path: Path
) -> None:
    stream = streaming.declare("observed")
    streaming.publish([(f"{stream}/a", b"")] * 30)
    query = start_ingest(spark, Ingest(url=streaming.url, stream=stream, tables=str(tmp_path)), once=True)
    query.awaitTermination()
    observed = [each["observedMetrics"] for each in query.recentProgress if each["numInputRows"]]
    assert [each["tidemq"]["messages"] for each in observed] == [30]


def test_the_command_says_what_it_does(streaming: Streaming, tmp_path: Path) -> None:
    stream = streaming.declare("reported")
    publish(streaming, stream)
    rules_of(tmp_path, RULES.replace("{stream}", stream))
    command = [*TIDEMQ, "pipeline", "ingest", stream, str(tmp_path / "lake"), "--url", streaming.url]
    command += ["--rules", str(tmp_path / "rules.toml"), "--once"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = [line.partition(" INFO ")[2] for line in done.stderr.splitlines() if " INFO " in line]
    assert said[0].startswith(
        "reported: 1 batches: rows bronze 10, late/climate 1, dead_letters 3, silver/climate 4; bronze "
    )
    assert said[0].endswith("; 0 messages behind")
    assert set(said[1:]) == {
        f"reported: the rule climate: {number} dead letters: {cause}" for cause, number in WRONG
    }


def test_causes_of_a_year_are_bounded() -> None:
    """Those that were first keep their names; of the others none is lost."""
    measures = Measures("plant")
    for number in range(2 * CAUSES_MAX):
        measures.dead("climate", {"first": 1, f"no {number}": 2})
    letters = measures.counts().letters
    assert letters["climate", "first"] == 2 * CAUSES_MAX
    assert letters["climate", OTHER] == 2 * (CAUSES_MAX + 1)
    assert (len(letters), letters.total()) == (CAUSES_MAX + 1, 6 * CAUSES_MAX)


def test_causes_do_not_say_the_values() -> None:
    assert cause_of("celsius is 'is warm; int is wanted'; double is wanted") == "celsius: double is wanted"
    assert cause_of("not JSON: expecting value at 17") == "not JSON"
    assert cause_of("not in the schema registry: schema 99") == "not in the schema registry"
    assert cause_of('against the schema: tags.7: "x" is not of type "number"') == "against the schema"
    assert cause_of("x" * 500) == "x" * 80


def test_causes_are_bounded() -> None:
    causes: Counter[str] = Counter()
    count_causes(causes, [f"x{number}" for number in range(CAUSES_MAX + 50)] * 2)
    assert len(causes) == CAUSES_MAX + 1
    assert causes[OTHER] == 100
    assert causes["x0"] == 2
