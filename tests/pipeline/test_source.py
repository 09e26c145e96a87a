"""Spark reads streams as they are: exact ranges, bounded batches, and no silence about what is lost."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from pipeline.streaming import Streaming
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.datasource import ReadAllAvailable
from waiting import wait_until

from tidemq.client import Properties
from tidemq.client.streams import StreamError, StreamReader
from tidemq.errors import UsageError
from tidemq.pipeline.decode.publish_time import parse_time_us
from tidemq.pipeline.sources.bounded_tail import TailReader
from tidemq.pipeline.sources.ranges import COLUMNS
from tidemq.pipeline.sources.stream import register
from tidemq.pipeline.sources.stream_options import SourceOptions
from tidemq.stream.schema import SCHEMA

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def load(spark: SparkSession, streaming: Streaming) -> Callable[..., Any]:
    """`load("stream", stream=True, option=…)`: a frame."""
    register(spark)

    def load(name: str, following: bool = False, **options: Any) -> Any:
        read = spark.readStream if following else spark.read
        return read.format("tidemq").options(url=streaming.url, **{"stream": name, **options}).load()

    return load


def drain(frame: DataFrame, folder: Path, spark: SparkSession) -> list[list[int]]:
    """The rows of the batches of a query that ends with the last message of now."""
    sizes = []

    def keep(batch: DataFrame, _number: int) -> None:
        rows = batch.select("epoch", "offset").collect()
        sizes.append([row.offset for row in rows])

    writing = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(folder))
    query = writing.trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()
    return sizes


def test_columns_are_those_of_a_stream() -> None:
    columns = [part.strip().split(" ", 1) for part in COLUMNS.replace("name: string, ", "").split(",")]
    assert [name for name, _ in columns] == ["epoch", *SCHEMA.names]


def test_a_row_has_all_of_the_message(load: Callable[..., DataFrame], streaming: Streaming) -> None:
    streaming.declare("whole")
    properties = Properties(
        content_type="text/plain",
        response_topic="whole/answers",
        correlation_data=b"\x01",
        user_properties=(
            ("sent", "2026-01-31T12:00:00.5+01:00"),
            ("sent", "never"),
            ("x", "y"),
        ),
    )
    with streaming.client(client_id="device") as client:
        client.publish("whole/a", b"\x00\xff", qos=1, properties=properties)
        client.publish("whole/b", b"", qos=0)
    first, second = load("whole", timeProperty="sent", end="latest").orderBy("offset").collect()
    assert (first.offset, first.topic, bytes(first.payload), first.qos) == (0, "whole/a", b"\x00\xff", 1)
    assert (first.client_id, first.retain, first.dup, first.content_type) == (
        "device",
        False,
        False,
        "text/plain",
    )
    assert (first.response_topic, bytes(first.correlation_data)) == ("whole/answers", b"\x01")
    assert [tuple(pair) for pair in first.user_properties][1:] == [("sent", "never"), ("x", "y")]
    assert first.published.astimezone(UTC) == datetime(2026, 1, 31, 11, 0, 0, 500_000, UTC)
    assert len(first.message_id) == 16
    assert abs((datetime.now(UTC) - first.received.astimezone(UTC)).total_seconds()) < 60
    assert (second.qos, bytes(second.payload), second.published, second.content_type) == (0, b"", None, None)


def test_a_row_has_the_columns_that_are_wanted(
    load: Callable[..., DataFrame], streaming: Streaming, spark: SparkSession, tmp_path: Path
) -> None:
    streaming.declare("some")
    with streaming.client() as client:
        sent = Properties(user_properties=(("sent", "1769857200"),))
        client.publish("some/a", b"\x00\xff", qos=1, properties=sent)
    frame = load("some", columns="payload, published,epoch,topic", timeProperty="sent")
    assert frame.columns == ["payload", "published", "epoch", "topic"]
    [row] = frame.collect()
    assert (bytes(row.payload), row.topic) == (b"\x00\xff", "some/a")
    assert row.published.timestamp() == 1769857200
    assert load("some", columns="epoch").collect() == [(row.epoch,)]
    followed = load("some", following=True, columns="offset,epoch")
    assert drain(followed, tmp_path, spark) == [[0]]
    with pytest.raises(AnalysisException, match="a stream has no column 'topics'"):
        load("some", columns="topics")


@pytest.mark.parametrize(
    ("text", "time_us"),
    [
        ("1769857200", 1769857200_000_000),
        ("1769857200.25", 1769857200_250_000),
        ("1769857200250", 1769857200_250_000),
        ("1769857200250001", 1769857200_250_001),
        ("2026-01-31T12:00:00+01:00", 1769857200_000_000),
        ("2026-01-31T12:00:00", None),  # of which zone?
        ("-1", None),
        ("nan", None),
        ("soon", None),
    ],
)
def test_a_publishers_time_is_read_in_the_usual_forms(text: str, time_us: int | None) -> None:
    assert parse_time_us(text) == time_us


def test_ranges_are_read_by_several_tasks(load: Callable[..., DataFrame], streaming: Streaming) -> None:
    streaming.declare("ranges")
    streaming.publish([("ranges/a", b"%d" % number) for number in range(5000)])
    frame = load("ranges", rowsPerPartition="1500")
    assert frame.rdd.getNumPartitions() == 4
    rows = frame.agg(F.count("*"), F.min("offset"), F.max("offset"), F.countDistinct("offset")).first()
    assert tuple(rows) == (5000, 0, 4999, 5000)  # type: ignore[arg-type]
    assert load("ranges", rowsPerPartition="0").rdd.getNumPartitions() == 1
    part = load("ranges", start="17", end="4711").select("offset").collect()
    assert sorted(row.offset for row in part) == list(range(17, 4711))
    assert load("ranges", start="latest").count() == 0
    assert load("ranges", start="2100-01-01T00:00:00Z").count() == 0
    with pytest.raises(AnalysisException, match="ends before offset 6000"):
        load("ranges", end="6000").count()


def test_batches_are_bounded_and_go_on_from_the_checkpoint(
    load: Callable[..., DataFrame], streaming: Streaming, spark: SparkSession, tmp_path: Path
) -> None:
    streaming.declare("bounded")
    streaming.publish([("bounded/a", b"x")] * 250)
    frame = load("bounded", following=True, maxRowsPerBatch="100")
    assert drain(frame, tmp_path, spark) == [
        list(range(100)),
        list(range(100, 200)),
        list(range(200, 250)),
    ]
    assert drain(frame, tmp_path, spark) == []
    streaming.publish([("bounded/a", b"x")] * 10)
    assert drain(frame, tmp_path, spark) == [list(range(250, 260))]
    by_bytes = drain(load("bounded", following=True, maxBytesPerBatch="1"), tmp_path / "bytes", spark)
    assert len(by_bytes) > 1
    assert [*chain(*by_bytes)] == list(range(260))


def test_a_stream_that_was_made_anew_fails_or_is_gone_on_with(
    load: Callable[..., DataFrame], streaming: Streaming, spark: SparkSession, tmp_path: Path
) -> None:
    streaming.declare("anew")
    streaming.publish([("anew/a", b"x")] * 10)
    assert drain(load("anew", following=True), tmp_path, spark) == [list(range(10))]
    streaming.delete("anew")
    streaming.declare("anew")
    streaming.publish([("anew/a", b"x")] * 3)
    with pytest.raises(
        StreamingQueryException, match="was made anew: the messages behind offset 10 are lost"
    ):
        drain(load("anew", following=True), tmp_path, spark)
    frame = load("anew", following=True, failOnDataLoss="false")
    assert drain(frame, tmp_path, spark) == [[0, 1, 2]]


def test_a_checkpoint_of_another_query_is_called_that(
    load: Callable[..., DataFrame], streaming: Streaming, spark: SparkSession, tmp_path: Path
) -> None:
    for name in ("mine", "others"):
        streaming.declare(name)
        streaming.publish([(f"{name}/a", b"x")] * 3)
    drain(load("others", following=True), tmp_path, spark)
    with pytest.raises(StreamingQueryException, match="the checkpoint is that of the stream others"):
        drain(load("mine", following=True), tmp_path, spark)
    reader = TailReader(SourceOptions.parse({"url": streaming.url, "stream": "mine"}))
    for of_another_source in ({"topic": {"0": 17}}, {"epoch": "7", "offset": 1}):
        with pytest.raises(StreamError, match="the checkpoint is that of another source"):
            reader.latestOffset(of_another_source, ReadAllAvailable())
    known = reader.initialOffset()
    del known["stream"]  # of an earlier version
    assert reader.latestOffset(known, ReadAllAvailable())["offset"] == 3


def failure(query: Callable[[], object]) -> str:
    """What the query fails with; Spark gives a worker ten seconds to start, which a busy machine may not
    keep.
    """
    while True:
        with pytest.raises(StreamingQueryException) as found:
            query()
        if "Python worker failed to connect back" not in str(found.value):
            return str(found.value)


def test_expired_messages_fail_or_are_left_out(
    load: Callable[..., DataFrame], streaming: Streaming, spark: SparkSession, tmp_path: Path
) -> None:
    streaming.declare("short", retention_bytes=1 << 20)
    streaming.publish([("short/a", b"x")] * 10)
    assert drain(load("short", following=True), tmp_path, spark) == [list(range(10))]
    streaming.expire("short")
    read = load("short", following=True, maxRowsPerBatch="10")
    assert "of the stream short are older than its retention" in failure(lambda: drain(read, tmp_path, spark))
    with pytest.raises(Exception, match="MissingMessagesError: the stream short does not have"):
        load("short", start="0").count()
    batches = drain(load("short", following=True, failOnDataLoss="false"), tmp_path, spark)
    kept = streaming.kept("short")
    assert kept.start > 10
    assert [*chain(*batches)] == list(kept)
    assert load("short", start="0", failOnDataLoss="false").count() == len(kept)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"strat": "1"}, "option 'strat' is unknown; accepted: url, tokenFile, cafile, stream, start"),
        ({"start": "yesterday"}, "option start is 'yesterday'; accepted: earliest, latest"),
        ({"start": "2026-01-31T12:00:00"}, "with its zone"),
        ({"failOnDataLoss": "maybe"}, "accepted: true, false"),
        ({"maxRowsPerBatch": "many"}, "option maxRowsPerBatch is 'many'"),
        ({"maxRowsPerBatch": "1", "maxBytesPerBatch": "1"}, "exclude one another"),
        ({"url": "localhost:80"}, "not of the form http://host:port"),
        ({"stream": ""}, "option stream is missing"),
        (
            {"columns": "topic, topics"},
            "columns is 'topic, topics': a stream has no column 'topics'; acc",
        ),
        ({"columns": "topic,topic"}, "the column topic is wanted twice"),
        ({"columns": ","}, "no column is wanted; accepted: epoch, offset, topic"),
        ({"columns": "published"}, "no column 'published'"),
        ({"columns": "topic", "ranges": "true"}, "columns and ranges exclude one another"),
        ({"cafile": "/nowhere"}, "no certificates can be read from /nowhere"),
        ({"last": "yes"}, "option last is 'yes'; accepted: true, false"),
        ({"last": "true", "start": "0"}, "the options last and start exclude one another"),
        ({"last": "true", "ranges": "true"}, "the options last and ranges exclude one another"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        SourceOptions.parse({"url": "http://localhost:1", "stream": "any", **options})


def test_what_was_compacted_is_not_lost(
    load: Callable[..., DataFrame], streaming: Streaming, spark: SparkSession, tmp_path: Path
) -> None:
    """Also where the offsets of a batch, or of all that a query is to go on with, have gone meanwhile."""
    name = streaming.declare("last", last=True, retention_bytes=8 << 20)  # segments of 1 MiB
    streaming.publish([(f"last/{n}", b"before") for n in range(10)])
    assert drain(load(name, following=True), tmp_path / "away", spark) == [list(range(10))]
    frame = load(name, following=True, maxRowsPerBatch="20", rowsPerPartition="7")
    streaming.publish((f"last/{n % 10}", random.randbytes(20_000)) for n in range(200))
    wait_until(lambda: min(load_offsets(streaming, name)) > 20, "the first batch of each query has gone")
    kept = set(load_offsets(streaming, name))  # more may be compacted from now on
    assert len(kept) < 190
    state = StreamReader(streaming.url, name).describe()
    assert (state.first_offset, state.next_offset) == (0, 210)
    assert load(name, start="0", end="20").count() == 0
    whole = [row.offset for row in load(name).select("offset").collect()]
    followed = [[*chain(*drain(frame, tmp_path / folder, spark))] for folder in ("away", "anew")]
    for found in (whole, *followed):
        assert found == sorted(set(found))
        assert {*range(200, 210)} <= set(found) <= kept
    table = load(name, last="true", columns="topic,offset").collect()
    assert {row.topic: row.offset for row in table} == {f"last/{n}": 200 + n for n in range(10)}
    with pytest.raises(StreamingQueryException, match="the option last is for"):
        drain(load(name, following=True, last="true"), tmp_path / "no", spark)


def load_offsets(streaming: Streaming, name: str) -> Iterator[int]:
    """Of the messages that a stream has now, without Spark."""
    for batch in StreamReader(streaming.url, name).read(0, columns=("offset",)):
        yield from batch.column("offset").to_pylist()


def test_spark_shows_what_is_wrong(load: Callable[..., DataFrame]) -> None:
    with pytest.raises(AnalysisException, match="UsageError: the option 'strat' is unknown"):
        load("any", strat="1").count()


def test_other_columns_are_refused(streaming: Streaming, spark: SparkSession) -> None:
    streaming.declare("columns")
    register(spark)

    def read(**more: str) -> DataFrameReader:
        return spark.read.format("tidemq").options(url=streaming.url, stream="columns", **more)

    with pytest.raises(AnalysisException, match=r"a stream has its own columns; accepted: no \.schema\(\)"):
        read().schema("topic string, payload binary").load().count()
    assert read().schema(read().load().schema).load().count() == 0
    published = read(timeProperty="at").load().schema
    assert read(timeProperty="at").schema(published).load().count() == 0


def test_a_stream_that_is_not_there_is_named(load: Callable[..., DataFrame]) -> None:
    with pytest.raises(AnalysisException, match="there is no stream 'nowhere'"):
        load("nowhere").count()
