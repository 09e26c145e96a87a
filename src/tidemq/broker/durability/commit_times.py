"""How long the keeper's commits take, and when it last went on; read from any thread."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

BUCKETS = 64  # bucket N: less than 2**N ns, and at least half of that


class CommitTimes:
    """Filled by the keeper's thread alone."""

    def __init__(self) -> None:
        self.counts = [0] * BUCKETS
        self.sum_ns = 0
        self.seen_s = time.monotonic()  # the keeper's last step

    def step(self) -> None:
        """The keeper goes on."""
        self.seen_s = time.monotonic()

    @contextmanager
    def commit(self) -> Iterator[None]:
        """Counts a commit that does not fail."""
        began = time.perf_counter_ns()
        yield
        ns = time.perf_counter_ns() - began
        self.counts[min(ns.bit_length(), BUCKETS - 1)] += 1
        self.sum_ns += ns
