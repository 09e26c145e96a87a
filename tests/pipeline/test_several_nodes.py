"""The streams of three nodes of a cluster as one table: nodes are killed, come back and join, and each
message is there once.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from cluster.test_processes import Node, make_nodes, stop
from pipeline.lake import ingest, rows
from pipeline.streaming import Streaming
from pyspark.sql import DataFrame, Row, SparkSession
from waiting import until

from tidemq.client import Client
from tidemq.client.streams import StreamReader
from tidemq.errors import TideMQError, UsageError
from tidemq.pipeline.lake.ingest import Ingest, run_ingest
from tidemq.pipeline.lake.node_ingest import NodeCommitter, Wanted
from tidemq.pipeline.lake.status import status
from tidemq.pipeline.sources.stream import register
from tidemq.testing.ports import free_port

pytestmark = pytest.mark.timeout(300)

SETTINGS = """
sys_interval_s = 0.0

[[streams]]
name = "plant"
filters = ["plant/#"]
"""
AT_ONCE = 10  # messages that a publisher has under way

Message = tuple[str, int]  # publisher and number


class Farm:
    """The nodes, and who publishes on them, each at QoS 1 and 2 in turns."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = {node.log.stem: node for node in nodes}
        self.ports = {name: free_port() for name in self.nodes}
        for name, node in self.nodes.items():
            node.more = ["--admin-port", str(self.ports[name])]
            node.more += ["--join", f"127.0.0.1:{self.nodes['two'].nats_port}"]  # the first may be down
            node.environment = {"TIDEMQ_CLUSTER_NODE": name}
        self.acknowledged: dict[str, set[Message]] = {name: set() for name in self.nodes}
        self.in_doubt: set[Message] = set()  # sent when a node was killed, and not sent again
        self._numbers: Counter[str] = Counter()

    def start(self, *names: str) -> None:
        for name in names:
            asyncio.run(self.nodes[name].start())

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.ports[name]}"

    def urls(self, *names: str) -> str:
        return ",".join(map(self.url, names))

    def publish(self, *names: str) -> None:
        """Thirty messages on each of these nodes; all are acknowledged."""
        for name in names:
            asyncio.run(self._publish(name, 3))

    def kill(self, name: str) -> None:
        """While messages are published there."""
        asyncio.run(self._publish(name, 1000, killed=True))

    async def _publish(self, name: str, rounds: int, *, killed: bool = False) -> None:
        async with Client(self.nodes[name].url, client_id=f"publisher-{name}", reconnect=False) as client:
            begun = len(self.acknowledged[name])
            publishing = asyncio.create_task(self._publish_rounds(client, name, rounds))
            if killed:
                await until(lambda: len(self.acknowledged[name]) > begun + 5 * AT_ONCE)
                self.nodes[name].kill()
                with suppress(TideMQError):
                    await publishing
            await publishing

    async def _publish_rounds(self, client: Client, name: str, rounds: int) -> None:
        for _ in range(rounds):
            first = self._numbers[name]
            self._numbers[name] += AT_ONCE
            numbers = range(first, first + AT_ONCE)
            self.in_doubt |= {(name, number) for number in numbers}
            if not all(await asyncio.gather(*(self._publish_one(client, name, each) for each in numbers))):
                return

    async def _publish_one(self, client: Client, name: str, number: int) -> bool:
        """Whether it was acknowledged."""
        try:
            await client.publish("plant/a", f"{name} {number}", qos=1 + number % 2)
        except TideMQError:
            return False
        self.acknowledged[name].add((name, number))
        self.in_doubt.discard((name, number))
        return True

    def check(self, found: Counter[Message], *missing: str) -> None:
        """That these are the messages, each once; of some nodes there may be less."""
        assert not [message for message, count in found.items() if count > 1]
        wanted = {
            message for name in self.nodes if name not in missing for message in self.acknowledged[name]
        }
        known = {message for each in self.acknowledged.values() for message in each}
        assert wanted <= set(found) <= known | self.in_doubt


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[Farm]:
    made = make_nodes(tmp_path, suspect_s=3.0)
    config = tmp_path / "cluster.toml"
    config.write_text(config.read_text() + SETTINGS)
    yield Farm(made)
    stop(made)


def message_of(payload: bytes) -> Message:
    name, _, number = bytes(payload).decode().partition(" ")
    return name, int(number)


class Query:
    """Keeps what the batches of a query have, as a sink that knows a batch again."""

    def __init__(self, spark: SparkSession, checkpoint: Path) -> None:
        register(spark)
        self._spark, self._checkpoint = spark, checkpoint
        self._batches: dict[int, list[tuple[str, Message]]] = {}

    def run(self, urls: str) -> None:
        """From the checkpoint to the messages of now."""
        options = {"url": urls, "stream": "plant", "maxRowsPerBatch": "100"}
        read = self._spark.readStream.format("tidemq").options(**options).load()
        writing = read.writeStream.foreachBatch(self._keep).option(
            "checkpointLocation", str(self._checkpoint)
        )
        query = writing.trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()

    def _keep(self, batch: DataFrame, number: int) -> None:
        found = batch.select("node", "payload").collect()
        self._batches[number] = [(row.node, message_of(row.payload)) for row in found]

    def messages(self) -> Counter[Message]:
        """Each with the node that it was published on."""
        found = [each for batch in self._batches.values() for each in batch]
        assert all(node == name for node, (name, _) in found)
        return Counter(message for _, message in found)


def bronze(job: Ingest) -> Counter[Message]:
    found = rows(job.bronze, "node", "payload")
    assert all(node == message_of(payload)[0] for node, payload in found)
    return Counter(message_of(payload) for _, payload in found)


def test_each_message_is_in_a_row_once_though_a_node_is_killed(
    farm: Farm, spark: SparkSession, tmp_path: Path
) -> None:
    """Of a query that starts again from its checkpoint."""
    query = Query(spark, tmp_path / "checkpoint")
    urls = farm.urls("one", "two")
    farm.start("one", "two")
    farm.publish("one", "two")
    query.run(urls)
    farm.check(query.messages())
    farm.kill("one")
    farm.publish("two")
    query.run(urls)
    farm.check(query.messages(), "one")
    farm.start("one")
    farm.publish("one", "two")
    query.run(urls)
    farm.check(query.messages())


@pytest.mark.long
def test_each_message_is_there_once_while_nodes_come_and_go(
    farm: Farm, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In rows of a query and in bronze; a node joins, and one is killed when ingest is about to read it."""
    query = Query(spark, tmp_path / "checkpoint")
    two = Ingest(url=farm.urls("one", "two"), stream="plant", tables=str(tmp_path / "lake"), rows_max=50)
    three = Ingest(url=farm.urls("three", "one", "two"), stream="plant", tables=two.tables)
    farm.start("one", "two")
    farm.publish("one", "two")
    query.run(two.url)
    run_ingest(spark, two, once=True)
    farm.check(query.messages())
    farm.check(bronze(two))
    farm.kill("one")
    farm.start("three")
    farm.publish("two", "three")
    query.run(three.url)
    farm.check(query.messages(), "one")
    farm.start("one")
    farm.publish("one")
    killing = Killing(farm, "two", monkeypatch)
    run_ingest(spark, three, once=True)
    assert killing.done
    farm.check(bronze(three), "two")
    farm.start("two")
    farm.publish("two", "three")
    query.run(three.url)
    run_ingest(spark, three, once=True)
    farm.check(query.messages())
    farm.check(bronze(three))
    states = [StreamReader(farm.url(name), "plant").describe() for name in farm.nodes]
    [found] = status(three, states)
    assert (found.name, found.rows, found.behind) == ("bronze", bronze(three).total(), 0)


class Killing:
    """Kills a node when a batch of ingest is about to read it, once."""

    def __init__(self, farm: Farm, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done = False
        copied = NodeCommitter._copied

        def kill_before(committer: NodeCommitter, wanted: Sequence[Wanted], folder: str) -> list[Row]:
            if not self.done and any(each.node == name for each in wanted):
                self.done = True
                farm.nodes[name].kill()
            return copied(committer, wanted, folder)

        monkeypatch.setattr(NodeCommitter, "_copied", kill_before)


def test_what_one_broker_began_goes_on_with_nodes(
    spark: SparkSession, streaming: Streaming, tmp_path: Path
) -> None:
    """Its table and its checkpoint."""
    name = streaming.declare("widened")
    streaming.publish([(f"{name}/a", b"%d" % number) for number in range(5)])
    rule = f'[[rules]]\nname = "numbers"\nfilter = "{name}/a"\nformat = "number"\n'
    alone = ingest(spark, streaming, tmp_path, name, rule)
    streaming.publish([(f"{name}/a", b"%d" % number) for number in range(5, 9)])
    job = replace(alone, nodes=True, rows_max=3)
    run_ingest(spark, job, once=True)
    where = streaming.url.removeprefix("http://")
    assert rows(job.bronze, "offset", "node") == [(at, None if at < 5 else where) for at in range(9)]
    assert [value for (value,) in rows(job.silver(job.rules[0]), "value")] == [*range(9)]
    with pytest.raises(UsageError, match="an offset is one of a node's stream"):
        run_ingest(spark, replace(job, start="3"), once=True)
