"""What `spark.readStream` gives: the messages of a stream from `start` on, batch after batch. Here for all
versions of Spark, and for those that know of no limits; `bounded_tail` is for the others.

An offset in Spark's checkpoint is {"stream": .., "epoch": .., "offset": ..}: the offset of the next message,
in the stream of this name that had this epoch.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader

from tidemq.client.streams import StreamError, StreamState
from tidemq.errors import UsageError
from tidemq.pipeline.sources.ranges import Range, RangeRows
from tidemq.pipeline.sources.stream_options import SourceOptions

WAIT_S = 0.5  # for a first new message: Spark asks again at once where a query has no trigger interval

Offset = dict[str, Any]  # as Spark keeps it in the checkpoint

_log = logging.getLogger(__name__)


class Tail(RangeRows, DataSourceStreamReader):
    """What all versions of Spark ask of a stream."""

    def initialOffset(self) -> Offset:  # noqa: N802  Spark's name
        reader = self.options.open()
        state = reader.describe()
        return self.offset_of(state, self.options.start.resolve(reader, state))

    def partitions(self, start: Offset, end: Offset) -> Sequence[Range]:
        self.refuse_foreign(end)
        begin = start["offset"] if start["epoch"] == end["epoch"] else 0
        return self.planned(end["epoch"], begin, end["offset"])

    def offset_of(self, state: StreamState, offset: int) -> Offset:
        """As the checkpoint has it."""
        return {"stream": self.options.stream, "epoch": state.epoch, "offset": offset}

    def refuse_foreign(self, known: Offset) -> None:
        """A checkpoint of another query."""
        nodes = isinstance(known.get("nodes"), list)
        if nodes and not self.options.nodes and known.get("stream") == self.options.stream:
            raise StreamError(
                "the checkpoint is that of several nodes: with the option nodes=true one URL goes on with it"
            )
        own = nodes or (isinstance(known.get("epoch"), int) and isinstance(known.get("offset"), int))
        stream = known.get("stream", self.options.stream)  # of earlier versions, that did not say it
        if not own or stream != self.options.stream:
            whose = f"the stream {stream}" if own else f"another source, which is at {known}"
            raise StreamError(f"the checkpoint is that of {whose}; each query needs one of its own")

    def present(self, start: Offset, state: StreamState) -> int:
        """The offset to read from: that of `start`, or of the first message there is where data is lost."""
        offset: int = start["offset"]
        if start["epoch"] != state.epoch:
            self._lose(
                f"the stream {state.name} was made anew: the messages behind offset {offset} are lost; "
                f"its epoch is {state.epoch}, and the checkpoint has {start['epoch']}"
            )
            return state.first_offset
        if offset > state.next_offset:
            self._lose(
                f"the stream {state.name} ends before offset {offset}, where this query has got to: "
                f"its next one is {state.next_offset}; the broker's disk lost what it had not synced"
            )
            return state.next_offset
        if offset < state.first_offset:
            self._lose(
                f"the messages of offsets {offset} to {state.first_offset - 1} of the stream {state.name} "
                "are older than its retention allows"
            )
            return state.first_offset
        return offset

    def _lose(self, text: str) -> None:
        if self.options.fail_on_data_loss:
            raise StreamError(f"{text}. With failOnDataLoss=false a query goes on with what is there")
        _log.warning(text)


class PlainTailReader(Tail):
    """Of Spark 4.0 and 4.1, which say neither where a batch begins nor how much it may have. So it has all
    that there is, and whether something is lost is looked at when it is planned.
    """

    def __init__(self, options: SourceOptions) -> None:
        super().__init__(options)
        if options.rows_max or options.bytes_max:
            raise UsageError("the options maxRowsPerBatch and maxBytesPerBatch need Spark 4.2 or newer")
        self._told: int | None = None  # the offset that it gave last

    def latestOffset(self) -> Offset:  # type: ignore[override]  # noqa: N802
        """The end of the stream."""
        reader = self.options.open()
        state = reader.describe() if self._told is None else reader.wait(self._told, WAIT_S)
        self._told = state.next_offset
        return self.offset_of(state, state.next_offset)

    def partitions(self, start: Offset, end: Offset) -> Sequence[Range]:
        self.refuse_foreign(start)
        self.present(start, self.options.open().describe())
        return super().partitions(start, end)
