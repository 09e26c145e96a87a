"""Several jobs in one JVM: each goes on whatever becomes of the others."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from tidemq.errors import TideMQError
from tidemq.pipeline.alerts.watching import run_alerts
from tidemq.pipeline.lake.ingest import run_ingest
from tidemq.pipeline.lake.maintenance import maintain_all
from tidemq.pipeline.lake.plan import Ingest
from tidemq.pipeline.service.board import Board
from tidemq.pipeline.service.bridging import run_bridge
from tidemq.pipeline.service.pipeline_file import MaintenanceTable, Plan
from tidemq.pipeline.spark.jobs import JavaGoneError, JobError

RETRY_S = 60.0  # before a job that cannot go on is begun again
_POLL_S = 0.5

SHARED = {"spark.scheduler.mode": "FAIR"}  # of the session: no job waits until another's tasks are done

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Job:
    """What goes on for ever, in a session of its own."""

    name: str
    run: Callable[[SparkSession], None]


def jobs_of(plan: Plan, board: Board, stop: threading.Event) -> list[Job]:
    """All that a plan asks for."""
    lakes = [replace(each.ingest) for each in plan.streams]  # whose tables no other thread looks at
    upkeep = plan.table.maintenance
    jobs = [Job("maintenance", lambda _: _maintain(lakes, upkeep, stop))]
    for each in plan.streams:
        stream = each.ingest.stream
        run = partial(run_ingest, ingest=each.ingest, measures=board.measures[stream])
        jobs.append(Job(stream, run))
        if each.alerts:
            jobs.append(Job(each.alerts.name, partial(run_alerts, alerts=each.alerts)))
        jobs += [Job(bridge.publisher, partial(run_bridge, bridge=bridge)) for bridge in each.bridges]
    return jobs


def run_jobs(spark: SparkSession, jobs: Sequence[Job], board: Board, stop: threading.Event) -> None:
    """Until `stop`. A job that cannot go on is begun again once a minute, and the others do not notice.

    JavaGoneError where Spark's Java process ends.
    """
    sessions = [spark.newSession() for _ in jobs]
    with ThreadPoolExecutor(len(jobs)) as threads:
        ends = [
            threads.submit(_keep_running, session, job, board, stop)
            for session, job in zip(sessions, jobs, strict=True)
        ]
        stop.wait()
        while wait(ends, _POLL_S).not_done:
            for session in sessions:  # again and again: a job may just have begun another query
                _end_queries(session)
    for end in ends:
        end.result()


def _keep_running(session: SparkSession, job: Job, board: Board, stop: threading.Event) -> None:
    """In a thread of its own. JavaGoneError ends all jobs."""
    try:
        session.sparkContext.setLocalProperty("spark.scheduler.pool", job.name)
        session.streams.addListener(board.listener)
        while not stop.is_set():
            board.goes_on(job.name)
            try:
                job.run(session)
            except JavaGoneError:
                raise
            except Exception as error:  # noqa: BLE001 (whatever it is, the other jobs go on)
                if stop.is_set():
                    return  # its query was ended under it
                unknown = None if isinstance(error, TideMQError | OSError) else error
                text = "%s cannot go on, and is begun again in %g s: %s"
                _log.error(text, job.name, RETRY_S, error, exc_info=unknown)
                board.cannot_go_on(job.name, str(error))
                stop.wait(RETRY_S)
    finally:
        stop.set()


def _end_queries(session: SparkSession) -> None:
    with suppress(Py4JError, ConnectionError):  # Java is not there to be told
        for query in session.streams.active:
            query.stop()


def _maintain(lakes: Sequence[Ingest], table: MaintenanceTable, stop: threading.Event) -> None:
    """Of every stream's tables, until `stop`. Those of others are maintained, too, where one cannot be."""
    while not stop.wait(table.every_s):
        failed: list[str] = []
        for lake in lakes:
            if lake.bronze.now() is None:
                continue  # nothing has come yet
            try:
                for line in maintain_all(lake, table.keep_h, table.bronze_days):
                    _log.info("%s: %s", lake.stream, line)
            except (TideMQError, OSError) as error:
                failed.append(f"the tables of {lake.stream}: {error}")
        if failed:
            raise JobError("; ".join(failed))
