"""Several brokers under the same workloads, in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tidemq.bench.catalogue import Plan
from tidemq.bench.measurement import Broker, Observer, measure
from tidemq.bench.peer.target import DEFAULT_SECURITY, Security, parse_url
from tidemq.bench.peer.version import read_version
from tidemq.bench.result import Result
from tidemq.bench.shares.threads import Drive
from tidemq.errors import UsageError


def open_broker(
    name: str, url: str, version: int, timeout_s: float, security: Security = DEFAULT_SECURITY
) -> Broker:
    """The broker of a URL, asked for its version; its address is its name where none is given.

    UsageError or ConnectionError, in one sentence, when it cannot be measured.
    """
    if not timeout_s > 0:
        raise UsageError("the time-out must be more than 0 seconds")
    target = parse_url(url, security)
    return Broker(name or target.url.partition("://")[2], target, read_version(target, version, timeout_s))


def parse_brokers(
    given: Sequence[str], version: int, timeout_s: float, security: Security = DEFAULT_SECURITY
) -> list[Broker]:
    """The brokers of texts NAME=URL; as `open_broker`, with `security` for those that speak TLS."""
    found: dict[str, Broker] = {}
    for text in given:
        name, equals, url = text.partition("=")
        if not (name and equals and url):
            raise UsageError(f"{text!r} does not name a broker: it must be NAME=URL")
        if name in found:
            raise UsageError(f"two brokers are named {name}")
        secure = url.startswith(("mqtts:", "wss:"))
        found[name] = open_broker(name, url, version, timeout_s, security if secure else DEFAULT_SECURITY)
    return list(found.values())


def measure_all(
    plans: Sequence[Plan],
    brokers: Sequence[Broker],
    rounds: int,
    observer: Observer,
    timeout_s: float,
    take: Callable[[Result], None],
    drive: Drive,
) -> list[str]:
    """Each plan some rounds, in each round against one broker after the other; `take` is given each result.

    Returns what could not be begun; such a broker is left out of the rest of the plan. ConnectionError if
    nothing could be. Ends early after a run that was interrupted.
    """
    if rounds < 1:
        raise UsageError("a comparison needs at least one round")
    failures: list[str] = []
    taken = 0
    for plan in plans:
        left = list(brokers)
        for number in range(1, rounds + 1):
            for broker in list(left):
                try:
                    result = measure(plan, broker, observer, timeout_s, number, drive)
                except ConnectionError as error:
                    failures.append(f"{plan.label}, {broker.name}: {error}")
                    left.remove(broker)
                    continue
                take(result)
                taken += 1
                if result.summary.end == "interrupted":
                    return failures
    if not taken:
        raise ConnectionError(failures[0])
    return failures
