"""What `scaling.py` runs, and what can be expected of it over several reactors."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tidemq.bench.workload import MESSAGES_MAX, Workload

PACED_PER_S = 50_000
ABSENT_MESSAGES = 1_500  # each publisher's: a second of what a store on a quick disk takes
MANY_OUTSTANDING_MAX = 2_000  # messages sent, to a thousand each: what is left at the end is soon over
PAIRS_OUTSTANDING_MAX = 100_000  # messages on their way in all, so that no reactor runs dry


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A workload, who takes part in it, and why it scales or cannot."""

    workload: Workload
    text: str
    why: str
    sides: tuple[str, ...] = ("tidemq",)

    @property
    def name(self) -> str:
        return self.workload.name

    def timed(self, seconds: float) -> Workload:
        """For so long; where subscribers are away, with its number of messages in a second."""
        if self.workload.part != "whole":
            return replace(self.workload, messages=max(int(self.workload.messages * seconds), 1))
        return replace(self.workload, messages=MESSAGES_MAX, seconds=seconds)


def pairs(name: str, count: int = 100, **rest: object) -> Workload:
    workload = Workload(
        name=name,
        publishers=count,
        subscribers=count,
        pairs=True,
        outstanding_max=PAIRS_OUTSTANDING_MAX,
    )
    return replace(workload, **rest)  # type: ignore[arg-type]


LOADS = (
    Load(
        workload=Workload(name="one-to-one"),
        text="1:1, QoS 0",
        why="Two connections are on two reactors at most, and the publisher moves to its subscriber's: this "
        "cannot scale.",
        sides=("tidemq", "mosquitto"),
    ),
    Load(
        workload=Workload(name="fan-in", publishers=20),
        text="fan-in 20:1, QoS 0",
        why="One connection gets everything, and one reactor has it: this cannot scale, beyond what reading "
        "on other reactors takes off that one.",
    ),
    Load(
        workload=Workload(name="fan-out", subscribers=20),
        text="fan-out 1:20, QoS 0",
        why="Writing can be spread over the reactors of 20 subscribers; one reactor reads, and mails each "
        "message to all others.",
    ),
    Load(
        workload=Workload(name="fan-out-100", subscribers=100),
        text="fan-out 1:100, QoS 0",
        why="As before, with more deliveries for each mail.",
    ),
    Load(
        workload=Workload(name="fan-out-1000", subscribers=1_000, outstanding_max=MANY_OUTSTANDING_MAX),
        text="fan-out 1:1,000, QoS 0",
        why="As before, with 60 deliveries for each mail, or more.",
    ),
    Load(
        workload=Workload(name="mesh", publishers=20, subscribers=20, mesh=True),
        text="mesh of 20, QoS 0",
        why="Everybody gets everything: each message is mailed to every reactor that has a client.",
    ),
    Load(
        workload=pairs("echo", mesh=True),
        text="100 clients that hear themselves, QoS 0",
        why="No message leaves its reactor: what reactors do without each other.",
    ),
    Load(
        workload=pairs("pairs"),
        text="100 pairs, QoS 0",
        why="Each pair begins on two reactors by chance; publishers may move to their subscriber's.",
        sides=("tidemq", "apart"),
    ),
    Load(
        workload=pairs("pairs-qos1", qos=1),
        text="100 pairs, QoS 1",
        why="As before, with acknowledgements; 100 in flight a publisher.",
        sides=("tidemq", "apart", "mosquitto"),
    ),
    Load(
        workload=pairs("pairs-1000-qos1", 1_000, qos=1),
        text="1,000 pairs, QoS 1",
        why="Ten times as many connections lie more evenly on the reactors.",
    ),
    Load(
        workload=pairs("pairs-paced", qos=1, rate_per_s=PACED_PER_S),
        text=f"100 pairs, QoS 1, {PACED_PER_S:,} messages a second in all",
        why="A rate that one reactor carries: how long messages take. A publisher may move after 256 "
        "messages, half a second.",
    ),
    Load(
        workload=pairs("pairs-durable", qos=1, payload_bytes=16, persistent=True),
        text='100 pairs with stored sessions, QoS 1, 16 bytes, `durability = "sync"`',
        why="What is acknowledged before it is written never is. With one core, the keeper (the thread that "
        "writes) takes a third of it, and much is written: several cores do much better than as many times "
        "one.",
        sides=("durable",),
    ),
    Load(
        workload=pairs(
            "absent-durable",
            qos=1,
            payload_bytes=16,
            persistent=True,
            part="enqueue",
            messages=ABSENT_MESSAGES,
        ),
        text='100 publishers to 100 absent subscribers, QoS 1, 16 bytes, `durability = "sync"`',
        why="All is written, by one thread (the keeper), however many reactors there are: this cannot scale. "
        "One thread of the generator. After the load before, whose sessions it needs.",
        sides=("durable",),
    ),
)
