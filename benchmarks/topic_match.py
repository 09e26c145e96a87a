"""What matching a topic costs with a thousand and with a million subscriptions, and their memory.

    PYTHONPATH=src python benchmarks/topic_match.py [--subscriptions 1000000] [--rounds 15]

Each shape of subscription is measured three ways, without any match cache:

- *hot*: the same 1,000 topics over and over, in both indexes;
- *cold*: every topic of the index once, in random order: a thousand fit in a core's cache, a million do not;
- *miss*: 1,000 topics that match nothing.

Rounds alternate between the small and the large index; what is printed is the median over the rounds, and the
median of the rounds' ratios. Goal: hot costs with a million at most twice what it costs with a thousand.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tidemq.engine.index.subscription_view import SubscriptionIndexView

SMALL = 1_000
HOT_TOPICS = 1_000
MATCHES_PER_SAMPLE = 200_000


@dataclass(frozen=True)
class Shape:
    """A way to name filters: filter and matching topic of the n-th of ``count`` subscriptions."""

    name: str
    filter: Callable[[int, int], bytes]
    topic: Callable[[int, int], bytes]


def site(number: int, count: int) -> int:
    """Devices are spread over as many sites as each site has devices."""
    return number % max(1, int(count**0.5))


SHAPES = [
    Shape(
        "site/N/device/M",
        lambda n, count: b"site/%d/device/%d" % (site(n, count), n),
        lambda n, count: b"site/%d/device/%d" % (site(n, count), n),
    ),
    Shape(
        "devices/ID/commands",
        lambda n, count: b"devices/%012x/commands" % (n * 2_654_435_761),
        lambda n, count: b"devices/%012x/commands" % (n * 2_654_435_761),
    ),
    Shape(
        "site/+/device/M",
        lambda n, count: b"site/+/device/%d" % n,
        lambda n, count: b"site/%d/device/%d" % (site(n, count), n),
    ),
    Shape(
        "site/N/M/#",
        lambda n, count: b"site/%d/%d/#" % (site(n, count), n),
        lambda n, count: b"site/%d/%d/state/power" % (site(n, count), n),
    ),
    Shape(
        "mixed: one third each",
        lambda n, count: (
            [b"site/%d/device/%d", b"site/%d/+/%d", b"site/%d/device/%d/#"][n % 3] % (site(n, count), n)
        ),
        lambda n, count: b"site/%d/device/%d" % (site(n, count), n),
    ),
]


def resident_bytes() -> int:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def build(shape: Shape, count: int) -> tuple[SubscriptionIndexView, float, float, float]:
    """An index with ``count`` subscriptions; bytes and seconds for each, seconds of the longest put."""
    order = list(range(count))
    random.Random(count).shuffle(order)
    index = SubscriptionIndexView()
    before = resident_bytes()
    longest = total = 0.0
    for number in order:
        filter = shape.filter(number, count)
        began = time.perf_counter()
        index.put(filter, number + 1)
        took = time.perf_counter() - began
        total += took
        longest = max(longest, took)
    return index, (resident_bytes() - before) / count, total / count, longest


def sample(index: SubscriptionIndexView, topics: list[bytes]) -> float:
    """Nanoseconds for each match of a list of topics, after a pass that warms the caches."""
    rounds = max(1, MATCHES_PER_SAMPLE // len(topics))
    index.match_all(topics)
    return index.match_all(topics, rounds)[3] / (rounds * len(topics))


def draw(shape: Shape, count: int, wanted: int) -> list[bytes]:
    """That many topics of an index of ``count`` subscriptions, in random order."""
    numbers = random.Random(1).sample(range(count), wanted)
    return [shape.topic(number, count) for number in numbers]


def compare(
    name: str, indexes: tuple[SubscriptionIndexView, ...], topics: tuple[list[bytes], ...], rounds: int
) -> None:
    """Prints one line: medians of both indexes, median ratio of alternating rounds."""
    small, large = [], []
    for _ in range(rounds):
        small.append(sample(indexes[0], topics[0]))
        large.append(sample(indexes[1], topics[1]))
    ratio = statistics.median(b / a for a, b in zip(small, large, strict=True))
    matched = [index.match_all(names)[0] / len(names) for index, names in zip(indexes, topics, strict=True)]
    medians = statistics.median(small), statistics.median(large)
    print(
        f"  {name:5} {medians[0]:8.1f} ns {medians[1]:8.1f} ns   ratio {ratio:5.2f}"
        f"   matches per topic {matched[0]:.2f} {matched[1]:.2f}"
    )


def measure(number: int, count: int, rounds: int) -> None:
    """Measures one shape in a process of its own, so that memory is its own too."""
    shape = SHAPES[number]
    small, *_ = build(shape, SMALL)
    large, size, put_s, longest_s = build(shape, count)
    print(
        f"{shape.name}: {count:,} subscriptions, {size:.0f} bytes each,"
        f" put {put_s * 1e9:.0f} ns on average, {longest_s * 1e6:.0f} us at most"
    )
    hot = draw(shape, SMALL, HOT_TOPICS), draw(shape, count, HOT_TOPICS)
    cold = draw(shape, SMALL, SMALL), draw(shape, count, count)
    miss = tuple([topic + b"x" for topic in topics] for topics in hot)
    compare("hot", (small, large), hot, rounds)
    compare("cold", (small, large), cold, max(3, rounds // 5))
    if b"#" not in shape.filter(0, 1):
        compare("miss", (small, large), miss, rounds)


def main() -> None:
    """Measures all shapes and prints a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--subscriptions", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    for number in range(len(SHAPES)):
        work = (number, arguments.subscriptions, arguments.rounds)
        process = multiprocessing.get_context("spawn").Process(target=measure, args=work)
        process.start()
        process.join()
        if process.exitcode:
            raise SystemExit(process.exitcode)


if __name__ == "__main__":
    main()
