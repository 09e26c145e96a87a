"""Made-up runs with figures that are easy to follow, written as the load tools write theirs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tidemq.bench.report.files import write_results
from tidemq.bench.result import Bucket, Description, Interval, Result, Summary, latency_of

_numbers = count(1)
START = datetime(2026, 11, 21, 12, tzinfo=UTC)


def made_buckets(low_us: int, slow_us: int) -> tuple[Bucket, ...]:
    """985 messages from `low_us` up, 15 that took `slow_us`."""
    lows_ns = range(low_us * 1000, low_us * 1000 + 5000, 1000)
    buckets = [Bucket(low_ns, low_ns + 999, 197) for low_ns in lows_ns]
    return (*buckets, Bucket(slow_us * 1000, slow_us * 1000 + 999, 15))


def made_result(
    broker: str = "tidemq",
    label: str = "fan 1:20, QoS 0, 64 bytes",
    *,
    rate: float = 1_000_000.0,
    low_us: int = 50,
    slow_us: int = 900,
    run: Mapping[str, Any] | None = None,
    summary: Mapping[str, Any] | None = None,
) -> Result:
    """1,000 deliveries at `rate` a second; `run` and `summary` replace single values."""
    number = next(_numbers)
    latencies = made_buckets(low_us, slow_us)
    description: dict[str, Any] = {
        "run_id": f"run-{number}",
        "workload": "fan",
        "label": label,
        "arguments": {"senders": 1, "receivers": 20, "qos": 0},
        "broker": broker,
        "url": "mqtt://127.0.0.1:1883",
        "broker_version": f"{broker} 1.0",
        "mqtt": "3.1.1",
        "machine": "a machine, 2 cores",
        "started_at": START + timedelta(seconds=number),
        "tool_version": "0.1.0",
    }
    figures: dict[str, Any] = {
        "end": "complete",
        "sent": 50,
        "expected": 1000,
        "received": 1000,
        **dict.fromkeys(["lost", "duplicates", "disordered", "foreign", "ack_errors"], 0),
        "seconds": 1000 / rate,
        "sent_per_s": rate / 20,
        "received_per_s": rate,
        "ns_per_message": 1e9 / rate,
        "latency_span": "sent to received",
        "latency": latency_of(latencies),
        "connections": 21,
        "connect_s": 0.1,
        "connects_per_s": 210.0,
        "connect_latency": None,
        "bytes_per_connection": 600.0,
        "generator_cpu_s": 0.0004,
        "generator_ready_share": 0.4,
        "broker_cpu_s": 500 / rate,
        "broker_ready_share": 0.9,
        "limited_by_generator": False,
    }
    intervals = tuple(
        Interval(
            start_s=step / 5,
            seconds=0.2,
            sent=10,
            received=200,
            p50_us=low_us + 2.0,
            p99_us=slow_us,
            max_us=slow_us,
        )
        for step in range(5)
    )
    return Result(
        run=Description(**description | dict(run or {})),
        summary=Summary(**figures | dict(summary or {})),
        intervals=intervals,
        latencies=latencies,
    )


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Write results to a new directory."""

    def write(*results: Result) -> Path:
        directory = tmp_path_factory.mktemp("runs")
        write_results(results, directory)
        return directory

    return write
