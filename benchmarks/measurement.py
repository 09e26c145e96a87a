"""One measured run: a workload against a running broker, with the CPU that both of them used."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from pathlib import Path

from peers.peer import Running
from workloads import Scenario

from tidemq.bench.load.generator import Generator
from tidemq.bench.peer.target import local_target
from tidemq.bench.process import cpu_s, resident_bytes
from tidemq.bench.workload import Outcome, Workload

SETTLE_IDLE_S = 0.5  # before and after 10,000 connections, before its memory is read
BUSY_SHARE = 0.9  # a single thread that used so much of the time had no more to give
CLOCK_ERROR_S = 0.05  # of what others used: /proc/stat counts in hundredths, and by sampling
WARM_UP_S_MIN = 0.02  # a shorter warm-up says too little of the rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What one run of one scenario against one broker showed."""

    scenario: str
    broker: str
    reactors: int  # 0: the broker's default
    outcome: Outcome
    paced: bool
    broker_cpu_s: float
    others_cpu_s: (
        float  # used by anybody else on this machine during the run: above a few percent, distrust it
    )
    bytes_per_connection: float = 0.0  # of resident memory, idle connections only

    @property
    def per_s(self) -> float:
        """Deliveries per second."""
        return self.outcome.messages_per_s

    @property
    def per_cpu_s(self) -> float:
        """Deliveries per second of the broker's CPU."""
        return self.outcome.received / self.broker_cpu_s if self.broker_cpu_s else 0.0

    @property
    def cpu_us(self) -> float:
        """The broker's CPU for one delivery, in microseconds."""
        return 1e6 / self.per_cpu_s if self.per_cpu_s else 0.0

    @property
    def generator_bound(self) -> bool:
        """The generator had no more to give, the broker had: deliveries per second say little about it."""
        seconds = self.outcome.seconds
        return (
            not self.paced  # it may poll, and has its rate anyway
            and self.outcome.generator_cpu_s > BUSY_SHARE * seconds
            and self.broker_cpu_s < BUSY_SHARE * seconds * max(self.reactors, 1)
        )

    @property
    def disturbed(self) -> bool:
        """Other processes took more than a twentieth of a core while this ran."""
        return self.others_cpu_s > max(0.05 * self.outcome.seconds, CLOCK_ERROR_S)


def measure(scenario: Scenario, workload: Workload, broker: str, reactors: int, running: Running) -> Sample:
    """Run `workload` against `running` to its end; ConnectionError when it cannot be set up."""
    generator = Generator(workload, local_target(running.port))
    idle = scenario.kind == "idle"
    if idle:
        time.sleep(SETTLE_IDLE_S)
    memory_bytes = resident_bytes(running.pid)
    try:
        generator.connect(timeout_s=120)
        if idle:
            time.sleep(SETTLE_IDLE_S)
            memory_bytes = resident_bytes(running.pid) - memory_bytes
        before_s, busy_s = cpu_s(running.pid), busy_cpu_s()
        own_s = time.process_time()
        outcome = bare(generator.run())
        broker_cpu_s = cpu_s(running.pid) - before_s
        others_cpu_s = busy_cpu_s() - busy_s - broker_cpu_s - (time.process_time() - own_s)
    finally:
        generator.close()
    return Sample(
        scenario=scenario.name,
        broker=broker,
        reactors=reactors,
        outcome=outcome,
        paced=workload.rate_per_s > 0,
        broker_cpu_s=broker_cpu_s,
        others_cpu_s=max(others_cpu_s, 0.0),
        bytes_per_connection=memory_bytes / workload.idle_connections if idle else 0.0,
    )


def run_load(workload: Workload, running: Running, idle_limit_s: float = 5.0) -> Outcome:
    """Run `workload` to its end; ConnectionError when it cannot be set up."""
    generator = Generator(workload, local_target(running.port))
    try:
        generator.connect(timeout_s=120)
        return bare(generator.run(idle_limit_s))
    finally:
        generator.close()


def bare(outcome: Outcome) -> Outcome:
    """Without the samples over time, of which a recorded result would have thousands of lines."""
    return replace(outcome, intervals=(), latencies=())


def sized(workload: Workload, sample: Sample, seconds: float) -> Workload:
    """As many messages as this broker, by its warm-up `sample`, takes `seconds` for."""
    if workload.rate_per_s:
        return replace(workload, messages=int(workload.rate_per_s * seconds) // workload.publishers)
    if not workload.publishers:
        return workload
    factor = seconds / max(sample.outcome.seconds, WARM_UP_S_MIN)
    return replace(workload, messages=max(int(workload.messages * factor), 1))


def busy_cpu_s() -> float:
    """CPU seconds that all processes of this machine used since it started, in hundredths (/proc/stat)."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
