"""One workload by several generators: which of its connections each has, and one outcome of all of theirs.

Connections keep their numbers, so publishers, topics and client identifiers are the same however a workload
is shared out. What belongs together stays so: the two ends of a pair, both parts of a client of a mesh.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise

from tidemq.bench.load.share import Share, whole
from tidemq.bench.result import ENDS, Interval, Latency, latency_of, merge_buckets
from tidemq.bench.workload import Connecting, Outcome, Workload
from tidemq.errors import UsageError

SLICE_S = 0.2  # of the generator's intervals


def share_out(workload: Workload, count: int) -> list[Share]:
    """At most `count` shares with about the same to do; fewer where there are fewer clients than that.

    UsageError for a part of a run: its sessions are one generator's.
    """
    if count < 1:
        raise UsageError("a load needs at least one thread")
    if count == 1:
        return [whole(workload)]
    if workload.part != "whole":
        raise UsageError("a run in parts cannot be shared out")
    if workload.pairs or workload.mesh or workload.bounce:
        width = 2 if workload.bounce else 1
        cuts = [
            range(each.start * width, each.stop * width) for each in cut(workload.publishers // width, count)
        ]
        return [Share(each, each, range(0)) for each in cuts]
    # a subscriber has as much to do as all publishers together
    weights = [1] * workload.publishers + [max(workload.publishers, 1)] * workload.subscribers
    weights += [1] * workload.idle_connections
    first_subscriber, first_idle = workload.publishers, workload.publishers + workload.subscribers
    return [
        Share(
            within(each, 0, first_subscriber),
            within(each, first_subscriber, first_idle),
            within(each, first_idle, len(weights)),
        )
        for each in cut_weighed(weights, count)
    ]


def cut(length: int, count: int) -> list[range]:
    """So many numbers in at most `count` pieces of about the same size, none of them empty."""
    count = min(count, length)
    bounds = [length * number // count for number in range(count + 1)]
    return [range(start, end) for start, end in pairwise(bounds)]


def cut_weighed(weights: Sequence[int], count: int) -> list[range]:
    """The same of numbers that weigh differently: each goes where its middle lies."""
    total = sum(weights)
    ends = accumulate(weights)
    places = [(2 * end - weight) * count // (2 * total) for end, weight in zip(ends, weights, strict=True)]
    starts = [at for at, place in enumerate(places) if at == 0 or place != places[at - 1]]
    return [range(start, end) for start, end in zip(starts, [*starts[1:], len(places)], strict=True)]


def within(numbers: range, start: int, end: int) -> range:
    """Those from `start` up to `end`, counted from `start`."""
    first = min(max(numbers.start, start), end)
    return range(first - start, max(min(numbers.stop, end), first) - start)


# ------------------------------------------------------------------ what came of all


def merge_connecting(each: Sequence[Connecting]) -> Connecting:
    """All connections; the time is that of the slowest share."""
    buckets = merge_buckets(share.latencies for share in each)
    return Connecting(
        connections=sum(share.connections for share in each),
        seconds=max(share.seconds for share in each),
        latency=latency_of(buckets, max_ns_of(share.latency for share in each)),
        latencies=buckets,
    )


def merge_outcomes(workload: Workload, shares: Sequence[Outcome]) -> Outcome:
    """One outcome: counts and histograms add up, the time is that of the slowest, the end is the worst.

    What was to come follows from what all sent: a share that ends early does not know all of it. Of a share
    that was lost less may be known than has arrived.
    """
    if len(shares) == 1:
        return shares[0]
    buckets = merge_buckets(share.latencies for share in shares)
    sent, received = sum(share.sent for share in shares), sum(share.received for share in shares)
    expected = max(workload.deliveries_of(sent), received)
    return Outcome(
        end=min((share.end for share in shares), key=ENDS.index),
        reason=next((share.reason for share in shares if share.reason), ""),
        sent=sent,
        expected=expected,
        received=received,
        lost=expected - received,
        duplicates=sum(share.duplicates for share in shares),
        disordered=sum(share.disordered for share in shares),
        foreign=sum(share.foreign for share in shares),
        ack_errors=sum(share.ack_errors for share in shares),
        seconds=max(share.seconds for share in shares),
        generator_cpu_s=sum(share.generator_cpu_s for share in shares),
        generator_ready_share=max(share.generator_ready_share for share in shares),  # one may be the limit
        latency=latency_of(buckets, max_ns_of(share.latency for share in shares)),
        latencies=buckets,
        ack_latency=None,
        intervals=merge_intervals([share.intervals for share in shares]),
        shares=len(shares),
        clock_error_s=sum(sorted(share.clock_error_s for share in shares)[-2:]),  # of the two ends of a way
        word_s=max(share.word_s for share in shares),
    )


def max_ns_of(latencies: Iterable[Latency | None]) -> int:
    """The greatest of all, exactly."""
    return round(max((each.max_us for each in latencies if each), default=0.0) * 1000)


def merge_intervals(shares: Sequence[Sequence[Interval]]) -> tuple[Interval, ...]:
    """What all did at the same time; of latencies, which do not add up, the worst share's."""
    slots: dict[int, list[Interval]] = {}
    for intervals in shares:
        for interval in intervals:
            slots.setdefault(round(interval.start_s / SLICE_S), []).append(interval)
    return tuple(merge_interval(together) for _slot, together in sorted(slots.items()))


def merge_interval(together: Sequence[Interval]) -> Interval:
    return Interval(
        start_s=min(each.start_s for each in together),
        seconds=max(each.seconds for each in together),
        sent=sum(each.sent for each in together),
        received=sum(each.received for each in together),
        p50_us=worst(each.p50_us for each in together),
        p99_us=worst(each.p99_us for each in together),
        max_us=worst(each.max_us for each in together),
    )


def worst(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
