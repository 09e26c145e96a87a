"""What the admin API says once a second, and what it publishes."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
from pathlib import Path
from typing import Any

import pytest
from conformance.kit import connected, unique
from waiting import WAIT_S, wait_until

from tidemq import Broker, Config
from tidemq.broker.admin import event_stream, live_api
from tidemq.broker.monitoring import snapshots

JSON = {"Content-Type": "application/json"}


@pytest.fixture
def config(tmp_path: Path, unused_tcp_port: int) -> Config:
    return Config(
        host="127.0.0.1", port=0, reactors=2, sys_interval_s=0, data=tmp_path, admin_port=unused_tcp_port
    )


class Watcher:
    """Reads events."""

    def __init__(self, broker: Broker, path: str = "/api/v1/events") -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", broker.admin_port, timeout=WAIT_S)
        self.connection.request("GET", path)
        self.answer = self.connection.getresponse()

    def leave(self) -> None:
        self.connection.close()
        self.answer.close()

    def next(self) -> Any:
        while (line := self.answer.readline()) == b":\n":
            assert self.answer.readline() == b"\n"
        assert self.answer.readline() == b"\n"
        return json.loads(line.removeprefix(b"data: "))


def publish(broker: Broker, body: object) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", broker.admin_port, timeout=WAIT_S)
    connection.request("POST", "/api/v1/publish", json.dumps(body), JSON)
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


async def test_events_tell_what_goes_on(config: Config) -> None:
    def act() -> None:
        watcher = Watcher(broker)
        assert watcher.answer.headers["Content-Type"] == "text/event-stream"
        assert watcher.next()["connections"] == 0
        client, publisher = connected(broker), connected(broker)
        client.subscribe("a", qos=1)
        for _ in range(20):
            publisher.publish("a", b"x", qos=1)
            client.acknowledge(client.receive())
        found = [watcher.next() for _ in range(3)]
        assert found[-1]["connections"] == found[-1]["sessions"] == 2
        received = sum(each["per_s"]["messages_received"] for each in found)
        assert received == pytest.approx(20, rel=0.2)
        busy = max(found, key=lambda each: each["per_s"]["messages_received"])
        assert 0 < busy["seconds"]["publish_qos_1"]["p50"] <= busy["seconds"]["publish_qos_1"]["p99"] < WAIT_S
        assert len(busy["reactors"]) == 2
        watcher.connection.close()

    async with Broker(config) as broker:
        await asyncio.to_thread(act)


async def test_no_more_watch_than_may_and_one_who_leaves_makes_room(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "WATCHERS_MAX", 2)

    def act() -> None:
        first, second, third = Watcher(broker), Watcher(broker), Watcher(broker)
        assert [each.answer.status for each in (first, second, third)] == [200, 200, 429]
        first.leave()
        while Watcher(broker).answer.status != 200:
            second.next()  # a second later

    async with Broker(config) as broker:
        await asyncio.to_thread(act)


async def test_a_broker_stops_while_somebody_watches(config: Config) -> None:
    async with Broker(config) as broker:
        watcher = await asyncio.to_thread(Watcher, broker)
        await asyncio.to_thread(watcher.next)
    assert not await asyncio.to_thread(watcher.answer.read)


async def test_a_message_is_published(config: Config) -> None:
    topic = unique("t")

    def act() -> None:
        client = connected(broker)
        client.subscribe(f"{topic}/#", qos=2)
        said = {"topic": f"{topic}/1", "payload": "grün", "qos": 1}
        assert publish(broker, said) == (200, {"topic": f"{topic}/1", "payload_bytes": 5})
        client.acknowledge(client.expect_message(f"{topic}/1", "grün".encode(), 1))
        raw = base64.b64encode(b"\x00\xff").decode()
        assert publish(broker, {"topic": f"{topic}/2", "payload_base64": raw, "retain": True})[0] == 200
        client.expect_message(f"{topic}/2", b"\x00\xff")
        late = connected(broker)
        late.subscribe(f"{topic}/#")
        late.expect_message(f"{topic}/2", b"\x00\xff")

    async with Broker(config) as broker:
        await asyncio.to_thread(act)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "topic"),
        ({"topic": ""}, "topic"),
        ({"topic": "a/#"}, "topic"),
        ({"topic": "$SYS/x"}, "topic"),
        ({"topic": "a", "qos": 3}, "qos"),
        ({"topic": "a", "payload": 1}, "payload"),
        ({"topic": "a", "payload": "x", "payload_base64": "eA=="}, "payload_base64"),
        ({"topic": "a", "payload_base64": "?"}, "payload_base64"),
        ({"topic": "a", "payload_base64": "ü"}, "payload_base64"),
        ({"topic": "a", "colour": "red"}, "colour"),
        ([], "body"),
    ],
)
async def test_a_wrong_message_is_refused(config: Config, body: object, said: str) -> None:
    async with Broker(config) as broker:
        status, answer = await asyncio.to_thread(publish, broker, body)
    assert status == 400
    assert said in answer["detail"]


async def test_messages_on_a_filter_are_seen_until_nobody_looks(config: Config) -> None:
    topic = unique("t")

    def act() -> None:
        watcher = Watcher(broker, f"/api/v1/messages?topic_filter={topic}/%2B&payload_bytes=3")
        wait_until(lambda: broker.counters()["subscriptions"] == 1)
        for name, payload in (("1", "grün"), ("2", "x")):
            assert publish(broker, {"topic": f"{topic}/{name}", "payload": payload})[0] == 200
        found = [watcher.next() for _ in range(2)]
        shown = [(each["topic"], each["payload"], each["payload_bytes"]) for each in found]
        assert shown == [(f"{topic}/1", "gr", 5), (f"{topic}/2", "x", 1)]  # not half of a character
        watcher.leave()
        wait_until(lambda: broker.counters()["subscriptions"] == 0)

    async with Broker(config) as broker:
        await asyncio.to_thread(act)


async def test_who_reads_more_messages_than_a_page_shows_is_ended(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "MESSAGES_MAX", 10)

    def act() -> None:
        watcher = Watcher(broker, "/api/v1/messages?topic_filter=%23")
        wait_until(lambda: broker.counters()["subscriptions"] == 1)
        client = connected(broker)
        for _ in range(100):
            client.publish("a", b"x")
        while "ended" not in (found := watcher.next()):
            assert found["topic"] == "a"
        assert "narrower filter" in found["ended"]
        assert not watcher.answer.readline()
        wait_until(lambda: broker.counters()["subscriptions"] == 0)

    async with Broker(config) as broker:
        await asyncio.to_thread(act)


async def test_few_read_messages(config: Config) -> None:
    def act() -> None:
        path = "/api/v1/messages?topic_filter=a"
        assert Watcher(broker, "/api/v1/messages?topic_filter=a%23").answer.status == 400
        readers = [Watcher(broker, path) for _ in range(live_api.READERS_MAX)]
        assert Watcher(broker, path).answer.status == 429
        readers[0].leave()
        wait_until(lambda: Watcher(broker, path).answer.status == 200)

    async with Broker(config) as broker:
        await asyncio.to_thread(act)
