"""What of its configuration a running broker changes: by the admin API, and when it reads it again."""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conformance.kit import connected
from conformance.packets import SUBACK, subscribe
from waiting import WAIT_S

from tidemq import Broker, Config, Limits
from tidemq.broker import logs
from tidemq.errors import ConfigError
from tidemq.limits import CHANGEABLE

QUOTA_EXCEEDED = 0x97
JSON = {"Content-Type": "application/json"}


@pytest.fixture
def config(tmp_path: Path, unused_tcp_port: int) -> Config:
    return Config(host="127.0.0.1", port=0, sys_interval_s=0, store="memory", admin_port=unused_tcp_port)


@pytest.fixture(autouse=True)
def levels() -> Iterator[None]:
    before = logging.getLogger().level
    yield
    logging.getLogger().setLevel(before)
    for area in ("", *logs.AREAS):
        logs.set_level(area, None)


def asked(broker: Broker, method: str, path: str, body: object = None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", broker.admin_port, timeout=WAIT_S)
    connection.request(method, f"/api/v1/{path}", None if body is None else json.dumps(body), JSON)
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


async def test_a_limit_changes_while_clients_are_there(config: Config) -> None:
    def act() -> None:
        status, shown = asked(broker, "GET", "limits")
        assert (status, shown["limits"]["subscriptions_max"]) == (200, 10_000)
        assert shown["changeable"] == list(CHANGEABLE)
        client = connected(broker)
        client.subscribe("a")
        status, shown = asked(broker, "PATCH", "limits", {"subscriptions_max": 1, "memory_bytes_max": 0})
        assert (status, shown["limits"]["subscriptions_max"]) == (200, 1)
        packet_id = client.next_id()
        client.send(subscribe(packet_id, ("b", 0), version=5))
        client.expect(SUBACK, packet_id=packet_id, reasons=[QUOTA_EXCEEDED])
        assert asked(broker, "PATCH", "limits", {"subscriptions_max": 2})[0] == 200
        client.subscribe("b")

    async with Broker(config) as broker:
        await asyncio.to_thread(act)


@pytest.mark.parametrize("name", CHANGEABLE)
async def test_each_limit_that_is_said_to_change_does(config: Config, name: str) -> None:
    """In the engine: what is said of it is read from there."""
    value = {"output_high_bytes": 8192, "output_bytes_max": 1 << 24}.get(name, 3600)

    def act() -> None:
        status, shown = asked(broker, "PATCH", "limits", {name: value})
        assert (status, shown["limits"][name]) == (200, value)

    async with Broker(config) as broker:
        await asyncio.to_thread(act)
        assert broker.monitor is not None
        wanted = replace(Limits(), **{name: value})
        assert broker.monitor.view.limits()[name] == getattr(wanted, name)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"packet_bytes_max": 2048}, "packet_bytes_max"),
        ({"connections_max": 0}, "connections_max"),
        ({"connections_max": "many"}, "connections_max"),
        ({"output_high_bytes": 1 << 30}, "output_high_bytes"),
        ([], "body"),
    ],
)
async def test_a_wrong_limit_changes_nothing(config: Config, body: object, said: str) -> None:
    def act() -> None:
        before = asked(broker, "GET", "limits")
        status, answer = asked(broker, "PATCH", "limits", body)
        assert status == 400
        assert said in answer["detail"]
        assert asked(broker, "GET", "limits") == before

    async with Broker(config) as broker:
        await asyncio.to_thread(act)


async def test_a_reload_says_what_is_in_force_and_what_needs_a_restart(config: Config) -> None:
    found: list[Config | ConfigError] = []

    def reread() -> Config:
        if isinstance(found[-1], ConfigError):
            raise found[-1]
        return found[-1]

    def reload(after: Config | ConfigError) -> dict[str, Any]:
        found.append(after)
        status, answer = asked(broker, "POST", "reload", {})
        assert status == 200
        return dict(answer)

    def act() -> None:
        parts = ["admin", "configuration", "plugins", "bridges"]
        assert reload(config) == {"reloaded": parts, "failed": {}, "changed": [], "needs_restart": []}
        limits = replace(config.limits, subscriptions_max=1, packet_bytes_max=4096)
        changed = config.model_copy(update={"limits": limits, "queue_full": "reject", "log_level": "error"})
        answer = reload(changed)
        assert answer["changed"] == ["limits.subscriptions_max", "log_level"]
        assert answer["needs_restart"] == ["limits.packet_bytes_max", "queue_full"]
        assert logging.getLogger().level == logging.ERROR
        assert asked(broker, "GET", "limits")[1]["limits"]["subscriptions_max"] == 1
        # what was changed by hand stays when the file does not change
        asked(broker, "PATCH", "limits", {"subscriptions_max": 7})
        answer = reload(changed)
        assert (answer["changed"], len(answer["needs_restart"])) == ([], 2)
        assert asked(broker, "GET", "limits")[1]["limits"]["subscriptions_max"] == 7
        answer = reload(ConfigError("configuration line 3: colour is unknown"))
        assert answer["failed"] == {"configuration": "configuration line 3: colour is unknown"}
        assert answer["reloaded"] == ["admin", "plugins", "bridges"]

    async with Broker(config, reread=reread) as broker:
        await asyncio.to_thread(act)


async def test_a_program_has_no_configuration_to_read_again(config: Config) -> None:
    act: Callable[..., Any] = asked
    async with Broker(config) as broker:
        status, answer = await asyncio.to_thread(act, broker, "POST", "reload", {})
    assert (status, answer["reloaded"]) == (200, ["admin"])
