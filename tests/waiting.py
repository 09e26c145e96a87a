"""Waiting for what must happen, however busy the machine: until it does, or clearly never will."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

# A ceiling, which only what fails ever reaches. A machine that is busier still: TIDEMQ_TEST_PATIENCE=5.
WAIT_S = 90.0 * float(os.environ.get("TIDEMQ_TEST_PATIENCE", "1"))
LATE_S = WAIT_S / 3  # for what the clock brings about in a second or two: a minute or never would be wrong
POLL_S = 0.005


def wait_until(
    holds: Callable[[], object], what: str = "what was waited for", *, wait_s: float = WAIT_S
) -> None:
    """Returns as soon as it holds; fails where it never does."""
    deadline = time.monotonic() + wait_s
    while not holds():
        assert time.monotonic() < deadline, f"after {wait_s:.0f} s still not: {what}"
        time.sleep(POLL_S)


async def until(
    holds: Callable[[], object | Awaitable[object]],
    what: str = "what was waited for",
    *,
    wait_s: float = WAIT_S,
    poll_s: float = POLL_S,
) -> None:
    """The same while the loop runs; what is asked may be awaited. `poll_s=0` asks in every turn."""
    assert await happens(holds, wait_s, poll_s), f"after {wait_s:.0f} s still not: {what}"


async def happens(
    holds: Callable[[], object | Awaitable[object]], within_s: float, poll_s: float = POLL_S
) -> bool:
    """Whether it holds before the time is over; as soon as it does."""
    deadline = time.monotonic() + within_s
    while True:
        held = holds()
        if await held if isinstance(held, Awaitable) else held:
            return True
        if time.monotonic() >= deadline:
            return False
        await asyncio.sleep(poll_s)


@contextmanager
def before_others() -> Iterator[None]:
    """This thread, and those that it starts meanwhile, have a core whenever they want one, where root runs
    the tests. For what only a broker does that nobody keeps from working, and for seconds.
    """
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    try:
        yield
    finally:
        with contextlib.suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
