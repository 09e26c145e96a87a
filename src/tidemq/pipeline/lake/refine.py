"""Messages that bronze has into the tables of the rules, some at a time.

Each rule goes by its own progress, which stands in its decoded table (`progress`): so a rule that was added
later begins with the first message of bronze, a table that was removed comes back, and a rule that cannot go
on is held back, while bronze and the other rules go on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StringType, StructType

from tidemq.errors import ConfigError
from tidemq.pipeline.decode.decoding import (
    dead_letters,
    decode,
    inferred,
    late,
    late_rows,
    matching,
    rows,
)
from tidemq.pipeline.decode.json_payloads import OTHERS
from tidemq.pipeline.decode.payload_rules import EVENT_TIME, KEY, PLACE, Rule
from tidemq.pipeline.decode.sparkplug import BIRTH_COLUMNS, BIRTHS, Births
from tidemq.pipeline.lake.gold import refresh
from tidemq.pipeline.lake.messages import Messages, columns_of, with_day
from tidemq.pipeline.lake.plan import Lake
from tidemq.pipeline.lake.progress import Progress, Span, Working
from tidemq.pipeline.lake.table import ConflictError, Table, TableError
from tidemq.pipeline.sources.stream import COLUMNS

CONFLICTS_MAX = 10  # in a row, before a rule is held back

_log = logging.getLogger(__name__)


class Refiner:
    """Brings the tables of the rules up to bronze."""

    def __init__(self, spark: SparkSession, lake: Lake) -> None:
        self._spark = spark
        self._lake = lake
        self.held: dict[str, str] = {}  # why a rule, or its gold, is held back

    def catch_up(self) -> None:
        """All that bronze has, of all epochs."""
        for epoch in self._lake.bronze.epochs():
            self.advance(epoch)

    def advance(self, epoch: int, spans_max: int | None = None) -> None:
        """What bronze has of an epoch; of each rule so many spans at most."""
        if not self._lake.rules:
            return
        end = self._lake.bronze.reached(Progress(self._lake.stream, epoch))
        behind = list(self._lake.rules)
        spans = 0
        with Messages(self._spark, self._lake.bronze, epoch) as messages:
            while behind and spans != spans_max:
                behind = [
                    rule for rule in behind if self._held(rule.name, partial(self._step, rule, messages, end))
                ]
                spans += 1
        for rule in self._lake.rules:
            if rule.gold and rule.name not in self.held:
                self._held(f"{rule.name}'s gold", partial(self._gold, rule, epoch))

    def _held(self, name: str, step: Callable[[], bool]) -> bool:
        """What the step says; False, and the name is held back, where no repetition mends what is wrong."""
        try:
            more = retried(step)
        except (TableError, ConfigError) as error:
            if self.held.get(name) != str(error):
                _log.error("the rule %s is held back: %s", name, error)
            self.held[name] = str(error)
            return False
        self.held.pop(name, None)
        return more

    def said(self) -> list[str]:
        """Which rules are held back, and why."""
        return [f"the rule {name} is held back: {why}" for name, why in self.held.items()]

    def _step(self, rule: Rule, messages: Messages, end: int) -> bool:
        """One span of a rule; whether there is more."""
        working = current(self._lake, rule)
        progress = Progress(self._lake.stream, messages.epoch, working)
        start = self._lake.silver(rule).reached(progress)
        if start >= end:
            return False
        span = Span(start, min(start + self._lake.rows_max, end))
        _refine(self._lake, rule, messages.between(span), progress, span)
        return span.end < end

    def _gold(self, rule: Rule, epoch: int) -> bool:
        lake = self._lake
        if (silver := lake.silver(rule)).log() is not None:
            progress = Progress(lake.stream, epoch, current(lake, rule))
            refresh(self._spark, rule, silver, lake.gold(rule), progress, lake.rows_max)
        return False


def retried(step: Callable[[], bool]) -> bool:
    """What the step says, which is done again while somebody else writes to the same tables. ConflictError
    when that does not end.
    """
    for _ in range(CONFLICTS_MAX - 1):
        with suppress(ConflictError):
            return step()
    return step()


def current(lake: Lake, rule: Rule) -> Working:
    """The working that the rule's decoded table has begun, or that it is to begin.

    TableError when it was made by another rule of that name.
    """
    silver = lake.silver(rule)
    table = silver.log()
    fresh = Working(rule.name, time.time_ns() // 1000, rule.digest)
    asked = Progress(lake.stream, 0, fresh)
    generation = asked.generation_of(table) if table else 0
    if table is None or not generation:
        return fresh
    if asked.digest_of(table) != rule.digest:
        raise TableError(
            f"the table {silver.uri} was made by other settings of the rule {rule.name}; `tidemq pipeline "
            "refine` makes it anew, and another name another table"
        )
    return Working(rule.name, generation, rule.digest)


def stale_rows(lake: Lake, rule: Rule, working: Working) -> str:
    """Which rows a working makes again: of messages that the rule's decoded table has not got to. Empty: all
    are.
    """
    silver = lake.silver(rule)
    ends = {epoch: silver.reached(Progress(lake.stream, epoch, working)) for epoch in lake.bronze.epochs()}
    return rows_behind(ends) if any(ends.values()) else ""


def rows_behind(ends: Mapping[int, int]) -> str:
    """A predicate: those of messages from an offset of each epoch on."""
    return " or ".join(f"(epoch = {epoch} and offset >= {end})" for epoch, end in ends.items())


def decoded_columns(spark: SparkSession, rule: Rule) -> StructType:
    """Of a rule's decoded table at first."""
    none = with_day(spark.createDataFrame([], columns_of(COLUMNS)))
    columns = StructType().add(OTHERS, StringType()) if rule.infers else rule.struct()
    return rows(decode(rule, none, columns, Births()), rule).schema


def _refine(lake: Lake, rule: Rule, messages: DataFrame, progress: Progress, span: Span) -> None:
    """Brings the messages of a span into the rule's tables; the decoded one, by which progress goes, is the
    last.
    """
    assert progress.working is not None
    stale = partial(stale_rows, lake, rule, progress.working)

    def stale_letters() -> str:
        found = stale()
        return f"rule = '{rule.name}'" + (f" and ({found})" if found else "")

    decoded = _decoded(rule, matching(rule, messages), lake, progress, span, stale).persist()
    try:
        found = rows(decoded, rule)
        if rule.watermark:
            lake.late(rule).append(late_rows(found, rule), progress, span, stale=stale, widen=rule.infers)
        letters = dead_letters(decoded, rule)
        lake.dead_letters.append(letters, progress, span, stale=stale_letters)
        whole = Span(span.start, span.end, whole=True)
        good = found.where(~late(rule))
        lake.silver(rule).append(good, progress, whole, stale=stale, widen=rule.infers)
    finally:
        decoded.unpersist()


def _decoded(
    rule: Rule, found: DataFrame, lake: Lake, progress: Progress, span: Span, stale: Callable[[], str]
) -> DataFrame:
    """What `decode` gives, by what the rule's tables know from earlier messages."""
    if rule.format == "sparkplug":
        births = _births(rule, found, lake.births(rule), progress, span, stale)
        return decode(rule, found, rule.struct(), births)
    if not rule.infers:
        return decode(rule, found, rule.struct(), Births())
    known = lake.silver(rule).schema() or StructType()
    fixed = {*KEY, PLACE, EVENT_TIME, "date"}
    columns = StructType([each for each in known.fields if each.name not in fixed])
    return decode(rule, found, inferred(rule, found, columns), Births())


def _births(
    rule: Rule, found: DataFrame, table: Table, progress: Progress, span: Span, stale: Callable[[], str]
) -> Births:
    """The birth certificates that count for these messages; those among them are in the table then."""
    now = found.where(F.expr("split_part(topic, '/', 3)").isin(*BIRTHS))
    metrics = rows(decode(rule, now, rule.struct(), Births()), rule)
    table.append(metrics.select(*KEY, *BIRTH_COLUMNS, "date"), progress, span, stale=stale)
    if table.schema() is None:
        return Births()
    nodes = found.selectExpr(
        "split_part(topic, '/', 2) as group_id", "split_part(topic, '/', 4) as edge_node_id", "offset"
    )
    nodes = nodes.groupBy("group_id", "edge_node_id").agg(F.min("offset").alias("first"))
    columns = ["epoch", "offset", *BIRTH_COLUMNS]
    epoch = progress.epoch
    births = table.read(found.sparkSession, columns, {"epoch": (epoch, epoch)}).where(F.col("epoch") == epoch)
    births = births.join(nodes, ["group_id", "edge_node_id"])
    # a node's own birth ends what was known of it before
    own = births.where("message_type = 'NBIRTH' and offset < first")
    own = own.groupBy("group_id", "edge_node_id").agg(F.max("offset").alias("since"))
    births = births.join(own, ["group_id", "edge_node_id"], "left").where("offset >= coalesce(since, 0)")
    return Births(row.asDict() for row in births.select("offset", *BIRTH_COLUMNS).collect())
