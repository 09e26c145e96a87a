"""Results written as Parquet come back whole; what is documented of the columns is so."""

from __future__ import annotations

import json
import pickle
import re
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidemq.bench.report.files import TABLES, write_results
from tidemq.bench.result import (
    Bucket,
    Description,
    Interval,
    Latency,
    Result,
    Summary,
    as_json,
    latency_of,
    merge_buckets,
    quantile_ns,
)
from tidemq.errors import UsageError

PAGE = Path(__file__).parents[2] / "docs" / "bench.md"
BUCKETS = (Bucket(100, 101, 50), Bucket(200, 203, 40), Bucket(400, 407, 10))
RESULT = Result(
    run=Description(
        run_id="a1",
        workload="fan",
        label="fan 1:2, QoS 0",
        arguments={"senders": 1, "receivers": 2, "rate": 0.5, "url": None},
        broker="here",
        url="mqtt://127.0.0.1:1883",
        broker_version="some 1.2",
        mqtt="5.0",
        machine="a CPU",
        started_at=datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC),
        tool_version="0.1.0",
    ),
    summary=Summary(
        end="complete",
        reason="none",
        sent=50,
        expected=100,
        received=100,
        lost=0,
        duplicates=0,
        disordered=0,
        foreign=0,
        ack_errors=0,
        seconds=2.0,
        sent_per_s=25.0,
        received_per_s=50.0,
        ns_per_message=2e7,
        latency_span="sent to received",
        latency=latency_of(BUCKETS, 405),
        connections=3,
        connect_s=0.01,
        connects_per_s=300.0,
        connect_latency=None,
        bytes_per_connection=None,
        generator_cpu_s=0.1,
        generator_ready_share=0.05,
        broker_cpu_s=None,
        broker_ready_share=None,
        limited_by_generator=False,
    ),
    intervals=(
        Interval(start_s=0.0, seconds=1.0, sent=50, received=60, p50_us=0.1, p99_us=0.4, max_us=0.4),
        Interval(start_s=1.0, seconds=1.0, sent=0, received=40, p50_us=None, p99_us=None, max_us=None),
    ),
    latencies=BUCKETS,
)


def test_rows_hold_what_the_result_holds(tmp_path: Path) -> None:
    write_results([RESULT], tmp_path / "new" / "directory")
    tables = {name: pq.read_table(tmp_path / "new" / "directory" / name).to_pylist() for name in TABLES}
    (row,) = tables["summary.parquet"]
    assert json.loads(row.pop("arguments")) == RESULT.run.arguments
    flat = asdict(RESULT.run) | asdict(RESULT.summary) | {"intact": True}
    flat.pop("arguments")
    for name in ("latency", "connect_latency"):
        quantiles = flat.pop(name) or dict.fromkeys(row_names(name))
        flat |= {f"{name}_{key}": value for key, value in quantiles.items()}
    assert row == flat
    own = {"run_id": "a1", "broker": "here", "workload": "fan", "label": "fan 1:2, QoS 0"}
    assert tables["intervals.parquet"] == [own | asdict(each) for each in RESULT.intervals]
    assert tables["latencies.parquet"] == [own | asdict(each) for each in BUCKETS]


def row_names(prefix: str) -> list[str]:
    summary = TABLES["summary.parquet"].names
    return [
        name.removeprefix(f"{prefix}_") for name in summary if re.match(rf"{prefix}_(count|\w+_us)", name)
    ]


def test_a_directory_gathers_runs(tmp_path: Path) -> None:
    second = replace(RESULT, run=replace(RESULT.run, run_id="b2", broker="there"))
    write_results([RESULT], tmp_path)
    write_results([second], tmp_path)
    assert pq.read_table(tmp_path / "summary.parquet").column("run_id").to_pylist() == ["a1", "b2"]
    assert pq.read_table(tmp_path / "intervals.parquet").num_rows == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(TABLES)


def test_files_of_another_version_are_left_alone(tmp_path: Path) -> None:
    foreign = pa.table({"other": [1]})
    pq.write_table(foreign, tmp_path / "latencies.parquet")
    with pytest.raises(UsageError, match=r"latencies\.parquet has other columns"):
        write_results([RESULT], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["latencies.parquet"]
    assert pq.read_table(tmp_path / "latencies.parquet") == foreign


def test_what_is_no_parquet_file_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "summary.parquet").write_text("mine")
    with pytest.raises(UsageError, match=r"summary\.parquet is not a Parquet file"):
        write_results([RESULT], tmp_path)
    assert (tmp_path / "summary.parquet").read_text() == "mine"


def test_columns_are_documented_with_their_types() -> None:
    if not PAGE.exists():
        pytest.skip("the source tree is hidden")
    text = PAGE.read_text()
    for name, schema in TABLES.items():
        section = text.split(f"\n### {name}\n", 1)[1].split("\n#", 1)[0]
        rows = re.findall(r"^\| `(\w+)` \| ([^|]+?) \|", section, re.MULTILINE)
        assert rows == [(field.name, str(field.type)) for field in schema]


def test_a_result_travels_as_pickle_and_as_json() -> None:
    assert pickle.loads(pickle.dumps(RESULT)) == RESULT
    values = json.loads(json.dumps(as_json(RESULT)))
    assert values["run"]["started_at"] == "2026-01-02T03:04:05.000678+00:00"
    assert values["summary"]["latency"]["p99_us"] == 0.405
    assert values["latencies"][0] == {"low_ns": 100, "high_ns": 101, "count": 50}


def test_quantiles_of_buckets() -> None:
    assert [quantile_ns(BUCKETS, share) for share in (0, 0.5, 0.51, 0.9, 0.91, 1)] == [
        101,
        101,
        203,
        203,
        407,
        407,
    ]
    assert quantile_ns([], 0.5) == 0
    assert latency_of([]) is None
    assert latency_of(BUCKETS, 405) == Latency(
        count=100, p50_us=0.101, p90_us=0.203, p99_us=0.405, p999_us=0.405, max_us=0.405
    )


def test_histograms_are_added_by_bucket() -> None:
    merged = merge_buckets([BUCKETS, [Bucket(50, 50, 1), Bucket(200, 203, 2)]])
    assert merged == (Bucket(50, 50, 1), Bucket(100, 101, 50), Bucket(200, 203, 42), Bucket(400, 407, 10))


@pytest.mark.parametrize(
    "change",
    [{"end": "stalled"}, {"lost": 1}, {"duplicates": 1}, {"disordered": 1}, {"foreign": 1}],
    ids=lambda change: next(iter(change)),
)
def test_one_fault_and_a_run_is_not_intact(change: dict[str, int]) -> None:
    assert RESULT.summary.intact
    assert not replace(RESULT.summary, **change).intact  # type: ignore[arg-type]
