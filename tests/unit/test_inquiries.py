"""Retained messages, subscriptions, queues and sessions, as the admin API shows and changes them."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from conformance.kit import connected, kept, unique
from conformance.packets import PUBLISH, Will
from waiting import WAIT_S, wait_until

from tidemq import Broker, Config, Limits


@pytest.fixture
def config(tmp_path: Path, unused_tcp_port: int) -> Config:
    return Config(
        host="127.0.0.1", port=0, reactors=2, sys_interval_s=0, data=tmp_path, admin_port=unused_tcp_port
    )


def ask(broker: Broker, path: str, method: str = "GET", **query: str) -> tuple[int, Any]:
    """Status and JSON; below `/api/v1`."""
    connection = http.client.HTTPConnection("127.0.0.1", broker.admin_port, timeout=WAIT_S)
    connection.request(method, f"/api/v1{path}?{urlencode(query)}")
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def pages(broker: Broker, path: str, rows: str, **query: str) -> list[Any]:
    """All rows of all answers."""
    found: list[Any] = []
    while True:
        status, body = ask(broker, path, **query)
        assert status == 200, body
        found += body[rows]
        if body["cursor"] is None:
            return found
        query["cursor"] = str(body["cursor"])


# --- retained messages -----------------------------------------------------------------------------


@pytest.mark.parametrize("limit", ["1", "7", "1000"])
async def test_each_retained_message_is_shown_once(config: Config, limit: str) -> None:
    root = unique("r")
    topics = {f"{root}/{a}/{b}" for a in range(12) for b in ("", "x", "y/z")} | {f"{root}/é"}

    def act() -> None:
        client = connected(broker)
        for topic in topics:
            client.publish(topic, topic.encode(), qos=1, retain=True)
        found = pages(broker, "/retained", "messages", topic_filter=f"{root}/#", limit=limit)
        assert sorted(each["topic"] for each in found) == sorted(topics)
        assert all(each["payload"] == each["topic"] and each["qos"] == 1 for each in found)
        below = pages(broker, "/retained", "messages", topic_filter=f"{root}/+/x", limit=limit)
        assert len(below) == 12

    async with Broker(config) as broker:
        await asyncio.to_thread(act)


async def test_a_payload_is_cut_and_what_is_no_text_is_base64(config: Config) -> None:
    root = unique("r")

    def act() -> None:
        client = connected(broker)
        client.publish(f"{root}/text", "äöü".encode() * 100, qos=1, retain=True)
        client.publish(f"{root}/bytes", bytes(range(256)), qos=1, retain=True)
        rows = ask(broker, "/retained", topic_filter=f"{root}/+", payload_bytes="5")[1]["messages"]
        shown = {each["topic"].removeprefix(root): each for each in rows}
        assert shown["/text"]["payload"] == "äö"
        assert shown["/text"]["payload_bytes"] == 600
        assert shown["/bytes"]["payload"] == "\x00\x01\x02\x03\x04"
        rows = ask(broker, "/retained", topic_filter=f"{root}/bytes", payload_bytes="1000")[1]["messages"]
        assert rows[0]["payload"] is None
        assert base64.b64decode(rows[0]["payload_base64"]) == bytes(range(256))

    async with Broker(config) as broker:
        await asyncio.to_thread(act)


async def test_a_page_goes_on_although_the_topic_where_it_stands_has_gone(config: Config) -> None:
    root = unique("r")

    def act() -> None:
        client = connected(broker)
        for number in range(20):
            client.publish(f"{root}/{number}/x", b"1", qos=1, retain=True)
        _, first = ask(broker, "/retained", topic_filter=f"{root}/#", limit="5")
        shown = {each["topic"] for each in first["messages"]}
        for number in range(10, 20):
            client.publish(f"{root}/{number}/x", b"", qos=1, retain=True)
        rest = pages(broker, "/retained", "messages", topic_filter=f"{root}/#", cursor=first["cursor"])
        there = {f"{root}/{number}/x" for number in range(10)}
        assert there <= shown | {each["topic"] for each in rest}

    async with Broker(config) as broker:
        await asyncio.to_thread(act)


async def test_retained_messages_are_removed_when_as_many_are_there_as_were_shown(config: Config) -> None:
    root = unique("r")

    def act() -> None:
        client, reader = connected(broker), connected(broker)
        for number in range(1500):
            client.publish(f"{root}/a/{number}", b"12", qos=0, retain=True)
        client.publish(f"{root}/b", b"1", qos=1, retain=True)
        status, body = ask(broker, "/retained/count", topic_filter=f"{root}/a/#")
        assert (status, body) == (200, {"messages": 1500, "payload_bytes": 3000})
        status, body = ask(broker, "/retained", "DELETE", topic_filter=f"{root}/a/#", messages_max="1499")
        assert (status, body["title"]) == (409, "Conflict")
        reader.subscribe(f"{root}/#", qos=1)
        assert len(reader.rest()) == 1501
        status, body = ask(broker, "/retained", "DELETE", topic_filter=f"{root}/a/#", messages_max="1500")
        assert (status, body) == (200, {"messages": 1500})
        wait_until(lambda: broker.counters()["retained_cleared"] == 1500)  # at the turn's end
        assert reader.rest() == []
        late = connected(broker)
        late.subscribe(f"{root}/#", qos=1)
        late.expect(PUBLISH, topic=f"{root}/b")

    async with Broker(config) as broker:
        await asyncio.to_thread(act)
    async with Broker(config) as broker:  # the store has forgotten them, too
        assert broker.counters()["retained"] == 1


# --- subscriptions ---------------------------------------------------------------------------------


async def test_it_is_shown_who_would_get_a_topic(config: Config) -> None:
    root = unique("s")
    topic = f"{root}/a/b"

    def names(**query: str) -> list[tuple[str | None, str, str | None]]:
        found = pages(broker, "/subscriptions", "subscribers", **query)
        return sorted((each["client_id"], each["topic_filter"], each["shared_group"]) for each in found)

    def act() -> None:
        one = connected(broker, client_id=f"{root}-1")
        one.subscribe(f"{root}/+/b", qos=1)
        one.subscribe(f"{root}/#", qos=2)
        away = connected(broker, client_id=f"{root}-2", **kept(5))
        away.subscribe(f"$share/g/{root}/#", qos=1)
        away.disconnect()
        three = connected(broker, client_id=f"{root}-3")
        three.subscribe(f"$share/g/{root}/#")
        three.subscribe(f"{root}/other")
        expected = [
            (f"{root}-1", f"{root}/#", None),
            (f"{root}-1", f"{root}/+/b", None),
            (f"{root}-2", f"{root}/#", "g"),
            (f"{root}-3", f"{root}/#", "g"),
        ]
        for limit in ("1", "3", "1000"):
            assert names(topic=topic, limit=limit) == expected
        assert names(topic_filter=f"{root}/#", limit="1") == [expected[0], *expected[2:]]
        assert names(topic_filter=f"$share/g/{root}/#") == expected[2:]
        assert names(topic_filter=f"{root}/none") == []
        [row] = [
            each
            for each in pages(broker, "/subscriptions", "subscribers", topic=topic)
            if each["client_id"] == f"{root}-2"
        ]
        assert (row["kind"], row["connected"], row["qos"]) == ("client", False, 1)

    async with Broker(config) as broker:
        await asyncio.to_thread(act)


async def test_a_page_of_many_subscribers_of_one_filter(config: Config) -> None:
    topic = unique("s")

    def act() -> None:
        clients = [connected(broker) for _ in range(90)]
        for client in clients:
            client.subscribe(topic)
        found = pages(broker, "/subscriptions", "subscribers", topic_filter=topic, limit="7")
        assert sorted(each["client_id"] for each in found) == sorted(each.client_id for each in clients)

    async with Broker(config) as broker, broker.subscribe(f"{topic}/#"):
        await asyncio.to_thread(act)
        [own] = (await asyncio.to_thread(ask, broker, "/subscriptions", topic=f"{topic}/x"))[1]["subscribers"]
        assert (own["kind"], own["client_id"]) == ("program", None)


# --- queues and sessions ---------------------------------------------------------------------------


@pytest.mark.parametrize("limit", ["1", "4", "100"])
@pytest.mark.parametrize("store", ["rocksdb", "memory"])
async def test_what_waits_for_a_client_is_shown_in_order(config: Config, store: str, limit: str) -> None:
    config = config.model_copy(update={"store": store})
    client_id, topic = unique("a/b c"), unique("t")
    path = f"/queues/{quote(client_id, safe='')}"

    def act() -> None:
        connected(broker, client_id=client_id, **kept(5)).subscribe(topic, qos=1)
        wait_until(lambda: broker.counters()["live_connections"] == 0)
        publisher = connected(broker)
        for number in range(10):
            publisher.publish(topic, b"%d" % number, qos=1)
        found = pages(broker, path, "messages", limit=limit)
        assert [each["payload"] for each in found] == [str(number) for number in range(10)]
        assert {each["place"] for each in found} == {"store" if store == "rocksdb" else "memory"}
        back = connected(broker, client_id=client_id, receive_max=3, **kept(5))
        for number in range(3):
            back.expect(PUBLISH, payload=b"%d" % number)
        found = pages(broker, path, "messages", limit=limit)
        assert [each["payload"] for each in found] == [str(number) for number in range(10)]
        assert [each["place"] == "in flight" for each in found] == [True] * 3 + [False] * 7

    async with Broker(config) as broker:
        await asyncio.to_thread(act)


async def test_a_client_is_found_on_whichever_reactor_it_lives(config: Config) -> None:
    def act() -> None:
        clients = [connected(broker) for _ in range(16)]
        for client in clients:
            assert ask(broker, f"/queues/{client.client_id}") == (200, {"messages": [], "cursor": None})

    async with Broker(config) as broker:
        await asyncio.to_thread(act)


@pytest.mark.parametrize("store", ["rocksdb", "memory"])
async def test_a_queue_is_purged_but_for_what_is_in_flight(config: Config, store: str) -> None:
    config = config.model_copy(update={"store": store, "queue_window_messages": 4})
    client_id, topic = unique("c"), unique("t")

    def act() -> None:
        client = connected(broker, client_id=client_id, receive_max=2, **kept(5))
        client.subscribe(topic, qos=1)
        publisher = connected(broker)
        for number in range(50):
            publisher.publish(topic, b"%d" % number, qos=1)
        first, second = client.expect(PUBLISH), client.expect(PUBLISH)
        assert ask(broker, f"/queues/{client_id}", "DELETE") == (200, {"messages": 48})
        # the answer comes within the turn at whose end counters are shown
        wait_until(lambda: broker.counters()["dropped_purged"] == 48)
        publisher.publish(topic, b"new", qos=1)
        client.acknowledge(first)
        client.acknowledge(second)
        assert [each.payload for each in client.rest()] == [b"new"]
        assert ask(broker, f"/clients/{client_id}")[1]["queued_messages"] == 0
        client.disconnect()

    async with Broker(config) as broker:
        await asyncio.to_thread(act)
    if store == "rocksdb":
        async with Broker(config) as broker:
            row = (await asyncio.to_thread(ask, broker, f"/clients/{client_id}"))[1]
            assert row["queued_messages"] == 0


@pytest.mark.parametrize("here", [True, False])
async def test_a_session_is_ended_with_all_that_it_has(config: Config, here: bool) -> None:
    client_id, topic = unique("c"), unique("t")

    def act() -> None:
        client = connected(broker, client_id=client_id, **kept(5))
        client.subscribe(topic, qos=1)
        if not here:
            client.disconnect()
            connected(broker).publish(topic, b"1", qos=1)
        assert ask(broker, f"/sessions/{client_id}", "DELETE") == (202, {"ending": client_id})
        if here:
            client.expect_closed(0x98)
        wait_until(lambda: ask(broker, f"/clients/{client_id}")[0] == 404, "the end of the session")
        assert pages(broker, "/subscriptions", "subscribers", topic=topic) == []

    async with Broker(config) as broker:
        await asyncio.to_thread(act)
    async with Broker(config) as broker:
        assert (await asyncio.to_thread(ask, broker, f"/clients/{client_id}"))[0] == 404


async def test_a_session_s_will_is_published_when_it_is_ended(config: Config) -> None:
    client_id, topic = unique("c"), unique("t")

    def act() -> None:
        reader = connected(broker)
        reader.subscribe(topic)
        will = Will(topic, b"gone", properties=(("will_delay", 3600),))
        connected(broker, client_id=client_id, will=will, **kept(5)).drop()
        wait_until(lambda: ask(broker, f"/clients/{client_id}")[1]["connected"] is False)
        ask(broker, f"/sessions/{client_id}", "DELETE")
        reader.expect(PUBLISH, topic=topic, payload=b"gone")

    async with Broker(config) as broker:
        await asyncio.to_thread(act)


# --- drops -----------------------------------------------------------------------------------------


async def test_it_is_shown_whose_messages_were_dropped(config: Config) -> None:
    config = config.model_copy(update={"limits": Limits(queued_messages_max=3)})
    client_id, topic = unique("c"), unique("t")

    def act() -> None:
        connected(broker, client_id=client_id, **kept(5)).subscribe(topic, qos=1)
        wait_until(lambda: broker.counters()["live_connections"] == 0)
        publisher = connected(broker)
        for number in range(10):
            publisher.publish(topic, b"1", qos=1, refused=number >= 3)
        wait_until(lambda: ask(broker, "/drops")[1]["drops"], "the report of the drops")
        [first] = ask(broker, "/drops")[1]["drops"]
        assert (first["client_id"], first["cause"]) == (client_id, "dropped_queue_full")
        assert 1 <= first["messages"] <= 7
        assert first["last"] is not None

    async with Broker(config) as broker:
        await asyncio.to_thread(act)


# --- bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "query", "said"),
    [
        ("/subscriptions", {}, "topic_filter, topic: give one of them"),
        ("/subscriptions", {"topic": "a", "topic_filter": "a"}, "topic_filter, topic: give one of them"),
        ("/subscriptions", {"topic": "a/#"}, "topic: 'a/#'"),
        ("/subscriptions", {"topic_filter": "a/#/b"}, "topic_filter: 'a/#/b'"),
        ("/subscriptions", {"topic": "a", "cursor": "-1"}, "cursor: Input should be greater"),
        ("/retained", {"topic_filter": "a#"}, "topic_filter: 'a#'"),
        ("/retained", {"cursor": "%"}, "cursor: '%' is none; accepted: that of the answer before"),
        ("/retained", {"cursor": "YQ"}, "cursor: it is of another topic_filter"),
        ("/retained", {"topic_filter": "a", "cursor": "L2I"}, "cursor: it is of another topic_filter"),
        ("/retained", {"payload_bytes": "1048577"}, "payload_bytes: Input should be less"),
        ("/retained/count", {}, "topic_filter: Field required"),
        ("/queues/x", {"cursor": "YQ"}, "cursor: 'YQ' is none; accepted: that of the answer before"),
    ],
)
async def test_a_wrong_request_is_told_what_is_right(
    config: Config, path: str, query: dict[str, str], said: str
) -> None:
    async with Broker(config) as broker:
        status, body = await asyncio.to_thread(ask, broker, path, **query)
    assert status == 400
    assert body["detail"].startswith(said)


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/queues/x"), ("DELETE", "/queues/x"), ("DELETE", "/sessions/x")]
)
async def test_who_is_not_there_is_not_found(config: Config, method: str, path: str) -> None:
    async with Broker(config) as broker:
        status, body = await asyncio.to_thread(ask, broker, path, method)
    assert (status, body["detail"]) == (404, "there is no client 'x', and no session of it")
