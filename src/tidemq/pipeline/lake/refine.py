"""Messages that bronze has into the tables of the rules, some at a time.

Each rule goes by its own progress, which stands in its decoded table (`progress`): so a rule that was added
later begins with the first message of bronze, a table that was removed comes back, and a rule that cannot go
on is held back, while bronze and the other rules go on.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, StringType, StructType

from tidemq.errors import ConfigError
from tidemq.pipeline.decode.decoding import decode, filed, inferred, matching, rows
from tidemq.pipeline.decode.json_payloads import OTHERS
from tidemq.pipeline.decode.payload_rules import EVENT_TIME, KEY, PLACE, Rule
from tidemq.pipeline.decode.sparkplug import Births
from tidemq.pipeline.lake.filing import FILED, Filer, Place, gathered, late_columns, letter_columns
from tidemq.pipeline.lake.gold import Fresh, refresh
from tidemq.pipeline.lake.known_births import KnownBirths
from tidemq.pipeline.lake.measures import Measures
from tidemq.pipeline.lake.messages import Messages, columns_of, with_day
from tidemq.pipeline.lake.plan import Lake
from tidemq.pipeline.lake.progress import Progress, Span, Working
from tidemq.pipeline.lake.table import Attempt, ConflictError, TableError
from tidemq.pipeline.sources.stream import COLUMNS

CONFLICTS_MAX = 10  # in a row, before a rule is held back

_log = logging.getLogger(__name__)


class Refiner:
    """Brings the tables of the rules up to bronze."""

    def __init__(self, spark: SparkSession, lake: Lake, measures: Measures | None = None) -> None:
        self._spark = spark
        self._lake = lake
        self._measures = measures or Measures()
        self.held: dict[str, str] = {}  # why a rule, or its gold, is held back
        self._births: dict[str, KnownBirths] = defaultdict(KnownBirths)
        self._fresh: dict[str, Fresh] = {}  # of a rule, what its gold has not got yet

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
                behind = [rule for rule in behind if self._advance(rule, messages, end)]
                spans += 1

    def _advance(self, rule: Rule, messages: Messages, end: int) -> bool:
        """One span of a rule and its gold; whether there is more."""
        with self._measures.part(rule.name):
            more = self._held(rule.name, partial(self._step, rule, messages, end))
        if rule.gold and rule.name not in self.held:
            with self._measures.part(f"{rule.name}'s gold"):
                self._held(f"{rule.name}'s gold", partial(self._gold, rule, messages.epoch))
        return more

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
        self._refine(rule, messages.between(span), progress, span)
        return span.end < end

    def _gold(self, rule: Rule, epoch: int) -> bool:
        lake = self._lake
        if lake.silver(rule).log() is not None:
            progress = Progress(lake.stream, epoch, current(lake, rule))
            refresh(self._spark, lake, rule, progress, self._fresh.pop(rule.name, None))
        return False

    def _refine(self, rule: Rule, messages: DataFrame, progress: Progress, span: Span) -> None:
        """Brings the messages of a span into the rule's tables; the decoded one, by which progress goes, is
        the last.
        """
        assert progress.working is not None
        lake = self._lake
        stale = partial(stale_rows, lake, rule, progress.working)
        found, births = matching(rule, messages), Births()
        if rule.format == "sparkplug":
            births = self._births[rule.name].of(rule, found, lake.births(rule), progress, span, stale)
        found = filed(_decoded(rule, found, lake, births), rule)
        late, letters, decoded = _attempts(lake, rule, found.schema["row"].dataType, progress, span, stale)
        task = Filer(
            rule.name,
            _place(late) if late else None,
            _place(letters),
            _place(decoded),
            rule.gold,
            lake.bytes_max,
        )
        causes, parts = gathered(found.mapInArrow(task, FILED).collect(), rule.gold)
        names = (f"late/{rule.name}", "dead_letters", f"silver/{rule.name}")
        for name, attempt in zip(names, (late, letters, decoded), strict=True):
            if attempt:
                self._measures.added(name, attempt.commit())
        self._measures.dead(rule.name, causes)
        self._fresh[rule.name] = Fresh(progress, span, parts)


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


def _attempts(
    lake: Lake, rule: Rule, row: DataType, progress: Progress, span: Span, stale: Callable[[], str]
) -> tuple[Attempt | None, Attempt, Attempt]:
    """To add to the tables of late rows, of dead letters, and of rows: in this order."""
    assert isinstance(row, StructType)
    columns = to_arrow_schema(row, timezone="UTC")

    def stale_letters() -> str:
        found = stale()
        return f"rule = '{rule.name}'" + (f" and ({found})" if found else "")

    late = None
    if rule.watermark:
        late = lake.late(rule).attempt(late_columns(columns), progress, span, stale=stale, widen=rule.infers)
    letters = lake.dead_letters.attempt(letter_columns(columns), progress, span, stale=stale_letters)
    whole = Span(span.start, span.end, whole=True)
    return late, letters, lake.silver(rule).attempt(columns, progress, whole, stale=stale, widen=rule.infers)


def _place(attempt: Attempt) -> Place:
    return Place(attempt.folder, attempt.reached, attempt.columns)


def _decoded(rule: Rule, found: DataFrame, lake: Lake, births: Births) -> DataFrame:
    """What `decode` gives, by what the rule's tables know from earlier messages."""
    if rule.format == "sparkplug":
        return decode(rule, found, rule.struct(), births)
    if not rule.infers:
        return decode(rule, found, rule.struct(), births)
    known = lake.silver(rule).schema() or StructType()
    fixed = {*KEY, PLACE, EVENT_TIME, "date"}
    columns = StructType([each for each in known.fields if each.name not in fixed])
    return decode(rule, found, inferred(rule, found, columns), births)
