"""Which messages of which node a batch has, by what nodes say of their streams; without Spark and brokers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows
from pyspark.sql.streaming.listener import QueryProgressEvent

from tidemq.client.errors import ConnectError
from tidemq.client.streams import StreamError, StreamState
from tidemq.errors import UsageError
from tidemq.pipeline.service.figures import FiguresListener
from tidemq.pipeline.sources import nodes
from tidemq.pipeline.sources.bounded_tail import TailReader
from tidemq.pipeline.sources.node_tail import NodeTailReader
from tidemq.pipeline.sources.stream_options import SourceOptions

ONE, TWO, THREE = (f"http://{name}:8080" for name in ("one", "two", "three"))
ALL = ReadAllAvailable()


@dataclass
class Node:
    """What a node has; each message has 10 bytes, and offset N came N seconds after 1970."""

    name: str
    epoch: int
    end: int
    first: int = 0
    away: bool = False
    silent: threading.Event | None = None  # until it is set

    def describe(self) -> StreamState:
        if self.silent is not None:
            self.silent.wait(30)
        if self.away:
            raise ConnectError(f"{self.name} is away")
        return StreamState("plant", ("plant/#",), self.epoch, self.first, self.end, 0, node=self.name)

    def wait(self, beyond: int, wait_s: float) -> StreamState:
        return self.describe()

    def offset_at(self, at: datetime) -> int:
        return min(max(int(at.timestamp()), self.first), self.end)

    def end_within(self, start: int, end: int, bytes_max: int) -> int:
        return min(start + max(bytes_max // 10, 1), end)


@dataclass
class Farm:
    """The nodes by URL."""

    nodes: dict[str, Node] = field(default_factory=dict)

    def reader(self, *urls: str, **more: str) -> NodeTailReader:
        """As a query has one that starts."""
        given = {"url": ",".join(urls), "stream": "plant", "nodes": "true", **more}
        return NodeTailReader(SourceOptions.parse(given))

    def look(self, start: dict[str, Any], *urls: str, limit: ReadLimit = ALL, **more: str) -> dict[str, Any]:
        """Where the next batch of a query ends that starts again."""
        return self.reader(*urls, **more).latestOffset(start, limit)


@pytest.fixture
def farm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Farm]:
    made = Farm({ONE: Node("one", 11, 5), TWO: Node("two", 22, 7)})
    opened = SourceOptions.open

    def open_fake(self: SourceOptions, url: str = "", retry_s: float | None = None) -> Any:
        return made.nodes.get(url) or opened(self, url, retry_s)

    monkeypatch.setattr(SourceOptions, "open", open_fake)
    monkeypatch.setattr(nodes, "PATIENCE_S", 0.1)
    monkeypatch.setattr(nodes, "RETRY_S", 0.0)
    yield made
    for each in made.nodes.values():
        if each.silent is not None:
            each.silent.set()


def offsets(known: dict[str, Any]) -> dict[str, int]:
    return {each["node"]: each["offset"] for each in known["nodes"]}


def away(known: dict[str, Any]) -> set[str]:
    return {each["node"] for each in known["nodes"] if each.get("away")}


def ranges(reader: NodeTailReader, start: Any, end: Any) -> set[tuple[str, str, int, int]]:
    return {(each.node, each.url, each.start, each.end) for each in reader.partitions(start, end)}


def test_each_node_has_an_offset_of_its_own(farm: Farm) -> None:
    reader = farm.reader(ONE, TWO)
    start = reader.initialOffset()
    assert offsets(start) == {"one": 0, "two": 0}
    end = reader.latestOffset(start, ALL)
    assert offsets(end) == {"one": 5, "two": 7}
    assert ranges(reader, start, end) == {("one", ONE, 0, 5), ("two", TWO, 0, 7)}
    farm.nodes[TWO].end = 9
    again = farm.reader(TWO, ONE)  # a restart, with the URLs in another order
    after = again.latestOffset(end, ALL)
    assert ranges(again, end, after) == {("two", TWO, 7, 9)}
    assert again.latestOffset(after, ALL) == after
    assert offsets(again.reportLatestOffset()) == {"one": 5, "two": 9}


def test_a_node_that_is_away_keeps_its_place_and_holds_up_nobody(farm: Farm) -> None:
    start = farm.look(farm.reader(ONE, TWO).initialOffset(), ONE, TWO)
    farm.nodes[ONE].away = True
    farm.nodes[TWO].end = 10
    without = farm.look(start, ONE, TWO)
    assert (offsets(without), away(without)) == ({"one": 5, "two": 10}, {"one"})
    assert farm.look(without, ONE, TWO) == without
    farm.nodes[ONE].away = False
    farm.nodes[ONE].end = 8
    reader = farm.reader(ONE, TWO)
    back = reader.latestOffset(without, ALL)
    assert (offsets(back), away(back)) == ({"one": 8, "two": 10}, set())
    assert ranges(reader, without, back) == {("one", ONE, 5, 8)}


def test_a_node_that_is_silent_is_away_until_it_answers(farm: Farm) -> None:
    reader = farm.reader(ONE, TWO)
    start = reader.initialOffset()
    answer = farm.nodes[ONE].silent = threading.Event()
    assert away(reader.latestOffset(start, ALL)) == {"one"}
    answer.set()
    while away(end := reader.latestOffset(start, ALL)):
        pass
    assert offsets(end) == {"one": 5, "two": 7}


def test_all_nodes_have_to_be_there_at_the_first_start_or_where_that_is_wanted(farm: Farm) -> None:
    start = farm.reader(ONE, TWO).initialOffset()
    farm.nodes[ONE].away = True
    with pytest.raises(ConnectError, match="one is away"):
        farm.reader(ONE, TWO).initialOffset()
    with pytest.raises(ConnectError, match="one is away"):
        farm.look(start, ONE, TWO, failOnUnreachable="true")
    farm.nodes[TWO].away = True
    with pytest.raises(ConnectError, match="one is away; two is away"):
        farm.look(start, ONE, TWO)


@pytest.mark.parametrize(("begin", "place"), [("earliest", 2), ("latest", 2), ("1970-01-01T00:00:04Z", 4)])
def test_a_node_that_joins_is_read_from_its_first_message(farm: Farm, begin: str, place: int) -> None:
    """Whatever a query begins with, unless that is a time; in the batch behind that which it joins."""
    start = farm.reader(ONE, TWO, start=begin).initialOffset()
    farm.nodes[THREE] = Node("three", 33, 6, first=2)
    urls = (ONE, TWO, THREE)
    reader = farm.reader(*urls, start=begin)
    joined = reader.latestOffset(start, ALL)
    assert offsets(joined)["three"] == place
    assert all(node != "three" for node, *_ in ranges(reader, start, joined))
    end = reader.latestOffset(joined, ALL)
    assert ranges(reader, joined, end) == {("three", THREE, place, 6)}


def test_a_node_that_has_left_and_comes_back_goes_on(farm: Farm, caplog: pytest.LogCaptureFixture) -> None:
    start = farm.reader(ONE, TWO).initialOffset()
    with caplog.at_level("WARNING"):
        left = farm.look(start, TWO)
    assert (
        "the node one is not among the URLs any more: what it has from offset 0 on is not read" in caplog.text
    )
    assert offsets(left) == {"one": 0, "two": 7}
    farm.nodes[THREE] = farm.nodes.pop(ONE)  # at another address
    reader = farm.reader(TWO, THREE)
    assert ranges(reader, left, reader.latestOffset(left, ALL)) == {("one", THREE, 0, 5)}


def test_a_batch_that_was_planned_goes_to_the_node_wherever_it_is(farm: Farm) -> None:
    start = farm.reader(ONE, TWO).initialOffset()
    end = farm.look(start, ONE, TWO)
    farm.nodes[ONE].away = True
    assert ("one", ONE, 0, 5) in ranges(farm.reader(ONE, TWO), start, end)  # tasks wait for it
    farm.nodes[THREE] = Node("three", 33, 0, away=True)
    with pytest.raises(ConnectError, match="of this batch, and not all nodes can be reached"):
        farm.reader(TWO, THREE).partitions(start, end)
    with pytest.raises(StreamError, match=r"none of the URLs leads to it\. With failOnDataLoss=false"):
        farm.reader(TWO).partitions(start, end)
    assert ranges(farm.reader(TWO, failOnDataLoss="false"), start, end) == {("two", TWO, 0, 7)}


def test_a_node_that_began_anew_is_said_to_have_lost_messages(farm: Farm) -> None:
    start = farm.look(farm.reader(ONE, TWO).initialOffset(), ONE, TWO)
    farm.nodes[ONE] = Node("one", 12, 3)
    with pytest.raises(StreamError, match="was made anew: the messages behind offset 5 are lost"):
        farm.look(start, ONE, TWO)
    begun = farm.look(start, ONE, TWO, failOnDataLoss="false")
    reader = farm.reader(ONE, TWO, failOnDataLoss="false")
    assert ranges(reader, begun, reader.latestOffset(begun, ALL)) == {("one", ONE, 0, 3)}
    assert {each["epoch"] for each in begun["nodes"]} == {12, 22}
    farm.nodes[TWO].first = farm.nodes[TWO].end = 9
    with pytest.raises(StreamError, match="are older than its retention allows"):
        farm.look(begun, ONE, TWO)


def test_a_batch_is_bounded_and_all_nodes_have_a_share(farm: Farm) -> None:
    farm.nodes[ONE].end, farm.nodes[TWO].end = 3, 1000
    start = farm.reader(ONE, TWO).initialOffset()
    assert offsets(farm.look(start, ONE, TWO, limit=ReadMaxRows(100))) == {"one": 3, "two": 97}
    assert offsets(farm.look(start, ONE, TWO, limit=ReadMaxBytes(400))) == {"one": 3, "two": 20}
    farm.nodes[ONE].end = 1000
    assert offsets(farm.look(start, ONE, TWO, limit=ReadMaxRows(1))) == {"one": 1, "two": 1}


def test_no_batch_has_more_than_there_was_when_a_query_began_that_ends(farm: Farm) -> None:
    reader = farm.reader(ONE, TWO)
    start = reader.initialOffset()
    farm.nodes[ONE].away = True
    reader.prepareForTriggerAvailableNow()
    farm.nodes[ONE].away = False
    farm.nodes[TWO].end = 100
    end = reader.latestOffset(start, ALL)
    assert (offsets(end), away(end)) == ({"one": 0, "two": 7}, {"one"})
    assert reader.latestOffset(end, ALL) == end


def test_a_checkpoint_of_one_broker_goes_on_with_several_nodes(farm: Farm) -> None:
    known = {"stream": "plant", "epoch": 11, "offset": 3}
    reader = farm.reader(ONE, TWO)
    joined = reader.latestOffset(known, ALL)
    assert ranges(reader, known, joined) == {("one", ONE, 3, 5)}
    end = reader.latestOffset(joined, ALL)
    assert ranges(reader, joined, end) == {("two", TWO, 0, 7)}
    for wrong in ({"stream": "other", "nodes": []}, {"topic": {"0": 17}}):
        with pytest.raises(StreamError, match="each query needs one of its own"):
            reader.latestOffset(wrong, ALL)
    alone = TailReader(SourceOptions.parse({"url": ONE, "stream": "plant"}))
    with pytest.raises(StreamError, match="with the option nodes=true one URL goes on with it"):
        alone.latestOffset(end, ALL)
    assert farm.look(end, ONE)["nodes"][0]["offset"] == 5


def test_one_node_under_two_urls_is_refused(farm: Farm) -> None:
    farm.nodes[THREE] = farm.nodes[ONE]
    with pytest.raises(StreamError, match="http://one:8080 and http://three:8080 are one broker"):
        farm.reader(ONE, THREE).initialOffset()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"url": f"{ONE},{TWO},{ONE}/"}, "the option url has http://one:8080 twice"),
        ({"url": " , "}, "the option url is missing"),
        ({"url": f"{ONE},two"}, "not of the form http://host:port"),
        ({"nodes": "false"}, "the option nodes is 'false'; accepted with several URLs: true"),
        ({"start": "17"}, "an offset is one of a node's stream"),
        ({"end": "17"}, "an offset is one of a node's stream"),
        ({"last": "true"}, "the option last is for one node"),
        ({"url": ONE, "failOnUnreachable": "true"}, "failOnUnreachable is for several nodes"),
        ({"url": ONE, "columns": "node"}, "a stream has no column 'node'"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        SourceOptions.parse({"url": f"{ONE},{TWO}", "stream": "plant", **options})


def test_a_query_of_nodes_is_behind_by_what_all_have() -> None:
    """Ingest reads nodes by itself: Spark sees no rows. A node that is away has no latest offset."""

    def said(**ends: int) -> str:
        places = [{"epoch": int(name[1:]), "offset": end} for name, end in ends.items()]
        return json.dumps({"stream": "plant", "nodes": places})

    source = SimpleNamespace(
        startOffset=said(e11=2, e22=3), endOffset=said(e11=4, e22=3, e33=7), latestOffset=said(e11=9, e33=8)
    )
    progress = SimpleNamespace(
        name="plant",
        sources=[source],
        observedMetrics={"tidemq": {"messages": None}},
        numInputRows=0,
        durationMs={},
        stateOperators=[],
    )
    listener = FiguresListener()
    listener.onQueryProgress(cast(QueryProgressEvent, SimpleNamespace(progress=progress)))
    found = listener.figures()["plant"]
    assert (found.messages, found.behind) == (2, 6)
