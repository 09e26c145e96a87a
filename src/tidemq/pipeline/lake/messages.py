"""Messages of bronze, for rules that work the same ones."""

from __future__ import annotations

from types import TracebackType
from typing import Self, cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from tidemq.pipeline.lake.progress import Span
from tidemq.pipeline.lake.redelivery import first_deliveries
from tidemq.pipeline.lake.table import Table, day_of
from tidemq.pipeline.sources.ranges import COLUMNS


class Messages:
    """Of an epoch, without those that came again, which are not looked for in `single`. Spark keeps those
    that were asked for last, if it was work to find them.
    """

    def __init__(self, spark: SparkSession, bronze: Table, epoch: int, single: Span | None = None) -> None:
        self.epoch = epoch
        self._spark = spark
        self._bronze = bronze
        self._single = single or Span(0, 0)
        self._span: Span | None = None
        self._kept: DataFrame | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release()

    def between(self, span: Span) -> DataFrame:
        """With `date`, the day in UTC on which each came, as the last column."""
        if self._kept is None or self._span != span:
            self._release()
            found = with_day(read_messages(self._spark, self._bronze, self.epoch, span))
            if not (self._single.start <= span.start and span.end <= self._single.end):
                kept = first_deliveries(found, self._bronze)
                found = kept if kept is found else kept.persist()  # a join; to read a file again is cheaper
            self._span, self._kept = span, found
        return self._kept

    def _release(self) -> None:
        if self._kept is not None:
            self._kept.unpersist()  # nothing, if it is not kept
        self._kept = None


def read_messages(spark: SparkSession, bronze: Table, epoch: int, span: Span) -> DataFrame:
    """The messages of a span, as they came. The stream may have given them up by now."""
    last = span.end - 1
    bounds = {"epoch": (epoch, epoch), "offset": (span.start, last)}
    found = bronze.read(spark, columns_of(COLUMNS).names, bounds)
    return found.where((F.col("epoch") == epoch) & F.col("offset").between(span.start, last))


def columns_of(text: str) -> StructType:
    """What is said in Spark's own language."""
    return cast(StructType, StructType.fromDDL(text))


def with_day(frame: DataFrame) -> DataFrame:
    """With the day in UTC on which the message came, as the last column."""
    return frame.withColumn("date", F.expr(day_of("received")))
