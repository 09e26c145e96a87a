"""A workload is shared out without losing a client, and what its shares say adds up."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as some

from tidemq.bench.catalogue import Plan, Terms, fan, many, mesh, pairs, ping
from tidemq.bench.result import Bucket, End, Interval, latency_of
from tidemq.bench.shares.sharing import merge_connecting, merge_outcomes, share_out
from tidemq.bench.workload import Connecting, Outcome, Workload
from tidemq.errors import UsageError

PAIRS = pairs(Terms(), 2).workload
PLANS = some.one_of(
    some.builds(lambda senders, receivers: fan(Terms(), senders, receivers), *[some.integers(0, 40)] * 2),
    some.builds(lambda count: mesh(Terms(), count), some.integers(1, 40)),
    some.builds(lambda count: pairs(Terms(), count), some.integers(1, 40)),
    some.builds(lambda count: ping(Terms(), count), some.integers(1, 40)),
    some.builds(lambda count: many(Terms(), count), some.integers(1, 40)),
).filter(lambda plan: plan.workload.connections > 0)


@given(PLANS, some.integers(1, 50))
def test_every_client_is_in_one_share(plan: Plan, count: int) -> None:
    workload = plan.workload
    shares = share_out(workload, count)
    assert 1 <= len(shares) <= count
    for kind, number in (
        ("publishers", workload.publishers),
        ("subscribers", workload.subscribers),
        ("idle", workload.idle_connections),
    ):
        assert list(chain.from_iterable(getattr(share, kind) for share in shares)) == list(range(number))
    assert sum(share.connections(workload) for share in shares) == workload.connections
    assert all(share.connections(workload) for share in shares)


@pytest.mark.parametrize("plan", [pairs(Terms(), 7), mesh(Terms(), 7), ping(Terms(), 7)])
def test_what_belongs_together_stays_together(plan: Plan) -> None:
    for share in share_out(plan.workload, 3):
        assert share.publishers == share.subscribers
        assert share.publishers.start % 2 == 0 or not plan.workload.bounce


def test_those_who_have_more_to_do_are_fewer() -> None:
    """A subscriber of a fan takes what all publishers send."""
    sizes = [
        (len(share.publishers), len(share.subscribers))
        for share in share_out(fan(Terms(), 20, 1).workload, 2)
    ]
    assert sizes == [(20, 0), (0, 1)]


def test_a_run_in_parts_is_not_shared_out() -> None:
    with pytest.raises(UsageError, match="run in parts"):
        share_out(replace(PAIRS, part="enqueue", persistent=True), 2)


def outcome(buckets: tuple[Bucket, ...] = (Bucket(1000, 1015, 100),), **change: object) -> Outcome:
    """Of a share with 100 messages in a second."""
    made = Outcome(
        end="complete",
        sent=100,
        expected=100,
        received=100,
        lost=0,
        duplicates=0,
        disordered=0,
        foreign=0,
        ack_errors=0,
        seconds=1.0,
        generator_cpu_s=0.5,
        generator_ready_share=0.5,
        latency=latency_of(buckets, buckets[-1].high_ns - 5 if buckets else None),
        latencies=buckets,
        ack_latency=None,
        intervals=tuple(interval(start_s) for start_s in (0.0, 0.201, 0.402)),
    )
    return replace(made, **change)  # type: ignore[arg-type]


def interval(start_s: float, p99_us: float = 20.0) -> Interval:
    return Interval(
        start_s=start_s, seconds=0.2, sent=20, received=20, p50_us=10.0, p99_us=p99_us, max_us=p99_us
    )


def test_counts_and_histograms_add_up_and_the_slowest_share_sets_the_time() -> None:
    slow = outcome(
        (Bucket(1000, 1015, 50), Bucket(9000, 9100, 47)), seconds=2.0, received=97, generator_ready_share=0.9
    )
    merged = merge_outcomes(PAIRS, [outcome(), slow])
    assert (merged.sent, merged.expected, merged.received, merged.lost) == (200, 200, 197, 3)
    assert (merged.seconds, merged.messages_per_s, merged.shares) == (2.0, 98.5, 2)
    assert merged.latencies == (Bucket(1000, 1015, 150), Bucket(9000, 9100, 47))
    assert merged.latency is not None
    assert (merged.latency.count, merged.latency.p50_us, merged.latency.max_us) == (197, 1.015, 9.095)
    assert (merged.generator_cpu_s, merged.generator_ready_share) == (1.0, 0.9)
    assert not merged.intact


def test_what_was_to_come_follows_from_what_all_sent() -> None:
    """Three subscribers, two of them in one share; none knows what is sent when the run ends early."""
    workload: Workload = fan(Terms(), 2, 3).workload
    early = [outcome(sent=100, expected=0, received=150), outcome(sent=10, expected=5, received=160)]
    merged = merge_outcomes(workload, early)
    assert (merged.expected, merged.received, merged.lost) == (330, 310, 20)


def test_more_may_have_arrived_than_a_lost_share_has_said_it_sent() -> None:
    merged = merge_outcomes(
        PAIRS, [outcome(received=103), outcome((), sent=90, received=0, end="share lost")]
    )
    assert (merged.end, merged.lost, merged.intact) == ("share lost", 87, False)
    merged = merge_outcomes(PAIRS, [outcome(sent=0), outcome(sent=90, received=0, end="share lost")])
    assert (merged.expected, merged.lost, merged.intact) == (100, 0, False)


def test_what_all_did_at_the_same_time_is_one_interval() -> None:
    late = outcome(intervals=(interval(0.41, p99_us=70.0),))
    intervals = merge_outcomes(PAIRS, [outcome(), late]).intervals
    assert [each.start_s for each in intervals] == [0.0, 0.201, 0.402]
    assert [each.received for each in intervals] == [20, 20, 40]
    assert [each.p99_us for each in intervals] == [20.0, 20.0, 70.0]


@pytest.mark.parametrize(
    ("ends", "whole"),
    [
        (("complete", "complete"), "complete"),
        (("complete", "stalled"), "stalled"),
        (("stalled", "disconnected"), "disconnected"),
        (("share lost", "disconnected"), "share lost"),
    ],
)
def test_the_worst_end_is_that_of_all(ends: tuple[End, End], whole: End) -> None:
    both = [outcome(end=end, reason="gone" if end == "disconnected" else "") for end in ends]
    merged = merge_outcomes(PAIRS, both)
    assert merged.end == whole
    assert merged.reason == ("gone" if "disconnected" in ends else "")


def test_connections_of_all() -> None:
    buckets = (Bucket(1000, 1015, 10),)
    slow = Connecting(connections=10, seconds=0.3, latency=latency_of(buckets), latencies=buckets)
    both = merge_connecting([replace(slow, seconds=0.1), slow])
    assert (both.connections, both.seconds, both.latency and both.latency.count) == (20, 0.3, 20)
