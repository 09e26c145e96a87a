"""`/api/v1/clients` and its description, by HTTP, on a running broker."""

from __future__ import annotations

import asyncio
import http.client
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from conformance.kit import connected, kept, unique
from waiting import WAIT_S, wait_until

from tidemq import Broker, Config


@pytest.fixture
def config(tmp_path: Path, unused_tcp_port: int) -> Config:
    return Config(
        host="127.0.0.1", port=0, reactors=2, sys_interval_s=0, store="memory", admin_port=unused_tcp_port
    )


def get(broker: Broker, path: str, **query: str) -> tuple[int, str, Any]:
    """Status, content type and JSON."""
    connection = http.client.HTTPConnection("127.0.0.1", broker.admin_port, timeout=WAIT_S)
    connection.request("GET", f"{path}?{urlencode(query)}" if query else path)
    answer = connection.getresponse()
    return answer.status, answer.headers["Content-Type"].split(";")[0], json.loads(answer.read())


async def test_clients_are_listed_page_by_page_and_filtered(config: Config) -> None:
    prefix = unique("c")

    def act() -> None:
        here = [connected(broker, client_id=f"{prefix}-{n}", username=f"user{n % 2}") for n in range(5)]
        connected(broker, client_id=f"{prefix}-away", **kept(5)).disconnect()
        found, cursor = [], ""
        while True:
            status, kind, body = get(broker, "/api/v1/clients", prefix=prefix, limit="2", cursor=cursor)
            assert (status, kind) == (200, "application/json")
            assert len(body["clients"]) <= 2
            found += body["clients"]
            cursor = body["cursor"]
            if cursor is None:
                break
        names = [*(each.client_id for each in here), f"{prefix}-away"]
        assert sorted(each["client_id"] for each in found) == sorted(names)
        for query, count in (
            ({"connected": "true"}, 5),
            ({"connected": "false"}, 1),
            ({"address": "127.0.0.1"}, 5),
            ({"address": "::1"}, 0),
            ({"listener": "default"}, 5),
            ({"listener": "nowhere"}, 0),
        ):
            _, _, body = get(broker, "/api/v1/clients", prefix=prefix, **query)
            assert len(body["clients"]) == count, query
        one = next(each for each in found if each["client_id"] == f"{prefix}-3")
        assert one["connected"] is True
        assert one["listener"] == "default"
        assert one["protocol_version"] == "5.0"
        assert one["last_disconnect"] is None

    async with Broker(config) as broker:
        await asyncio.to_thread(act)


async def test_a_client_is_shown_with_its_subscriptions_and_its_last_disconnect(config: Config) -> None:
    client_id, topic = unique("a/b c"), unique("t")
    path = f"/api/v1/clients/{quote(client_id, safe='')}"

    def act() -> None:
        client = connected(broker, client_id=client_id, **kept(5))
        client.subscribe(f"{topic}/#", qos=2)
        status, _, body = get(broker, path)
        assert status == 200
        assert body["subscription_list"] == [
            {
                "topic_filter": f"{topic}/#",
                "qos": 2,
                "no_local": False,
                "retain_as_published": False,
                "retain_handling": 0,
                "subscription_id": None,
            }
        ]
        assert body["session_expiry_s"] == 3600
        client.disconnect()
        connected(broker).publish(f"{topic}/x", b"123", qos=1)
        _, _, body = get(broker, path)
        assert body["connected"] is False
        assert body["address"] is None
        assert body["last_disconnect"]["reason"] == "Normal disconnection"
        assert body["queued_messages"] == 1
        assert body["oldest_queued_s"] >= 0
        assert body["session_ends"] is not None
        back = connected(broker, client_id=client_id, **kept(5))
        _, _, body = get(broker, path)
        assert body["connected"] is True
        back.drop()

    async with Broker(config) as broker:
        await asyncio.to_thread(act)


async def test_it_is_said_why_a_client_went(config: Config) -> None:
    client_id = unique("c")
    path = f"/api/v1/clients/{client_id}"

    def last(broker: Broker) -> dict[str, Any]:
        wait_until(lambda: get(broker, path)[2]["connected"] is False, "the end of the connection")
        found = get(broker, path)[2]["last_disconnect"]
        assert isinstance(found, dict)
        return found

    def act() -> None:
        client = connected(broker, client_id=client_id, **kept(5))
        client.disconnect(0x04)
        assert last(broker)["reason"] == "Disconnect with will"
        connected(broker, client_id=client_id, **kept(5)).drop()
        found = last(broker)
        assert (found["reason"], found["reason_code"], found["fault"]) == ("Connection lost", 0, None)
        old = connected(broker, client_id=client_id, **kept(5))
        new = connected(broker, client_id=client_id, **kept(5))
        old.expect_closed(0x8E)
        assert get(broker, path)[2]["last_disconnect"]["reason"] == "Session taken over"
        new.send(b"\xc0\x01\x00")  # PINGREQ with a body
        new.expect_closed(0x81)
        found = last(broker)
        assert (found["reason"], found["reason_code"]) == ("Malformed packet", 0x81)
        assert found["fault"]

    async with Broker(config) as broker:
        await asyncio.to_thread(act)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"prefx": "a"}, "prefx is unknown; accepted: address, connected, cursor, limit, listener, prefix, "),
        ({"limit": "1001"}, "limit: Input should be less than or equal to 1000, not '1001'"),
        ({"limit": "0"}, "limit: Input should be greater than or equal to 1, not '0'"),
        ({"limit": "many"}, "limit: Input should be a valid integer"),
        ({"connected": "perhaps"}, "connected: Input should be a valid boolean"),
        ({"address": "here"}, "address"),
        ({"cursor": "x"}, "cursor: 'x' is none; accepted: that of the answer before"),
        ({"cursor": "WzksMCwwLDBd"}, "cursor: the cursor names reactor 9, there are 2"),
        ({"cursor": "WzAsOSwwLDBd"}, "cursor: 'WzAsOSwwLDBd' is none"),
    ],
)
async def test_a_wrong_query_is_told_what_is_right(config: Config, query: dict[str, str], said: str) -> None:
    async with Broker(config) as broker:
        status, kind, body = await asyncio.to_thread(get, broker, "/api/v1/clients", **query)
    assert (status, kind) == (400, "application/problem+json")
    assert body["title"] == "Bad Request"
    assert body["status"] == 400
    assert body["detail"].startswith(said)


async def test_a_key_given_twice_and_an_unknown_client_are_refused(config: Config) -> None:
    async with Broker(config) as broker:
        status, _, body = await asyncio.to_thread(get, broker, "/api/v1/clients?limit=1&limit=2")
        assert (status, body["detail"]) == (400, "limit is given twice")
        status, kind, body = await asyncio.to_thread(get, broker, "/api/v1/clients/nobody")
        assert (status, kind) == (404, "application/problem+json")
        assert body["detail"] == "there is no client 'nobody', and no session of it"


async def test_the_interface_describes_itself(config: Config) -> None:
    async with Broker(config) as broker:
        status, _, document = await asyncio.to_thread(get, broker, "/openapi.json")
    assert (status, document["openapi"]) == (200, "3.1.0")
    assert {(path, method) for path, methods in document["paths"].items() for method in methods} == {
        ("/api/v1/clients", "get"),
        ("/api/v1/clients/{client_id}", "get"),
        ("/api/v1/clients/{client_id}", "delete"),
        ("/api/v1/drops", "get"),
        ("/api/v1/bridges", "get"),
        ("/api/v1/cluster", "get"),
        ("/api/v1/cluster/drain", "post"),
        ("/api/v1/cluster/forget", "post"),
        ("/api/v1/cluster/verify", "get"),
        ("/api/v1/cluster/verify", "post"),
        ("/api/v1/events", "get"),
        ("/api/v1/messages", "get"),
        ("/api/v1/log-levels", "get"),
        ("/api/v1/log-levels", "put"),
        ("/api/v1/watched-topics", "get"),
        ("/api/v1/watched-topics", "post"),
        ("/api/v1/watched-topics", "delete"),
        ("/api/v1/trace", "get"),
        ("/api/v1/limits", "get"),
        ("/api/v1/limits", "patch"),
        ("/api/v1/reload", "post"),
        ("/api/v1/bans", "get"),
        ("/api/v1/bans", "post"),
        ("/api/v1/bans", "delete"),
        ("/api/v1/backup", "post"),
        ("/api/v1/backups", "get"),
        ("/api/v1/publish", "post"),
        ("/api/v1/subscriptions", "get"),
        ("/api/v1/retained", "get"),
        ("/api/v1/retained/count", "get"),
        ("/api/v1/retained", "delete"),
        ("/api/v1/queues/{client_id}", "get"),
        ("/api/v1/queues/{client_id}", "delete"),
        ("/api/v1/sessions/{client_id}", "delete"),
    }
    listed = document["paths"]["/api/v1/clients"]["get"]
    assert [each["name"] for each in listed["parameters"]] == [
        "prefix",
        "address",
        "username",
        "listener",
        "connected",
        "limit",
        "cursor",
    ]
    text = json.dumps(document)
    named = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert named <= set(document["components"]["schemas"])
