"""Figures by window follow the decoded table: late rows mend them, what is too late does not, once each."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pipeline.lake import ingest, rows
from pipeline.streaming import Streaming
from pyspark.sql import SparkSession

from tidemq.client import Properties
from tidemq.errors import ConfigError
from tidemq.pipeline.decode.payload_rules import Gold, Rule
from tidemq.pipeline.lake.gold import SPANS_MAX, merged
from tidemq.pipeline.lake.sketches import ACCURACY
from tidemq.pipeline.spark.jobs import JobError

pytestmark = pytest.mark.timeout(400)

RULES = """
[[rules]]
name = "climate"
filter = "{stream}/#"
format = "json"
columns = "celsius double, at timestamp"
time = "at"
watermark = "1 day"

[rules.gold]
window = "1 minute"
values = ["celsius"]
limits = { celsius = [-40, 30] }
percentiles = [50, 99.9]
gap = "90 seconds"
"""
NOON = (datetime.now(UTC) - timedelta(hours=2)).replace(minute=0, second=0, microsecond=0)
FIGURES = (
    *("count", "rate", "celsius_min", "celsius_mean", "celsius_max", "celsius_p50", "celsius_p99_9"),
    *("celsius_out_of_range", "gaps", "longest_gap"),
)


def near(percentile: float) -> Any:
    """As a sketch has it."""
    return pytest.approx(percentile, rel=ACCURACY)


def reading(topic: str, second: float, celsius: float | None) -> tuple[str, bytes]:
    at = (NOON + timedelta(seconds=second)).isoformat()
    return topic, json.dumps({"celsius": celsius, "at": at}).encode()


def test_windows_are_counted_again_when_late_rows_come(
    spark: SparkSession, streaming: Streaming, tmp_path: Path
) -> None:
    streaming.declare("gold")
    with streaming.client(client_id="device") as device:
        first = [(0, 10.0), (10, 20.0), (59, 40.0), (65, None), (170, 5.0)]
        device.publish_many([reading("gold/a", *each) for each in first], qos=1)
        device.publish_many([reading("gold/b", 0, 1.0)], qos=1)
    job = ingest(spark, streaming, tmp_path, "gold", RULES)
    (gold,) = (job.gold(rule) for rule in job.rules)

    def figures(topic: str) -> dict[int, tuple[Any, ...]]:
        """By the window's minute."""
        found = rows(gold, "topic", "client_id", "window", *FIGURES, order="window")
        return {
            (window - NOON) // timedelta(minutes=1): tuple(numbers)
            for name, client, window, *numbers in found
            if name == topic and client == "device"
        }

    # the first message of all ends a silence of at least the time that is looked at
    mean = pytest.approx(70 / 3)
    assert figures("gold/a") == {
        0: (3, 3 / 60, 10.0, mean, 40.0, near(20.0), near(39.96), 1, 1, 90.0),
        1: (1, 1 / 60, None, None, None, None, None, 0, 0, 6.0),
        2: (1, 1 / 60, 5.0, 5.0, 5.0, 5.0, 5.0, 0, 1, 105.0),
    }
    other = figures("gold/b")
    with streaming.client(client_id="device") as device:
        late = [(35, 30.0), (-86400 * 2, 50.0), (86400 * 2, 50.0)]
        device.publish_many([reading("gold/a", *each) for each in late], qos=1)
    job = ingest(spark, streaming, tmp_path, "gold", RULES)
    again = figures("gold/a")
    assert again[0] == (4, 4 / 60, 10.0, 25.0, 40.0, near(25.0), near(39.97), 1, 1, 90.0)
    assert again[2] == (1, 1 / 60, 5.0, 5.0, 5.0, 5.0, 5.0, 0, 1, 105.0)
    assert figures("gold/b") == other
    silver, late_table = job.silver(job.rules[0]), job.late(job.rules[0])
    assert len(rows(silver, "offset")) == 7
    assert [
        (offset, celsius, late_s > 0)
        for offset, celsius, late_s in rows(late_table, "offset", "celsius", "late_s")
    ] == [(7, 50.0, True), (8, 50.0, False)]
    # a driver that was killed before the figures were committed, and one that lost the checkpoint
    shutil.rmtree(Path(gold.uri.removeprefix("file://")))
    shutil.rmtree(tmp_path / "lake/gold/checkpoint")
    job = ingest(spark, streaming, tmp_path, "gold", RULES, rows_max=5)
    assert figures("gold/a") == again
    assert figures("gold/b") == other
    with pytest.raises(JobError, match="was made with other settings; removed, it is made anew"):
        ingest(spark, streaming, tmp_path, "gold", RULES.replace("99.9", "99"))


def test_batches_without_a_row_leave_gold_as_it_is(
    spark: SparkSession, streaming: Streaming, tmp_path: Path
) -> None:
    """Neither at first nor later; what comes then is counted once."""
    streaming.declare("quiet")

    def after(*messages: tuple[str, bytes]) -> list[tuple[Any, ...]]:
        streaming.publish(messages)
        job = ingest(spark, streaming, tmp_path, "quiet", RULES)
        (gold,) = (job.gold(rule) for rule in job.rules)
        return rows(gold, "topic", "count", "celsius_mean", order="window")

    assert after(("quiet/a", b"none")) == []
    first = ("quiet/a", 1, 10.0)
    assert after(reading("quiet/a", 0, 10.0)) == [first]
    assert after(("quiet/a", b"none")) == [first]
    assert after(reading("quiet/a", 61, 20.0)) == [first, ("quiet/a", 1, 20.0)]


PROPERTY = """
[[rules]]
name = "level"
filter = "{stream}/#"
format = "number"
time_property = "sent"

[rules.gold]
window = "1 hour"
values = ["value"]
"""


def test_the_publishers_time_counts_where_it_is_named(
    spark: SparkSession, streaming: Streaming, tmp_path: Path
) -> None:
    streaming.declare("sent")
    sent = datetime.now(UTC) - timedelta(minutes=5)
    with streaming.client(client_id="device") as device:
        for text in (sent.isoformat(), "never", (sent - timedelta(hours=1)).isoformat()):
            device.publish("sent/a", b"5", qos=1, properties=Properties(user_properties=(("sent", text),)))
    job = ingest(spark, streaming, tmp_path, "sent", PROPERTY)
    found = rows(job.silver(job.rules[0]), "offset", "event_time", "received")
    assert [(offset, time == received) for offset, time, received in found] == [(0, False), (1, True)]
    assert found[0][1] == sent
    assert rows(job.late(job.rules[0]), "offset", "value") == [(2, 5.0)]
    assert sum(count for (count,) in rows(job.gold(job.rules[0]), "count", order="window")) == 2


def test_a_name_that_messages_cannot_make_a_column_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"names a\.b, which can be no column of its own"):
        Rule("a", "a", "json", gold=Gold(timedelta(1), values=("a.b",))).check()


def test_spans_are_merged_and_bounded() -> None:
    minute = timedelta(minutes=1)
    assert merged([]) == []
    spans = [(NOON + number * minute, minute) for number in (1, 0, 5)]
    assert merged(spans) == [(NOON, NOON + 2 * minute), (NOON + 5 * minute, NOON + 6 * minute)]
    many = [(NOON + 2 * number * minute, minute) for number in range(SPANS_MAX + 1)]
    assert merged(many) == [(NOON, NOON + (2 * SPANS_MAX + 1) * minute)]


@pytest.mark.parametrize(
    ("gold", "said"),
    [
        (Gold(timedelta(1), values=("kelvin",)), "no column kelvin with numbers"),
        (Gold(timedelta(1), values=("name",)), "no column name with numbers"),
        (Gold(timedelta(1), by=("room",)), "no column room, which gold.by names"),
    ],
)
def test_columns_that_gold_names_must_be_there(gold: Gold, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Rule("a", "a", "json", "celsius double, name string", gold=gold).check()


@pytest.mark.parametrize(
    ("columns", "said"),
    [("celsius double", "no column at, which time names"), ("at boolean", "a column at that is no time")],
)
def test_the_column_of_the_time_must_be_there(columns: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Rule("a", "a", "json", columns, time="at").check()
