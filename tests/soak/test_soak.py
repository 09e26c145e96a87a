"""A short soak; and that one finds what grows. `make soak` is the long one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from soak.growth import Sample, growing, left_behind
from soak.onlookers import drifting
from soak.run import soak

CALM = Sample(rss=200 << 20, descriptors=90, threads=12, disk=20 << 20)


@pytest.mark.timeout(300)
def test_a_broker_comes_back_to_what_it_held(tmp_path: Path) -> None:
    outcome = soak(tmp_path, rounds=2, load_s=4, seed=1)
    assert outcome.problems == []
    assert outcome.seen["published"] > 1000


@pytest.mark.parametrize("name", ["rss", "descriptors", "threads", "disk"])
def test_growth_is_found(name: str) -> None:
    step = {"rss": 1 << 20, "descriptors": 1, "threads": 1, "disk": 4 << 20}[name]
    samples = [replace(CALM, **{name: getattr(CALM, name) + number * step}) for number in range(60)]
    assert [line.split()[0] for line in growing(samples)] == [name]


def test_noise_and_a_warm_up_are_no_growth() -> None:
    warming = [replace(CALM, rss=number * 12 << 20) for number in range(1, 16)]
    noisy = [replace(CALM, rss=CALM.rss + (number * 7919 % 16 << 20)) for number in range(45)]
    assert growing([*warming, *noisy]) == []


def test_what_stays_is_found() -> None:
    before = {"live_sessions": 0, "memory_buffers": 1000, "retained": 0}
    assert left_behind(before, {"live_sessions": 0, "memory_buffers": 5000, "retained": 0}) == {}
    assert left_behind(before, {"live_sessions": 1, "memory_buffers": 1000, "retained": 2}) == {
        "live_sessions": (0, 1),
        "retained": (0, 2),
    }


def test_messages_that_take_longer_and_longer_are_found() -> None:
    rising = [0.05 * (1 + number) for number in range(9)]
    assert [line.split()[:2] for line in drifting(rising)] == [["p99", "drifts:"]]


def test_one_slow_round_is_no_drift() -> None:
    assert drifting([0.06, 0.24]) == []
    assert drifting([0.06] * 8 + [0.24]) == []
