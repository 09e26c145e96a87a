"""The runs of one or several directories, grouped by workload and broker."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import pyarrow.parquet as pq

from tidemq.bench.report.files import TABLES
from tidemq.bench.result import Bucket, merge_buckets, quantile_ns
from tidemq.errors import UsageError

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A row of summary.parquet, as far as it is shown."""

    run_id: str
    broker: str
    workload: str
    label: str
    round: int
    broker_version: str
    machine: str
    mqtt: str
    arguments: str
    started_at: datetime
    tool_version: str
    end: str
    sent: int
    expected: int
    received: int
    lost: int
    duplicates: int
    disordered: int
    foreign: int
    ack_errors: int
    seconds: float
    received_per_s: float
    latency_span: str
    latency_p50_us: float | None
    latency_p99_us: float | None
    latency_max_us: float | None
    connects_per_s: float
    bytes_per_connection: float | None
    broker_cpu_s: float | None
    limited_by_generator: bool
    intact: bool

    @property
    def per_broker_cpu_s(self) -> float | None:
        """Deliveries per second of the broker's CPU; None where that is not known or nothing was sent."""
        return self.received / self.broker_cpu_s if self.broker_cpu_s and self.received else None

    @property
    def per_core_s(self) -> float | None:
        """Messages in and out per second of the broker's CPU; None as above."""
        messages = self.sent + self.received
        return messages / self.broker_cpu_s if self.broker_cpu_s and self.expected else None

    @property
    def broker_cores(self) -> float | None:
        """Cores that the broker used meanwhile; None as above."""
        return self.broker_cpu_s / self.seconds if self.broker_cpu_s and self.expected else None

    @property
    def subscribers(self) -> int | None:
        """Of the workload `subscribers`: how many there were."""
        count = json.loads(self.arguments).get("count")
        return count if isinstance(count, int) else None

    @property
    def rate(self) -> float | None:
        """Deliveries per second; None where there were none to make."""
        return self.received_per_s if self.expected else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A row of intervals.parquet."""

    start_s: float
    seconds: float
    received: int
    p50_us: float | None
    p99_us: float | None
    max_us: float | None


@dataclass(frozen=True, slots=True)
class Spread:
    """The figures of all rounds."""

    values: tuple[float, ...]  # ascending, not empty

    @property
    def median(self) -> float:
        return median(self.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One workload against one broker: its rounds, in the order of their start; none, where only latencies
    are known of it."""

    label: str
    broker: str
    runs: tuple[Run, ...] = ()
    latencies: tuple[Bucket, ...] = ()  # of all rounds together
    moments: tuple[Moment, ...] = ()  # of the round whose rate is the median, or next below it

    def spread(self, read: Callable[[Run], float | None]) -> Spread | None:
        """What `read` says of the rounds; None where it says nothing of any."""
        values = [value for run in self.runs if (value := read(run)) is not None]
        return Spread(tuple(sorted(values))) if values else None

    def latency_us(self, share: float) -> float:
        """What so great a share of all messages took at most."""
        return quantile_ns(self.latencies, share) / 1000


class Runs:
    """All cases, by label and broker, both in the order in which they were first run."""

    def __init__(self, cases: Iterable[Case]) -> None:
        self._cases = {(case.label, case.broker): case for case in cases}
        self.labels = list(dict.fromkeys(label for label, _broker in self._cases))
        self.brokers = list(dict.fromkeys(broker for _label, broker in self._cases))

    def case(self, label: str, broker: str) -> Case | None:
        return self._cases.get((label, broker))

    def of(self, label: str) -> list[Case]:
        """The cases of one workload, by broker."""
        return [case for broker in self.brokers if (case := self.case(label, broker))]

    @property
    def cases(self) -> list[Case]:
        return list(self._cases.values())

    @property
    def all(self) -> list[Run]:
        return [run for case in self._cases.values() for run in case.runs]


def read_runs(directories: Sequence[Path | str]) -> Runs:
    """The runs that lie in `directories`, paths or URIs; runs of one broker with one label count as rounds.

    Raises UsageError, which names the file, where one is missing, is not Parquet, or has other columns.
    """
    folders = dict.fromkeys(directories)  # one that is named twice counts once
    rows = {name: [row for each in folders for row in read_rows(f"{each}/{name}", name)] for name in TABLES}
    runs = [made(Run, row) for row in sorted(rows["summary.parquet"], key=lambda row: row["started_at"])]
    if not runs:
        raise UsageError(f"there are no runs in {', '.join(map(str, directories))}")
    moments = by_run(rows["intervals.parquet"])
    buckets = by_run(rows["latencies.parquet"])
    grouped: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        grouped.setdefault((run.label, run.broker), []).append(run)
    return Runs(
        Case(
            label=label,
            broker=broker,
            runs=tuple(rounds),
            latencies=merge_buckets(
                [made(Bucket, row) for row in buckets.get(run.run_id, ())] for run in rounds
            ),
            moments=tuple(made(Moment, row) for row in moments.get(middle(rounds).run_id, ())),
        )
        for (label, broker), rounds in grouped.items()
    )


def read_rows(path: str, name: str) -> list[dict[str, Any]]:
    """All rows of that one of the three files."""
    try:
        table = pq.read_table(path)
    except FileNotFoundError as error:
        raise UsageError(f"{path} is missing: it is written by a load tool's --out") from error
    except (OSError, ValueError) as error:  # pyarrow's own errors are ValueErrors
        raise UsageError(f"{path} cannot be read as Parquet: {error}") from error
    if table.schema != TABLES[name]:
        raise UsageError(f"{path} has other columns: another version of the load tools wrote it")
    return list(table.to_pylist())


def made(kind: type[T], row: Mapping[str, Any]) -> T:
    """A dataclass of those columns that it has fields for."""
    names = kind.__dataclass_fields__  # type: ignore[attr-defined]
    return kind(**{name: row[name] for name in names})


def by_run(rows: Iterable[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    grouped: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        grouped.setdefault(row["run_id"], []).append(row)
    return grouped


def middle(rounds: Sequence[Run]) -> Run:
    """The round whose rate is the median, or next below it."""
    return sorted(rounds, key=lambda run: run.received_per_s)[(len(rounds) - 1) // 2]
