"""One measured run: a plan against a broker, with what both sides used, as a `Result`.

When the generator limits: both sides are stages of one closed loop, and the stage that is ready to run for
the greater part of the time sets the rate. Ready means running or waiting for a core, so that a busy machine
does not hide it. Of a generator with several threads, and of a broker on this machine, the busiest counts.
"""

from __future__ import annotations

import os
import secrets
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Protocol

from tidemq.bench.catalogue import Plan
from tidemq.bench.peer.target import Target
from tidemq.bench.process import (
    cpu_s,
    listener_pid,
    machine_text,
    ready_s_by_thread,
    resident_bytes,
)
from tidemq.bench.result import Description, Interval, Result, Summary
from tidemq.bench.shares.threads import ONE_THREAD, Drive, GeneratorThreads
from tidemq.bench.workload import Connecting, Outcome, Workload

GENERATOR_SHARE_MIN = 0.75  # a generator that slept more had time for more messages
BROKER_SHARE_MAX = 0.9  # a broker that slept less had hardly any more to give
GENERATOR_SHARE_ALONE = 0.9  # where the broker cannot be looked at
CONNECTIONS_MIN = 100  # with fewer, a broker's memory says nothing of one
SETTLE_S = 0.3  # before a broker's memory is read


class Observer(Protocol):
    """Is told how a run goes on."""

    def begin(self, label: str, broker: str, connections: int) -> None: ...
    def connected(self, count: int) -> None: ...
    def interval(self, interval: Interval) -> None: ...
    def end(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Broker:
    """One that is to be measured; `name` is for tables."""

    name: str
    target: Target
    version: str  # empty: it does not say


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process had used at some time."""

    cpu_s: float
    ready_s: dict[str, float]  # by thread

    def until(self, later: Usage, seconds: float) -> tuple[float, float]:
        """CPU seconds since, and the share of `seconds` that the busiest thread was ready, 0 to 1."""
        busiest = max(
            (ready - self.ready_s.get(name, 0.0) for name, ready in later.ready_s.items()), default=0
        )
        return later.cpu_s - self.cpu_s, min(busiest / seconds, 1.0) if seconds else 0.0


def usage_of(pid: int | None) -> Usage | None:
    """None where there is no such process."""
    if pid is None:
        return None
    try:
        return Usage(cpu_s(pid), ready_s_by_thread(pid))
    except ProcessLookupError:
        return None


def local_pid(target: Target) -> int | None:
    """The broker's process, if it is on this machine, may be looked at, and is not this one."""
    if not target.local:
        return None
    pid = listener_pid(target.port) if target.port else listener_pid(path=target.host)
    return None if pid == os.getpid() else pid


def measure(
    plan: Plan,
    broker: Broker,
    observer: Observer,
    timeout_s: float = 30.0,
    round_: int = 1,
    drive: Drive = ONE_THREAD,
) -> Result:
    """Run `plan` to its end.

    `timeout_s` is for connecting, and for how long nothing may arrive before what is out counts as lost.
    ConnectionError or UsageError, in one sentence, when the run cannot be begun.
    """
    pid = local_pid(broker.target)
    started_at = datetime.now(UTC)
    generator = GeneratorThreads(plan.workload, broker.target, drive)
    observer.begin(plan.label, broker.name, plan.workload.connections)
    try:
        memory_bytes = memory_of(pid)
        connecting = generator.connect(timeout_s, observer.connected)
        growth = None
        if connecting.connections >= CONNECTIONS_MIN:
            generator.tend(SETTLE_S)
            growth = memory_growth(memory_bytes, memory_of(pid), connecting.connections)
        before, began_s = usage_of(pid), time.monotonic()
        outcome = generator.run(timeout_s, observer.interval)
        after, took_s = usage_of(pid), time.monotonic() - began_s
    finally:
        generator.close()
        observer.end()
    used = before.until(after, took_s) if before and after else None
    return Result(
        run=description(plan, broker, started_at, round_, drive),
        summary=summary(plan.workload, connecting, outcome, growth, used),
        intervals=outcome.intervals,
        latencies=outcome.latencies,
    )


def memory_of(pid: int | None) -> int | None:
    try:
        return None if pid is None else resident_bytes(pid)
    except (FileNotFoundError, ProcessLookupError):
        return None


def memory_growth(before: int | None, after: int | None, connections: int) -> float | None:
    return None if before is None or after is None else (after - before) / connections


def description(
    plan: Plan, broker: Broker, started_at: datetime, round_: int, drive: Drive = ONE_THREAD
) -> Description:
    return Description(
        run_id=secrets.token_hex(8),
        workload=plan.workload.name,
        label=plan.label,
        arguments=dict(plan.arguments) | {"threads": drive.threads, "source": " ".join(drive.sources)},
        broker=broker.name,
        url=broker.target.url,
        broker_version=broker.version,
        mqtt=plan.mqtt,
        machine=machine_text(),
        started_at=started_at,
        tool_version=version("tidemq"),
        round=round_,
    )


def summary(
    workload: Workload,
    connecting: Connecting,
    outcome: Outcome,
    bytes_per_connection: float | None,
    broker_used: tuple[float, float] | None,
) -> Summary:
    share = outcome.generator_ready_share
    broker_cpu_s, broker_share = broker_used or (None, None)
    by_exchange = waits_for_word(workload, outcome)
    return Summary(
        end=outcome.end,
        reason=outcome.reason,
        sent=outcome.sent,
        expected=outcome.expected,
        received=outcome.received,
        lost=outcome.lost,
        duplicates=outcome.duplicates,
        disordered=outcome.disordered,
        foreign=outcome.foreign,
        ack_errors=outcome.ack_errors,
        seconds=outcome.seconds,
        sent_per_s=outcome.sent_per_s,
        received_per_s=outcome.messages_per_s,
        ns_per_message=1e9 / outcome.messages_per_s if outcome.messages_per_s else 0.0,
        latency_span=workload.latency_span,
        latency=outcome.latency,
        connections=connecting.connections,
        connect_s=connecting.seconds,
        connects_per_s=connecting.per_s,
        connect_latency=connecting.latency,
        bytes_per_connection=bytes_per_connection,
        shares=outcome.shares,
        clock_error_us=outcome.clock_error_s * 1e6,
        generator_cpu_s=outcome.generator_cpu_s,
        generator_ready_share=share,
        broker_cpu_s=broker_cpu_s,
        broker_ready_share=broker_share,
        limited_by_generator=by_exchange or is_limited(share, broker_share),
        limited_by_exchange=by_exchange,
    )


def waits_for_word(workload: Workload, outcome: Outcome) -> bool:
    """Of what might be under way, half or more had arrived, and its publishers did not know: by Little's law,
    what is sent while the word is on its way.
    """
    bound = workload.outstanding_max
    if not bound or workload.single or workload.rate_per_s or outcome.sent <= bound:
        return False
    return outcome.sent_per_s * outcome.word_s >= bound / 2


def is_limited(generator_share: float, broker_share: float | None) -> bool:
    """The generator set the rate, and the broker could have done noticeably more."""
    if broker_share is None:
        return generator_share >= GENERATOR_SHARE_ALONE
    return generator_share >= GENERATOR_SHARE_MIN and broker_share < min(generator_share, BROKER_SHARE_MAX)
