"""What came once, published again: of a table or of a stream, in its order, at its pace or another.

    replay(stream_batches("http://broker:18083", "plant"), Replay(Target("mqtt://test"), pace=2.0))

One connection publishes all of it, for several would not keep the order.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812

from tidemq.client import AnswerTimeoutError, BufferFullError, Message, sync
from tidemq.client.streams import StreamReader
from tidemq.errors import TideMQError, UsageError
from tidemq.pipeline.decode.publish_time import published_times
from tidemq.pipeline.lake.table import Table
from tidemq.pipeline.lake.table_log import TableError, without_date
from tidemq.pipeline.places import spark_uri
from tidemq.pipeline.sources.mqtt_target import Target
from tidemq.pipeline.sources.row_messages import messages_of
from tidemq.pipeline.sources.stream_options import RETRY_S, Position

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ANSWER_S = 120.0  # for acknowledgements, a broker's restart included
SLICE_MESSAGES = 1000  # at most, between two looks at the clock
SLEEP_S_MAX = 0.5
SHOW_S = 0.25  # between two reports of how it goes on
EARLIEST, LATEST = Position(), Position(latest=True)

OnProgress = Callable[[int, float], None]
"""Told of messages published so far, and by how many seconds the last was late."""


class ReplayError(TideMQError):
    """Messages were not acknowledged. Caught by who started the replay."""


@dataclass(frozen=True, slots=True)
class Replay:
    """How it is to be published, and where. UsageError for a pace below 0."""

    target: Target
    pace: float = 1.0  # 2: twice as fast; 0: as fast as it goes
    topic_prefix: str = ""
    time_property: str = ""  # user property with the publisher's time; empty: when the broker had it

    def __post_init__(self) -> None:
        if not 0 <= self.pace < float("inf"):
            raise UsageError(f"the pace is {self.pace}; accepted: from 0, which is as fast as it goes")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a replay did. Lateness is against the wanted pace, when the client had the message; 0 without
    a pace."""

    messages: int
    seconds: float
    late_p50_s: float
    late_p99_s: float


def stream_batches(
    url: str,
    stream: str,
    start: Position = EARLIEST,
    end: Position = LATEST,
    *,
    token: str = "",
    cadata: str = "",
) -> Iterator[pa.RecordBatch]:
    """The messages of a stream from `start` up to `end`, at most to the last one of now."""
    reader = StreamReader(url, stream, token=token, cadata=cadata, retry_s=RETRY_S)
    state = reader.describe()
    until = min(end.resolve(reader, state), state.next_offset)
    yield from reader.read(start.resolve(reader, state), until, epoch=state.epoch)


def table_batches(
    spark: SparkSession, table: Table, start: Position = EARLIEST, end: Position = LATEST
) -> Iterator[pa.RecordBatch]:
    """The rows of a table, or of Parquet files in its place, with a stream's columns, in the stream's order,
    from `start` up to `end`. UsageError where they cannot be read, or have no such columns.
    """
    frame = _frame(spark, table)
    missing = {"offset", "topic", "payload", "received"} - set(frame.columns)
    if missing:
        raise UsageError(
            f"{table.uri} has no column {min(missing)}: a replay takes bronze, or an exported stream"
        )
    for position, keep in ((start, F.col("offset").__ge__), (end, F.col("offset").__lt__)):
        if position.offset is not None:
            frame = frame.where(keep(position.offset))
    if start.time is not None:
        frame = frame.where(F.col("received") >= F.lit(start.time))
    if end.time is not None:
        frame = frame.where(F.col("received") < F.lit(end.time))
    order = [name for name in ("epoch", "offset") if name in frame.columns]
    packed = frame.orderBy(*order).mapInArrow(_pack, "batch binary")
    for row in packed.toLocalIterator(prefetchPartitions=True):
        yield from pa.ipc.open_stream(row.batch)


def _frame(spark: SparkSession, table: Table) -> DataFrame:
    try:
        if not table.uri.endswith(".parquet") and (snapshot := table.now()):
            return table.read(spark, without_date(snapshot.columns).names)
        files, root = table.storage.open(table.uri)
        if files.get_file_info(pafs.FileSelector(f"{root}/metadata", allow_not_found=True)):
            raise UsageError(f"{table.uri} is a table of Iceberg; accepted: --format iceberg, its --catalog")
        return spark.read.parquet(spark_uri(table.uri))
    except (PySparkException, TableError) as error:
        text = next(iter(str(error).splitlines()), error)
        raise UsageError(f"{table.uri} cannot be read: {text}") from error


def _pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In an executor: each batch as one value, for the driver takes rows, and not batches."""
    for batch in batches:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        yield pa.RecordBatch.from_pydict({"batch": [sink.getvalue().to_pybytes()]})


def replay(batches: Iterable[pa.RecordBatch], job: Replay, on_progress: OnProgress | None = None) -> Outcome:
    """Publishes all messages, with QoS, retain flag and properties as they were; returns when they are
    acknowledged.

    PublishError where the broker refuses one, ConnectError where it cannot be reached, ReplayError where it
    does not answer.
    """
    schedule, late = Schedule(job), Counter[int]()
    count, shown_s = 0, 0.0
    with job.target.connected(backoff_s_max=1.0) as client:
        publisher = _Publisher(client)
        begun_s = time.monotonic()
        for batch in batches:
            messages, due_s = messages_of(_renamed(batch, job.topic_prefix), 1), schedule.due_s(batch)
            begun_s = begun_s if count else time.monotonic()  # what it took to read the first is nobody's
            at = 0
            while at < len(messages):
                now_s = time.monotonic() - begun_s
                ready = min(int(np.searchsorted(due_s, now_s, side="right")), at + SLICE_MESSAGES)
                if ready <= at:
                    time.sleep(min(due_s[at] - now_s, SLEEP_S_MAX))
                    continue
                for message in messages[at:ready]:
                    publisher.publish(message)
                now_s = time.monotonic() - begun_s
                if job.pace:
                    late.update(np.maximum((now_s - due_s[at:ready]) * 1e4, 0).astype(int).tolist())
                count += ready - at
                at = ready
                if on_progress is not None and now_s >= shown_s:
                    on_progress(count, now_s - due_s[at - 1])
                    shown_s = now_s + SHOW_S
        publisher.finish()
        return Outcome(count, time.monotonic() - begun_s, _percentile(late, 0.5), _percentile(late, 0.99))


class Schedule:
    """When each message is due, in seconds from the first. Order goes before time: one that came, or was
    published, before its predecessor is due with it."""

    def __init__(self, job: Replay) -> None:
        self._pace, self._property = job.pace, job.time_property
        self._first: int | None = None
        self._last = 0

    def due_s(self, batch: pa.RecordBatch) -> npt.NDArray[np.float64]:
        if not self._pace:
            return np.zeros(batch.num_rows)
        if self._property:
            times = published_times(batch.column("user_properties"), self._property)
        else:
            times = batch.column("received")
        known = pc.fill_null(pc.fill_null_forward(times.cast(pa.int64())), self._last)
        times_us = np.maximum.accumulate(np.asarray(known))
        if self._first is None and len(times_us):
            self._first = int(times_us[0])
        times_us = np.maximum(times_us, max(self._last, self._first or 0))
        self._last = int(times_us[-1]) if len(times_us) else self._last
        return (times_us - (self._first or 0)) / 1e6 / self._pace


class _Publisher:
    """Messages without waiting for their acknowledgements, which are looked at later."""

    def __init__(self, client: sync.Client) -> None:
        self._client = client
        self._receipts: deque[sync.Receipt] = deque()

    def publish(self, message: Message) -> None:
        while True:
            try:
                receipt = self._client.publish_nowait(
                    message.topic,
                    message.payload,
                    qos=message.qos,
                    retain=message.retain,
                    properties=message.properties,
                )
                break
            except BufferFullError:
                self._flush()
        if message.qos:
            self._receipts.append(receipt)
            self._look()

    def finish(self) -> None:
        self._flush()
        self._look()

    def _look(self) -> None:
        """PublishError where a message was refused, of those that are answered."""
        while self._receipts and self._receipts[0].done:
            receipt = self._receipts.popleft()
            if receipt.reason is None or receipt.reason >= 0x80:
                receipt.acknowledged()

    def _flush(self) -> None:
        try:
            self._client.flush(ANSWER_S)
        except AnswerTimeoutError as error:
            raise ReplayError(
                f"{self._client.held_messages} messages were not acknowledged within {ANSWER_S:g} s"
            ) from error


def _renamed(batch: pa.RecordBatch, prefix: str) -> pa.RecordBatch:
    if not prefix:
        return batch
    place = batch.schema.get_field_index("topic")
    topics = pc.binary_join_element_wise(prefix, batch.column(place), "")
    return batch.set_column(place, "topic", topics)


def _percentile(late: Counter[int], part: float) -> float:
    """Of tenths of milliseconds with their counts, in seconds; 0 of none."""
    wanted, seen = part * late.total(), 0
    for value in sorted(late):
        seen += late[value]
        if seen >= wanted:
            return value / 1e4
    return 0.0
