"""A job is begun again from its checkpoint where that helps, and ends where it does not."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

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
            return SimpleNamespace(awaitTermination=await_termination, lastProgress=last, stop=lambda: None)

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
