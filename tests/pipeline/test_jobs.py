"""A job is begun again from its checkpoint where that helps, and ends where it does not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from waiting import WAIT_S, wait_until

from tidemq.pipeline.spark import jobs
from tidemq.pipeline.spark.jobs import JobError, run_job

OVERLOADED = "Query [id = 1] terminated with exception: Python worker failed to connect back."


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Runs a job whose queries fail with these messages, each without a batch, and then end by themselves;
    gives the number of queries."""
    monkeypatch.setattr(jobs, "RESTART_PAUSE_S", 0)

    def run(*failures: str, progress: bool = False) -> int:
        started: list[Any] = []

        def start() -> SimpleNamespace:
            started.append(None)

            def await_termination() -> None:
                if len(started) <= len(failures):
                    raise StreamingQueryException(failures[len(started) - 1])

            last = SimpleNamespace() if progress else None
            return SimpleNamespace(
                awaitTermination=await_termination, lastProgress=last, stop=lambda: None, isActive=False
            )

        run_job(start)  # type: ignore[arg-type]
        return len(started)

    return run


def test_it_gives_up_after_three_failures_in_a_row(run: Callable[..., int]) -> None:
    assert run("a", "b") == 3
    assert run(*"abcdefg", progress=True) == 8
    with pytest.raises(JobError, match=r"^c$"):
        run("a", "b", "c")


def test_what_no_restart_mends_ends_it_at_once(run: Callable[..., int]) -> None:
    with pytest.raises(JobError, match=r"^the option x is wrong$"):
        run("Caused by\ntidemq.errors.UsageError: the option x is wrong\n\tat x")


def test_a_machine_that_is_overloaded_is_waited_for(run: Callable[..., int]) -> None:
    assert run("a", "b", *[OVERLOADED] * 5) == 8


def test_a_query_begins_when_the_one_before_has_begun() -> None:
    """Each starts processes of Python that Spark gives ten seconds."""
    ended = threading.Event()
    first, second = (
        SimpleNamespace(
            isActive=True,
            lastProgress=None,
            status={"message": "Initializing sources"},
            awaitTermination=lambda: ended.wait(WAIT_S),
            stop=lambda: None,
        )
        for _ in range(2)
    )
    started: list[Any] = []

    def start(query: Any) -> Any:
        started.append(query)
        return query

    with ThreadPoolExecutor(2) as threads:
        jobs = [threads.submit(run_job, partial(start, first))]
        wait_until(lambda: started == [first])
        jobs.append(threads.submit(run_job, partial(start, second)))
        time.sleep(0.2)
        assert started == [first]
        first.status = {"message": "Waiting for next trigger"}
        wait_until(lambda: started == [first, second])
        second.lastProgress = {"batchId": 0}
        ended.set()
    for job in jobs:
        job.result()
