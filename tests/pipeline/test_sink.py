"""Rows become messages with all that they say; exactly once where that is asked for; a wrong one is named."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

import psutil
import pyarrow as pa
import pytest
from pipeline.streaming import Streaming
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType
from waiting import WAIT_S

from tidemq.client.streams import StreamReader
from tidemq.errors import UsageError
from tidemq.pipeline.sources.row_messages import RowError, messages_of
from tidemq.pipeline.sources.sink import SinkOptions
from tidemq.pipeline.sources.stream import register

pytestmark = pytest.mark.timeout(300)
URL = {"url": "mqtt://localhost"}


def schema_of(columns: str) -> StructType:
    found = StructType.fromDDL(columns)
    assert isinstance(found, StructType)
    return found


@pytest.fixture
def rows(streaming: Streaming) -> Callable[[str], list[dict[str, Any]]]:
    """`rows("stream")`: the messages that it has."""

    def rows(name: str) -> list[dict[str, Any]]:
        return [row for batch in StreamReader(streaming.url, name).read(0) for row in batch.to_pylist()]

    return rows


@pytest.fixture
def write(spark: SparkSession, streaming: Streaming) -> Callable[..., None]:
    """`write(frame, option=…)` publishes its rows."""
    register(spark)

    def write(frame: DataFrame, **options: str) -> None:
        url = f"mqtt://127.0.0.1:{streaming.broker.port}"
        frame.write.format("tidemq").options(url=url, **options).mode("append").save()

    return write


def test_a_message_has_all_that_its_row_says(
    spark: SparkSession,
    streaming: Streaming,
    write: Callable[..., None],
    rows: Callable[[str], list[dict[str, Any]]],
) -> None:
    streaming.declare("said")
    frame = spark.sql("""
        select 'said/a' as topic, cast('1' as binary) as payload, 2 as qos, true as retain,
            'text/plain' as content_type, 'said/answers' as response_topic, X'01' as correlation_data,
            array(named_struct('name', 'a', 'value', 'b')) as user_properties, 60 as message_expiry_s
        union all
        select 'said/b', cast('' as binary), null, null, null, null, null, null, null
    """)
    write(frame.coalesce(1))
    first, second = rows("said")
    assert {name: first[name] for name in ("topic", "payload", "qos", "retain", "content_type")} == {
        "topic": "said/a",
        "payload": b"1",
        "qos": 2,
        "retain": True,
        "content_type": "text/plain",
    }
    assert (first["response_topic"], first["correlation_data"]) == ("said/answers", b"\x01")
    assert first["user_properties"] == [{"name": "a", "value": "b"}]
    assert (second["topic"], second["payload"], second["qos"], second["retain"]) == ("said/b", b"", 1, False)
    with streaming.client() as client:
        client.subscribe("said/a")
        expiry_s = client.messages.get(WAIT_S).properties.message_expiry_s
        assert expiry_s is not None
        assert 0 < expiry_s <= 60


def test_the_same_batch_again_adds_nothing(
    spark: SparkSession,
    streaming: Streaming,
    write: Callable[..., None],
    rows: Callable[[str], list[dict[str, Any]]],
) -> None:
    streaming.declare("repeated")
    frame = spark.range(0, 3000, 1, 2).selectExpr(
        "'repeated/a' as topic", "cast(id as string) as payload", "id"
    )
    for _ in range(2):
        write(frame, publisherId="repeated", batchId="4", orderBy="id")
    found = rows("repeated")
    assert {row["qos"] for row in found} == {2}
    for payloads in (range(1500), range(1500, 3000)):  # each task's in order
        wanted = [b"%d" % number for number in payloads]
        assert [row["payload"] for row in found if row["payload"] in set(wanted)] == wanted
    assert len(found) == 3000
    with pytest.raises(
        Exception, match=r"batch 4 of the publisher repeated-[01] has come again with other messages"
    ):
        write(frame.where("id % 2 = 0"), publisherId="repeated", batchId="4", orderBy="id")
    with pytest.raises(Exception, match=r"is at batch 4, and this is batch 3"):
        write(frame, publisherId="repeated", batchId="3", orderBy="id")


def test_a_task_that_is_killed_leaves_each_row_once(
    spark: SparkSession, streaming: Streaming, rows: Callable[[str], list[dict[str, Any]]], tmp_path: Path
) -> None:
    """With one failure the query fails, and goes on from its checkpoint. Publishers are slow, so that none is
    done before it is killed.
    """
    count, port = 20_000, streaming.slow_port
    for name in ("given", "taken"):
        streaming.declare(name)
    streaming.publish((f"given/{number % 9}", b"%d" % number) for number in range(count))
    register(spark)
    read = spark.readStream.format("tidemq").options(
        url=streaming.url, stream="given", rowsPerPartition=count // 2
    )
    frame = read.load().selectExpr("replace(topic, 'given', 'taken') as topic", "payload")
    write = frame.writeStream.format("tidemq").trigger(availableNow=True).outputMode("append")
    write = write.options(
        url=f"mqtt://127.0.0.1:{port}",
        publisherId="killed",
        checkpointLocation=str(tmp_path),
    )
    killed: list[int] = []

    def kill() -> None:
        while streaming.kept("taken").stop < 500:
            time.sleep(0.005)
        killed.extend(_kill_publishers(port))

    killing = Thread(target=kill, daemon=True)
    killing.start()
    with pytest.raises(StreamingQueryException):
        write.start().awaitTermination()
    killing.join()
    assert killed
    assert 500 <= streaming.kept("taken").stop < count
    write.start().awaitTermination()
    assert sorted(row["payload"] for row in rows("taken")) == sorted(
        b"%d" % number for number in range(count)
    )


def _kill_publishers(port: int) -> list[int]:
    """Kills the executors' Python processes that are connected to this port."""
    killed = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it has ended
            if process.name().startswith("python") and any(
                each.raddr and each.raddr.port == port for each in process.net_connections("tcp")
            ):
                process.kill()
                killed.append(process.pid)
    return killed


@pytest.mark.parametrize("options", [{}, {"publisherId": "wrong", "batchId": "0"}])
def test_before_a_wrong_row_none_is_published(
    spark: SparkSession,
    streaming: Streaming,
    write: Callable[..., None],
    rows: Callable[[str], list[dict[str, Any]]],
    options: dict[str, str],
) -> None:
    name = streaming.declare(f"wrong{len(options)}")
    good = f"select '{name}/good' as topic, 'x' as payload from range(10) union all select "
    with pytest.raises(
        Exception, match=r"the row with the topic 'wrong./\+' cannot be published: a topic name"
    ):
        write(spark.sql(f"{good} '{name}/+', 'x'").coalesce(1), **options)
    assert rows(name) == []
    with pytest.raises(Exception, match=r"publishing to 'wrong./large': packet too large"):
        write(spark.sql(f"{good} '{name}/large', space(2000000)").coalesce(1), **options)


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"topic": "a/#"}, r"topic 'a/#' cannot be published: a topic name holds \+ or #"),
        ({"topic": ""}, "topic '' cannot be published: a topic name or filter is empty"),
        (
            {"topic": "x" * 70_000},
            r"topic 'x{99}… \(70000 characters\) cannot be published: .* more levels or bytes",
        ),
        ({"topic": None}, "its topic is null"),
        ({"payload": None}, "topic 'a' cannot be published: its payload is null"),
        ({"qos": 3}, "topic 'a' cannot be published: its qos is 3"),
        ({"response_topic": "a/#"}, "topic 'a' cannot be published: .* a wildcard in a response topic"),
        ({"message_expiry_s": -1}, "topic 'a' cannot be published: message_expiry_s is -1; accepted: 0 to"),
    ],
)
def test_a_wrong_row_is_named(columns: dict[str, Any], text: str) -> None:
    good, wrong = {"topic": "good", "payload": b"x"}, {"topic": "a", "payload": b"x"} | columns
    batch = pa.RecordBatch.from_pylist([wrong, good])
    with pytest.raises(RowError, match=text):
        messages_of(batch, 1)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"ulr": "x"}, "option 'ulr' is unknown; accepted: url, user"),
        ({"url": ""}, "option url is missing"),
        ({"url": "http://x"}, "has no known scheme"),
        ({"qos": "3"}, "option qos is '3'; accepted: 0, 1, 2"),
        ({"publisherId": "a/b"}, "the publisher is 'a/b'; accepted: letters"),
        ({"publisherId": "a", "qos": "1"}, "option qos means nothing beside publisherId"),
        ({"publisherId": "a", "batchId": "x"}, "option batchId is 'x'"),
        ({"orderBy": "x"}, "mean nothing without publisherId"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        SinkOptions.parse(URL | options)


@pytest.mark.parametrize(
    ("columns", "options", "text"),
    [
        ("topic string", {}, "have no column payload"),
        ("topic string, payload string, x int", {}, "column x is no part of a message; accepted: topic"),
        ("topic string, payload int", {}, "column payload is int; accepted: binary, string"),
        ("topic string, payload string", {"publisherId": "a", "orderBy": "x"}, "orderBy has 'x'"),
        ("topic string, payload string, qos int", {"publisherId": "a"}, "column qos means nothing"),
    ],
)
def test_wrong_columns_are_named(columns: str, options: dict[str, str], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        SinkOptions.parse(URL | options).check(schema_of(columns), streaming=True)
    with pytest.raises(UsageError, match="needs the option batchId"):
        SinkOptions.parse(URL | {"publisherId": "a"}).check(
            schema_of("topic string, payload string"), streaming=False
        )
