"""Messages that bronze has into the tables of the rules, some at a time.

Each rule goes by its own progress, which stands in its decoded table (`progress`): so a rule that was added
later begins with the first message of bronze, a table that was removed comes back, and a rule that cannot go
on is held back, while bronze and the other rules go on.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial, reduce
from typing import TypeVar

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructType

from tidemq.errors import ConfigError
from tidemq.pipeline.decode.decoding import decode, filed, inferred, matching, row_columns
from tidemq.pipeline.decode.json_payloads import OTHERS
from tidemq.pipeline.decode.payload_rules import EVENT_TIME, KEY, PLACE, Rule
from tidemq.pipeline.decode.schema_registry import RegistryError
from tidemq.pipeline.decode.sparkplug import Births
from tidemq.pipeline.lake.filing import FILED, Filer, Place, gathered, late_columns, letter_columns
from tidemq.pipeline.lake.gold import Fresh, refresh
from tidemq.pipeline.lake.known_births import KnownBirths
from tidemq.pipeline.lake.measures import Measures
from tidemq.pipeline.lake.messages import Messages
from tidemq.pipeline.lake.plan import Lake
from tidemq.pipeline.lake.progress import Progress, Span, Working, expired_of
from tidemq.pipeline.lake.stale import Stale
from tidemq.pipeline.lake.table import Attempt
from tidemq.pipeline.lake.table_log import ConflictError, TableError

T = TypeVar("T")

CONFLICTS_MAX = 10  # in a row, before a rule is held back

_log = logging.getLogger(__name__)


class Refiner:
    """Brings the tables of the rules up to bronze."""

    def __init__(self, spark: SparkSession, lake: Lake, measures: Measures | None = None) -> None:
        self._spark = spark
        self._lake = lake
        self._measures = measures or Measures(lake.stream)
        self.held: dict[str, str] = {}  # why a rule, or its gold, is held back
        self._births: dict[str, KnownBirths] = defaultdict(KnownBirths)
        self._fresh: dict[str, Fresh] = {}  # of a rule, what its gold has not got yet

    def catch_up(self) -> None:
        """All that bronze has, of all epochs."""
        for epoch in self._lake.bronze.epochs():
            self.advance(epoch)

    def advance(self, epoch: int, spans_max: int | None = None, single: Span | None = None) -> None:
        """What bronze has of an epoch; of each rule so many spans at most. Of `single`, no message has come
        before.
        """
        if not self._lake.rules:
            return
        end = self._lake.bronze.reached(Progress(self._lake.stream, epoch))
        behind = list(self._lake.rules)
        spans = 0
        with Messages(self._spark, self._lake.bronze, epoch, single) as messages:
            while behind and spans != spans_max:
                behind = self._advance(behind, messages, end)
                spans += 1

    def _advance(self, rules: Sequence[Rule], messages: Messages, end: int) -> list[Rule]:
        """One span of each rule, in one job of Spark, and its gold; gives those that have more to do."""
        with self._measures.part("rules"):
            steps = []
            for rule in rules:
                if step := self._held(rule.name, partial(self._prepared, rule, messages, end)):
                    steps.append(step)
            done = _collected(steps)
            for step in steps:
                self._held(step.rule.name, partial(self._finished, step, done, messages, end))
        with self._measures.part("gold"):
            for rule in rules:
                if rule.gold and rule.name not in self.held:
                    self._held(f"{rule.name}'s gold", partial(self._gold, rule, messages.epoch))
        return [step.rule for step in steps if step.span.end < end and step.rule.name not in self.held]

    def _held(self, name: str, step: Callable[[], T]) -> T | None:
        """What the step gives; None, and the name is held back, where no repetition mends what is wrong, or
        a registry cannot be asked: the next batch tries again.
        """
        try:
            found = retried(step)
        except (TableError, ConfigError, RegistryError) as error:
            if self.held.get(name) != str(error):
                _log.error("the rule %s is held back: %s", name, error)
            self.held[name] = str(error)
            return None
        self.held.pop(name, None)
        return found

    def said(self) -> list[str]:
        """Which rules are held back, and why."""
        return [f"the rule {name} is held back: {why}" for name, why in self.held.items()]

    def _prepared(self, rule: Rule, messages: Messages, end: int) -> Step | None:
        """The next span of a rule; None where there is none."""
        lake, working = self._lake, current(self._lake, rule)
        progress = Progress(lake.stream, messages.epoch, working)
        start = lake.silver(rule).reached(progress)
        if start >= end:
            return None
        if rule.registry:
            rule.registry.check()  # tasks would fail, and those of all rules with them
        gone = self._gone(rule, messages.epoch, start)
        span = Span(start, min(max(start, gone) + lake.rows_max, end))
        stale = partial(stale_rows, lake, rule, working)
        found, births = matching(rule, messages.between(span)), Births()
        if rule.format == "sparkplug":
            births = self._births[rule.name].of(rule, found, lake.births(rule), progress, span, stale)
        columns = _columns(rule, found, lake)
        late, letters, decoded = _attempts(lake, rule, row_columns(rule, columns), progress, span, stale)
        found = filed(decode(rule, found, columns, births), rule, columns)
        task = Filer(
            rule.name,
            lake.storage,
            _place(late) if late else None,
            _place(letters),
            _place(decoded),
            rule.gold,
            lake.bytes_max,
        )
        return Step(rule, progress, span, found.mapInArrow(task, FILED), late, letters, decoded)

    def _gone(self, rule: Rule, epoch: int, start: int) -> int:
        """Up to which offset bronze may have no messages any more, which is said where rows are missed."""
        bronze = self._lake.bronze.now()
        gone = expired_of(bronze, Progress(self._lake.stream, epoch)) if bronze else 0
        if start < gone:
            _log.warning(
                "the rule %s has got to offset %d, but messages up to offset %d have expired in bronze",
                rule.name,
                start,
                gone,
            )
        return gone

    def _finished(self, step: Step, done: Sequence[Row], messages: Messages, end: int) -> None:
        """Commits what the tasks have filed; the decoded table, by which progress goes, is the last. Does the
        step again where somebody else was first.
        """
        try:
            self._commit(step, done)
        except ConflictError:
            if again := self._prepared(step.rule, messages, end):
                self._commit(again, _collected([again]))

    def _commit(self, step: Step, done: Sequence[Row]) -> None:
        rule = step.rule
        found = gathered([row for row in done if row.rule == rule.name], rule.gold)
        if step.late:
            self._measures.added(f"late/{rule.name}", step.late.commit(found.files))
        self._measures.added("dead_letters", step.letters.commit(found.files))
        self._measures.added(f"silver/{rule.name}", step.decoded.commit(found.files))
        self._measures.dead(rule.name, found.causes)
        self._measures.took(rule.name, found.seconds)
        self._fresh[rule.name] = Fresh(step.progress, step.span, found.parts)

    def _gold(self, rule: Rule, epoch: int) -> None:
        lake = self._lake
        if lake.silver(rule).now() is not None:
            progress = Progress(lake.stream, epoch, current(lake, rule))
            refresh(self._spark, lake, rule, progress, self._fresh.pop(rule.name, None))


@dataclass(frozen=True, slots=True)
class Step:
    """A span of a rule's messages, and where its rows go."""

    rule: Rule
    progress: Progress
    span: Span
    tasks: DataFrame  # of FILED
    late: Attempt | None
    letters: Attempt
    decoded: Attempt


def _collected(steps: Sequence[Step]) -> list[Row]:
    """What all tasks give, of one job."""
    return reduce(DataFrame.union, (step.tasks for step in steps)).collect() if steps else []


def retried(step: Callable[[], T]) -> T:
    """What the step gives, which is done again while somebody else writes to the same tables. ConflictError
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
    snapshot = silver.now()
    fresh = Working(rule.name, time.time_ns() // 1000, rule.digest)
    asked = Progress(lake.stream, 0, fresh)
    generation = asked.generation_of(snapshot) if snapshot else 0
    if snapshot is None or not generation:
        return fresh
    if asked.digest_of(snapshot) != rule.digest:
        raise TableError(
            f"the table {silver.uri} was made by other settings of the rule {rule.name}; `tidemq pipeline "
            "refine` makes it anew, and another name another table"
        )
    return Working(rule.name, generation, rule.digest)


def stale_rows(lake: Lake, rule: Rule, working: Working) -> Stale:
    """Which rows a working makes again: of messages that the rule's decoded table has not got to."""
    silver = lake.silver(rule)
    ends = {epoch: silver.reached(Progress(lake.stream, epoch, working)) for epoch in lake.bronze.epochs()}
    return Stale(ends) if any(ends.values()) else Stale()


def decoded_columns(rule: Rule) -> StructType:
    """Of a rule's decoded table at first."""
    return row_columns(rule, StructType().add(OTHERS, StringType()) if rule.infers else rule.struct())


def _attempts(
    lake: Lake, rule: Rule, row: StructType, progress: Progress, span: Span, stale: Callable[[], Stale]
) -> tuple[Attempt | None, Attempt, Attempt]:
    """To add to the tables of late rows, of dead letters, and of rows: in this order."""
    columns = to_arrow_schema(row, timezone="UTC")

    def stale_letters() -> Stale:
        return stale().of(rule.name)

    late = None
    if rule.watermark:
        late = lake.late(rule).attempt(late_columns(columns), progress, span, stale=stale, widen=rule.infers)
    letters = lake.dead_letters.attempt(letter_columns(columns), progress, span, stale=stale_letters)
    whole = Span(span.start, span.end, whole=True)
    return late, letters, lake.silver(rule).attempt(columns, progress, whole, stale=stale, widen=rule.infers)


def _place(attempt: Attempt) -> Place:
    return Place(attempt.folder, attempt.reached, attempt.columns)


def _columns(rule: Rule, found: DataFrame, lake: Lake) -> StructType:
    """Of what is decoded: those of the rule, or those that its table and these messages have."""
    if not rule.infers:
        return rule.struct()
    known = lake.silver(rule).schema() or StructType()
    fixed = {*KEY, PLACE, EVENT_TIME, "date"}
    return inferred(rule, found, StructType([each for each in known.fields if each.name not in fixed]))
