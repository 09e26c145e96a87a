"""From the streams of several nodes into bronze, each message once.

How far the table has got in each node's stream stands in its own log, under the stream's epoch, and nothing
else counts: a batch reads each node that is there from that place on, whatever Spark's checkpoint says, which
is only the clock. So a node that ends while its messages are read leaves the batch to the others, and is gone
on with where the table is when it is back.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from tidemq.client.errors import ConnectError
from tidemq.pipeline.lake.copying import copied
from tidemq.pipeline.lake.day_files import DayFiles, files_of
from tidemq.pipeline.lake.maintenance import maintain
from tidemq.pipeline.lake.measures import Measures
from tidemq.pipeline.lake.messages import columns_of
from tidemq.pipeline.lake.plan import Ingest
from tidemq.pipeline.lake.progress import Progress, Span
from tidemq.pipeline.lake.refine import Refiner
from tidemq.pipeline.places import Storage
from tidemq.pipeline.sources.nodes import Nodes, States, name_of, shares
from tidemq.pipeline.sources.ranges import COLUMNS, NODE, Range, RangeRows
from tidemq.pipeline.sources.stream_options import Position, SourceOptions

READ = "epoch bigint, unread string, repeated boolean, files array<string>"  # what a task says of a range
TASK_RETRY_S = 5.0  # with a node that was there a moment before
TRIES = 3  # of reading a node that is there, before the batch fails
SPANS_A_BATCH = 2  # of each rule, as for one broker

Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is read of a node: from where the table is."""

    epoch: int
    start: int
    end: int
    node: str
    url: str


class NodeCommitter:
    """What is done with each batch; called by Spark in the driver."""

    def __init__(self, spark: SparkSession, ingest: Ingest, refiner: Refiner, measures: Measures) -> None:
        self._spark, self._ingest = spark, ingest
        self._refiner, self._measures = refiner, measures
        self._options = replace(ingest.node_options, retry_s=TASK_RETRY_S)
        self._nodes = Nodes(self._options)
        self._columns = to_arrow_schema(columns_of(f"{COLUMNS}, node {NODE}, date date"), timezone="UTC")

    def begin(self) -> None:
        """The first start: all nodes are read from `start` on, those that the table knows from where it is.
        ConnectError where one cannot be reached.
        """
        states = Nodes(self._options).look(all_of_them=True)
        self._place(states, self._options.start)

    def __call__(self, _: DataFrame, batch: int) -> None:
        self.catch_up()
        every = self._ingest.maintain_batches
        if every and batch % every == every - 1:
            with self._measures.part("maintenance"):
                for table in self._ingest.all_tables:
                    maintain(table)
        self._measures.batch(sum(end - start for start, end in self._backlogs(self._nodes.last).values()))

    def catch_up(self) -> None:
        """Brings what the nodes that are there have now. ConnectError where none is, or one that is there
        cannot be read.
        """
        targets = self._nodes.look(all_of_them=self._ingest.fail_on_unreachable)
        start = self._options.start
        self._place(targets, start if start.time else Position())  # one that joins has none from before
        tries: Counter[str] = Counter()
        while wanted := self._wanted(targets):
            unread = self._bring(wanted)
            tries.update(unread.keys())
            if tired := [why for url, why in unread.items() if tries[url] == TRIES]:
                raise ConnectError(tired[0])
            if unread:
                there = self._nodes.look()
                targets = {url: state for url, state in targets.items() if url in there}

    def _place(self, states: States, start: Position) -> None:
        """Says in the table where the messages of nodes begin that it does not know."""
        bronze = self._ingest.bronze
        snapshot = bronze.opened(self._columns)
        new: dict[Progress, int] = {}
        for url, state in states.items():
            progress = Progress(self._ingest.stream, state.epoch)
            if snapshot.number(progress.writer) is None:
                new[progress] = start.resolve(self._options.open(url), state)
        if new:
            bronze.add(snapshot, new, [])

    def _backlogs(self, states: States) -> dict[str, tuple[int, int]]:
        """From where to where a node has messages that the table lacks; of those that have some."""
        found = {}
        for url, state in states.items():
            reached = self._ingest.bronze.reached(Progress(self._ingest.stream, state.epoch))
            if reached < state.next_offset:
                found[url] = reached, state.next_offset
        return found

    def _wanted(self, targets: States) -> list[Wanted]:
        """As much as a batch may have; all nodes have a share."""
        backlogs = self._backlogs(targets)
        ends = self._ends(backlogs)
        return [
            Wanted(targets[url].epoch, start, ends[url], name_of(url, targets[url]), url)
            for url, (start, _) in backlogs.items()
        ]

    def _ends(self, backlogs: Mapping[str, tuple[int, int]]) -> dict[str, int]:
        bytes_max = self._ingest.batch_bytes_max // max(len(backlogs), 1)
        if self._ingest.batch_bytes_max:
            return {
                url: self._options.open(url).end_within(start, end, max(bytes_max, 1))
                for url, (start, end) in backlogs.items()
            }
        parts = shares({url: end - start for url, (start, end) in backlogs.items()}, self._ingest.rows_max)
        return {url: start + parts[url] for url, (start, _) in backlogs.items()}

    def _bring(self, wanted: Sequence[Wanted]) -> dict[str, str]:
        """In one job of Spark and one commit; gives the nodes that could not be read, and why."""
        bronze = self._ingest.bronze
        with self._measures.part("bronze"):
            snapshot = bronze.opened(self._columns)
            here = [each for each in wanted if self._progress(each).reached(snapshot) == each.start]
            folder = f"{bronze.uri}/batch-{uuid.uuid4()}"
            rows = self._copied(here, folder) if here else []
            why = {row.epoch: row.unread for row in rows if row.unread}
            read = [each for each in here if each.epoch not in why]
            written = files_of([row for row in rows if row.epoch not in why])
            ends = {self._progress(each): each.end for each in read}
            if ends:
                self._measures.added("bronze", bronze.add(snapshot, ends, written))
        for each in read:
            repeated = any(row.repeated for row in rows if row.epoch == each.epoch)
            single = None if repeated else Span(each.start, each.end)
            self._refiner.advance(each.epoch, SPANS_A_BATCH, single)
        return {each.url: why[each.epoch] for each in here if each.epoch in why}

    def _progress(self, wanted: Wanted) -> Progress:
        return Progress(self._ingest.stream, wanted.epoch)

    def _copied(self, wanted: Sequence[Wanted], folder: str) -> list[Row]:
        planner = RangeRows(self._options)
        ranges = [
            part
            for each in wanted
            for part in planner.planned(each.epoch, each.start, each.end, node=each.node, url=each.url)
        ]
        task = copier(ranges, self._options, self._ingest.storage, folder, self._ingest.bytes_max)
        numbers = self._spark.range(0, len(ranges), 1, len(ranges))  # one for each task
        return numbers.mapInArrow(task, READ).collect()


def copier(
    ranges: Sequence[Range], options: SourceOptions, storage: Storage, folder: str, bytes_max: int
) -> Task:
    """What a task does with numbers of ranges: as `copying.copier`, but a node that cannot be reached any
    more is said to be unread.
    """

    def copy(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                wanted, unread, repeated = ranges[number], "", False
                with DayFiles(storage, bytes_max) as files:
                    try:
                        repeated = copied(options, wanted, folder, files)
                    except ConnectError as error:
                        unread = str(error)
                said = [each.to_json() for each in files.written]
                row = {"epoch": [wanted.epoch], "unread": [unread], "repeated": [repeated]}
                found = pa.RecordBatch.from_pydict(row)
                yield found.append_column("files", pa.array([said], pa.list_(pa.string())))

    return copy
