"""What `spark.readStream` gives of several nodes: the messages of all their streams of one name.

An offset in Spark's checkpoint is {"stream": .., "nodes": [{"epoch": .., "offset": .., "node": ..,
"url": ..}, ..]}, of each node that of its next message. The epoch, which is drawn when a stream is made, says
which stream is meant, wherever it is found; `away` says that its node could not be reached. A node that is
met first gets its place in one batch, and its messages come with the next one: so every batch says where it
begins.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from tidemq.client.errors import ConnectError
from tidemq.client.streams import StreamState
from tidemq.pipeline.sources.bounded_tail import limit_of
from tidemq.pipeline.sources.nodes import Nodes, States, name_of, shares
from tidemq.pipeline.sources.ranges import Range, RangeRows
from tidemq.pipeline.sources.stream_options import SourceOptions
from tidemq.pipeline.sources.tail import WAIT_S, Offset, Tail

BEAT_S = 10.0  # with the option ranges there is a batch so often: ingest may have left out a node

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Place:
    """How far a query has got in a node's stream: the offset of its next message there."""

    epoch: int
    offset: int
    node: str
    url: str
    away: bool = False

    def said(self) -> dict[str, Any]:
        """As the checkpoint has it."""
        found = {"epoch": self.epoch, "offset": self.offset, "node": self.node, "url": self.url}
        return found | ({"away": True} if self.away else {})


Places = Mapping[int, Place]  # by epoch


def places_of(known: Offset) -> Places:
    """Of an offset of the checkpoint, also of one from when there was one broker alone."""
    if "nodes" not in known:
        return {known["epoch"]: Place(known["epoch"], known["offset"], "", "")}
    return {each["epoch"]: Place(**each) for each in known["nodes"]}


class NodeTailReader(Tail, SupportsTriggerAvailableNow):
    """The messages of all nodes, in batches as large as the options allow."""

    def __init__(self, options: SourceOptions) -> None:
        super().__init__(options)
        self._asked: Nodes | None = None
        self._target: States | None = None  # of Trigger.AvailableNow: no message behind it is read
        self._left: set[int] = set()  # epochs of which it was said that their node's URL is missing

    @property
    def _nodes(self) -> Nodes:
        """Not before it is needed: readers travel to executors."""
        if self._asked is None:
            self._asked = Nodes(self.options)
        return self._asked

    def initialOffset(self) -> Offset:  # noqa: N802  Spark's name
        """Of all nodes: who begins with the latest messages has to know them."""
        states = self._nodes.look(all_of_them=True)
        return self._offset_of(self._begin(url, state, joins=False) for url, state in states.items())

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._nodes.look(all_of_them=self.options.fail_on_unreachable)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return limit_of(self.options)

    def reportLatestOffset(self) -> Offset:  # noqa: N802
        """Of the nodes that were there when it was looked last."""
        states = self._nodes.last or self._nodes.look()
        return self._offset_of(
            Place(state.epoch, state.next_offset, name_of(url, state), url) for url, state in states.items()
        )

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """Where the batch that begins with `start` ends."""
        self.refuse_foreign(start)
        places = places_of(start)
        states = self._target if self._target is not None else self._look(places)
        here = {state.epoch: url for url, state in states.items()}
        known = [
            self._present(place, here[place.epoch], states) if place.epoch in here else self._absent(place)
            for place in places.values()
            if place.epoch in here or not self._is_replaced(place, places, states)
        ]
        met = [self._begin(url, states[url]) for epoch, url in here.items() if epoch not in places]
        found = self._offset_of([*self._bounded(known, states, limit), *met])
        if self.options.ranges and self._target is None:
            found["beat"] = int(time.time() // BEAT_S)
        return found

    def partitions(self, start: Offset, end: Offset) -> Sequence[Range]:
        self.refuse_foreign(start)
        self.refuse_foreign(end)
        before = places_of(start)
        ranges: list[Range] = []
        for epoch, place in places_of(end).items():
            begin = before[epoch].offset if epoch in before else place.offset
            if begin < place.offset and (url := self._url_of(place)):
                ranges += self.planned(epoch, begin, place.offset, node=place.node, url=url)
        return ranges

    # --- where the next batch ends -----------------------------------------------------------------

    def _look(self, places: Places) -> States:
        """The nodes' streams; if none has anything new, after a moment."""
        states = self._nodes.look(all_of_them=self.options.fail_on_unreachable)
        if any(
            state.epoch not in places or state.next_offset > places[state.epoch].offset
            for state in states.values()
        ):
            return states
        return self._nodes.wait(states, WAIT_S)

    def _present(self, place: Place, url: str, states: States) -> tuple[Place, int]:
        """A node that is there, and where its messages begin."""
        state = states[url]
        at = self.present({"epoch": place.epoch, "offset": place.offset}, state)
        return Place(place.epoch, place.offset, name_of(url, state), url), at

    def _absent(self, place: Place) -> tuple[Place, int]:
        """A node that is away, or whose URL was taken away: its place stays."""
        if place.url and place.url not in self.options.urls and place.epoch not in self._left:
            self._left.add(place.epoch)
            text = (
                "%s of the node %s is not among the URLs any more: what it has from offset %d on is not read"
            )
            _log.warning(text, place.url, place.node, place.offset)
        return replace(place, away=True), place.offset

    def _is_replaced(self, place: Place, places: Places, states: States) -> bool:
        """Whether the node has another stream of that name now; StreamError, unless data may be lost."""
        if place.url not in states or states[place.url].epoch in places:
            return False  # away; or the URL is another node's now
        self.present({"epoch": place.epoch, "offset": place.offset}, states[place.url])
        return True

    def _begin(self, url: str, state: StreamState, *, joins: bool = True) -> Place:
        """Where a node's messages begin: one that joins has none from before, unless a time says where."""
        offset = state.first_offset
        if not joins or self.options.start.time is not None:
            offset = self.options.start.resolve(self.options.open(url), state)
        return Place(state.epoch, offset, name_of(url, state), url)

    def _bounded(self, known: Sequence[tuple[Place, int]], states: States, limit: ReadLimit) -> list[Place]:
        """Where each ends within the limit, of which all that have something get a share."""
        begins = {place.url: at for place, at in known if not place.away}
        backlogs = {url: states[url].next_offset - at for url, at in begins.items()}
        backlogs = {url: count for url, count in backlogs.items() if count > 0}
        if isinstance(limit, ReadMaxBytes):
            most = max(limit.max_bytes // max(len(backlogs), 1), 1)
            for url, count in backlogs.items():
                reader, at = self.options.open(url), begins[url]
                backlogs[url] = reader.end_within(at, at + count, most) - at
        taken = shares(backlogs, limit.max_rows if isinstance(limit, ReadMaxRows) else 0)
        return [
            replace(place, offset=at if place.away else at + taken.get(place.url, 0)) for place, at in known
        ]

    def _offset_of(self, places: Iterable[Place]) -> Offset:
        """As the checkpoint has it: in an order, for Spark compares texts."""
        ordered = sorted(places, key=lambda place: place.epoch)
        return {"stream": self.options.stream, "nodes": [place.said() for place in ordered]}

    # --- a batch -----------------------------------------------------------------------------------

    def _url_of(self, place: Place) -> str:
        """Where a stream is read; empty where nobody has it any more."""
        states = self._nodes.last or self._nodes.look()
        for url, state in states.items():
            if state.epoch == place.epoch:
                return url
        if place.url in self.options.urls:
            return place.url  # it is away: tasks wait for it
        whose = (
            f"messages up to offset {place.offset} of the node {place.node} ({place.url}) are of this batch"
        )
        if len(states) < len(self.options.urls):
            raise ConnectError(f"{whose}, and not all nodes can be reached")
        self._lose(f"{whose}, and none of the URLs leads to it")
        return ""


class NodeRangeReader(RangeRows, DataSourceReader):
    """What `spark.read` gives of several nodes, all of which have to be there."""

    def partitions(self) -> Sequence[Range]:
        options = self.options
        ranges: list[Range] = []
        for url, state in Nodes(options).look(all_of_them=True).items():
            reader, node = options.open(url), name_of(url, state)
            start = options.start.resolve(reader, state)
            end = min(options.end.resolve(reader, state), state.next_offset)
            # at least one: without any, Spark reads a partition that is None
            ranges += self.planned(state.epoch, start, end, node=node, url=url)
            ranges = ranges or [Range(state.epoch, end, end, node, url)]
        return ranges
