"""What `spark.readStream` gives from Spark 4.2 on, which says where a batch begins and how much it may be."""

from __future__ import annotations

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from tidemq.client.streams import StreamState
from tidemq.pipeline.sources.stream_options import SourceOptions
from tidemq.pipeline.sources.tail import WAIT_S, Offset, Tail


def limit_of(options: SourceOptions) -> ReadLimit:
    """How much of what there is a batch may be."""
    if options.rows_max:
        return ReadMaxRows(options.rows_max)
    if options.bytes_max:
        return ReadMaxBytes(options.bytes_max)
    return ReadAllAvailable()


class TailReader(Tail, SupportsTriggerAvailableNow):
    """The messages from `start` on, in batches as large as the options allow."""

    def __init__(self, options: SourceOptions) -> None:
        super().__init__(options)
        self._target: StreamState | None = None  # of Trigger.AvailableNow: no message behind it is read

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's name
        self._target = self.options.open().describe()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return limit_of(self.options)

    def reportLatestOffset(self) -> Offset:  # noqa: N802
        state = self.options.open().describe()
        return self.offset_of(state, state.next_offset)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """Where the batch that begins with `start` ends."""
        self.refuse_foreign(start)
        reader = self.options.open()
        state = self._target or reader.wait(start["offset"], WAIT_S)
        at = self.present(start, state)
        end = state.next_offset
        if isinstance(limit, ReadMaxRows):
            end = min(end, at + limit.max_rows)
        elif isinstance(limit, ReadMaxBytes) and at < end:
            end = reader.end_within(at, end, limit.max_bytes)
        return self.offset_of(state, end)
