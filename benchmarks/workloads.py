"""The workloads that are measured, by name, with the goals that were set for TideMQ on two cores."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from tidemq.bench.workload import Workload

Kind = Literal["rate", "paced", "idle", "subscriptions"]
RATE_PER_S_PACED = 5_000
IDLE_CONNECTIONS = 10_000
FEW_SUBSCRIPTIONS = 1_000
MANY_SUBSCRIPTIONS = 1_000_000
HOLDERS = 100  # connections that hold the subscriptions, and as many that publish


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A workload and what is asked of TideMQ in it, with one reactor; rates are deliveries."""

    workload: Workload
    text: str
    kind: Kind = "rate"
    goal_per_cpu_s: float = 0.0  # at least; 0: none
    goal_ratio: float = 0.0  # at least so many times Mosquitto's; 0: none
    scales: bool = False  # more reactors must deliver more: more than one connection each way

    @property
    def name(self) -> str:
        return self.workload.name


def subscriptions(name: str, text: str, held: int, used: int) -> Scenario:
    """`held` exact subscriptions in all, of which `used` are published to."""
    workload = Workload(
        name=name,
        publishers=HOLDERS,
        subscribers=HOLDERS,
        pairs=True,
        topics=held // HOLDERS,
        topics_used=used // HOLDERS,
        messages=500,
    )
    return Scenario(workload=workload, text=text, kind="subscriptions")


# In the order in which they are run; `messages` is each publisher's share of the warm-up run.
SCENARIOS = (
    Scenario(
        workload=Workload(name="one-to-one", messages=20_000),
        text="1:1, QoS 0",
        goal_per_cpu_s=6e6,
        goal_ratio=30,
    ),
    Scenario(
        workload=Workload(name="fan-in", publishers=20, messages=1_000),
        text="fan-in 20:1, QoS 0",
        goal_per_cpu_s=5e6,
        goal_ratio=25,
    ),
    Scenario(
        workload=Workload(name="fan-out", subscribers=20, messages=2_000),
        text="fan-out 1:20, QoS 0",
        goal_per_cpu_s=15e6,
        goal_ratio=50,
    ),
    Scenario(
        workload=Workload(name="mesh", publishers=20, subscribers=20, mesh=True, messages=100),
        text="mesh of 20, QoS 0",
        goal_per_cpu_s=8e6,
        goal_ratio=25,
        scales=True,
    ),
    Scenario(
        workload=Workload(name="one-to-one-qos1", qos=1, messages=10_000),
        text="1:1, QoS 1",
        goal_per_cpu_s=1.5e6,
        goal_ratio=25,
    ),
    Scenario(
        workload=Workload(name="one-to-one-qos2", qos=2, messages=5_000),
        text="1:1, QoS 2",
        goal_per_cpu_s=0.9e6,
        goal_ratio=25,
    ),
    Scenario(
        workload=Workload(
            name="pairs-qos1", publishers=100, subscribers=100, pairs=True, qos=1, messages=100
        ),
        text="100 pairs, QoS 1",
        goal_per_cpu_s=2e6,
        goal_ratio=25,
        scales=True,
    ),
    Scenario(
        workload=Workload(name="paced", rate_per_s=RATE_PER_S_PACED, messages=1_000),
        text="receiver sleeps",
        kind="paced",
    ),
    Scenario(
        workload=Workload(name="paced-polled", rate_per_s=RATE_PER_S_PACED, messages=1_000, poll=True),
        text="receiver polls",
        kind="paced",
    ),
    Scenario(
        workload=Workload(name="idle", publishers=0, subscribers=0, idle_connections=IDLE_CONNECTIONS),
        text=f"{IDLE_CONNECTIONS:,} idle connections",
        kind="idle",
    ),
    subscriptions("subscriptions-few", "1,000 subscriptions, all used", FEW_SUBSCRIPTIONS, FEW_SUBSCRIPTIONS),
    subscriptions(
        "subscriptions-many-hot",
        "1,000,000 subscriptions, 1,000 of them used",
        MANY_SUBSCRIPTIONS,
        FEW_SUBSCRIPTIONS,
    ),
    subscriptions(
        "subscriptions-many",
        "1,000,000 subscriptions, all used",
        MANY_SUBSCRIPTIONS,
        MANY_SUBSCRIPTIONS,
    ),
)


def persistent(
    name: str, text: str, qos: int, publishers: int, subscribers: int, messages: int, window: int = 100
) -> Scenario:
    """Sessions that outlive their connections; 16 bytes, as in others' published durable benchmarks."""
    workload = Workload(
        name=name,
        publishers=publishers,
        subscribers=subscribers,
        pairs=publishers > 1,
        qos=qos,
        messages=messages,
        payload_bytes=16,
        persistent=True,
        window=window,
    )
    return Scenario(workload=workload, text=text)


PAIRS = persistent("pairs-qos1", "100 publishers to 100 subscribers, QoS 1", 1, 100, 100, 100)

PAIRS_ABSENT = Scenario(
    workload=replace(PAIRS.workload, name="pairs-qos1-absent", part="enqueue"),
    text="100 publishers to 100 absent subscribers, QoS 1",
)

# What `durable.py` runs with each way of keeping things, in that order: the last leaves the stores full.
PERSISTENT = (
    PAIRS,
    persistent("pairs-qos2", "100 publishers to 100 subscribers, QoS 2", 2, 100, 100, 50),
    persistent(
        "fan-out-qos1", "1 publisher to 20 subscribers, QoS 1, 1,000 in flight", 1, 1, 20, 2_000, 1_000
    ),
    PAIRS_ABSENT,
)

# What `cluster.py` runs, publishers at one node, subscribers at another.
ACROSS = tuple(
    Scenario(workload=replace(each.workload, name=f"across-{each.name}"), text=f"{each.text}, across nodes")
    for each in SCENARIOS[:3]
)


def named(names: list[str]) -> list[Scenario]:
    """The scenarios of these names, in the order above; KeyError names one that does not exist."""
    unknown = set(names) - {scenario.name for scenario in SCENARIOS}
    if unknown:
        raise KeyError(f"no workload {', '.join(sorted(unknown))}")
    return [scenario for scenario in SCENARIOS if scenario.name in names]
