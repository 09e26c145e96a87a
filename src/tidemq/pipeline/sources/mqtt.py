"""Spark's data source `mqtt`: what any MQTT broker delivers to a session of its own, at least once.

    register_mqtt(spark)
    frame = spark.readStream.format("mqtt").options(url=url, filters="plant/#", spool="/var/lib/plant").load()

The driver subscribes. A message goes into the spool (`spool`), is synced there, and then acknowledged; it
leaves the spool when a batch with it is committed. Offsets are those of the spool. The driver plans batches
and sends the messages along with the tasks, so executors reach neither the broker nor the spool.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from tidemq.client import Client, ConnectError
from tidemq.client.settings import Options
from tidemq.errors import RefusedError, UsageError
from tidemq.pipeline.sources.mqtt_target import RETRY_PAUSE_S, Target, named
from tidemq.pipeline.sources.spool import Spool
from tidemq.pipeline.sources.stream_options import RETRY_S
from tidemq.pipeline.spark.workers import check_workers
from tidemq.wire import Fault, fault_text, topic_filter_fault

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

COLUMNS = (
    "epoch bigint, offset bigint, topic string, payload binary, qos tinyint, retain boolean, dup boolean, "
    "received timestamp, content_type string, response_topic string, correlation_data binary, "
    "user_properties array<struct<name: string, value: string>>"
)
WAIT_S = 0.5  # for a first new message: Spark asks again at once where a query has no trigger interval
QUIET_S = 1.0  # Trigger.AvailableNow: nothing has come for so long, so the broker has no more
QUIET_MAX_S = 30.0  # if it never is quiet
PART_ROWS = 50_000  # of a task,
PART_BYTES = 8 << 20  # which the driver sends to an executor
BATCH_BYTES = 64 << 20  # all of a micro-batch is in the driver's memory
TAKE_MESSAGES = 10_000  # into the spool at a time
_NAMES = (
    *Target.NAMES,
    "filters",
    "spool",
    "clientId",
    "qos",
    "version",
    "sessionExpirySeconds",
    "spoolBytesMax",
    "maxRowsPerBatch",
)

_log = logging.getLogger(__name__)


class LostSpoolError(RefusedError):
    """The checkpoint names messages that the spool does not have. Caught by who started the query."""


def register_mqtt(spark: SparkSession) -> None:
    """Makes `format("mqtt")` known to a session. UsageError where its workers run another Python, without
    TideMQ.
    """
    check_workers(spark)
    spark.dataSource.register(MqttSource)


@dataclass(frozen=True, slots=True)
class MqttOptions:
    """What a reader is told; docs/pipeline.md has the meaning of each option."""

    target: Target
    filters: tuple[str, ...]
    spool: Path
    client_id: str  # empty: that of the spool
    qos: int
    version: Literal[4, 5]
    session_expiry_s: int
    spool_bytes_max: int
    rows_max: int

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        """UsageError names the option and what would be accepted."""
        values = named(given, _NAMES)
        for name in ("filters", "spool"):
            if not values.get(name):
                raise UsageError(f"the option {name} is missing")
        filters = tuple(each.strip() for each in values["filters"].split(","))
        for each in filters:
            if fault := topic_filter_fault(each):
                raise UsageError(f"the option filters has {each!r}: {fault_text(Fault(fault))}")
        for name, accepted in (("qos", ("0", "1", "2")), ("version", ("4", "5"))):
            if values.get(name, accepted[1]) not in accepted:
                raise UsageError(f"the option {name} is {values[name]!r}; accepted: {', '.join(accepted)}")
        return cls(
            target=Target.parse(values),
            filters=filters,
            spool=Path(values["spool"]),
            client_id=values.get("clientId", ""),
            qos=int(values.get("qos", "1")),
            version=4 if values.get("version") == "4" else 5,
            session_expiry_s=_number(values, "sessionExpirySeconds", 7 * 24 * 3600),
            spool_bytes_max=_number(values, "spoolBytesMax", 1 << 30),
            rows_max=_number(values, "maxRowsPerBatch", 500_000),
        )


def _number(values: Mapping[str, str], name: str, default: int) -> int:
    text = values.get(name, str(default))
    if not (text.isascii() and text.isdigit() and int(text)):
        raise UsageError(f"the option {name} is {text!r}; accepted: a whole number from 1")
    return int(text)


@dataclass(frozen=True)
class Part(InputPartition):
    """What one task gives: messages, as an Arrow IPC stream."""

    data: bytes


class MqttSource(DataSource):
    """`format("mqtt")`. UsageError on an unknown option or a wrong value."""

    @classmethod
    def name(cls) -> str:
        return "mqtt"

    def schema(self) -> str:
        return COLUMNS

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  Spark's name
        return MqttReader(MqttOptions.parse(self.options))


class MqttReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Spark keeps one in a process for the query's offsets, and makes others only to `read`: the spool is
    opened by the first call that needs it."""

    def __init__(self, options: MqttOptions) -> None:
        self._options = options
        self._spool: Spool | None = None
        self._subscriber: Subscriber | None = None
        self._target: int | None = None  # of Trigger.AvailableNow

    def _opened(self) -> Spool:
        """The spool, into which the broker's messages come; the error that ended that."""
        if self._spool is None or self._subscriber is None:
            _log.warning(
                "the source mqtt delivers at least once: after a failure messages may come again; "
                "a stream of TideMQ, format tidemq, delivers once"
            )
            self._spool = self._spool or Spool(self._options.spool, self._options.spool_bytes_max)
            subscriber = Subscriber(self._options, self._spool)
            subscriber.start()
            self._subscriber = subscriber
        self._subscriber.check()
        return self._spool

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        spool = self._opened()
        return {"epoch": spool.epoch, "offset": spool.first_offset}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        spool = self._opened()
        deadline = time.monotonic() + QUIET_MAX_S
        end = -1
        while (now := spool.wait(end, QUIET_S)) > end and time.monotonic() < deadline and not spool.is_full:
            end = now
        self._target = now

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._options.rows_max)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """Where the batch that begins with `start` ends. All before `start` is committed."""
        spool, offset = self._opened(), start["offset"]
        self._check(spool, start)
        spool.release(offset)
        end = spool.wait(offset, WAIT_S) if self._target is None else self._target
        if isinstance(limit, ReadMaxRows):
            end = min(end, offset + limit.max_rows)
        return {"epoch": spool.epoch, "offset": spool.end_within(offset, max(end, offset), BATCH_BYTES)}

    def _check(self, spool: Spool, start: dict[str, int]) -> None:
        if start["epoch"] != spool.epoch or not spool.first_offset <= start["offset"] <= spool.next_offset:
            raise LostSpoolError(
                f"the spool {spool.path} is not the one of this checkpoint: it has the offsets "
                f"{spool.first_offset} to {spool.next_offset} of epoch {spool.epoch}, and the checkpoint "
                f"wants {start['offset']} of epoch {start['epoch']}; a new checkpoint begins with it"
            )

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[Part]:
        spool = self._opened()
        self._check(spool, start)
        return [
            Part(_packed(each)) for each in spool.read(start["offset"], end["offset"], PART_ROWS, PART_BYTES)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In an executor."""
        assert isinstance(partition, Part)
        return iter(pa.ipc.open_stream(partition.data))

    def stop(self) -> None:
        if self._subscriber is not None:
            self._subscriber.stop()
        if self._spool is not None:
            self._spool.close()


def _packed(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


class Subscriber:
    """Brings a session's messages into the spool, on a thread of its own."""

    def __init__(self, options: MqttOptions, spool: Spool) -> None:
        self._options, self._spool = options, spool
        self._subscribed: Future[None] = Future()
        self._error: BaseException | None = None
        self._task: asyncio.Task[None] | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="tidemq-subscriber", daemon=True)

    def start(self) -> None:
        """Returns when the broker has granted the subscription; what was refused, or did not work, is
        raised."""
        self._thread.start()
        self._subscribed.result()

    def check(self) -> None:
        """Raises what has ended it."""
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """The broker keeps the session."""
        self._spool.wake()
        if self._task is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._task = self._loop.create_task(self._receive())
        try:
            self._loop.run_until_complete(self._task)
        except (asyncio.CancelledError, Exception) as error:  # noqa: BLE001 - the driver is told when it asks
            self._error = error
            if not self._subscribed.done():
                self._subscribed.set_exception(error)
        finally:
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()

    async def _receive(self) -> None:
        client = await self._connected()
        try:
            await self._subscribe(client)
            self._subscribed.set_result(None)
            while True:
                messages = await client.messages.take(TAKE_MESSAGES)
                await asyncio.to_thread(self._spool.append, messages)
                for message in messages:
                    client.acknowledge(message)
        finally:
            await client.disconnect(wait=False)

    async def _connected(self) -> Client:
        options = self._options
        deadline = time.monotonic() + RETRY_S
        more = Options(
            client_id=options.client_id or self._spool.client_id,
            clean_start=False,
            session_expiry_s=options.session_expiry_s,
            acknowledge="manual",
            version=options.version,
            receive_max=0xFFFF,  # Mosquitto may be set to pass over a lower one; queue and TCP hold it back
            backoff_s_max=5.0,
        )
        while True:
            client = Client(options.target.url, **(options.target.options() | more))
            try:
                await client.connect()
            except ConnectError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(RETRY_PAUSE_S)
            else:
                return client

    async def _subscribe(self, client: Client) -> None:
        options, spool = self._options, self._spool
        assert client.connack is not None
        if spool.filters and not client.connack.session_present:
            _log.warning(
                "%s has no session of the client %s any more: what was published meanwhile is lost",
                options.target.url,
                client.client_id,
            )
        if left := [each for each in spool.filters if each not in options.filters]:
            await client.unsubscribe(*left)
        if options.version == 5:  # retained messages only where the subscription is new
            await client.subscribe(
                *options.filters, qos=options.qos, retain_handling=1, retain_as_published=True
            )
        else:
            await client.subscribe(*options.filters, qos=options.qos)
        spool.keep_filters(options.filters)
