"""One workload by several threads: nothing is counted less strictly, and the run ends as one."""

from __future__ import annotations

import signal
import subprocess
import time

import forks
import pytest
from bench.conftest import Bench, Done
from bench.fake_broker import StrictBroker, listening
from bench.proxy import Change, cut_after, lose, proxied, repeat
from bench.test_faults import SILENCE_S, await_load, struck
from conftest import RunningBroker
from waiting import LATE_S, WAIT_S

from tidemq.bench.catalogue import Terms, many
from tidemq.bench.peer.target import local_target
from tidemq.bench.shares.threads import Drive, GeneratorThreads
from tidemq.testing.ports import free_port

# command, its arguments, messages sent, deliveries, connections, threads that have something to do
COMMANDS = [
    ("fan", ["--senders", 5, "--receivers", 3, "--messages", 2000], 10_000, 30_000, 8, 3),
    ("fan", ["--messages", 500, "--qos", 1], 500, 500, 2, 2),
    ("fan", ["--senders", 3, "--receivers", 2, "--messages", 50, "--rate", 1000], 150, 300, 5, 3),
    ("mesh", ["--clients", 7, "--messages", 300, "--qos", 2], 2100, 14_700, 7, 3),
    ("pairs", ["--pairs", 4, "--messages", 100, "--qos", 1], 400, 400, 8, 3),
    ("ping", ["--pairs", 4, "--messages", 20, "--rate", 400], 160, 160, 8, 3),
    ("many", ["--connections", 100, "--connect-rate", 1000, "--seconds", 0.1], 0, 0, 100, 3),
    ("many", ["--connections", 50, "--seconds", 0.2, "--rate", 200], 40, 40, 50, 3),
    ("ticktock", ["--clients", 7, "--messages", 3, "--rate", 20], 3, 21, 8, 3),
    ("subscribers", ["--count", 30], 5, 150, 31, 3),
]


@pytest.mark.parametrize(
    ("command", "arguments", "sent", "received", "connections", "shares"),
    COMMANDS,
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_everything_is_counted(
    bench: Bench,
    tidemq: RunningBroker,
    command: str,
    arguments: list[object],
    sent: int,
    received: int,
    connections: int,
    shares: int,
) -> None:
    url = f"mqtt://127.0.0.1:{tidemq.port}"
    done = bench(command, "--url", url, "--threads", 3, "--json", *arguments)
    assert (done.code, done.error) == (0, "")
    summary = done.summary
    assert summary["intact"]
    assert (summary["sent"], summary["received"], summary["expected"]) == (sent, received, received)
    assert (summary["connections"], summary["shares"]) == (connections, shares)
    assert summary["connect_latency"]["count"] == connections
    assert sum(interval["received"] for interval in done.result["intervals"]) == received
    timed = received // (2 if command == "ping" else 1)
    assert sum(bucket["count"] for bucket in done.result["latencies"]) == timed


def test_a_thread_keeps_its_connections_while_another_makes_its_own() -> None:
    broker = StrictBroker(clients=2, late_s=2.5)
    workload = many(Terms(mqtt="5.0", seconds=0.1), 2).workload
    with listening(broker.serve) as port:
        threads = GeneratorThreads(workload, local_target(port), Drive(threads=2))
        try:
            connecting = threads.connect(20.0, lambda _: None)
            threads.tend(2.0)
            outcome = threads.run(5.0, lambda _: None)
        finally:
            threads.close()
    assert connecting.connections == 2
    assert (outcome.end, outcome.shares, broker.ended) == ("complete", 2, 0)


def test_a_rate_is_that_of_all_threads(bench: Bench, tidemq: RunningBroker) -> None:
    done = bench(
        "fan",
        *("--url", f"mqtt://127.0.0.1:{tidemq.port}", "--threads", 3, "--json"),
        *("--senders", 4, "--seconds", 0.5, "--rate", 400),
    )
    assert (done.code, done.summary["sent"]) == (0, 200)
    assert 0.49 < done.summary["seconds"] < LATE_S


@pytest.mark.parametrize(
    ("change", "end", "lost", "duplicates"),
    [(lose, "stalled", 50, 0), (repeat, "complete", 0, 50), (cut_after(300), "disconnected", None, 0)],
    ids=["lost", "repeated", "cut"],
)
def test_the_receiving_thread_knows_what_the_other_sent(
    bench: Bench, url: str, change: Change, end: str, lost: int | None, duplicates: int
) -> None:
    with proxied(int(url.rpartition(":")[2]), change) as port:
        done = bench(
            *("fan", "--url", f"mqtt://127.0.0.1:{port}", "--threads", 2, "--messages", 500),
            *("--timeout", SILENCE_S, "--json"),
        )
    summary = done.summary
    assert (done.code, summary["end"], summary["shares"]) == (1, end, 2)
    assert summary["duplicates"] == duplicates
    assert summary["lost"] == (summary["sent"] - 300 if lost is None else lost)


def test_threads_share_what_may_be_under_way(bench: Bench, mortal: RunningBroker) -> None:
    """A publisher waits for subscribers of other threads."""
    with struck(mortal, signal.SIGSTOP):
        done = bench(
            *("fan", "--url", f"mqtt://127.0.0.1:{mortal.port}", "--receivers", 2, "--threads", 2),
            *("--size", 200_000, "--seconds", 30, "--timeout", SILENCE_S, "--json"),
        )
    assert (done.code, done.summary["end"]) == (1, "stalled")
    under_way = done.summary["sent"] - done.summary["received"] / 2
    assert 0 < under_way <= (32 << 20) // 200_000


def test_a_broker_that_is_killed_ends_all(bench: Bench, mortal: RunningBroker) -> None:
    began = time.monotonic()
    with struck(mortal, signal.SIGKILL):
        done = bench("mesh", "--url", f"mqtt://127.0.0.1:{mortal.port}", "--threads", 3, "--seconds", 100)
    assert done.code == 1
    assert "THE BROKER CLOSED A CONNECTION" in done.out
    assert time.monotonic() - began < LATE_S


def test_what_is_interrupted_says_what_it_knows(tidemq: RunningBroker) -> None:
    command = ["bench", "mesh", "--json"]
    command += ["--url", f"mqtt://127.0.0.1:{tidemq.port}", "--threads", "2", "--seconds", "60"]
    with forks.Tidemq([*command, "--rate", "1000"], stdout=subprocess.PIPE, text=True) as process:
        await_load(tidemq.port)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=WAIT_S)
    summary = Done(process.returncode, out, "").summary
    assert (process.returncode, summary["end"]) == (1, "interrupted")
    assert 0 < summary["received"] < 1_000_000


def test_what_no_thread_can_do_is_said_once(bench: Bench) -> None:
    done = bench("mesh", "--url", f"mqtt://127.0.0.1:{free_port()}", "--threads", 4)
    assert (done.code, done.out) == (2, "")
    (line,) = done.error.splitlines()
    assert "nobody listens there" in line


def test_no_threads_are_too_few(bench: Bench, tidemq: RunningBroker) -> None:
    done = bench("mesh", "--url", f"mqtt://127.0.0.1:{tidemq.port}", "--threads", 0)
    assert (done.code, done.error) == (2, "Error: a load needs at least one thread\n")
