"""What a rule has decoded, into the files of its tables and what gold counts of it: in one pass of a task."""

from __future__ import annotations

import collections
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Row

from tidemq.pipeline.decode.payload_rules import KEY, Gold
from tidemq.pipeline.lake.day_files import DayFiles, Written, files_of
from tidemq.pipeline.lake.measures import CAUSES_MAX, OTHER
from tidemq.pipeline.lake.partials import of_readings, one, together
from tidemq.pipeline.places import Storage

FILED = (  # what a task gives, as a row
    "rule string, causes map<string, bigint>, parts binary, seconds double, files array<string>"
)
_CAUSE_CHARACTERS = 80
_WANTED = re.compile(r"(\S{1,64}) is .*; (.+) is wanted$", re.DOTALL)
_PARTS_MAX = 10_000  # that are kept before they are put together


@dataclass(frozen=True, slots=True)
class Place:
    """Where rows of a table go, of an attempt: executors need not know more of it."""

    folder: str
    reached: int
    columns: pa.Schema  # `date` is the last


def late_columns(decoded: pa.Schema) -> pa.Schema:
    """Of the table of late rows, of those of the decoded table."""
    place = len(decoded) - 1
    return decoded.insert(place, pa.field("late_s", pa.float64()))


def letter_columns(decoded: pa.Schema) -> pa.Schema:
    """Of the table of dead letters."""
    more = [("payload", pa.binary()), ("rule", pa.string()), ("reason", pa.string())]
    return pa.schema(
        [*(decoded.field(name) for name in KEY), *starmap(pa.field, more), decoded.field("date")]
    )


@dataclass(frozen=True, slots=True)
class Filer:
    """A task: takes what `filed` gives, and gives a row of `FILED`: dead letters by their cause, and parts of
    `gold` as a stream of Arrow.
    """

    rule: str
    storage: Storage
    late: Place | None
    letters: Place
    decoded: Place
    gold: Gold | None
    bytes_max: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        began = time.monotonic()
        causes: collections.Counter[str] = collections.Counter()
        parts = Parts(self.gold) if self.gold else None
        with DayFiles(self.storage, self.bytes_max) as files:
            for batch in batches:
                good = pc.is_null(batch.column("reason"))
                late = pc.is_valid(batch.column("late_s"))
                self._file_rows(files, batch.filter(pc.and_not(good, late)), parts)
                if self.late is not None:
                    self._file_late(files, batch.filter(pc.and_(good, late)), self.late)
                self._file_letters(files, batch.filter(pc.invert(good)), causes)
        yield _filed(self.rule, causes, parts, time.monotonic() - began, files.written)

    def _file_rows(self, files: DayFiles, batch: pa.RecordBatch, parts: Parts | None) -> None:
        rows = fields(batch.column("row"))
        _file(files, self.decoded, rows)
        if parts:
            parts.add(rows, batch.column("reading"))

    def _file_late(self, files: DayFiles, batch: pa.RecordBatch, place: Place) -> None:
        _file(files, place, fields(batch.column("row")) | {"late_s": batch.column("late_s")})

    def _file_letters(self, files: DayFiles, batch: pa.RecordBatch, causes: collections.Counter[str]) -> None:
        count_causes(causes, batch.column("reason").to_pylist())
        rows = fields(batch.column("row"))
        more = {
            "payload": batch.column("payload"),
            "rule": pa.repeat(pa.scalar(self.rule), batch.num_rows),
            "reason": batch.column("reason"),
        }
        _file(files, self.letters, {name: rows[name] for name in (*KEY, "date")} | more)


@dataclass(frozen=True, slots=True)
class Counter:
    """A task: takes what `readings` gives, and gives the same as `Filer`."""

    rule: str
    gold: Gold

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        parts, began = Parts(self.gold), time.monotonic()
        for batch in batches:
            parts.add(fields(batch.column("row")), batch.column("reading"))
        yield _filed(self.rule, {}, parts, time.monotonic() - began)


@dataclass(frozen=True, slots=True)
class Gathered:
    """What the tasks of a rule gave."""

    causes: collections.Counter[str]  # of dead letters
    parts: pa.Table | None  # of `gold`; None: there are none
    seconds: float  # that the tasks took
    files: list[Written]


def gathered(rows: Sequence[Row], gold: Gold | None) -> Gathered:
    """Of rows of a rule."""
    causes: collections.Counter[str] = collections.Counter()
    for row in rows:
        causes.update(row.causes)
    found = [pa.ipc.open_stream(row.parts).read_all() for row in rows if row.parts]
    parts = together(gold, pa.concat_tables(found)) if gold and found else None
    return Gathered(causes, parts, sum(row.seconds for row in rows), files_of(rows))


def _filed(
    rule: str, causes: Mapping[str, int], parts: Parts | None, seconds: float, written: Iterable[Written] = ()
) -> pa.RecordBatch:
    text = pa.string()
    kinds = (text, pa.map_(text, pa.int64()), pa.binary(), pa.float64(), pa.list_(text))
    files = [each.to_json() for each in written]
    row = (rule, list(causes.items()), parts.data() if parts else None, seconds, files)
    columns = [pa.array([value], kind) for value, kind in zip(row, kinds, strict=True)]
    return pa.RecordBatch.from_arrays(columns, ["rule", "causes", "parts", "seconds", "files"])


class Parts:
    """Of readings, put together as they come."""

    def __init__(self, gold: Gold) -> None:
        self._gold = gold
        self._held: list[pa.Table] = []

    def add(self, rows: Mapping[str, pa.Array], readings: pa.StructArray) -> None:
        """Of these rows what gold counts, see `filed`."""
        given = fields(readings)
        columns = {name: rows[name] for name in ("topic", "client_id")}
        columns |= {name: given[f"b{place}"] for place, name in enumerate(self._gold.by)}
        values = [given[f"v{place}"] for place in range(len(self._gold.values))]
        self._held.append(of_readings(self._gold, given["at"], columns, values))
        if sum(map(len, self._held[1:])) > max(len(self._held[0]), _PARTS_MAX):
            self._held = [self._whole()]

    def data(self) -> bytes:
        """As a stream of Arrow; empty of none."""
        sink = pa.BufferOutputStream()
        if not self._held:
            return b""
        whole = self._whole()
        with pa.ipc.new_stream(sink, whole.schema) as writer:
            writer.write_table(whole)
        return bytes(sink.getvalue())

    def _whole(self) -> pa.Table:
        return together(self._gold, pa.concat_tables(self._held))


def count_causes(causes: collections.Counter[str], reasons: Iterable[str]) -> None:
    """So many are told apart; the rest is one."""
    for reason in reasons:
        cause = cause_of(reason)
        causes[cause if cause in causes or len(causes) < CAUSES_MAX else OTHER] += 1


def cause_of(reason: str) -> str:
    """Of a dead letter what others have in common with it, which does not say the value."""
    if found := _WANTED.match(reason):
        return f"{found[1]}: {found[2]} is wanted"
    return reason.partition(":")[0][:_CAUSE_CHARACTERS]


def fields(array: pa.StructArray) -> dict[str, pa.Array]:
    """Of a struct, by name."""
    return dict(zip((field.name for field in array.type), array.flatten(), strict=True))


def _file(files: DayFiles, place: Place, rows: Mapping[str, pa.Array]) -> None:
    """Those that the table has not got to."""
    columns = [rows[each.name].cast(each.type) for each in place.columns]
    batch = pa.RecordBatch.from_arrays(columns, schema=place.columns)
    if place.reached:
        batch = batch.filter(pc.greater_equal(batch.column("offset"), place.reached))
    if batch.num_rows:
        files.add(place.folder, batch.drop_columns(["date"]), one(batch.column("date")))
