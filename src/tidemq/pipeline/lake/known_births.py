"""Sparkplug B's birth certificates that count for the messages of a span; kept from one span to the next."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_schema

from tidemq.pipeline.decode.decoding import decode, rows
from tidemq.pipeline.decode.payload_rules import KEY, Rule
from tidemq.pipeline.decode.sparkplug import BIRTH_COLUMNS, BIRTHS, Births
from tidemq.pipeline.lake.day_files import DayFiles
from tidemq.pipeline.lake.progress import Progress, Span
from tidemq.pipeline.lake.stale import Stale
from tidemq.pipeline.lake.table import Table
from tidemq.pipeline.lake.table_log import Snapshot

_NODE = ["group_id", "edge_node_id"]


class KnownBirths:
    """Of a rule. The driver holds them: a row for each metric of the edge nodes that are there now."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._end = 0  # up to which messages `_rows` has them
        self._rows: pa.Table | None = None

    def of(
        self,
        rule: Rule,
        messages: DataFrame,
        table: Table,
        progress: Progress,
        span: Span,
        stale: Callable[[], Stale],
    ) -> Births:
        """Those that count for these messages; those among them are in the table then."""
        new = messages.where(F.expr("split_part(topic, '/', 3)").isin(*BIRTHS))
        metrics = rows(decode(rule, new, rule.struct(), Births()), rule).select(*KEY, *BIRTH_COLUMNS, "date")
        columns = to_arrow_schema(metrics.schema, timezone="UTC")
        attempt = table.attempt(columns, progress, span, stale=stale)
        if self._rows is None or (self._progress, self._end) != (progress, span.start):
            self._rows = _before(table, attempt.snapshot, columns, progress.epoch, span.start)
        found = metrics.toArrow().cast(columns)
        missing = found.filter(pc.greater_equal(found["offset"], attempt.reached))
        with DayFiles(table.storage, bytes_max=1 << 30) as files:
            for batch in missing.to_batches():
                files.add(attempt.folder, batch.drop_columns(["date"]), batch.column("date"))
        attempt.commit(files.written)
        known = pa.concat_tables([_counting(self._rows), found.select(self._rows.column_names)])
        self._progress, self._end, self._rows = progress, span.end, known
        return Births(known.to_pylist())


def _before(table: Table, snapshot: Snapshot, columns: pa.Schema, epoch: int, end: int) -> pa.Table:
    """The rows of messages of an epoch up to an offset."""
    wanted = pa.schema([columns.field(name) for name in ("epoch", "offset", *BIRTH_COLUMNS)])
    found = table.rows(snapshot, wanted, {"epoch": (epoch, epoch), "offset": (None, end - 1)})
    counting = (pc.field("epoch") == epoch) & (pc.field("offset") < end)
    return found.filter(counting).drop_columns(["epoch"])


def _counting(births: pa.Table) -> pa.Table:
    """Those that count for later messages: a node's own birth ends what was known of it before, and of what
    is said again the last counts.
    """
    own = births.filter(pc.equal(births["message_type"], "NBIRTH"))
    own = own.group_by(_NODE).aggregate([("offset", "max")]).rename_columns([*_NODE, "since"])
    found = births.join(own, _NODE)
    found = found.filter(pc.greater_equal(found["offset"], pc.fill_null(found["since"], 0)))
    same = [name for name in BIRTH_COLUMNS if name not in ("message_type", "datatype")]
    ordered = found.sort_by("offset")
    last = ordered.group_by(same, use_threads=False).aggregate(
        [("offset", "last"), ("message_type", "last"), ("datatype", "last")]
    )
    last = last.rename_columns([name.removesuffix("_last") for name in last.column_names])
    return last.select(births.column_names).cast(births.schema)
