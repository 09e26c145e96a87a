"""One run of a load against a broker, or several that share it, and what each of their threads did."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar
from urllib.request import urlopen

from measurement import bare, busy_cpu_s
from peers.peer import Conditions, Running
from peers.tidemq import TideMQ

from tidemq.bench.peer.target import local_target
from tidemq.bench.process import cpu_s
from tidemq.bench.shares.sharing import cut, merge_outcomes
from tidemq.bench.shares.threads import Drive, GeneratorThreads
from tidemq.bench.workload import Outcome, Workload
from tidemq.testing.ports import free_port

Limit = Literal["broker", "one reactor", "generator", "one generator thread", "all cores", "waits", "rate"]
USED_UP = 0.9  # of its time a thread ran, or of their time its cores were used: it had hardly more to give
DISTURBED_SHARE = 0.01
THREAD_SHARE_MIN = 0.01  # threads that ran less are not listed
READY_LIMIT_S = 60.0  # until the admin listener answers
REACTOR_LINE = re.compile(
    rb"^tidemq_reactor_(turns_total|messages_received_total|messages_sent_total)"
    rb'\{reactor="(\d+)"\} (\S+)$',
    re.MULTILINE,
)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Watched:
    """A broker that runs, and where it tells what its reactors do; 0: it does not."""

    running: Running
    admin_port: int = 0


@dataclass(frozen=True, slots=True)
class Side:
    """What is loaded: a broker, or several that have a share of the load each."""

    name: str
    reactors: int  # of all together: event loops, and cores
    brokers: Sequence[Watched]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reactor:
    """What a reactor did in a run."""

    turns: int
    received: int
    sent: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What one run showed."""

    scenario: str
    side: str
    reactors: int
    shared: bool  # broker and generator had the same cores
    paced: bool
    outcome: Outcome
    took_s: float  # the run as the CPU figures see it
    broker_cpu_s: float
    thread_shares: Sequence[float]  # of that time, which each of the broker's threads ran; the busiest first
    waited_shares: Sequence[float]  # the same threads, in the same order: ready, and without a core
    others_cpu_s: float  # of this machine's other processes, and what its host took
    by_reactor: Sequence[Reactor]
    counters: Mapping[str, int]  # of the broker, by how much they grew

    @property
    def messages(self) -> int:
        """Deliveries; where subscribers stay away, messages that were stored and acknowledged."""
        return self.outcome.received or self.outcome.sent

    @property
    def per_s(self) -> float:
        return self.messages / self.outcome.seconds if self.outcome.seconds else 0.0

    @property
    def per_cpu_s(self) -> float:
        """Messages per second of the broker's CPU."""
        return self.messages / self.broker_cpu_s if self.broker_cpu_s else 0.0

    @property
    def cores_used(self) -> float:
        """CPU seconds of the broker in each second."""
        return self.broker_cpu_s / self.took_s

    @property
    def generator_cores_used(self) -> float:
        return self.outcome.generator_cpu_s / self.took_s

    @property
    def mailed(self) -> float:
        """Mails to other reactors for each message received."""
        received = self.counters.get("messages_received", 0)
        return self.counters.get("messages_mailed", 0) / received if received else 0.0

    @property
    def turn_messages(self) -> float:
        """Messages received in a turn."""
        turns = self.counters.get("turns", 0)
        return self.counters.get("messages_received", 0) / turns if turns else 0.0

    @property
    def busiest(self) -> float:
        """Of its time, what the busiest thread of the broker ran."""
        return max(self.thread_shares, default=0.0)

    @property
    def unevenness(self) -> float:
        """Messages in and out of the reactor with most of them, to those of an average one; 0: not known."""
        work = [each.received + each.sent for each in self.by_reactor]
        return max(work) * len(work) / sum(work) if sum(work) else 0.0

    def disturbed(self, cores: int) -> bool:
        """Other processes, or this machine's host, took more than a hundredth of all cores' time."""
        return self.others_cpu_s > DISTURBED_SHARE * cores * self.took_s

    def limit(self, cores: int) -> Limit:
        """Who had no more to give, on a machine with so many cores."""
        threads = max(self.outcome.shares, 1)
        if self.paced:
            return "rate"
        if self.cores_used >= USED_UP * self.reactors:
            return "broker"
        if self.shared and self.cores_used + self.generator_cores_used >= USED_UP * cores:
            return "all cores"
        if self.generator_cores_used >= USED_UP * threads:
            return "generator"
        if self.busiest >= USED_UP:
            return "one reactor"
        if self.outcome.generator_ready_share >= USED_UP:
            return "one generator thread"
        return "waits"


class WithAdmin(TideMQ):
    """TideMQ with an admin listener, by which its reactors can be looked at between runs."""

    admin_port = 0

    def __init__(self, name: str, store: str, preload: str = "") -> None:
        """``preload``: a library that takes the place of some of the system's functions."""
        super().__init__(name, store)
        self.preload = preload

    def environment(self, folder: Path) -> Mapping[str, str]:
        return {"LD_PRELOAD": self.preload} if self.preload else {}

    def command(self, folder: Path, port: int, conditions: Conditions) -> Sequence[str]:
        self.admin_port = free_port()
        return [*super().command(folder, port, conditions), "--admin-port", str(self.admin_port)]

    @contextmanager
    def watched(self, conditions: Conditions) -> Iterator[Watched]:
        """It runs while the block does; RuntimeError if it does not come to listen."""
        with self.started(conditions) as running:
            deadline = time.monotonic() + READY_LIMIT_S
            while not answers(self.admin_port):
                if time.monotonic() > deadline:
                    raise RuntimeError(f"its admin listener did not answer within {READY_LIMIT_S:g} s")
                time.sleep(0.02)
            yield Watched(running, self.admin_port)


def answers(admin_port: int) -> bool:
    try:
        return bool(got(admin_port, "/counters"))
    except OSError:
        return False


def got(admin_port: int, path: str) -> bytes:
    with urlopen(f"http://127.0.0.1:{admin_port}{path}", timeout=READY_LIMIT_S) as answer:
        content: bytes = answer.read()
        return content


@dataclass(frozen=True, slots=True)
class Look:
    """What a broker had done at some time."""

    reactors: Mapping[int, Mapping[str, int]]
    counters: Mapping[str, int]


def look(broker: Watched) -> Look:
    """Nothing of one that does not tell."""
    if not broker.admin_port:
        return Look({}, {})
    reactors: dict[int, dict[str, int]] = {}
    for name, number, figure in REACTOR_LINE.findall(got(broker.admin_port, "/metrics")):
        reactors.setdefault(int(number), {})[name.decode()] = int(float(figure))
    return Look(reactors, json.loads(got(broker.admin_port, "/counters")))


def since(before: Look, after: Look) -> list[Reactor]:
    found = []
    for number, figures in sorted(after.reactors.items()):
        grown = {name: figure - before.reactors[number][name] for name, figure in figures.items()}
        found.append(
            Reactor(
                turns=grown["turns_total"],
                received=grown["messages_received_total"],
                sent=grown["messages_sent_total"],
            )
        )
    return found


@dataclass(frozen=True, slots=True)
class Used:
    """What processes had used at some time."""

    at_s: float
    cpu_s: float
    threads: Mapping[str, tuple[float, float]]  # of each: seconds that it ran, and that it waited for a core
    machine_s: float
    own_s: float


def used_by(brokers: Sequence[Watched]) -> Used:
    threads: dict[str, tuple[float, float]] = {}
    for broker in brokers:
        for account in Path(f"/proc/{broker.running.pid}/task").glob("*/schedstat"):
            ran, waited, _times = account.read_text().split()
            threads[account.parent.name] = int(ran) / 1e9, int(waited) / 1e9
    cpu = sum(cpu_s(broker.running.pid) for broker in brokers)
    return Used(time.monotonic(), cpu, threads, busy_cpu_s(), time.process_time())


def shares_of(before: Used, after: Used) -> list[tuple[float, float]]:
    """Of the time between, what each thread ran, and waited for a core; the busiest first."""
    took = after.at_s - before.at_s
    found = []
    for name, (ran, waited) in after.threads.items():
        ran_before, waited_before = before.threads.get(name, (0.0, 0.0))
        if ran - ran_before >= THREAD_SHARE_MIN * took:
            found.append(((ran - ran_before) / took, (waited - waited_before) / took))
    return sorted(found, reverse=True)


def divided(workload: Workload, count: int) -> list[Workload]:
    """The pairs of a workload for so many brokers, as evenly as can be."""
    if count == 1:
        return [workload]
    return [
        replace(
            workload,
            publishers=len(part),
            subscribers=len(part),
            outstanding_max=workload.outstanding_max * len(part) // workload.publishers,
        )
        for part in cut(workload.publishers, count)
    ]


def measured(side: Side, workload: Workload, threads: int, *, shared: bool) -> Sample:
    """Run `workload` against a side with `threads` of the generator; ConnectionError where it cannot be."""
    count = len(side.brokers)
    drive = Drive(threads=max(threads // count, 1) if workload.part == "whole" else 1)
    generators: list[GeneratorThreads] = []
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(count))
        for broker, part in zip(side.brokers, divided(workload, count), strict=True):
            generators.append(GeneratorThreads(part, local_target(broker.running.port), drive))
            stack.callback(generators[-1].close)
        together(pool, generators, connect)
        looks = [look(broker) for broker in side.brokers]
        before = used_by(side.brokers)
        outcomes = together(pool, generators, run)
        after = used_by(side.brokers)
        later = [look(broker) for broker in side.brokers]
    shares = shares_of(before, after)
    pairs = list(zip(looks, later, strict=True))
    return Sample(
        scenario=workload.name,
        side=side.name,
        reactors=side.reactors,
        shared=shared,
        paced=workload.rate_per_s > 0,
        outcome=replace(
            bare(merge_outcomes(workload, outcomes)), shares=sum(outcome.shares for outcome in outcomes)
        ),
        took_s=after.at_s - before.at_s,
        broker_cpu_s=after.cpu_s - before.cpu_s,
        thread_shares=[ran for ran, _waited in shares],
        waited_shares=[waited for _ran, waited in shares],
        others_cpu_s=max(
            after.machine_s - before.machine_s - after.cpu_s + before.cpu_s - after.own_s + before.own_s, 0.0
        ),
        by_reactor=[reactor for pair in pairs for reactor in since(*pair)],
        counters={
            name: sum(after.counters[name] - before.counters[name] for before, after in pairs)
            for name in looks[0].counters
            if any(after.counters[name] != before.counters[name] for before, after in pairs)
        },
    )


def together(
    pool: ThreadPoolExecutor, generators: Sequence[GeneratorThreads], work: Callable[[GeneratorThreads], T]
) -> list[T]:
    return list(pool.map(work, generators))


def connect(generator: GeneratorThreads) -> None:
    generator.connect(60.0, lambda _count: None)


def run(generator: GeneratorThreads) -> Outcome:
    return generator.run(5.0, lambda _interval: None)


# ------------------------------------------------------------------ cores


def in_order(cores: Sequence[int]) -> list[int]:
    """The cores, of which the first half is for brokers: one thread of each physical core comes first."""
    half = len(cores) // 2
    return sorted(cores[:half], key=lambda core: (siblings(core).index(core), core)) + list(cores[half:])


def siblings(core: int) -> list[int]:
    """The logical cores that are one physical core with this one, itself included, as far as Linux knows."""
    path = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
    if not path.exists():
        return [core]
    found: list[int] = []
    for part in path.read_text().strip().split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def cores_of(reactors: int, cores: Sequence[int]) -> tuple[set[int], set[int]]:
    """The broker's and the generator's, of `cores` in order: the generator has the second half of all; where
    the broker needs more than the first half, both have all of them.
    """
    half = len(cores) // 2
    if reactors <= half:
        return set(cores[:reactors]), set(cores[half:])
    return set(cores), set(cores)


def threads_of(cores: Sequence[int]) -> int:
    """Of the generator, the same for every number of reactors: what a message costs depends on them."""
    return max(len(cores) // 2, 1)
