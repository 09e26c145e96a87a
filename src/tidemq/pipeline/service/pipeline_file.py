"""A whole pipeline in one file of TOML: streams with their rules, alerts and sinks, and the upkeep of tables.

url = "http://broker:8080"
tables = "/var/lib/lake"

[brokers.plant]                 # who gets alerts and messages
url = "mqtt://broker"

[[streams]]
name = "plant"

[[streams.rules]]               # as in a file of `ingest --rules`
name = "climate"
filter = "plant/+/climate"
format = "json"

[streams.alerts]
to = "plant"

[[streams.alerts.rules]]        # as [[alerts]] in a file of `alerts --rules`
name = "hot"
filter = "plant/+/climate"
value = "celsius"
kind = "threshold"
above = 30
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tidemq.errors import ConfigError, UsageError
from tidemq.pipeline.alerts.alert_rules import AlertRule
from tidemq.pipeline.alerts.watching import Alerts
from tidemq.pipeline.decode.named_tables import distinct
from tidemq.pipeline.decode.payload_rules import Rule
from tidemq.pipeline.lake.formats import parse_format
from tidemq.pipeline.lake.plan import Ingest
from tidemq.pipeline.places import Storage, in_object_store, place_uri
from tidemq.pipeline.service.bridging import Bridge
from tidemq.pipeline.sources.mqtt_target import Target
from tidemq.pipeline.sources.stream_options import Position
from tidemq.pipeline.toml_files import read_toml
from tidemq.wire import topic_filter_fault

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(ge=0)]


class _Table(BaseModel):
    """Of the file. A key that it does not know is refused, and a text is no number."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class BrokerTable(_Table):
    url: str
    user: str | None = None
    password_file: str | None = None
    cafile: str | None = None
    cert: str | None = None
    key: str | None = None


class SinkTable(_Table):
    """Messages of the stream that go on to another broker, each once."""

    name: Name
    to: str  # one of `brokers`
    filter: str = "#"
    topic_prefix: str = ""
    start: str = "earliest"  # of a new checkpoint
    rows_max: Count = 1_000_000  # of a batch
    trigger_s: Seconds = 1.0


class AlertsTable(_Table):
    to: str  # one of `brokers`
    rules: Annotated[list[dict[str, Any]], Field(min_length=1)]
    start: str = "latest"  # of a new checkpoint
    handover: str = ""  # of a backtest, in place of `start`
    partitions: Count = 2
    rows_max: Count = 1_000_000
    trigger_s: Seconds = 1.0


class StreamTable(_Table):
    name: Name
    start: str = "earliest"  # of a new checkpoint
    allow_data_loss: bool = False
    rows_max: Count = 1_000_000  # of a batch
    batch_bytes_max: Annotated[int, Field(ge=0)] = 0  # on the broker's disk, in place of that
    bytes_max: Count = 64 << 20  # that a task holds before it writes
    trigger_s: Seconds = 1.0
    rules: list[dict[str, Any]] = []
    alerts: AlertsTable | None = None
    sinks: list[SinkTable] = []


class MaintenanceTable(_Table):
    """What `tidemq pipeline maintain` does."""

    every_s: Annotated[float, Field(ge=1)] = 600.0
    keep_h: Annotated[int, Field(ge=0)] = 7 * 24
    bronze_days: Annotated[int, Field(ge=0)] = 0


class PipelineTable(_Table):
    """The file. Relative paths are those of where the command is started."""

    url: str  # of the broker's admin listener, as executors reach it; of several nodes, by commas
    nodes: bool = False  # as `ingest --nodes` and so on
    fail_on_unreachable: bool = False
    token_file: str = ""
    cafile: str = ""
    tables: str
    checkpoints: str = ""  # folder or URI; empty: TABLES/_checkpoints
    master: str = "local[*]"
    metrics_port: Annotated[int, Field(ge=0, le=65_535)] | None = None
    metrics_host: str = "127.0.0.1"
    brokers: dict[str, BrokerTable] = {}
    storage_options: Annotated[dict[str, Any], Field(repr=False)] = {}
    format: Literal["delta", "iceberg"] = "delta"
    catalog: Annotated[dict[str, Any], Field(repr=False)] = {}  # of Iceberg
    maintenance: MaintenanceTable = MaintenanceTable()
    streams: Annotated[list[StreamTable], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """What is done with a stream."""

    ingest: Ingest
    alerts: Alerts | None
    bridges: tuple[Bridge, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is done."""

    table: PipelineTable
    streams: tuple[StreamPlan, ...]

    def check(self) -> None:
        """ConfigError for what cannot be, ConnectError or ServerRefusedError where a broker cannot be
        reached, StreamError where it does not have a stream.
        """
        for each in self.streams:
            each.ingest.check()
            each.ingest.describe()
            if each.alerts:
                each.alerts.check()
            for bridge in each.bridges:
                bridge.check()


def load_pipeline(path: Path) -> Plan:
    """ConfigError names the file, the key, and what would be accepted; OSError where it cannot be read."""
    given = read_toml(path)
    try:
        table = PipelineTable.model_validate(given)
    except ValidationError as error:
        raise _explained(path, error) from error
    brokers = {name: _target(path, name, broker) for name, broker in table.brokers.items()}
    distinct(str(path), "streams", table.streams)
    return Plan(table, tuple(_stream(path, table, stream, brokers) for stream in table.streams))


def _stream(
    path: Path, table: PipelineTable, stream: StreamTable, brokers: Mapping[str, Target]
) -> StreamPlan:
    place = f"{path}: streams.{stream.name}"
    rules = distinct(place, "rules", [Rule.parse(str(path), rule) for rule in stream.rules])
    checkpoints = f"{place_uri(table.checkpoints or f'{table.tables}/_checkpoints')}/{stream.name}"
    apart = table.checkpoints and in_object_store(table.tables)
    ingest = Ingest(
        url=table.url,
        nodes=table.nodes,
        fail_on_unreachable=table.fail_on_unreachable,
        token_file=table.token_file,
        cafile=table.cafile,
        stream=stream.name,
        tables=table.tables,
        start=_start(place, stream.start),
        fail_on_data_loss=not stream.allow_data_loss,
        rows_max=stream.rows_max,
        batch_bytes_max=stream.batch_bytes_max,
        bytes_max=stream.bytes_max,
        trigger_s=stream.trigger_s,
        rules=rules,
        checkpoint=f"{checkpoints}/ingest" if apart else "",
        storage=Storage.parse(table.storage_options, f"{path}: storage_options"),
        format=parse_format(table.format, table.catalog, str(path)),
    )
    return StreamPlan(
        ingest,
        _alerts(f"{place}.alerts", ingest, stream.alerts, checkpoints, brokers) if stream.alerts else None,
        tuple(
            _bridge(f"{place}.sinks.{sink.name}", ingest, sink, checkpoints, brokers)
            for sink in distinct(place, "sinks", stream.sinks)
        ),
    )


def _alerts(
    place: str, ingest: Ingest, table: AlertsTable, checkpoints: str, brokers: Mapping[str, Target]
) -> Alerts:
    return Alerts(
        url=ingest.url,
        token_file=ingest.token_file,
        cafile=ingest.cafile,
        stream=ingest.stream,
        mqtt=_named(place, table.to, brokers),
        rules=distinct(place, "rules", [AlertRule.parse(place, rule) for rule in table.rules]),
        checkpoint=f"{checkpoints}/alerts",
        start=_start(place, table.start),
        handover=table.handover,
        fail_on_data_loss=ingest.fail_on_data_loss,
        rows_max=table.rows_max,
        trigger_s=table.trigger_s,
        partitions=table.partitions,
        storage=ingest.storage,
    )


def _bridge(
    place: str, ingest: Ingest, sink: SinkTable, checkpoints: str, brokers: Mapping[str, Target]
) -> Bridge:
    if fault := topic_filter_fault(sink.filter):
        raise ConfigError(f"{place}.filter is {sink.filter!r}: {fault}; accepted: an MQTT topic filter")
    return Bridge(
        ingest=ingest,
        name=sink.name,
        target=_named(place, sink.to, brokers),
        filter=sink.filter,
        topic_prefix=sink.topic_prefix,
        checkpoint=f"{checkpoints}/sinks/{sink.name}",
        start=_start(place, sink.start),
        rows_max=sink.rows_max,
        trigger_s=sink.trigger_s,
    )


def _named(place: str, name: str, brokers: Mapping[str, Target]) -> Target:
    if name not in brokers:
        accepted = ", ".join(brokers) or "a table [brokers.NAME] first"
        raise ConfigError(f"{place}.to is {name!r}, which is no broker; accepted: {accepted}")
    return brokers[name]


def _start(place: str, text: str) -> str:
    try:
        Position.parse("start", text)
    except UsageError as error:
        raise ConfigError(f"{place}: {error}") from error
    return text


def _target(path: Path, name: str, table: BrokerTable) -> Target:
    given = table.model_dump(exclude_none=True)
    if "password_file" in given:
        given["passwordFile"] = given.pop("password_file")
    try:
        return Target.parse(given)
    except UsageError as error:
        raise ConfigError(f"{path}: brokers.{name}: {error}") from error


def _explained(path: Path, error: ValidationError) -> ConfigError:
    """The first thing that is wrong."""
    detail = error.errors()[0]
    key = ".".join(map(str, detail["loc"]))
    if detail["type"] == "extra_forbidden":
        return ConfigError(f"{path}: {key} is unknown; docs/pipeline.md has what is accepted")
    if detail["type"] == "missing":
        return ConfigError(f"{path}: {key} is missing")
    shown = "" if isinstance(detail["input"], Mapping | list) else f" is {detail['input']!r}"
    return ConfigError(f"{path}: {key}{shown}; accepted: {detail['msg'].removeprefix('Input should be ')}")
