"""Shares in processes of their own know what they must get from each other; the loss of one ends the run."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from bench.fake_broker import StrictBroker, listening
from bench.proxy import lose, proxied
from conftest import RunningBroker
from waiting import LATE_S, WAIT_S

from tidemq.bench.catalogue import Plan, Terms, fan, many, mesh
from tidemq.bench.load.board import Board
from tidemq.bench.measurement import waits_for_word
from tidemq.bench.shares.coordinator import Coordinator
from tidemq.bench.shares.exchange import LENGTHS, NOTHING, Clock, Comparison, Exchange, Status, Word, compare
from tidemq.bench.shares.sharing import share_out
from tidemq.bench.spark import Task, merge_rows, with_room
from tidemq.bench.workload import Connecting, Outcome, Workload
from tidemq.testing.ports import free_port

DRIVE = "import pickle, sys; task, number = pickle.load(sys.stdin.buffer); "
DRIVE += "sys.stdout.buffer.write(pickle.dumps(task.row(number)))"
OTHER_CLOCK = ["unshare", "--user", "--map-root-user", "--time", "--monotonic", "1000", "--fork"]


@dataclass
class Shares:
    """A plan's shares, a process each, as Spark's executors would run them."""

    plan: Plan
    url: str
    count: int = 2
    timeout_s: float = WAIT_S
    prefixes: Sequence[Sequence[str]] = ((), ())  # before the command of each
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    coordinator: Coordinator | None = None

    def run(self, meanwhile: Callable[[Shares], None] = lambda shares: None) -> tuple[Connecting, Outcome]:
        workload = with_room(self.plan.workload)
        shares = tuple(share_out(workload, self.count))
        with Coordinator(workload, shares, "127.0.0.1") as coordinator:
            self.coordinator, place = coordinator, ("127.0.0.1", coordinator.port)
            task = Task(workload, shares, self.url, self.timeout_s, place, coordinator.token)
            for number in range(len(shares)):
                command = [*self.prefixes[number], sys.executable, "-c", DRIVE]
                process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
                assert process.stdin is not None
                with process.stdin:
                    process.stdin.write(pickle.dumps((task, number)))
                self.processes.append(process)
            meanwhile(self)
            for number, process in enumerate(self.processes):
                assert process.stdout is not None
                with process.stdout:
                    said = process.stdout.read()
                process.wait()
                lost = {"share": number, "fault": "gone"}
                self.rows.append(pickle.loads(said) if said else lost)
        if coordinator.fault:
            raise ConnectionError(coordinator.fault)
        return merge_rows(workload, self.rows, coordinator)


def url_of(broker: RunningBroker) -> str:
    return f"mqtt://127.0.0.1:{broker.port}"


def test_nobody_of_another_share_is_missed(tidemq: RunningBroker) -> None:
    """The only subscriber is in another process than the publishers."""
    shares = Shares(fan(Terms(messages=20_000), 3, 1), url_of(tidemq))
    connecting, outcome = shares.run()
    assert [(row["sent"], row["received"]) for row in shares.rows] == [(60_000, 0), (0, 60_000)]
    assert outcome.intact
    assert (outcome.expected, outcome.received, outcome.shares, connecting.connections) == (
        60_000,
        60_000,
        2,
        4,
    )
    assert outcome.latency is not None
    assert (outcome.latency.count, outcome.clock_error_s) == (60_000, 0)
    assert 0 < outcome.latency.p50_us < 5e6


def test_what_is_lost_between_shares_is_counted(tidemq: RunningBroker) -> None:
    with proxied(tidemq.port, lose) as port:
        _, outcome = Shares(fan(Terms(messages=500), 1, 1), f"mqtt://127.0.0.1:{port}", timeout_s=2).run()
    assert (outcome.end, outcome.expected, outcome.lost) == ("stalled", 500, 50)


def test_connections_are_kept_until_all_shares_have_theirs() -> None:
    broker = StrictBroker(clients=2, late_s=2.5)
    with listening(broker.serve) as port:
        shares = Shares(many(Terms(mqtt="5.0", seconds=0.1), 2), f"mqtt://127.0.0.1:{port}")
        connecting, outcome = shares.run()
    assert connecting.connections == 2
    assert (outcome.end, outcome.shares, broker.ended) == ("complete", 2, 0)


def kill_when_it_runs(number: int) -> Callable[[Shares], None]:
    def kill(shares: Shares) -> None:
        assert shares.coordinator is not None
        give_up_s = time.monotonic() + WAIT_S
        while shares.coordinator.last_word(1).arrived < 200 and time.monotonic() < give_up_s:
            time.sleep(0.05)
        os.kill(shares.processes[number].pid, signal.SIGKILL)

    return kill


@pytest.mark.parametrize("number", [0, 1], ids=["publisher", "subscriber"])
def test_a_share_that_dies_ends_the_run(tidemq: RunningBroker, number: int) -> None:
    began = time.monotonic()
    shares = Shares(fan(Terms(seconds=100, rate=200), 1, 1), url_of(tidemq))
    _, outcome = shares.run(kill_when_it_runs(number))
    assert time.monotonic() - began < LATE_S
    assert (outcome.end, outcome.reason, outcome.intact) == ("share lost", f"share {number + 1} of 2", False)
    assert outcome.received > 100  # also of a subscriber that is gone: it has said so
    assert outcome.lost == outcome.expected - outcome.received
    assert outcome.lost < 500  # what was under way, and not more


def test_what_one_share_cannot_do_nobody_does(tidemq: RunningBroker) -> None:
    shares = Shares(mesh(Terms(messages=10), 2), f"mqtt://127.0.0.1:{free_port()}")
    with pytest.raises(ConnectionError, match="nobody listens there"):
        shares.run()


def test_clocks_that_differ_are_compared(tidemq: RunningBroker) -> None:
    """One share's monotonic clock is 1,000 seconds ahead."""
    if not shutil.which("unshare") or subprocess.run([*OTHER_CLOCK, "true"], capture_output=True).returncode:
        pytest.skip("a clock of its own may not be made here")
    plan = fan(Terms(messages=200, rate=400), 1, 1)
    shares = Shares(plan, url_of(tidemq), prefixes=(OTHER_CLOCK, ()))
    _, outcome = shares.run()
    assert outcome.intact
    assert outcome.latency is not None
    assert 0 < outcome.clock_error_s < LATE_S
    assert outcome.latency.p50_us < LATE_S * 1e6  # not 1,000 s,
    assert 0 < outcome.latency.max_us < WAIT_S * 1e6  # and not all of them 0
    assert 0.45 < outcome.seconds < WAIT_S


# ------------------------------------------------------------------ clocks and words


def word(received_ns: int, answered_ns: int) -> Word:
    return replace(NOTHING, received_ns=received_ns, answered_ns=answered_ns)


def test_a_comparison_is_off_by_half_of_the_way_at_most() -> None:
    """The other clock is 1,000 ahead; 30 there, 7 to answer, 10 back."""
    found = compare(100, word(1130, 1137), 147)
    assert found == Comparison(1010, 20)
    assert abs(found.offset_ns - 1000) <= found.error_ns


def test_clocks_that_go_apart_make_the_error_greater() -> None:
    clock = Clock(same=False)
    clock.take(Comparison(1000, 30), started=False)
    clock.take(Comparison(1010, 20), started=False)
    clock.take(Comparison(1200, 90), started=False)
    assert (clock.offset_ns, clock.error_s) == (1010, 20e-9)
    clock.take(Comparison(1110, 25), started=True)
    assert (clock.offset_ns, clock.error_s) == (1010, 125e-9)


def test_one_clock_needs_no_comparison() -> None:
    clock = Clock(same=True)
    clock.take(Comparison(1000, 30), started=False)
    assert (clock.offset_ns, clock.error_s) == (0, 0.0)


FAN: Workload = fan(Terms(), 2, 2).workload


@pytest.mark.parametrize(
    ("workload", "sent", "word_s", "limited"),
    [
        (FAN, 1_000_000, 0.02, True),  # 20,000 may be under way: all of them in 20 ms
        (FAN, 100_000, 0.02, False),
        (FAN, 20_000, 1.0, False),  # nobody had to wait
        (FAN, 1_000_000, 0.0, False),  # one process
        (replace(FAN, rate_per_s=1e6), 1_000_000, 0.02, False),  # nobody waits for it
    ],
)
def test_a_run_that_waits_for_the_word_is_limited_by_it(
    workload: Workload, sent: int, word_s: float, limited: bool
) -> None:
    outcome = Outcome(
        end="complete",
        sent=sent,
        expected=0,
        received=0,
        lost=0,
        duplicates=0,
        disordered=0,
        foreign=0,
        ack_errors=0,
        seconds=1.0,
        generator_cpu_s=0.0,
        generator_ready_share=0.0,
        latency=None,
        latencies=(),
        ack_latency=None,
        intervals=(),
        word_s=word_s,
    )
    assert waits_for_word(workload, outcome) is limited


# ------------------------------------------------------------------ the coordinator


def test_shares_that_do_not_come_are_not_waited_for() -> None:
    shares = share_out(FAN, 2)
    with Coordinator(FAN, shares, "127.0.0.1", wait_s=0.1) as coordinator:
        board = Board(FAN, shares[:1], shares[1:])
        exchange = Exchange(("127.0.0.1", coordinator.port), coordinator.token, 0, board)
        with pytest.raises(ConnectionError, match=r"only 1 of 2 shares came within 0\.1 s"):
            exchange.agree()
        exchange.close("")


def test_a_second_attempt_is_too_late() -> None:
    """Spark tries a lost task again."""
    shares = share_out(FAN, 2)
    with Coordinator(FAN, shares, "127.0.0.1") as coordinator:
        place = ("127.0.0.1", coordinator.port)
        board = Board(FAN, shares[:1], shares[1:])
        first = Exchange(place, coordinator.token, 0, board)
        with pytest.raises(ConnectionError, match="is gone"):
            Exchange(place, coordinator.token, 0, board)
        first.close("complete")
        assert coordinator.last_word(0).end == "complete"


def test_a_stranger_is_not_let_in() -> None:
    shares = share_out(FAN, 2)
    with Coordinator(FAN, shares, "127.0.0.1") as coordinator:
        board = Board(FAN, shares[:1], shares[1:])
        with pytest.raises(ConnectionError, match="is gone"):
            Exchange(("127.0.0.1", coordinator.port), "wrong", 0, board)
        assert coordinator.enter(0)  # nobody was


@pytest.mark.parametrize(
    "head", [[], "text", {"counts": 5}, {"counts": []}, {"token": "é", "number": 0, "counts": []}]
)
def test_what_is_no_share_is_turned_away_quietly(head: object, capfd: pytest.CaptureFixture[str]) -> None:
    text = json.dumps(head).encode()
    with (
        Coordinator(FAN, share_out(FAN, 2), "127.0.0.1") as coordinator,
        socket.create_connection(("127.0.0.1", coordinator.port), WAIT_S) as stranger,
    ):
        stranger.sendall(LENGTHS.pack(len(text), 0) + text)
        assert stranger.recv(1) == b""
    assert capfd.readouterr().err == ""


def test_a_coordinator_that_is_gone_ends_the_run() -> None:
    shares = share_out(FAN, 2)
    board = Board(FAN, shares[:1], shares[1:])
    with Coordinator(FAN, shares, "127.0.0.1") as coordinator:
        exchange = Exchange(("127.0.0.1", coordinator.port), coordinator.token, 0, board)
    deadline = time.monotonic() + 5
    while not board.ended and time.monotonic() < deadline:
        time.sleep(0.01)
    assert board.ended == "share lost"
    exchange.close("")


def test_what_arrived_everywhere_is_the_least_of_all() -> None:
    shares = share_out(FAN, 4)  # two publishers, two subscribers
    counts = [[5, 9], [7, 2]]
    with Coordinator(FAN, shares, "127.0.0.1") as coordinator:
        for number, share in enumerate(shares):
            coordinator.enter(number)
            confirmed = (
                b"".join(n.to_bytes(8, sys.byteorder) for n in counts.pop()) if share.subscribers else b""
            )
            coordinator.take(number, Status(confirmed=confirmed))
        time.sleep(0.01)
        said = coordinator.take(0, Status())
    assert list(memoryview(said.confirmed).cast("Q")) == [5, 2]
