"""What one run of a load showed: plain values, made by a run, read by tables, files and pages.

A `Result` holds everything that is known of a run, so that whoever draws or compares runs needs nothing
else. It can be pickled, and sent as JSON (`as_json`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from fractions import Fraction
from itertools import accumulate
from typing import Any, Literal, get_args

End = Literal["share lost", "disconnected", "stalled", "interrupted", "complete"]
ENDS: tuple[End, ...] = get_args(End)  # the worst first
LatencySpan = Literal["sent to received", "due to received", "sent to returned", "due to returned"]
Argument = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Bucket:
    """Latencies of a histogram that lie between two bounds, both included; at most 1.6 % apart."""

    low_ns: int
    high_ns: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Quantiles of a wait, in microseconds: the upper bounds of the buckets they lie in. `max_us` is exact
    where the run measured it itself.
    """

    count: int
    p50_us: float
    p90_us: float
    p99_us: float
    p999_us: float
    max_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """What happened in one short part of a run. The latencies are None where nothing arrived."""

    start_s: float  # after the first message
    seconds: float
    sent: int
    received: int  # repeated messages included
    p50_us: float | None
    p99_us: float | None
    max_us: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What was run, against what, where and when."""

    run_id: str  # random; the same in all rows of a run
    workload: str  # the command: fan, mesh, pairs, ping, many, ticktock, subscribers
    label: str  # the workload in words, with what tells it from others: "fan 1:20, QoS 0, 64 bytes"
    arguments: Mapping[str, Argument]  # of the command, by name
    broker: str  # its name in tables: as given, else the address
    url: str  # without password
    broker_version: str  # what $SYS/broker/version says; empty where it says nothing
    mqtt: str  # 3.1.1 or 5.0
    machine: str  # of the generator: CPU, cores, memory, kernel
    started_at: datetime  # with time zone
    tool_version: str
    round: int = 1  # of several, in a comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The figures of a run. A message is sent once; a delivery is its arrival at one subscriber, and all
    counts but `sent` are of deliveries.
    """

    # stalled: nothing came for the time-out; disconnected: the broker closed a connection;
    # share lost: a process that drove a part of the load; interrupted: by Ctrl-C
    end: End
    reason: str = ""  # of a disconnection, where the broker gave one; which share was lost
    sent: int
    expected: int
    received: int  # duplicates not counted
    lost: int
    duplicates: int
    disordered: int  # arrived after a later message of the same publisher
    foreign: int  # payload that was not sent to this subscriber
    ack_errors: int  # acknowledgements out of order or for no message
    seconds: float  # from the first message sent to the last received or acknowledged
    sent_per_s: float
    received_per_s: float
    ns_per_message: float  # a delivery's share of `seconds`; 0 where nothing arrived
    latency_span: LatencySpan
    latency: Latency | None  # None where nothing arrived
    connections: int
    connect_s: float  # from the first SYN until all are connected and subscribed
    connects_per_s: float
    connect_latency: Latency | None  # from SYN to CONNACK
    bytes_per_connection: float | None  # of the broker's memory; None unless it is on this machine
    shares: int = 1  # threads, or processes, that drove the load, each its share of the connections
    clock_error_us: float = 0.0  # latencies between machines may be off by so much; 0: one clock
    generator_cpu_s: float  # of all shares
    generator_ready_share: float  # of `seconds` in which its busiest thread ran or waited for a core, 0 to 1
    broker_cpu_s: float | None  # None unless it is on this machine
    broker_ready_share: float | None  # the same as of the generator, of its busiest thread
    limited_by_generator: bool  # the rates say what the generator can do, and the broker more
    limited_by_exchange: bool = False  # and that because shares learned too late what had arrived elsewhere

    @property
    def intact(self) -> bool:
        """Everything arrived once and in order."""
        faults = self.lost + self.duplicates + self.disordered + self.foreign
        return self.end == "complete" and faults == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One run."""

    run: Description
    summary: Summary
    intervals: tuple[Interval, ...]  # in order of time, without gaps
    latencies: tuple[Bucket, ...]  # ascending; only those that counted something


def as_json(result: Result) -> dict[str, Any]:
    """The result as values that `json.dumps` takes."""
    values = asdict(result)
    values["run"]["started_at"] = result.run.started_at.isoformat()
    values["summary"]["intact"] = result.summary.intact
    return values


def merge_buckets(histograms: Iterable[Iterable[Bucket]]) -> tuple[Bucket, ...]:
    """One histogram of several: counts of the same bucket are added."""
    counts: dict[tuple[int, int], int] = {}
    for histogram in histograms:
        for bucket in histogram:
            bounds = bucket.low_ns, bucket.high_ns
            counts[bounds] = counts.get(bounds, 0) + bucket.count
    return tuple(Bucket(low, high, counts[low, high]) for low, high in sorted(counts))


def quantile_ns(buckets: Iterable[Bucket], share: float | Fraction) -> int:
    """The upper bound of the bucket up to which `share` (0 to 1) of all values lie; 0 when there are none."""
    filled = list(buckets)
    wanted = share * sum(bucket.count for bucket in filled)
    passed = accumulate(bucket.count for bucket in filled)
    return next((each.high_ns for each, sum_ in zip(filled, passed, strict=True) if sum_ >= wanted), 0)


def latency_of(buckets: Iterable[Bucket], max_ns: int | None = None) -> Latency | None:
    """Quantiles of ascending buckets; None when they are empty. `max_ns` is the exact greatest value."""
    filled = tuple(buckets)
    if not filled:
        return None
    highest_ns = filled[-1].high_ns if max_ns is None else max_ns
    p50, p90, p99, p999 = (
        min(quantile_ns(filled, share), highest_ns) / 1000 for share in (0.5, 0.9, 0.99, 0.999)
    )
    count = sum(bucket.count for bucket in filled)
    return Latency(count=count, p50_us=p50, p90_us=p90, p99_us=p99, p999_us=p999, max_us=highest_ns / 1000)
