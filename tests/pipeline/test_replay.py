"""A replay publishes what there is, in order, whole, and at the pace that is asked for."""

from __future__ import annotations

import re
import subprocess
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pipeline.streaming import TIDEMQ, Streaming
from pyspark.sql import SparkSession
from waiting import LATE_S

from tidemq.client import Message, Properties, PublishError
from tidemq.client.streams import StreamReader
from tidemq.errors import UsageError
from tidemq.pipeline.lake.table import Table
from tidemq.pipeline.replay import Replay, Schedule, replay, stream_batches, table_batches
from tidemq.pipeline.sources.mqtt_target import Target
from tidemq.pipeline.sources.stream_options import Position

pytestmark = pytest.mark.timeout(300)
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.fixture
def target(streaming: Streaming) -> Target:
    return Target(f"mqtt://127.0.0.1:{streaming.broker.port}")


def rows(streaming: Streaming, name: str) -> list[dict[str, Any]]:
    return [row for batch in StreamReader(streaming.url, name).read(0) for row in batch.to_pylist()]


def recorded(count: int, step: timedelta, topic: str = "again/a") -> pa.Table:
    """Messages as bronze has them, one each `step`."""
    times = [NOON + number * step for number in range(count)]
    return pa.table(
        {
            "epoch": pa.array([1] * count, pa.int64()),
            "offset": pa.array(range(count), pa.int64()),
            "topic": [topic] * count,
            "payload": [b"%d" % number for number in range(count)],
            "qos": pa.array([1] * count, pa.int8()),
            "received": pa.array(times, pa.timestamp("us", tz="UTC")),
        }
    )


def test_a_stream_comes_again_whole_and_in_order(streaming: Streaming, target: Target) -> None:
    for name in ("first", "replayed"):
        streaming.declare(name)
    properties = Properties(content_type="text/plain", user_properties=(("a", "b"),))
    with streaming.client() as client:
        client.publish_many(
            [
                Message("first/a", b"0", 2, True, properties),
                *(Message("first/b", b"%d" % number, 1) for number in range(1, 3000)),
            ]
        )
    last: list[int] = []
    batches = stream_batches(streaming.url, "first", end=Position(offset=2500))
    outcome = replay(batches, Replay(target, 0, "replayed/"), lambda count, late_s: last.append(count))
    assert (outcome.messages, outcome.late_p99_s) == (2500, 0)
    assert last
    found = rows(streaming, "replayed")
    assert [row["payload"] for row in found] == [b"%d" % number for number in range(2500)]
    first = {name: found[0][name] for name in ("topic", "qos", "retain", "content_type", "user_properties")}
    assert first == {
        "topic": "replayed/first/a",
        "qos": 2,
        "retain": True,
        "content_type": "text/plain",
        "user_properties": [{"name": "a", "value": "b"}],
    }


def test_the_pace_is_kept(streaming: Streaming, target: Target) -> None:
    streaming.declare("paced")
    table = recorded(50, timedelta(milliseconds=40), "paced/a")
    outcome = replay(table.to_batches(max_chunksize=7), Replay(target, pace=2.0))
    assert outcome.messages == 50
    assert 0.98 <= outcome.seconds < LATE_S
    assert 0 <= outcome.late_p50_s <= outcome.late_p99_s < LATE_S
    slack = timedelta(milliseconds=100, seconds=outcome.late_p99_s)  # the first may have been as late
    times = [row["received"] for row in rows(streaming, "paced")]
    for number, at in enumerate(times):
        assert at - times[0] >= number * timedelta(milliseconds=20) - slack


def test_due_times_follow_the_order_and_the_property(target: Target) -> None:
    table = recorded(4, timedelta(seconds=-1))  # each a second before the one in front of it
    schedule = Schedule(Replay(target))
    assert list(schedule.due_s(table.to_batches()[0])) == [0, 0, 0, 0]
    sent = [None, "2026-01-31T12:00:00Z", "nonsense", "2026-01-31T12:00:08Z", "2026-01-31T12:00:04Z"]
    pairs = [[{"name": "sent", "value": text}] if text else [] for text in sent]
    kind = pa.list_(pa.struct([("name", pa.string()), ("value", pa.string())]))
    batch = pa.record_batch({"user_properties": pa.array(pairs[1:], kind)})
    schedule = Schedule(Replay(target, pace=4, time_property="sent"))
    assert list(schedule.due_s(batch)) == [0, 0, 2, 2]
    assert list(schedule.due_s(batch)) == [2, 2, 2, 2]


def test_a_table_comes_again_in_its_order(
    spark: SparkSession, streaming: Streaming, target: Target, tmp_path: Path
) -> None:
    streaming.declare("table")
    whole = recorded(300, timedelta(seconds=1), "table/a")
    for start in (200, 0, 100):  # files in another order
        write_deltalake(str(tmp_path / "bronze"), whole.slice(start, 100), mode="append")
    bounds = Position(time=NOON + timedelta(seconds=50)), Position(offset=290)
    batches = table_batches(spark, Table(str(tmp_path / "bronze")), *bounds)
    assert replay(batches, Replay(target, pace=0)).messages == 240
    assert [row["payload"] for row in rows(streaming, "table")] == [b"%d" % n for n in range(50, 290)]
    pq.write_table(whole.drop_columns(["received"]), tmp_path / "other.parquet")
    with pytest.raises(UsageError, match=r"other\.parquet has no column received"):
        next(table_batches(spark, Table(str(tmp_path / "other.parquet"))))
    with pytest.raises(UsageError, match=r"nowhere cannot be read: .*PATH_NOT_FOUND"):
        next(table_batches(spark, Table(str(tmp_path / "nowhere"))))


def test_a_refused_message_ends_it(streaming: Streaming, target: Target) -> None:
    table = pa.table({**{name: recorded(1, timedelta(0))[name] for name in ("topic", "qos", "received")}})
    table = table.append_column("payload", pa.array([bytes(2 << 20)]))
    with pytest.raises(PublishError, match="publishing to 'again/a': packet too large"):
        replay(table.to_batches(), Replay(target))


def test_the_command_says_what_it_did(streaming: Streaming, target: Target) -> None:
    for name in ("told", "retold"):
        streaming.declare(name)
    streaming.publish([("told/a", b"x")] * 10)
    command = [*TIDEMQ, "pipeline", "replay", "--stream", "told", "--admin-url", streaming.url]
    began = time.monotonic()
    done = subprocess.run(
        [*command, "--url", target.url, "--topic-prefix", "re"], capture_output=True, text=True
    )
    assert re.match(r"10 messages in \d+\.", done.stdout), done.stderr
    assert "ms (p99)" in done.stdout
    assert len(rows(streaming, "retold")) == 10
    assert time.monotonic() - began < 60
    wrong = subprocess.run([*command, "--url", "http://x"], capture_output=True, text=True)
    assert (wrong.returncode, wrong.stderr.count("\n")) == (1, 1)
    assert "no known scheme" in wrong.stderr
