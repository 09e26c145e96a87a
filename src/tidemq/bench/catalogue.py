"""The workloads that `tidemq bench` knows, by name: from a command's arguments to what the generator runs."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from tidemq.bench.result import Argument
from tidemq.bench.workload import MESSAGES_MAX, Workload
from tidemq.errors import UsageError

VERSIONS = {"3.1.1": 4, "5.0": 5, "5": 5}
SECONDS = 5.0  # of a run, where neither seconds nor messages are given
OUTSTANDING_MAX = 20_000  # messages on their way
OUTSTANDING_BYTES_MAX = 32 << 20
SUBSCRIBERS_MESSAGES = 5
SUBSCRIBERS_INTERVAL_S = 0.1
TICKTOCK_SECONDS_MIN = 3  # in the suite


def random_prefix() -> str:
    """Of topic names and client identifiers, so that two runs at once do not meet."""
    return "bench" + secrets.token_hex(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What all workloads have in common."""

    qos: int = 0
    size: int = 64  # bytes of payload
    mqtt: str = "3.1.1"
    messages: int | None = None  # each publisher's; None: as many as `seconds` allow
    seconds: float | None = None  # None: SECONDS, or as long as `messages` take
    rate: float = 0.0  # messages a second, of all publishers; 0: as fast as the broker takes them
    window: int = 100
    one_by_one: bool = False  # each message is a send of its own
    prefix: str = field(default_factory=random_prefix)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A workload, and how tables name it."""

    workload: Workload
    label: str
    arguments: Mapping[str, Argument]
    mqtt: str


def fan(terms: Terms, senders: int = 1, receivers: int = 1) -> Plan:
    """Every receiver gets what every sender sends: 1:1, fan-in, fan-out."""
    workload = replace(base("fan", terms), publishers=senders, subscribers=receivers)
    return planned(workload, terms, f"fan {senders}:{receivers}", senders=senders, receivers=receivers)


def mesh(terms: Terms, clients: int = 20) -> Plan:
    """Every client publishes, and gets what all publish."""
    workload = replace(base("mesh", terms), publishers=clients, subscribers=clients, mesh=True)
    return planned(workload, terms, f"mesh of {clients}", clients=clients)


def pairs(terms: Terms, pairs: int = 100) -> Plan:
    """Each publisher has a subscriber of its own."""
    workload = replace(base("pairs", terms), publishers=pairs, subscribers=pairs, pairs=True)
    return planned(workload, terms, f"{pairs} {'pair' if pairs == 1 else 'pairs'}", pairs=pairs)


def ping(terms: Terms, pairs: int = 1) -> Plan:
    """Each pair bounces one message as fast as it can be, or begins with a new one at a rate."""
    workload = replace(base("ping", terms), publishers=2 * pairs, subscribers=2 * pairs, bounce=True)
    return planned(workload, terms, f"ping by {pairs} {'pair' if pairs == 1 else 'pairs'}", pairs=pairs)


def many(terms: Terms, connections: int = 1000, connect_rate: float = 0.0) -> Plan:
    """Many connections: idle, or slow clients that hear themselves, `rate` messages a second in all."""
    base_load = replace(base("many", terms), connect_rate_per_s=connect_rate)
    if terms.messages is not None:
        raise UsageError("many runs for seconds: it takes no number of messages")
    if terms.rate:
        load = replace(base_load, publishers=connections, subscribers=connections, mesh=True, pairs=True)
        text = f"{connections:,} slow clients"
    else:
        load = replace(base_load, publishers=0, subscribers=0, idle_connections=connections)
        text = f"{connections:,} idle clients"
    return planned(load, terms, text, connections=connections, connect_rate=connect_rate)


def ticktock(terms: Terms, clients: int = 100) -> Plan:
    """One tick a second, or `rate`, to all clients."""
    terms = replace(terms, rate=terms.rate or 1.0)
    workload = replace(base("ticktock", terms), subscribers=clients)
    return planned(workload, terms, f"ticktock to {clients:,}", clients=clients)


def subscribers(terms: Terms, count: int = 1000) -> Plan:
    """Five messages, one after the other, each to all `count` subscribers."""
    if terms.messages is not None or terms.seconds is not None or terms.rate:
        raise UsageError("subscribers sends five messages: it takes no number, seconds or rate")
    terms = replace(terms, messages=SUBSCRIBERS_MESSAGES, rate=1 / SUBSCRIBERS_INTERVAL_S)
    workload = replace(base("subscribers", terms), subscribers=count)
    return planned(workload, terms, f"{count:,} subscribers", count=count)


def base(name: str, terms: Terms) -> Workload:
    """The common terms as a workload of one publisher and one subscriber."""
    if terms.mqtt not in VERSIONS:
        raise UsageError(f"--mqtt must be 3.1.1 or 5.0, not {terms.mqtt}")
    if terms.messages is not None and terms.messages < 1:
        raise UsageError("a run needs at least one message")
    if terms.seconds is not None and not 0 < terms.seconds < math.inf:
        raise UsageError("a run needs more than 0 seconds")
    seconds = terms.seconds or 0.0
    if terms.seconds is None and terms.messages is None:
        seconds = SECONDS
    if terms.messages is None and 0 < terms.rate * seconds < 1:
        raise UsageError(f"no message is due in {seconds:g} s at {terms.rate:g} a second: give more seconds")
    return Workload(
        name=name,
        prefix=terms.prefix,
        qos=terms.qos,
        version=VERSIONS[terms.mqtt],
        messages=MESSAGES_MAX if terms.messages is None else terms.messages,
        seconds=seconds,
        payload_bytes=terms.size,
        rate_per_s=terms.rate,
        window=terms.window,
        one_by_one=terms.one_by_one,
        outstanding_max=max(min(OUTSTANDING_MAX, OUTSTANDING_BYTES_MAX // max(terms.size, 1)), 1),
    )


def planned(workload: Workload, terms: Terms, text: str, **arguments: Argument) -> Plan:
    """The plan of a workload; `text` and `arguments` are its own part of both."""
    if min(value for value in arguments.values() if isinstance(value, int | float)) < 0:
        raise UsageError(f"there cannot be fewer than 0 of anything: {text}")
    label = f"{text}, QoS {terms.qos}, {terms.size} bytes"
    if workload.publishers == 0:
        label = text
    if workload.rate_per_s:
        label += f", {workload.rate_per_s:,.10g}/s"
    if workload.one_by_one:
        label += ", one by one"
    common: dict[str, Argument] = {
        "qos": terms.qos,
        "size": terms.size,
        "messages": terms.messages,
        "seconds": workload.seconds or None,
        "rate": terms.rate,
        "window": terms.window,
        "one_by_one": terms.one_by_one,
    }
    return Plan(
        workload=workload,
        label=label,
        arguments=arguments | common,
        mqtt="5.0" if workload.version == 5 else "3.1.1",
    )


# What `suite` runs, and what `compare` can be told to run, in this order.
SUITE: dict[str, Callable[[Terms], Plan]] = {
    "one-to-one": lambda terms: fan(terms),
    "one-to-one-qos1": lambda terms: fan(replace(terms, qos=1)),
    "one-to-one-qos2": lambda terms: fan(replace(terms, qos=2)),
    "fan-in": lambda terms: fan(terms, senders=20),
    "fan-out": lambda terms: fan(terms, receivers=20),
    "mesh": lambda terms: mesh(terms),
    "pairs-qos1": lambda terms: pairs(replace(terms, qos=1)),
    "ping": lambda terms: ping(terms),
    "ping-paced": lambda terms: ping(replace(terms, rate=1000), pairs=10),
    "many": lambda terms: many(terms),
    "ticktock": lambda terms: ticktock(replace(terms, seconds=max(terms.seconds or 0, TICKTOCK_SECONDS_MIN))),
    "subscribers": lambda terms: subscribers(replace(terms, seconds=None)),
}


def suite_plans(names: str, terms: Terms) -> list[Plan]:
    """The plans of names with commas between them, else of all. UsageError names an unknown one."""
    chosen = [name.strip() for name in names.split(",") if name.strip()] or list(SUITE)
    unknown = [name for name in chosen if name not in SUITE]
    if unknown:
        raise UsageError(f"there is no workload {', '.join(unknown)}; known: {', '.join(SUITE)}")
    return [SUITE[name](terms) for name in chosen]
