"""What a job measures, for Prometheus: https://prometheus.io/docs/instrumenting/exposition_formats/"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from tidemq.errors import TideMQError
from tidemq.pipeline.lake.measures import Measures
from tidemq.pipeline.lake.plan import Ingest
from tidemq.pipeline.lake.status import TableStatus, status

_log = logging.getLogger(__name__)


@contextmanager
def exposed(ingest: Ingest, measures: Measures, host: str, port: int) -> Iterator[int]:
    """Answers `GET /metrics` meanwhile; gives the port, which is another one if 0 is asked for. OSError where
    the port is taken.
    """
    registry = CollectorRegistry()
    registry.register(_Exposition(ingest, measures))
    server, thread = start_http_server(port, host, registry)
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Exposition(Collector):
    """Of a job. Its tables and the broker are asked anew for each answer."""

    def __init__(self, ingest: Ingest, measures: Measures) -> None:
        self._ingest = replace(ingest)  # whose tables nobody else looks at
        self._measures = measures

    def describe(self) -> Iterable[Metric]:
        """Nothing is asked before the first answer."""
        return []

    def collect(self) -> Iterable[Metric]:
        yield from self._counts()
        yield from self._tables()

    def _counts(self) -> Iterable[Metric]:
        now, stream = self._measures.counts(), self._ingest.stream
        batches = CounterMetricFamily(
            "tidemq_pipeline_batches", "Batches since the start.", labels=["stream"]
        )
        batches.add_metric([stream], now.batches)
        rows = CounterMetricFamily(
            "tidemq_pipeline_rows", "Rows added since the start.", labels=["stream", "table"]
        )
        for table, number in now.rows.items():
            rows.add_metric([stream, table], number)
        letters = CounterMetricFamily(
            "tidemq_pipeline_dead_letters", "Since the start, by cause.", labels=["stream", "rule", "cause"]
        )
        for (rule, cause), number in now.letters.items():
            letters.add_metric([stream, rule, cause], number)
        seconds = SummaryMetricFamily(
            "tidemq_pipeline_part_seconds", "How long parts of batches took.", labels=["stream", "part"]
        )
        for part, took in now.seconds.items():
            seconds.add_metric([stream, part], now.parts[part], took)
        return batches, rows, letters, seconds

    def _tables(self) -> Iterable[Metric]:
        """None where the broker or the tables cannot be asked."""
        job = self._ingest
        try:
            found = status(job, job.open(retry_s=0).describe())
        except (TideMQError, OSError) as error:
            _log.warning("no metrics of the tables of %s: %s", job.stream, error)
            return []
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
        for table in found:
            for name, value in _figures(table).items():
                made[name].add_metric([job.stream, table.name], value)
        return made.values()


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
