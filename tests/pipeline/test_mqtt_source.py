"""`format("mqtt")` takes from any broker what a session of its own gets: nothing acknowledged is lost."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from client.servers import NAMES, Server
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from tidemq.client import ConnectError, Message, Properties, ServerRefusedError, sync
from tidemq.errors import StoreError, UsageError
from tidemq.pipeline.sources import mqtt, spool
from tidemq.pipeline.sources.mqtt import LostSpoolError, MqttOptions, MqttReader, register_mqtt
from tidemq.testing.ports import free_port

ALL = ReadAllAvailable()


@pytest.fixture(scope="module", params=NAMES)
def server(
    request: pytest.FixtureRequest,
    install: Callable[[str, str], None],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Server]:
    if request.param == "mosquitto":
        install("mosquitto", "mosquitto")
    server = Server(request.param, tmp_path_factory.mktemp(request.param)).start()
    yield server
    server.kill()


@pytest.fixture
def opened(server: Server, tmp_path: Path) -> Iterator[Callable[..., MqttReader]]:
    """`opened(filters="a/#", …)`: a reader as Spark has it; all use one spool, one after the other."""
    readers: list[MqttReader] = []

    def opened(**options: str) -> MqttReader:
        given = {"url": server.url, "spool": str(tmp_path / "spool")} | options
        readers.append(MqttReader(MqttOptions.parse(given)))
        return readers[-1]

    yield opened
    for reader in readers:
        reader.stop()


def publish(server: Server, *messages: Message) -> None:
    with sync.Client(server.url) as client:
        client.publish_many(messages)


def rows(reader: MqttReader, start: dict[str, int], end: dict[str, int]) -> list[dict[str, Any]]:
    parts = reader.partitions(start, end)
    return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


def reach(reader: MqttReader, start: dict[str, int], count: int) -> dict[str, int]:
    """Where the batch ends that has so many messages."""
    deadline = time.monotonic() + 30
    while (end := reader.latestOffset(start, ALL))["offset"] < start["offset"] + count:
        assert time.monotonic() < deadline, end
    return end


def test_messages_come_whole_and_stay_until_they_are_committed(
    server: Server, opened: Callable[..., MqttReader]
) -> None:
    reader = opened(filters="whole/#", qos="2", clientId="whole")
    start = reader.initialOffset()
    properties = Properties(
        content_type="text/plain",
        response_topic="answers",
        correlation_data=b"\x01",
        user_properties=(
            ("a", "b"),
            ("a", "c"),
        ),
    )
    publish(server, Message("whole/a", b"\xff", 2, True, properties))
    reach(reader, start, 1)
    publish(server, Message("whole/b", b"", 0))
    middle = reach(reader, start, 2)
    first, second = rows(reader, start, middle)
    assert abs(first.pop("received").timestamp() - time.time()) < 30
    assert first == {
        "epoch": start["epoch"],
        "offset": 0,
        "topic": "whole/a",
        "payload": b"\xff",
        "qos": 2,
        "retain": True,
        "dup": False,
        "content_type": "text/plain",
        "response_topic": "answers",
        "correlation_data": b"\x01",
        "user_properties": [{"name": "a", "value": "b"}, {"name": "a", "value": "c"}],
    }
    assert (second["offset"], second["payload"], second["qos"], second["content_type"]) == (1, b"", 0, None)
    reader.stop()
    publish(server, *(Message("whole/away", b"%d" % number, 1) for number in range(20)))
    reader = opened(filters="whole/#", qos="2", clientId="whole")  # the retained one does not come again
    assert len(rows(reader, start, middle)) == 2  # planned, and not known to be committed
    end = reach(reader, middle, 20)
    assert [row["payload"] for row in rows(reader, middle, end)] == [b"%d" % number for number in range(20)]
    assert reader.latestOffset(middle, ReadMaxRows(7))["offset"] == 9
    with pytest.raises(LostSpoolError, match="has the offsets 2 to 22 of epoch"):
        rows(reader, start, middle)


READER = """
import sys
from tidemq.pipeline.sources.mqtt import *
reader = MqttReader(MqttOptions.parse(dict(url=sys.argv[1], filters="killed/#", spool=sys.argv[2])))
start = reader.initialOffset()
print("reads", flush=True)
while True:
    reader.latestOffset(start, reader.getDefaultReadLimit())
"""


def test_what_is_acknowledged_survives_a_kill(
    server: Server, opened: Callable[..., MqttReader], tmp_path: Path
) -> None:
    """A reader is killed at any moment, while messages come."""
    chosen = random.Random(5)
    command = [sys.executable, "-c", READER, server.url, str(tmp_path / "spool")]
    sent = 0
    with sync.Client(server.url) as client:
        for _ in range(3):
            process = subprocess.Popen(command, stdout=subprocess.PIPE)
            assert process.stdout is not None
            assert process.stdout.readline() == b"reads\n"
            until = time.monotonic() + chosen.uniform(0, 0.3)
            while time.monotonic() < until:
                batch = [(f"killed/{sent % 3}", b"%d" % number) for number in range(sent, sent + 200)]
                sent += client.publish_many(batch, qos=1)
            process.kill()
            process.wait()
    reader = opened(filters="killed/#")
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    found = rows(reader, start, reader.latestOffset(start, ALL))
    assert {row["payload"] for row in found} == {b"%d" % number for number in range(sent)}
    assert {row["offset"] for row in found} == set(range(len(found)))


def test_a_full_spool_holds_the_broker_back(
    server: Server, opened: Callable[..., MqttReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mqtt, "TAKE_MESSAGES", 500)
    reader = opened(filters="full/#", spoolBytesMax=str(200_000))
    start = reader.initialOffset()
    publish(server, *(Message("full/a", b"%0100d" % number, 1) for number in range(5000)))
    reader.prepareForTriggerAvailableNow()
    spooled = reader.latestOffset(start, ALL)["offset"]
    assert 0 < spooled <= 200_000 // 200 + 1000
    reader._target = None
    found: list[bytes] = []
    while len(found) < 5000:
        end = reach(reader, start, 1)
        found += [row["payload"] for row in rows(reader, start, end)]
        start = end
    assert found == [b"%0100d" % number for number in range(5000)]


def test_filters_that_are_not_wanted_any_more_are_left(
    server: Server, opened: Callable[..., MqttReader]
) -> None:
    reader = opened(filters="old/#,both/+")
    reader.initialOffset()
    reader.stop()
    reader = opened(filters="both/+,new/#")
    start = reader.initialOffset()
    publish(server, *(Message(topic, b"x", 1) for topic in ("old/a", "both/a", "new/a")))
    found = rows(reader, start, reach(reader, start, 2))
    assert [row["topic"] for row in found] == ["both/a", "new/a"]


def test_a_spool_is_of_one_query(
    server: Server, opened: Callable[..., MqttReader], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool, "LOCK_WAIT_S", 0.1)
    reader = opened(filters="one/#")
    start = reader.initialOffset()
    with pytest.raises(StoreError, match=r"spool\.db: another query has it"):
        opened(filters="one/#").initialOffset()
    reader.stop()
    for file in (tmp_path / "spool").iterdir():
        file.unlink()
    with pytest.raises(LostSpoolError, match="is not the one of this checkpoint"):
        opened(filters="one/#").latestOffset(start, ALL)


@pytest.mark.parametrize("server", ["tidemq"], indirect=True)  # Mosquitto 2.0 does not say so
def test_a_session_that_is_taken_over_ends_the_query(
    server: Server, opened: Callable[..., MqttReader]
) -> None:
    reader = opened(filters="taken/#", clientId="taken")
    start = reader.initialOffset()
    with sync.Client(server.url, client_id="taken"), pytest.raises(ServerRefusedError, match="taken over"):
        reach(reader, start, 1)


def test_3_1_1_is_spoken_where_it_is_asked_for(server: Server, opened: Callable[..., MqttReader]) -> None:
    reader = opened(filters="older/#", version="4")
    start = reader.initialOffset()
    publish(server, Message("older/a", b"x", 1))
    assert rows(reader, start, reach(reader, start, 1))[0]["payload"] == b"x"


def test_a_broker_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(mqtt, "RETRY_S", 0.1)
    port = free_port()
    given = {"url": f"mqtt://127.0.0.1:{port}", "filters": "a", "spool": str(tmp_path)}
    reader = MqttReader(MqttOptions.parse(given))
    with pytest.raises(ConnectError, match=f"cannot connect to mqtt://127.0.0.1:{port}"):
        reader.initialOffset()
    reader.stop()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"topic": "a"}, "option 'topic' is unknown; accepted: url, user"),
        ({"filters": ""}, "option filters is missing"),
        ({"filters": "a/#/b"}, "option filters has 'a/#/b': "),
        ({"spool": ""}, "option spool is missing"),
        ({"qos": "3"}, "option qos is '3'; accepted: 0, 1, 2"),
        ({"version": "3"}, "option version is '3'; accepted: 4, 5"),
        ({"spoolBytesMax": "0"}, "option spoolBytesMax is '0'; accepted: a whole number from 1"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        MqttOptions.parse({"url": "mqtt://localhost", "filters": "a", "spool": "/tmp/spool"} | options)


@pytest.mark.parametrize("server", ["mosquitto"], indirect=True)
@pytest.mark.timeout(300)
def test_a_batch_that_failed_comes_again(
    spark: SparkSession, server: Server, opened: Callable[..., MqttReader], tmp_path: Path
) -> None:
    reader = opened(filters="failed/#")
    reader.initialOffset()  # makes the session
    reader.stop()
    publish(server, *(Message("failed/a", b"%d" % number, 1) for number in range(100)))
    register_mqtt(spark)
    read = spark.readStream.format("mqtt").options(
        url=server.url, filters="failed/#", spool=str(tmp_path / "spool"), maxRowsPerBatch=40
    )
    batches: list[tuple[int, list[bytes]]] = []

    def keep(frame: DataFrame, number: int) -> None:
        batches.append((number, [bytes(row.payload) for row in frame.orderBy("offset").collect()]))
        if len(batches) == 2:
            raise RuntimeError("killed")

    def run() -> None:
        write = read.load().writeStream.foreachBatch(keep)
        write.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(
            availableNow=True
        ).start().awaitTermination()

    with pytest.raises(StreamingQueryException, match="killed"):
        run()
    run()
    numbers = [b"%d" % number for number in range(100)]
    assert batches == [
        *((0, numbers[:40]), (1, numbers[40:80]), (1, numbers[40:80]), (2, numbers[80:])),
    ]
