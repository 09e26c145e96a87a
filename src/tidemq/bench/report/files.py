"""Results as Parquet files, for Spark, pandas and `tidemq bench report`: three tables, one row or more a run.

The columns are documented in docs/bench.md. Needs pyarrow (`pip install 'tidemq[bench]'`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tidemq.bench.result import Latency, Result
from tidemq.errors import UsageError

Row = dict[str, Any]

RUN = [("run_id", pa.string()), ("broker", pa.string()), ("workload", pa.string()), ("label", pa.string())]
LATENCY = ["p50_us", "p90_us", "p99_us", "p999_us", "max_us"]
SUMMARY = pa.schema(
    [
        *RUN,
        ("round", pa.int32()),
        ("arguments", pa.string()),
        ("url", pa.string()),
        ("broker_version", pa.string()),
        ("mqtt", pa.string()),
        ("machine", pa.string()),
        ("started_at", pa.timestamp("us", tz="UTC")),
        ("tool_version", pa.string()),
        ("end", pa.string()),
        ("reason", pa.string()),
        *[
            (name, pa.int64())
            for name in ("sent", "expected", "received", "lost", "duplicates", "disordered", "foreign")
        ],
        ("ack_errors", pa.int64()),
        *[(name, pa.float64()) for name in ("seconds", "sent_per_s", "received_per_s", "ns_per_message")],
        ("latency_span", pa.string()),
        ("latency_count", pa.int64()),
        *[(f"latency_{name}", pa.float64()) for name in LATENCY],
        ("connections", pa.int64()),
        ("connect_s", pa.float64()),
        ("connects_per_s", pa.float64()),
        ("connect_latency_count", pa.int64()),
        *[(f"connect_latency_{name}", pa.float64()) for name in LATENCY],
        ("bytes_per_connection", pa.float64()),
        ("shares", pa.int32()),
        ("clock_error_us", pa.float64()),
        ("generator_cpu_s", pa.float64()),
        ("generator_ready_share", pa.float64()),
        ("broker_cpu_s", pa.float64()),
        ("broker_ready_share", pa.float64()),
        ("limited_by_generator", pa.bool_()),
        ("limited_by_exchange", pa.bool_()),
        ("intact", pa.bool_()),
    ]
)
INTERVAL = [
    ("start_s", pa.float64()),
    ("seconds", pa.float64()),
    ("sent", pa.int64()),
    ("received", pa.int64()),
    ("p50_us", pa.float64()),
    ("p99_us", pa.float64()),
    ("max_us", pa.float64()),
]
BUCKET = [("low_ns", pa.int64()), ("high_ns", pa.int64()), ("count", pa.int64())]
INTERVALS = pa.schema([*RUN, *INTERVAL])
LATENCIES = pa.schema([*RUN, *BUCKET])
TABLES = {"summary.parquet": SUMMARY, "intervals.parquet": INTERVALS, "latencies.parquet": LATENCIES}


def write_results(results: Sequence[Result], directory: Path) -> None:
    """Add runs to the three files of `directory`, which is made where it is missing.

    Raises OSError where it cannot be written, UsageError where a file there is none of ours. Each file is
    replaced at once; not for two writers at the same time.
    """
    rows: dict[str, list[Row]] = {
        "summary.parquet": [summary_row(result) for result in results],
        "intervals.parquet": [row for result in results for row in interval_rows(result)],
        "latencies.parquet": [row for result in results for row in latency_rows(result)],
    }
    prepare_directory(directory)
    tables = {name: grown(directory / name, schema, rows[name]) for name, schema in TABLES.items()}
    for name, table in tables.items():
        unfinished = directory / f".{name}.unfinished"
        pq.write_table(table, unfinished)
        os.replace(unfinished, directory / name)


def prepare_directory(directory: Path) -> None:
    """Make the directory, or see that results can be added to it; errors as of `write_results`."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, schema in TABLES.items():
        check_schema(directory / name, schema)


def check_schema(path: Path, schema: pa.Schema) -> None:
    try:
        fits = not path.exists() or pq.read_schema(path) == schema
    except pa.ArrowInvalid as error:
        raise UsageError(f"{path} is not a Parquet file: choose a new directory") from error
    if not fits:
        raise UsageError(f"{path} has other columns: it is another version's, choose a new directory")


def grown(path: Path, schema: pa.Schema, rows: list[Row]) -> pa.Table:
    """What the file holds, with `rows` behind it."""
    added = pa.Table.from_pylist(rows, schema)
    return pa.concat_tables([pq.read_table(path), added]) if path.exists() else added


def run_values(result: Result) -> Row:
    return {name: getattr(result.run, name) for name, _type in RUN}


def latency_values(prefix: str, latency: Latency | None) -> Row:
    names = ["count", *LATENCY]
    return {f"{prefix}_{name}": getattr(latency, name) if latency else None for name in names}


def summary_row(result: Result) -> Row:
    """All columns of one run; a name that neither the run nor its summary has is one made here."""
    made = {
        "arguments": json.dumps(dict(result.run.arguments), sort_keys=True),
        **latency_values("latency", result.summary.latency),
        **latency_values("connect_latency", result.summary.connect_latency),
    }
    return {
        name: made[name] if name in made else getattr(holder_of(result, name), name) for name in SUMMARY.names
    }


def holder_of(result: Result, name: str) -> object:
    return result.run if hasattr(result.run, name) else result.summary


def interval_rows(result: Result) -> Iterator[Row]:
    names = INTERVALS.names[len(RUN) :]
    for interval in result.intervals:
        yield run_values(result) | {name: getattr(interval, name) for name in names}


def latency_rows(result: Result) -> Iterator[Row]:
    for bucket in result.latencies:
        yield run_values(result) | asdict(bucket)
