"""Alerts: a broker's stream is watched by rules, and what they find is published over MQTT within seconds.

    run_alerts(spark, Alerts(url="http://broker:8080", stream="plant", mqtt=Target("mqtt://broker"),
                             rules=rules, checkpoint="/var/lib/alerts"))

Spark keeps what is known of each rule and topic (`states`) in its state store, below the checkpoint.
Every batch, its executors decode what came and step through it in the order of offsets; the driver publishes
the alerts, at QoS 1, before the batch counts as done. So a driver that is killed in between publishes them
again, with the same identifiers.
"""

from __future__ import annotations

import json
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)
from pyspark.sql.types import DoubleType

from tidemq.client import Message, Properties, sync
from tidemq.client.streams import StreamReader, find_token, read_cafile
from tidemq.errors import ConfigError
from tidemq.pipeline.alerts.alert_rules import AlertRule
from tidemq.pipeline.alerts.handover import Handover
from tidemq.pipeline.alerts.states import Alert, Condition, Reading, State, deadline_us, expire, step
from tidemq.pipeline.decode.decoding import number, on_columns
from tidemq.pipeline.decode.json_payloads import json_numbers
from tidemq.pipeline.decode.payload_rules import filter_pattern
from tidemq.pipeline.places import ENVIRONMENT, Storage, spark_uri
from tidemq.pipeline.sources.mqtt_target import Target
from tidemq.pipeline.sources.stream import register
from tidemq.pipeline.sources.stream_options import RETRY_S
from tidemq.pipeline.spark.jobs import run_job
from tidemq.pipeline.spark.session import check_checkpoint
from tidemq.wire import topic_name_fault

UNREADABLE = "unreadable"
READ_MS = 1000  # so much later than the broker got it a message may be read: until then, nobody is silent
FOUND = (  # of what a batch has found, in Spark's own language
    "rule string, key string, state string, value double, `limit` double, time_us bigint, epoch bigint, "
    "`offset` bigint, topic string, client string"
)
_STATE = "json string, timer_ms bigint"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alerts:
    """What is watched, and where alerts go. `checkpoint` is a folder, or its URI, that all executors
    reach."""

    url: str  # of the broker's admin listener
    token_file: str = ""  # with its token, on the driver (see `find_token`)
    cafile: str = ""  # with the certificates that are trusted in place of the system's, on the driver
    stream: str
    mqtt: Target  # the broker that gets the alerts
    rules: tuple[AlertRule, ...]
    checkpoint: str
    start: str = "latest"  # of a new checkpoint: earliest, an offset, a time
    handover: str = ""  # of a backtest, with which a new checkpoint begins in place of `start`
    fail_on_data_loss: bool = True
    rows_max: int = 1_000_000  # of a batch
    trigger_s: float = 1.0  # from the beginning of one batch to that of the next
    storage: Storage = ENVIRONMENT  # of handover and checkpoint
    partitions: int = 2  # of the state: tasks of a batch; a checkpoint keeps what it began with

    @property
    def name(self) -> str:
        """Of its query."""
        return f"{self.stream}-alerts"

    def check(self) -> None:
        """ConfigError without rules; ConnectError or ServerRefusedError where a broker cannot be reached,
        StreamError where there is no such stream.
        """
        if not self.rules:
            raise ConfigError("there is no rule; accepted: at least one")
        with sync.Client(self.mqtt.url, **self.mqtt.options()):
            pass
        token, cadata = find_token(self.token_file), read_cafile(self.cafile)
        reader = StreamReader(self.url, self.stream, token=token, cadata=cadata, retry_s=RETRY_S)
        state = reader.describe()
        if self.handover:
            known = Handover.load(self.handover, self.storage)
            if (known.stream, known.epoch) != (state.name, state.epoch):
                raise ConfigError(
                    f"the handover {self.handover} is of another stream than {state.name} is now; accepted: "
                    "one of the same name and epoch"
                )


def start_alerts(spark: SparkSession, alerts: Alerts) -> StreamingQuery:
    """Begins, or goes on from the checkpoint."""
    register(spark)
    start, known = alerts.start, None
    if alerts.handover:
        handover = Handover.load(alerts.handover, alerts.storage)
        start, known = str(handover.offset), handover.states(spark, alerts.handover, alerts.storage)
    read = spark.readStream.format("tidemq").options(
        url=alerts.url,
        stream=alerts.stream,
        start=start,
        failOnDataLoss=alerts.fail_on_data_loss,
        maxRowsPerBatch=alerts.rows_max,
        tokenFile=alerts.token_file,
        cafile=alerts.cafile,
    )
    settings = {
        "spark.sql.shuffle.partitions": str(alerts.partitions),
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    }
    with _set(spark, settings):
        write = watched(read.load(), alerts.rules, known).writeStream.foreachBatch(_publisher(alerts))
        write = write.outputMode("update").option("checkpointLocation", spark_uri(alerts.checkpoint))
        write = write.queryName(alerts.name)
        return write.trigger(processingTime=f"{alerts.trigger_s} seconds").start()


def run_alerts(spark: SparkSession, alerts: Alerts) -> None:
    """Watches for ever, and restarts from the checkpoint after a failure.

    As `Alerts.check` at the start; JobError after a failure that no restart mends, and after several.
    """
    alerts.check()
    check_checkpoint(spark, alerts.checkpoint)
    run_job(partial(start_alerts, spark, alerts))


@contextmanager
def _set(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """A query takes the session's settings when it starts; other queries of the session keep theirs."""
    before = {key: spark.conf.get(key, None) for key in settings}
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, old in before.items():
            if old is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, old)


# --- what came, as readings


def watched(messages: DataFrame, rules: Sequence[AlertRule], known: DataFrame | None = None) -> DataFrame:
    """What the rules find in a stream's messages: alerts, and how many could not be read. `known` is what a
    new checkpoint begins with, see `Handover.states`.
    """
    watcher = Watcher({rule.name: rule.condition for rule in rules})
    keyed = readings(messages, rules).groupBy("rule", "key")
    initial = known.groupBy("rule", "key") if known is not None else None
    return keyed.transformWithState(watcher, FOUND, "update", "ProcessingTime", initial)


def readings(messages: DataFrame, rules: Sequence[AlertRule]) -> DataFrame:
    """A row for each message and rule that matches it and finds a value, all from one pass."""
    values = {f"value{number}": _value(rule) for number, rule in enumerate(rules)}
    found = [
        F.when(
            F.col("topic").rlike(filter_pattern(rule.filter)) & key.isNotNull() & F.col(value).isNotNull(),
            F.struct(F.lit(rule.name).alias("rule"), key.alias("key"), F.col(value).alias("value")),
        )
        for rule, value in zip(rules, values, strict=True)
        for key in [F.col("topic" if rule.by == "topic" else "client_id")]
    ]
    read = messages.withColumns(values)
    message = ("epoch", "offset", F.unix_micros("received").alias("time_us"), "topic", "client_id")
    return read.select(*message, F.inline(F.array_compact(F.array(*found))))


def _value(rule: AlertRule) -> Column:
    """The number in a message: NaN where it cannot be read, null where an object does not have it."""
    if rule.condition.kind == "absence":
        return F.lit(0.0)
    if not rule.value:
        return F.coalesce(number(), F.lit(math.nan))
    path = rule.value.split(".")
    return on_columns(lambda payloads: json_numbers(payloads, path), DoubleType())("payload")


class Watcher(StatefulProcessor):
    """What executors do with each rule and topic, or client: they keep its state, and give its alerts."""

    def __init__(self, conditions: Mapping[str, Condition]) -> None:
        self._conditions = conditions

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._kept = handle.getValueState("state", _STATE)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Iterator[Row]:  # noqa: N802, N803
        name, _ = key
        condition = self._conditions[name]
        state, timer_ms = self._load()
        came = [
            Reading(row.epoch, row.offset, row.time_us, row.topic, row.client_id, row.value) for row in rows
        ]
        came.sort(key=lambda reading: reading.offset)  # a batch has one epoch
        unread = [reading for reading in came if math.isnan(reading.value or 0.0)]
        for reading in came:
            if not math.isnan(reading.value or 0.0):
                state, alerts = step(condition, state, reading)
                yield from (found_row(key, alert) for alert in alerts)
        if unread:
            first = unread[0]
            yield found_row(key, Alert(UNREADABLE, len(unread), 0, first.time_us, first))
        self._keep(condition, state, timer_ms)

    def handleInitialState(self, key: Any, initialState: Row, timerValues: TimerValues) -> None:  # noqa: N802, N803
        if condition := self._conditions.get(key[0]):
            self._keep(condition, State.from_json(initialState.json), None)

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803
    ) -> Iterator[Row]:
        name, _ = key
        condition = self._conditions.get(name)
        if condition is None:  # the rule has been removed
            self._kept.clear()
            return
        state, timer_ms = self._load()
        state, alerts = expire(
            condition, state, (timerValues.getCurrentProcessingTimeInMs() - READ_MS) * 1000
        )
        yield from (found_row(key, alert) for alert in alerts)
        self._keep(condition, state, None if timer_ms == expiredTimerInfo.getExpiryTimeInMs() else timer_ms)

    def _load(self) -> tuple[State, int | None]:
        kept = self._kept.get()
        return (State(), None) if kept is None else (State.from_json(kept[0]), kept[1])

    def _keep(self, condition: Condition, state: State, timer_ms: int | None) -> None:
        """With a timer for the deadline, when all messages before it have been read. One that is too early
        stays: when it comes, it is set again.
        """
        due_us = deadline_us(condition, state)
        if due_us is None and timer_ms is None:
            self._kept.clear()
            return
        if due_us is not None:
            due_ms = -(-due_us // 1000) + READ_MS
            if timer_ms is None or timer_ms > due_ms:
                self._handle.registerTimer(due_ms)
                timer_ms = due_ms
        self._kept.update((state.to_json(), timer_ms))


def found_row(key: tuple[str, str], alert: Alert) -> Row:
    """With the columns of FOUND."""
    reading = alert.reading
    return Row(
        rule=key[0],
        key=key[1],
        state=alert.state,
        value=float(alert.value),
        limit=float(alert.limit),
        time_us=alert.time_us,
        epoch=reading.epoch,
        offset=reading.offset,
        topic=reading.topic,
        client=reading.client,
    )


# --- what was found, over MQTT


def _publisher(alerts: Alerts) -> Callable[[DataFrame, int], None]:
    """What is done with each batch; called by Spark in the driver."""
    rules = {rule.name: rule for rule in alerts.rules}

    def publish(frame: DataFrame, batch: int) -> None:
        found = sorted(frame.collect(), key=lambda row: (row.time_us, row.offset))
        _warn([row for row in found if row.state == UNREADABLE])
        messages = []
        for row in found:
            if row.state != UNREADABLE:
                message = message_of(rules[row.rule], row)
                if topic_name_fault(message.topic):  # too long for MQTT
                    _log.error("not published, for its topic is too long: %r", message.payload)
                else:
                    messages.append(message)
        if messages:
            with alerts.mqtt.connected() as client:
                client.publish_many(messages, qos=1, timeout_s=RETRY_S)

    return publish


def message_of(rule: AlertRule, row: Row) -> Message:
    """An alert as its message. The identifier is the same when it comes again."""
    content = content_of(rule, row)
    properties = Properties(content_type="application/json", user_properties=(("alert-id", content["id"]),))
    return Message(rule.render(row.key), json.dumps(content), 1, rule.retain, properties)


def content_of(rule: AlertRule, row: Row) -> dict[str, Any]:
    """What the message says."""
    return {
        "id": f"{rule.name}/{row.state}/{row.epoch}/{row.offset}",
        "rule": rule.name,
        "state": row.state,
        "topic": row.topic,
        "client": row.client,
        "value": _finite(row.value),
        "limit": row.limit,
        "offset": row.offset,
        "time": (_EPOCH + timedelta(microseconds=row.time_us)).isoformat(timespec="microseconds"),
    }


def _finite(value: float) -> float | None:
    """JSON has no other numbers."""
    return value if math.isfinite(value) else None


def _warn(unread: Iterable[Row]) -> None:
    """One line for each rule."""
    counts = Counter[str]()
    examples: dict[str, Row] = {}
    for row in unread:
        counts[row.rule] += int(row.value)
        examples.setdefault(row.rule, row)
    for rule, row in examples.items():
        text = "alert %s: %d messages cannot be read, such as that of offset %d on %s"
        _log.warning(text, rule, counts[rule], row.offset, row.topic)
