"""What a table's log is asked and told, whatever its format: Delta Lake (`delta_log`), Iceberg
(`iceberg_log`).

A log has, besides the table's columns and files, *numbers* by name: how far messages have got into the table
(`progress`). A commit says new numbers together with its files, or neither.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.fs as pafs

from tidemq.errors import TideMQError
from tidemq.pipeline.lake.day_files import Written
from tidemq.pipeline.places import Storage

PARTITION = "date"  # by which all tables are partitioned: the last of their columns, which files do not have

SINGLE = ("bronze", "dead_letters")  # tables of a stream
KINDS = ("silver", "late", "births", "gold")  # of tables, each with one for a rule

_COMMITS_MAX = 20  # in a row that come second, before a commit is given up

Numbers = Mapping[str, int]


class TableError(TideMQError):
    """A table is not what is to be written to, or somebody else writes to it. Caught by who started the
    job."""


class ConflictError(TableError):
    """Somebody else has written to a table meanwhile: what was to be done is looked at again."""


@dataclass(frozen=True, slots=True)
class File:
    """A Parquet file of a table. Bounds of columns as far as they are known: numbers, or times."""

    path: str  # relative to the table, or a URI
    size: int  # bytes
    modified_ms: int  # since 1970; no earlier than it came into the table
    rows: int
    date: str  # of its rows, YYYY-MM-DD; empty where somebody else has added rows without one
    low: Mapping[str, Any]
    high: Mapping[str, Any]

    def overlaps(self, bounds: Mapping[str, tuple[Any, Any]]) -> bool:
        """Whether it may have rows within inclusive bounds of columns; None: no bound."""
        for column, (low, high) in bounds.items():
            least, greatest = self.low.get(column), self.high.get(column)
            if low is not None and greatest is not None and greatest < low:
                return False
            if high is not None and least is not None and least > high:
                return False
        return True


class Snapshot(ABC):
    """A table as it is at a moment."""

    def __init__(self) -> None:
        self.asked: dict[str, int | None] = {}  # numbers: a commit demands that these are still the same
        self._files: list[File] | None = None

    def number(self, name: str) -> int | None:
        """None where no commit has said it."""
        return self.asked.setdefault(name, self.say(name))

    @abstractmethod
    def say(self, name: str) -> int | None:
        """The same, without a commit's demand."""

    @property
    @abstractmethod
    def columns(self) -> pa.Schema:
        """All, with the types as the format gives them back."""

    @property
    @abstractmethod
    def required(self) -> frozenset[str]:
        """Columns that must have a value."""

    def files(self) -> list[File]:
        """All, as they were when they were asked for first. TableError where some have rows that others say
        are deleted."""
        if self._files is None:
            self._files = self.read_files()
        return self._files

    @abstractmethod
    def read_files(self) -> list[File]:
        """The same, of now."""


@dataclass(frozen=True, slots=True)
class Change:
    """What a commit says, see `TableLog.commit`."""

    numbers: Numbers
    added: Sequence[Written]
    removed: Sequence[File]
    rearranged: bool = False
    without: Callable[[File], bool] = lambda _: False


class TableLog(ABC):
    """Of one table, whether or not there is one yet."""

    def __init__(self, uri: str) -> None:
        self.uri = uri

    @abstractmethod
    def now(self) -> Snapshot | None:
        """The newest; None where there is no table."""

    @abstractmethod
    def normal(self, columns: pa.Schema) -> pa.Schema:
        """These columns as the format gives them back."""

    @abstractmethod
    def make(self, columns: pa.Schema) -> Snapshot:
        """A new table with these columns; or the one that somebody else has made meanwhile."""

    @abstractmethod
    def widen(self, snapshot: Snapshot, columns: pa.Schema) -> Snapshot:
        """Gives the table further columns."""

    def commit(
        self,
        snapshot: Snapshot,
        numbers: Numbers,
        added: Sequence[Written] = (),
        removed: Sequence[File] = (),
        *,
        rearranged: bool = False,
        without: Callable[[File], bool] = lambda _: False,
    ) -> None:
        """Adds files, removes some of the snapshot's, and says numbers: all or nothing. `rearranged`: there
        are the same rows before and after.

        ConflictError when a number that the snapshot was asked for has changed since, a file that is to be
        removed is not the table's any more, or the table has got one that it was to be `without`. What else
        was committed meanwhile does no harm.
        """
        change = Change(numbers, added, removed, rearranged, without)
        if removed:  # the formats' own libraries take those of any version
            self._refuse_replaced(snapshot, change)
        newest = snapshot
        for _ in range(_COMMITS_MAX - 1):
            with suppress(ConflictError):
                return self.try_commit(newest, change)
            newest = self._still(snapshot, change)
        return self.try_commit(newest, change)

    def _still(self, snapshot: Snapshot, change: Change) -> Snapshot:
        """The newest snapshot, if the change can still be made; ConflictError if not."""
        newest = self.now()
        if newest is None:
            raise ConflictError(f"somebody else has removed {self.uri} meanwhile")
        if any(newest.number(name) != number for name, number in snapshot.asked.items()):
            raise ConflictError(f"somebody else has written to {self.uri} meanwhile")
        self._refuse_replaced(newest, change)
        before = {each.path for each in snapshot.files()}
        if any(change.without(each) for each in newest.files() if each.path not in before):
            raise ConflictError(f"somebody else has added rows to {self.uri} that were to be replaced")
        return newest

    def _refuse_replaced(self, snapshot: Snapshot, change: Change) -> None:
        """ConflictError where a file that is to be removed is none of the snapshot's."""
        there = {each.path for each in snapshot.files()}
        if any(each.path not in there for each in change.removed):
            raise ConflictError(f"somebody else has replaced files of {self.uri} meanwhile")

    @abstractmethod
    def try_commit(self, snapshot: Snapshot, change: Change) -> None:
        """Commits to the table as it is in the snapshot; ConflictError if it is not that any more."""

    @abstractmethod
    def empty(self, snapshot: Snapshot, columns: pa.Schema, numbers: Numbers) -> None:
        """Removes all rows, and gives the table these columns. ConflictError when anybody has committed since
        the snapshot."""

    @abstractmethod
    def clean(self, keep_h: int) -> None:
        """Removes files that no version of the table of the last hours needs, those of attempts that were not
        committed among them."""


class TableFormat(Protocol):
    """Of all tables of a job."""

    def open(self, uri: str, storage: Storage) -> TableLog:
        """The log of a table in the folder of this URI."""

    def names(self, folder: str, storage: Storage) -> list[str]:
        """Of the tables of a stream, which are below this folder: one of `SINGLE`, or KIND/RULE."""


def without_date(columns: pa.Schema) -> pa.Schema:
    """Those that files have."""
    return pa.schema([field for field in columns if field.name != PARTITION])


def remove_empty_folders(files: pafs.FileSystem, root: str, before: datetime) -> None:
    """Those of attempts, and of files put together, that are older and have no file, below `root`."""
    for info in files.get_file_info(pafs.FileSelector(root)):
        ours = info.type == pafs.FileType.Directory and info.base_name.startswith(("batch-", "compact-"))
        if ours and info.mtime is not None and info.mtime < before:
            inside = files.get_file_info(pafs.FileSelector(info.path, recursive=True))
            if not any(each.is_file for each in inside):
                files.delete_dir(info.path)
