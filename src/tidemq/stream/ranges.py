"""A stream's messages, from its files: as the bytes that they are, or one after the other.

Any thread may read while the keeper's writes. Segments that were found may be merged or given up before they
are opened; then what there is now is looked for again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

from tidemq.errors import StoreError, TideMQError
from tidemq.stream.log import Extent, StreamLog
from tidemq.wire.filters import matches

READ_BYTES = 1 << 20  # of a cursor's look at the files, compressed; or one batch, where that is larger

Run = tuple[IO[bytes], list[Extent]]
"""Extents that lie one after the other in one file, and that file."""


class ExpiredOffsetError(TideMQError):
    """The messages asked for are not kept any more. Caught by who reads."""


def open_range(log: StreamLog, start: int, end: int, bytes_max: int, stack: ExitStack) -> list[Run]:
    """The batches that hold messages from `start` up to `end`, as many as `bytes_max` takes (0: all) but at
    least one. `stack` closes the files. ExpiredOffsetError; StoreError when a file is missing.
    """

    def find() -> list[Extent]:
        if start < log.first_offset:
            raise ExpiredOffsetError(
                f"offset {start} of the stream {log.name} is kept no more: its first is {log.first_offset}"
            )
        return log.find(start, min(end, log.next_offset), bytes_max)

    return _open(log, find, stack)


def open_all(log: StreamLog, stack: ExitStack) -> list[Run]:
    """All batches of one moment. `stack` closes the files. StoreError when one is missing."""
    return _open(log, lambda: list(log.extents), stack)


def _open(log: StreamLog, find: Callable[[], list[Extent]], stack: ExitStack) -> list[Run]:
    extents = find()
    while True:
        try:
            return open_runs(log, extents, stack)
        except FileNotFoundError as error:
            stack.pop_all().close()
            extents = find()
            if Path(error.filename) in {log.segment_path(each.segment) for each in extents}:
                raise StoreError(f"a file of the stream {log.name} is missing") from error


def open_runs(log: StreamLog, extents: Iterable[Extent], stack: ExitStack) -> list[Run]:
    """These extents with their files, which `stack` closes. OSError."""
    return [(stack.enter_context(log.segment_path(run[0].segment).open("rb")), run) for run in _runs(extents)]


def _runs(extents: Iterable[Extent]) -> Iterator[list[Extent]]:
    run: list[Extent] = []
    for each in extents:
        if run and (run[-1].segment != each.segment or run[-1].position + run[-1].length != each.position):
            yield run
            run = []
        run.append(each)
    if run:
        yield run


class Cursor:
    """Goes through the messages of a stream whose topics match one of some filters, each once, from an offset
    on.

    What is not there any more when its turn comes is passed over, and told (`take_missed`). For one thread at
    a time.
    """

    def __init__(self, log: StreamLog, topic_filters: Sequence[str], offset: int) -> None:
        self._log = log
        self._filters = topic_filters
        self._offset = offset  # of the first message that was not looked at
        self._found: Any = None  # a table of those that match
        self._given = 0  # so many of them
        self._missed = 0  # offsets whose messages are not there

    @property
    def offset(self) -> int:
        """Before it nothing is left to be read."""
        if self._found is None:
            return self._offset
        return int(self._found.column("offset")[self._given].as_py())

    def take_missed(self) -> int:
        """How many offsets were passed over since this was last asked."""
        missed, self._missed = self._missed, 0
        return missed

    @property
    def at_end(self) -> bool:
        """Whether there is nothing to be read now."""
        return self._found is None and self._offset >= self._log.next_offset

    def read(self, rows_max: int) -> list[dict[str, Any]]:
        """Some of the next messages, by column; none where none of a piece of the stream matches. OSError,
        StoreError or pa.ArrowInvalid where the files cannot be read.
        """
        if self._found is None:
            self._look()
        if self._found is None:
            return []
        rows: list[dict[str, Any]] = self._found.slice(self._given, rows_max).to_pylist()
        self._given += len(rows)
        if self._given == self._found.num_rows:
            self._found = None
        return rows

    def _look(self) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        from tidemq.stream.schema import END, HEAD

        data = bytearray(HEAD)
        end = self._log.next_offset  # before the search: what comes meanwhile is behind it
        with ExitStack() as stack:
            try:
                runs = open_range(self._log, self._offset, end, READ_BYTES, stack)
            except ExpiredOffsetError:
                self._pass_over(self._log.first_offset)
                return
            for file, run in runs:
                data += os.pread(file.fileno(), sum(each.length for each in run), run[0].position)
        if not runs:  # those up to the end are missing: their files were damaged
            self._pass_over(end)
            return
        start = self._offset
        for each in (extent for _, run in runs for extent in run):
            self._pass_over(each.first)
            self._offset = each.end
        table = pa.ipc.open_stream(bytes(data) + END).read_all()
        topics = table.column("topic")
        wanted = [topic for topic in pc.unique(topics).to_pylist() if self._wants(topic)]
        new = pc.greater_equal(table.column("offset"), start)
        found = table.filter(pc.and_(new, pc.is_in(topics, pa.array(wanted, pa.string()))))
        if found.num_rows:
            self._found, self._given = found, 0

    def _pass_over(self, offset: int) -> None:
        """Nothing is there before this offset."""
        self._missed += max(0, offset - self._offset)
        self._offset = max(self._offset, offset)

    def _wants(self, topic: str) -> bool:
        return any(matches(each, topic) for each in self._filters)
