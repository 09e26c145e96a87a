"""The workloads that are measured, by name, with the goals that were set for TideMQ."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tidemq.bench.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A workload, what it shows, and the goals: with one reactor, by deliveries per second of broker CPU."""

    workload: Workload
    text: str
    goal_per_cpu_s: float = 0.0  # at least so many deliveries per second of broker CPU; 0: none
    goal_ratio: float = 0.0  # at least so many times Mosquitto's; 0: none


def scenario(text: str, goal_per_cpu_s: float = 0, goal_ratio: float = 0, **workload: object) -> Scenario:
    """A scenario from its workload's fields."""
    made = Workload(**workload)  # type: ignore[arg-type]
    return Scenario(workload=made, text=text, goal_per_cpu_s=goal_per_cpu_s, goal_ratio=goal_ratio)


SCENARIOS = {
    made.workload.name: made
    for made in (
        scenario("1:1, QoS 0", 6e6, 30, name="one-to-one", messages=400_000),
        scenario("fan-in 20:1, QoS 0", 5e6, 25, name="fan-in", publishers=20, messages=20_000),
        scenario("fan-out 1:20, QoS 0", 15e6, 50, name="fan-out", subscribers=20, messages=40_000),
        scenario(
            "mesh of 20, QoS 0", 8e6, 25, name="mesh", publishers=20, subscribers=20, mesh=True, messages=2_000
        ),
        scenario("1:1, QoS 1", 1.5e6, 25, name="one-to-one-qos1", qos=1, messages=150_000),
        scenario("1:1, QoS 2", 0.9e6, 25, name="one-to-one-qos2", qos=2, messages=80_000),
        scenario(
            "100 pairs, QoS 1",
            2e6,
            25,
            name="pairs-qos1",
            publishers=100,
            subscribers=100,
            pairs=True,
            qos=1,
            messages=2_000,
        ),
        scenario("1:1, paced at 5,000 a second", name="paced", rate_per_s=5_000, messages=20_000),
    )
}


def scaled(workload: Workload, factor: float) -> Workload:
    """The same load with `factor` times the messages."""
    return replace(workload, messages=max(int(workload.messages * factor), 1))
