"""Figures in tables: medians and spreads of rounds, the best of a row, marks of what is not to be trusted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from bench_report.conftest import made_result

from tidemq.bench.report.runs import Runs, read_runs
from tidemq.bench.report.tables import Table, markdown, remarks, tables
from tidemq.errors import UsageError


def texts(table: Table) -> list[list[tuple[str, str, bool]]]:
    return [[(cell.text, cell.detail, cell.best) for cell in row[1:]] for row in table.rows]


def by_title(runs: Runs) -> dict[str, Table]:
    return {table.title: table for table in tables(runs)}


def test_rounds_become_a_median_and_a_spread_and_the_best_is_told(written: Callable[..., Path]) -> None:
    rounds = [made_result(rate=rate) for rate in (3e6, 1e6, 2e6)]
    runs = read_runs([written(*rounds, made_result("mosquitto", rate=2e5))])
    table = by_title(runs)["Messages delivered per second"]
    assert table.head == ("workload", "tidemq", "mosquitto", "SurgeMQ, published")
    assert texts(table) == [
        [("2 M", "1 M to 3 M", True), ("200 k", "", False), ("> 750 k", "", False)],
    ]
    costs = by_title(runs)["Messages delivered per second of the broker's CPU"]
    assert texts(costs) == [[("4 M", "2 M to 6 M", True), ("400 k", "", False)]]


def test_the_least_latency_is_the_best(written: Callable[..., Path]) -> None:
    runs = read_runs([written(made_result(slow_us=2000), made_result("aedes", low_us=200, slow_us=300))])
    assert texts(by_title(runs)["Latency, median"]) == [[("53 µs", "", True), ("203 µs", "", False)]]
    assert texts(by_title(runs)["Latency, 99th percentile"]) == [[("2 ms", "", False), ("301 µs", "", True)]]


def test_what_was_not_run_is_a_dash(written: Callable[..., Path]) -> None:
    runs = read_runs([written(made_result(), made_result("aedes", "fan 20:1"))])
    (first, second) = texts(by_title(runs)["Latency, median"])
    assert [cell[0] for cell in first] == ["53 µs", "—"]
    assert [cell[0] for cell in second] == ["—", "53 µs"]


def test_runs_that_are_not_to_be_trusted_are_marked_and_remarked(written: Callable[..., Path]) -> None:
    broken = made_result(summary={"end": "stalled", "received": 990, "lost": 10, "duplicates": 2})
    limited = made_result("relay", summary={"limited_by_generator": True})
    runs = read_runs([written(broken, limited)])
    assert [cell[0] for cell in texts(by_title(runs)["Messages delivered per second"])[0][:2]] == [
        "1 M ✗",
        "≥ 1 M",
    ]
    assert remarks(runs) == [
        "fan 1:20, QoS 0, 64 bytes, tidemq: stalled, 10 lost, 2 twice",
        "fan 1:20, QoS 0, 64 bytes, relay: limited by the generator",
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        {"senders": 1, "receivers": 20, "qos": 1},
        {"senders": 2, "receivers": 20, "qos": 0},
        {"connections": 10},
    ],
)
def test_nothing_is_published_of_other_workloads(
    written: Callable[..., Path], arguments: dict[str, int]
) -> None:
    runs = read_runs([written(made_result(run={"arguments": arguments}))])
    assert by_title(runs)["Messages delivered per second"].head == ("workload", "tidemq")


def test_idle_connections_have_no_rate_but_memory(written: Callable[..., Path]) -> None:
    idle = made_result(
        label="10,000 connections",
        run={"workload": "many", "arguments": {"connections": 10_000}},
        summary={"sent": 0, "expected": 0, "received": 0, "received_per_s": 0.0, "latency": None},
    )
    titles = by_title(read_runs([written(idle)]))
    assert list(titles) == ["Connections per second", "Broker's memory for each connection, bytes"]
    assert texts(titles["Broker's memory for each connection, bytes"]) == [[("600", "", False)]]


def test_a_table_as_markdown(written: Callable[..., Path]) -> None:
    runs = read_runs([written(made_result(rate=1e6), made_result(rate=3e6), made_result("aedes", rate=1e5))])
    text = markdown(by_title(runs)["Messages delivered per second of the broker's CPU"])
    assert text.splitlines() == [
        "| workload | tidemq | aedes |",
        "| --- | --- | --- |",
        "| fan 1:20, QoS 0, 64 bytes | **4 M** (2 M to 6 M) | 200 k |",
    ]


def test_several_directories_are_one_comparison_and_the_same_twice_counts_once(
    written: Callable[..., Path],
) -> None:
    first, second = written(made_result(rate=1e6)), written(made_result(rate=3e6))
    runs = read_runs([first, second, first])
    (case,) = runs.of("fan 1:20, QoS 0, 64 bytes")
    assert [run.received_per_s for run in case.runs] == [1e6, 3e6]
    assert sum(bucket.count for bucket in case.latencies) == 2000


def test_a_directory_without_runs_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"summary\.parquet is missing: it is written by a load tool's --out"
    ):
        read_runs([tmp_path])


def test_a_file_that_is_not_parquet_is_named(written: Callable[..., Path]) -> None:
    directory = written(made_result())
    (directory / "latencies.parquet").write_text("no")
    with pytest.raises(UsageError, match=r"latencies\.parquet cannot be read as Parquet"):
        read_runs([directory])


def test_a_file_with_other_columns_is_named(written: Callable[..., Path]) -> None:
    directory = written(made_result())
    (directory / "intervals.parquet").write_bytes((directory / "latencies.parquet").read_bytes())
    with pytest.raises(UsageError, match=r"intervals\.parquet has other columns"):
        read_runs([directory])
