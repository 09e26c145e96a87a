"""What a broker loses, repeats or disorders is found; a run ends by itself, also when the broker dies."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import forks
import pytest
from bench.conftest import Bench, Done
from bench.proxy import Change, Swap, cut_after, lose, proxied, repeat
from conftest import RunningBroker
from waiting import LATE_S, WAIT_S

COUNTS = ("lost", "duplicates", "disordered", "foreign")


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


def test_a_proxy_that_changes_nothing_changes_nothing(bench: Bench, url: str) -> None:
    with proxied(port_of(url), lambda number, frame: [frame]) as port:
        done = bench("fan", "--url", f"mqtt://127.0.0.1:{port}", "--messages", 500, "--json")
    assert done.code == 0
    assert [done.summary[name] for name in COUNTS] == [0, 0, 0, 0]


FAULTS = [
    (lose, "stalled", (50, 0, 0, 0), "50 of 500 messages are missing"),
    (repeat, "complete", (0, 50, 0, 0), "repeated 50"),
    (Swap, "complete", (0, 0, 50, 0), "out of order 50"),
]
SILENCE_S = 2.0  # that ends a run; what still comes must come sooner, also on a busy machine
FAULTY = ["--messages", "500", "--timeout", str(SILENCE_S)]


def through_proxy(bench: Bench, url: str, change: Change | type[Swap], *arguments: str) -> Done:
    """What a command did whose messages were changed on their way."""
    with proxied(port_of(url), change() if isinstance(change, type) else change) as port:
        return bench(*arguments, "--url", f"mqtt://127.0.0.1:{port}", *FAULTY)


@pytest.mark.parametrize(
    ("change", "end", "counts"), [fault[:3] for fault in FAULTS], ids=["lost", "repeated", "disordered"]
)
@pytest.mark.parametrize("arguments", [["fan"], ["pairs", "--pairs", "1"]], ids=["fan", "pairs"])
def test_each_fault_is_counted(
    bench: Bench,
    url: str,
    arguments: list[str],
    change: Change | type[Swap],
    end: str,
    counts: tuple[int, ...],
) -> None:
    done = through_proxy(bench, url, change, *arguments, "--json")
    assert (done.code, done.summary["end"], done.summary["intact"]) == (1, end, False)
    assert tuple(done.summary[name] for name in COUNTS) == counts


@pytest.mark.parametrize(
    ("change", "_end", "_counts", "said"), FAULTS, ids=["lost", "repeated", "disordered"]
)
def test_each_fault_is_said(
    bench: Bench, tidemq: RunningBroker, change: Change | type[Swap], _end: str, _counts: object, said: str
) -> None:
    done = through_proxy(bench, f"mqtt://127.0.0.1:{tidemq.port}", change, "fan")
    assert done.code == 1
    assert said in done.out


def test_a_lost_ping_is_missed(bench: Bench, url: str) -> None:
    """The pair cannot go on without it."""
    with proxied(port_of(url), lose) as port:
        done = bench(
            "ping", "--url", f"mqtt://127.0.0.1:{port}", "--messages", 100, "--timeout", SILENCE_S, "--json"
        )
    assert (done.code, done.summary["end"]) == (1, "stalled")
    assert (done.summary["sent"], done.summary["received"], done.summary["lost"]) == (5, 4, 1)


def test_a_connection_that_is_cut_ends_the_run(bench: Bench, url: str) -> None:
    with proxied(port_of(url), cut_after(300)) as port:
        done = bench("fan", "--url", f"mqtt://127.0.0.1:{port}", "--messages", 1000, "--json")
    assert (done.code, done.summary["end"]) == (1, "disconnected")
    assert done.summary["received"] == 300
    assert done.summary["lost"] == done.summary["sent"] - 300


def loaded_clients(port: int) -> int:
    """Connections that a broker of this machine has."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return sum(fields[1].endswith(f":{port:04X}") and fields[3] == "01" for fields in map(str.split, lines))


def await_load(port: int) -> None:
    """Until a broker has had more than one client for some time."""
    give_up_s = time.monotonic() + WAIT_S
    while loaded_clients(port) < 2 and time.monotonic() < give_up_s:
        time.sleep(0.02)
    time.sleep(0.4)


@contextmanager
def struck(broker: RunningBroker, blow: signal.Signals) -> Iterator[None]:
    """The broker gets a signal while it is under load."""

    def strike() -> None:
        await_load(broker.port)
        os.kill(broker.process.pid, blow)

    thread = threading.Thread(target=strike)
    thread.start()
    try:
        yield
    finally:
        thread.join()


@pytest.mark.parametrize(
    "command", [["fan", "--qos", "1"], ["ping", "--rate", "100"], ["many", "--connections", "20"]], ids=str
)
def test_a_broker_that_is_killed_ends_the_run(
    bench: Bench, mortal: RunningBroker, command: list[str]
) -> None:
    began = time.monotonic()
    with struck(mortal, signal.SIGKILL):
        done = bench(*command, "--url", f"mqtt://127.0.0.1:{mortal.port}", "--seconds", 100)
    assert done.code == 1
    assert "THE BROKER CLOSED A CONNECTION" in done.out
    assert time.monotonic() - began < LATE_S


def test_a_broker_that_hangs_ends_the_run(bench: Bench, mortal: RunningBroker) -> None:
    began = time.monotonic()
    with struck(mortal, signal.SIGSTOP):
        done = bench(
            *("fan", "--url", f"mqtt://127.0.0.1:{mortal.port}", "--seconds", 100),
            *("--timeout", SILENCE_S, "--json"),
        )
    assert (done.code, done.summary["end"]) == (1, "stalled")
    assert done.summary["lost"] == done.summary["expected"] - done.summary["received"] > 0
    assert time.monotonic() - began < LATE_S


def test_the_others_are_still_compared_when_one_dies(
    bench: Bench, mortal: RunningBroker, mosquitto: RunningBroker
) -> None:
    brokers = [f"--broker=dies=mqtt://127.0.0.1:{mortal.port}"]
    brokers += [f"--broker=lives=mqtt://127.0.0.1:{mosquitto.port}"]
    with struck(mortal, signal.SIGKILL):
        done = bench("compare", *brokers, "--workloads", "ping,many", "--seconds", 0.6, "--rounds", 2)
    assert done.code == 1
    assert "dies: mqtt://127.0.0.1:" in done.error
    assert "nobody listens there" in done.error
    last = next(line for line in done.out.splitlines() if "idle clients: connections/s" in line)
    assert last.split("/s")[1].split()[0] == "—"  # of the dead one


def test_a_run_that_is_interrupted_says_what_it_knows(mortal: RunningBroker) -> None:
    command = ["bench", "fan", "--json"]
    command += ["--url", f"mqtt://127.0.0.1:{mortal.port}", "--seconds", "60", "--rate", "1000"]
    with forks.Tidemq(command, stdout=subprocess.PIPE, text=True) as process:
        await_load(mortal.port)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=WAIT_S)
    summary = Done(process.returncode, out, "").summary
    assert (process.returncode, summary["end"], summary["intact"]) == (1, "interrupted", False)
    assert 0 < summary["received"] < 10_000
