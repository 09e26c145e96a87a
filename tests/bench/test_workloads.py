"""Every command loads every broker, and counts what it should."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from bench.conftest import Bench
from conftest import RunningBroker
from waiting import LATE_S

# command, its arguments, messages sent, deliveries, connections
COMMANDS = [
    ("fan", ["--messages", 500], 500, 500, 2),
    ("fan", ["--senders", 5, "--receivers", 3, "--messages", 100, "--size", 16], 500, 1500, 8),
    ("fan", ["--messages", 3, "--size", 100_000], 3, 3, 2),
    ("mesh", ["--clients", 4, "--messages", 50], 200, 800, 4),
    ("pairs", ["--pairs", 10, "--messages", 50], 500, 500, 20),
    ("pairs", ["--pairs", 3, "--messages", 20, "--rate", 300], 60, 60, 6),
    ("ping", ["--messages", 50], 100, 100, 2),
    ("ping", ["--pairs", 3, "--messages", 20, "--rate", 300], 120, 120, 6),
    ("many", ["--connections", 150, "--seconds", 0.2], 0, 0, 150),
    ("many", ["--connections", 50, "--seconds", 0.2, "--rate", 200], 40, 40, 50),
    ("ticktock", ["--clients", 7, "--messages", 3, "--rate", 20], 3, 21, 8),
    ("subscribers", ["--count", 30], 5, 150, 31),
]


@pytest.mark.parametrize("mqtt", ["3.1.1", "5.0"])
@pytest.mark.parametrize(
    ("command", "arguments", "sent", "received", "connections"),
    COMMANDS,
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_everything_is_counted(
    bench: Bench,
    url: str,
    command: str,
    arguments: list[object],
    sent: int,
    received: int,
    connections: int,
    mqtt: str,
) -> None:
    done = bench(command, "--url", url, "--mqtt", mqtt, "--json", *arguments)
    assert (done.code, done.error) == (0, "")
    summary = done.summary
    assert summary["intact"]
    assert (summary["sent"], summary["received"], summary["expected"]) == (sent, received, received)
    assert summary["connections"] == connections
    assert done.result["run"]["mqtt"] == mqtt
    assert done.result["run"]["broker_version"]
    latency = summary["latency"]
    if received:  # of what is bounced only the return is timed
        assert latency["count"] == received // (2 if command == "ping" else 1)
        assert 0 < latency["p50_us"] <= latency["p90_us"] <= latency["p99_us"] <= latency["max_us"] < 1e7
        assert summary["connect_latency"]["count"] == connections
    assert sum(bucket["count"] for bucket in done.result["latencies"]) == (latency or {"count": 0})["count"]
    assert sum(interval["sent"] for interval in done.result["intervals"]) == sent
    assert sum(interval["received"] for interval in done.result["intervals"]) == received


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize(
    "command",
    [["fan", "--receivers", 3], ["mesh", "--clients", 3], ["pairs", "--pairs", 3], ["ping", "--pairs", 2]],
    ids=lambda command: command[0],
)
def test_qos_1_and_2(bench: Bench, url: str, command: list[object], qos: int) -> None:
    messages = 20 if command[0] == "ping" else 200  # Mosquitto waits 40 ms before it acknowledges (Nagle)
    done = bench(*command, "--url", url, "--qos", qos, "--messages", messages, "--json")
    assert (done.code, done.error) == (0, "")
    assert done.summary["ack_errors"] == 0


def test_a_run_by_time_ends_in_time(bench: Bench, url: str) -> None:
    done = bench("fan", "--url", url, "--seconds", 0.5, "--json")
    assert done.code == 0
    assert 0.4 < done.summary["seconds"] < LATE_S  # Mosquitto passes on 20,000 messages after the end
    assert done.summary["received"] == done.summary["sent"] > 100
    assert len(done.result["intervals"]) >= 2


def test_nobody_listens_to_a_fan(bench: Bench, url: str) -> None:
    """Publishing alone has a rate too."""
    done = bench("fan", "--url", url, "--receivers", 0, "--messages", 5000, "--json")
    summary = done.summary
    assert (done.code, summary["sent"], summary["expected"], summary["received"]) == (0, 5000, 0, 0)
    assert summary["sent_per_s"] == pytest.approx(5000 / summary["seconds"])


def test_a_paced_run_keeps_its_rate(bench: Bench, url: str) -> None:
    done = bench("fan", "--url", url, "--seconds", 0.5, "--rate", 400, "--json")
    assert (done.code, done.summary["sent"]) == (0, 200)
    assert 0.49 < done.summary["seconds"] < LATE_S
    assert done.summary["latency_span"] == "due to received"


def test_connections_are_opened_at_the_rate(bench: Bench, url: str) -> None:
    done = bench("many", "--url", url, "--connections", 40, "--connect-rate", 100, "--seconds", 0.1, "--json")
    assert done.code == 0
    assert 0.38 < done.summary["connect_s"] < LATE_S


def test_memory_and_cpu_of_a_local_broker(bench: Bench, mortal: RunningBroker) -> None:
    """A fresh one: a broker that had as many connections before does not grow."""
    url = f"mqtt://127.0.0.1:{mortal.port}"
    idle = bench("many", "--url", url, "--connections", 10_000, "--seconds", 0.1, "--json").summary
    assert 100 < idle["bytes_per_connection"] < 20_000
    loaded = bench("fan", "--url", url, "--seconds", 0.3, "--json").summary
    assert loaded["bytes_per_connection"] is None  # of two connections it says nothing
    assert 0.01 < loaded["broker_cpu_s"] < 10
    assert 0.1 < loaded["broker_ready_share"] <= 1


def test_suite_runs_what_was_chosen(bench: Bench, url: str) -> None:
    done = bench("suite", "--url", url, "--seconds", 0.2, "--workloads", "mesh,ping-paced,many")
    assert (done.code, done.error) == (0, "")
    heads = [line for line in done.out.splitlines() if not line.startswith(" ")]
    assert [head.split(",")[0] for head in heads] == ["mesh of 20", "ping by 10 pairs", "1"]
    assert "total received" in done.out
    assert "held for 0.2 s" in done.out


def test_compare_shows_brokers_side_by_side(
    bench: Bench, tidemq: RunningBroker, mosquitto: RunningBroker, tmp_path: Path
) -> None:
    urls = {broker.name: f"mqtt://127.0.0.1:{broker.port}" for broker in (tidemq, mosquitto)}
    named = [f"--broker={name}={url}" for name, url in urls.items()]
    chosen = ["--workloads", "one-to-one,ping", "--seconds", "0.2", "--rounds", "2", "--out", tmp_path]
    done = bench("compare", *named, *chosen)
    assert (done.code, done.error) == (0, "")
    lines = done.out.splitlines()
    assert lines[0].split() == ["tidemq", "mosquitto"]
    assert [line.split("  ")[0] for line in lines[1:5]] == [
        "fan 1:1, QoS 0, 64 bytes: messages/s",
        "fan 1:1, QoS 0, 64 bytes: p99",
        "ping by 1 pair, QoS 0, 64 bytes: p50",
        "ping by 1 pair, QoS 0, 64 bytes: p99",
    ]
    rows = pq.read_table(tmp_path / "summary.parquet").to_pylist()
    assert [(row["workload"], row["round"], row["broker"], row["url"]) for row in rows] == [
        (workload, number, name, url)
        for workload in ("fan", "ping")
        for number in (1, 2)
        for name, url in urls.items()
    ]
    by_json = bench("compare", *named, "--workloads", "many", "--seconds", "0.1", "--rounds", "1", "--json")
    assert [each["run"]["broker"] for each in by_json.results] == ["tidemq", "mosquitto"]


def test_out_holds_what_json_says(bench: Bench, tidemq: RunningBroker, tmp_path: Path) -> None:
    url = f"mqtt://127.0.0.1:{tidemq.port}"
    done = bench("fan", "--url", url, "--messages", 100, "--json", "--out", tmp_path)
    (row,) = pq.read_table(tmp_path / "summary.parquet").to_pylist()
    assert row["run_id"] == done.result["run"]["run_id"]
    assert json.loads(row["arguments"]) == done.result["run"]["arguments"]
    assert pq.read_table(tmp_path / "latencies.parquet").num_rows == len(done.result["latencies"])
    assert pq.read_table(tmp_path / "intervals.parquet").num_rows == len(done.result["intervals"])
