"""Tables of plain Parquet files, for who reads no Delta Lake: each message once, too, on a file system.

A batch is a folder, `batch=EPOCH-OFFSET`, with the offset at which it begins. It is written under another
name; to rename it is to commit it: of two drivers that have got equally far, one finds the folder there. How
far the table has got stands in the files of its last batch.
"""

from __future__ import annotations

import bisect
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from tidemq.errors import ConfigError
from tidemq.pipeline.lake.table import RETAINED_H, Progress, Table, TableError, Written

CLOCKS_DIFFER = timedelta(minutes=1)


class PlainTable(Table):
    """One table, at a folder's path or file: URI. ConfigError for others, where to rename is no commit."""

    _attempts = "_batch-"  # readers leave out what begins so

    def __init__(self, uri: str, partition_by: tuple[str, ...] = ("date",)) -> None:
        if urlsplit(uri).scheme not in ("", "file"):
            raise ConfigError(
                f"plain Parquet needs a folder of a file system, and not {uri}; accepted: format delta"
            )
        super().__init__(uri, partition_by)
        self._folder = Path(unquote(urlsplit(self.uri).path))

    def read(
        self, spark: SparkSession, columns: Sequence[str], bounds: Mapping[str, tuple[Any, Any]] = {}
    ) -> DataFrame:
        """As of a table of Delta Lake, though of the bounds only those of `epoch` and `offset`, and the lower
        one of `received`, leave out files.
        """
        schema = self.schema()
        if schema is None:
            raise TableError(f"there is no table {self.uri}")
        wanted = StructType([schema[name] for name in columns])
        since = bounds.get("received", (None, None))[0]
        oldest = (since - CLOCKS_DIFFER).timestamp() if isinstance(since, datetime) else 0.0
        # a batch is written after its messages came
        batches = self._within(*bounds["epoch"], *bounds["offset"]) if "offset" in bounds else self._batches()
        paths = [str(each) for each in batches if each.stat().st_mtime >= oldest]
        if not paths:
            return spark.createDataFrame([], wanted)
        return spark.read.schema(wanted).option("recursiveFileLookup", True).parquet(*paths)

    def schema(self) -> StructType | None:
        newest = max(self._batches(), key=lambda each: each.stat().st_mtime_ns, default=None)
        return None if newest is None else from_arrow_schema(pq.read_schema(next(newest.rglob("*.parquet"))))

    def reached(self, stream: str, epoch: int) -> int:
        last = max(self._batches(epoch), default=None)
        return 0 if last is None else max(each.high["offset"] for each in self._written(last.name)) + 1

    def replace(self, *_: Any, **__: Any) -> None:
        raise ConfigError(f"{self.uri} is plain Parquet, where no rows are replaced; accepted: format delta")

    def maintain(self) -> None:
        """Removes what attempts have left a week ago. Files are not put together: somebody may be reading
        them.
        """
        oldest = time.time() - RETAINED_H * 3600
        for attempt in self._folder.glob(f"{self._attempts}*"):
            if attempt.stat().st_mtime < oldest:
                shutil.rmtree(attempt)

    def _open(self, schema: pa.Schema, widen: bool = False, description: str | None = None) -> Any:
        if (self._folder / "_delta_log").exists():
            raise TableError(f"the table {self.uri} is one of Delta Lake; accepted: format delta")
        there = self.schema()
        if there is None:
            return None
        given = from_arrow_schema(schema)
        named = [name for name in given.names if name not in self._partition_by]
        for name in named:
            if name in there.names and there[name].dataType != given[name].dataType:
                raise TableError(f"the table {self.uri} has no column {name} of {given[name].dataType}")
        if not widen and (odd := sorted(set(named).symmetric_difference(there.names))):
            raise TableError(f"the table {self.uri} has other columns: {odd[0]}")
        return None

    def _commit(
        self, table: Any, attempt: str, written: Sequence[Written], schema: pa.Schema, progress: Progress
    ) -> None:
        batch = self._folder / f"batch={progress.epoch}-{progress.start:020}"
        try:
            (self._folder / attempt).rename(batch)
        except OSError as error:
            raise TableError(f"somebody else has written to {self.uri} meanwhile: {error}") from error

    def _within(self, epoch: int, _: int, low: int, high: int) -> list[Path]:
        """The batches of an epoch that may have messages of these offsets: those that begin within them, and
        the one before.
        """
        batches = sorted(self._batches(epoch))
        starts = [int(each.name.rpartition("-")[2]) for each in batches]
        return batches[max(bisect.bisect_right(starts, low) - 1, 0) : bisect.bisect_right(starts, high)]

    def _batches(self, epoch: int | None = None) -> Iterator[Path]:
        return self._folder.glob("batch=*" if epoch is None else f"batch={epoch}-*")
