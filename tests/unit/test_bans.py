"""Who is banned is put out and kept out, by identifier, user and address, also after a restart."""

from __future__ import annotations

import asyncio
import http.client
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from conformance.kit import Client, connected, unique
from conformance.packets import CONNACK, DISCONNECT, connect
from waiting import WAIT_S, wait_until

from tidemq import Broker, Config
from tidemq.broker.admin import ban_api

JSON = {"Content-Type": "application/json"}
BANNED = 0x8A


@pytest.fixture
def config(tmp_path: Path, unused_tcp_port: int) -> Config:
    return Config(
        host="127.0.0.1", port=0, reactors=2, sys_interval_s=0, data=tmp_path, admin_port=unused_tcp_port
    )


def asked(broker: Broker, method: str, body: object = None, **query: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", broker.admin_port, timeout=WAIT_S)
    path = f"/api/v1/bans?{urlencode(query)}" if query else "/api/v1/bans"
    connection.request(method, path, None if body is None else json.dumps(body), JSON)
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def refused(broker: Broker, version: int = 5, client_id: str = "", **settings: Any) -> int:
    """The reason that a CONNECT is refused with."""
    client = Client(broker.port, version)
    client.send(connect(client_id or unique("c"), version, **settings))
    answer = client.expect(CONNACK)
    client.drop()
    return int(answer.reason)


async def test_a_client_is_put_out_and_kept_out(config: Config) -> None:
    name = unique("pump")

    def act() -> None:
        client, other = connected(broker, client_id=name), connected(broker, client_id=f"{name}-2")
        status, answer = asked(broker, "POST", {"client_id": name, "reason": "floods"})
        assert (status, answer["disconnecting"], answer["kept"], answer["by"]) == (201, 1, True, "local")
        assert client.expect(DISCONNECT).reason == 0x98
        assert refused(broker, 5, name) == BANNED
        assert refused(broker, 4, name) == 5
        other.ping()
        connected(broker).drop()
        assert broker.counters()["connects_banned"] == 2

    def look_again() -> None:
        (ban,) = asked(broker, "GET")[1]["bans"]
        assert (ban["client_id"], ban["reason"], ban["until"]) == (name, "floods", None)
        assert refused(broker, 5, name) == BANNED
        assert asked(broker, "DELETE", client_id=name)[0] == 200
        assert asked(broker, "DELETE", client_id=name)[0] == 404
        connected(broker, client_id=name).drop()
        assert asked(broker, "GET")[1] == {"bans": []}

    async with Broker(config) as broker:
        await asyncio.to_thread(act)
    async with Broker(config) as broker:
        await asyncio.to_thread(look_again)
    async with Broker(config) as broker:
        assert (await asyncio.to_thread(asked, broker, "GET"))[1] == {"bans": []}


async def test_a_user_and_an_address_are_kept_out(config: Config) -> None:
    passwords = {"ann": "a", "bob": "b"}
    config = config.model_copy(
        update={"authenticator": "static", "authenticator_options": {"users": passwords}}
    )

    def act() -> None:
        ann = connected(broker, username="ann", password=b"a")
        assert asked(broker, "POST", {"username": "ann"})[1]["disconnecting"] == 1
        assert ann.expect(DISCONNECT).reason == 0x98
        assert refused(broker, username="ann", password=b"a") == BANNED
        bob = connected(broker, username="bob", password=b"b")
        assert asked(broker, "POST", {"address": "127.0.0.0/8"})[1]["disconnecting"] == 1
        assert bob.expect(DISCONNECT).reason == 0x98
        assert refused(broker, username="bob", password=b"b") == BANNED
        assert asked(broker, "DELETE", address="127.0.0.0/8")[0] == 200
        assert asked(broker, "POST", {"address": "127.0.0.1/32"})[1]["address"] == "127.0.0.1"
        assert refused(broker, username="bob", password=b"b") == BANNED
        assert asked(broker, "DELETE", address="127.0.0.1")[0] == 200
        connected(broker, username="bob", password=b"b").drop()

    async with Broker(config) as broker:
        await asyncio.to_thread(act)


async def test_a_ban_ends_by_itself(config: Config) -> None:
    name = unique("c")

    def act() -> None:
        assert asked(broker, "POST", {"client_id": name, "seconds": 0.5})[0] == 201
        assert refused(broker, 5, name) == BANNED
        wait_until(lambda: asked(broker, "GET")[1] == {"bans": []})
        connected(broker, client_id=name).drop()

    async with Broker(config) as broker:
        await asyncio.to_thread(act)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "give one of them"),
        ({"client_id": "a", "username": "b"}, "give one of them"),
        ({"client_id": ""}, "client_id"),
        ({"address": "10.0.0.1/8"}, "address"),
        ({"address": "here"}, "address"),
        ({"client_id": "a", "seconds": 0}, "seconds"),
        ({"client_id": "a", "for": 1}, "for"),
    ],
)
async def test_a_wrong_ban_is_refused(config: Config, body: object, said: str) -> None:
    async with Broker(config) as broker:
        status, answer = await asyncio.to_thread(asked, broker, "POST", body)
    assert status == 400
    assert said in answer["detail"]


async def test_there_are_no_more_than_may_be(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ban_api, "BANS_MAX", 2)

    def act() -> None:
        for name, status in (("a", 201), ("b", 201), ("c", 409)):
            assert asked(broker, "POST", {"client_id": name})[0] == status

    async with Broker(config) as broker:
        await asyncio.to_thread(act)
