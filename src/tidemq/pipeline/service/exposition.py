"""What jobs measure, for Prometheus: https://prometheus.io/docs/instrumenting/exposition_formats/"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from tidemq.errors import TideMQError
from tidemq.pipeline.lake.measures import Counts
from tidemq.pipeline.lake.plan import Ingest
from tidemq.pipeline.lake.status import TableStatus, status
from tidemq.pipeline.service.board import Board
from tidemq.pipeline.service.figures import Figures

_log = logging.getLogger(__name__)


@contextmanager
def exposed(ingests: Sequence[Ingest], board: Board, host: str, port: int) -> Iterator[int]:
    """Answers `GET /metrics` meanwhile; gives the port, which is another one if 0 is asked for. OSError where
    the port is taken.
    """
    registry = CollectorRegistry()
    registry.register(_Exposition(ingests, board))
    server, thread = start_http_server(port, host, registry)
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Exposition(Collector):
    """Of some jobs. Their tables and the broker are asked anew for each answer."""

    def __init__(self, ingests: Sequence[Ingest], board: Board) -> None:
        self._ingests = [replace(each) for each in ingests]  # whose tables nobody else looks at
        self._board = board

    def describe(self) -> Iterable[Metric]:
        """Nothing is asked before the first answer."""
        return []

    def collect(self) -> Iterable[Metric]:
        yield from _of_ingest({name: each.counts() for name, each in self._board.measures.items()})
        yield from _of_tables(self._ingests)
        yield from _of_queries(self._board.listener.figures())
        yield from _of_jobs(self._board)


def _of_ingest(counts: Mapping[str, Counts]) -> Iterable[Metric]:
    """By stream."""
    batches = CounterMetricFamily("tidemq_pipeline_batches", "Batches since the start.", labels=["stream"])
    rows = CounterMetricFamily(
        "tidemq_pipeline_rows", "Rows added since the start.", labels=["stream", "table"]
    )
    letters = CounterMetricFamily(
        "tidemq_pipeline_dead_letters", "Since the start, by cause.", labels=["stream", "rule", "cause"]
    )
    seconds = SummaryMetricFamily(
        "tidemq_pipeline_part_seconds", "How long parts of batches took.", labels=["stream", "part"]
    )
    for stream, now in counts.items():
        batches.add_metric([stream], now.batches)
        for table, number in now.rows.items():
            rows.add_metric([stream, table], number)
        for (rule, cause), number in now.letters.items():
            letters.add_metric([stream, rule, cause], number)
        for part, took in now.seconds.items():
            seconds.add_metric([stream, part], now.parts[part], took)
    return batches, rows, letters, seconds


def _of_tables(ingests: Iterable[Ingest]) -> Iterable[Metric]:
    """None of a stream whose broker or tables cannot be asked."""
    labels = ["stream", "table"]
    made = {
        name: GaugeMetricFamily(f"tidemq_pipeline_{name}", text, labels=labels)
        for name, text in (
            ("table_rows", "Rows of the table."),
            ("table_files", "Files of the table."),
            ("table_bytes", "Bytes of these files."),
            ("behind_messages", "Messages from where the table is to the end of what it follows."),
            ("behind_seconds", "Age of its newest message, if it is behind."),
        )
    }
    for ingest in ingests:
        try:
            found = status(ingest, ingest.describe(retry_s=0))
        except (TideMQError, OSError) as error:
            _log.warning("no metrics of the tables of %s: %s", ingest.stream, error)
            continue
        for table in found:
            for name, value in _figures(table).items():
                made[name].add_metric([ingest.stream, table.name], value)
    return made.values()


_QUERIES = {  # of what Spark says, each with how it grows
    "batches": ("Batches since the start.", CounterMetricFamily),
    "messages": ("Messages worked since the start.", CounterMetricFamily),
    "seconds": ("Seconds that batches took since the start.", CounterMetricFamily),
    "behind": ("Messages to the end of the stream when the last batch began.", GaugeMetricFamily),
    "state_rows": ("Rows that the query keeps.", GaugeMetricFamily),
    "state_bytes": ("Bytes of memory that these take.", GaugeMetricFamily),
}


def _of_queries(figures: Mapping[str, Figures]) -> Iterable[Metric]:
    """By job."""
    for name, (text, kind) in _QUERIES.items():
        family = kind(f"tidemq_pipeline_query_{name}", text, labels=["job"])
        for job, now in figures.items():
            family.add_metric([job], getattr(now, name))
        yield family


def _of_jobs(board: Board) -> Iterable[Metric]:
    failing = board.failing()
    running = GaugeMetricFamily(
        "tidemq_pipeline_job_running", "0: it waits to be begun again.", labels=["job"]
    )
    failures = CounterMetricFamily(
        "tidemq_pipeline_job_failures", "How often it could not go on.", labels=["job"]
    )
    for job, number in board.failures().items():
        running.add_metric([job], job not in failing)
        failures.add_metric([job], number)
    return running, failures


def _figures(table: TableStatus) -> dict[str, float]:
    found: dict[str, float] = {
        "table_rows": table.rows,
        "table_files": table.files,
        "table_bytes": table.bytes,
    }
    if table.behind is not None:
        found["behind_messages"] = table.behind
        if not table.behind:
            found["behind_seconds"] = 0.0
        elif table.newest is not None:
            found["behind_seconds"] = (datetime.now(UTC) - table.newest).total_seconds()
    return found
