"""MQTT.js in Chromium: pages that connect over WebSocket and secure WebSocket, and pages that may not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from browser.conftest import Chromium, Pages
from listeners.conftest import Authority, BrokerAt, Files
from waiting import WAIT_S, until

from tidemq import Broker

PAGE_OF = {"ws": "http", "wss": "https"}  # a page of https may not use ws


@pytest.fixture(params=["ws", "wss"])
def scheme(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def listener(scheme: str, server_files: Files) -> dict[str, Any]:
    return {"websocket": {}} | ({"tls": server_files.tls} if scheme == "wss" else {})


async def count(broker: Broker, name: str, expected: int) -> None:
    """Waits until the broker has counted so many."""
    await until(lambda: broker.counters()[name] >= expected)
    assert broker.counters()[name] == expected


@pytest.mark.parametrize("version", [4, 5])
async def test_a_page_publishes_and_receives(
    broker_at: BrokerAt, pages: Pages, listener: dict[str, Any], scheme: str, version: int, topic: str
) -> None:
    """Every scenario at once, each in a tab."""
    scenarios = ["publish", "large", "retained", "will", "session"]
    scenarios += ["properties", "takeover"] if version == 5 else []
    async with broker_at(listener) as broker:
        url = f"{scheme}://localhost:{broker.port}/mqtt"
        runs = (
            pages.run(pages.origin(PAGE_OF[scheme]), each, url, version, f"{topic}/{each}")
            for each in scenarios
        )
        reports = dict(zip(scenarios, await asyncio.gather(*runs), strict=True))
        assert reports == dict.fromkeys(scenarios, "")
        assert broker.counters()["handshakes_failed"] == 0


async def test_a_tab_that_is_closed_leaves_its_will(
    broker_at: BrokerAt, pages: Pages, chromium: Chromium, listener: dict[str, Any], scheme: str, topic: str
) -> None:
    async with broker_at(listener) as broker, asyncio.timeout(WAIT_S):
        url = f"{scheme}://localhost:{broker.port}/mqtt"
        async with broker.subscribe(topic) as messages:
            tab, report = await pages.open(pages.origin(PAGE_OF[scheme]), "stay", url, 5, topic)
            assert await report == ""
            assert broker.counters()["live_connections"] == 1
            await chromium.close(tab)
            assert (await anext(messages)).payload == b"closed"


@pytest.mark.parametrize(("of", "to"), [("localhost", "127.0.0.1"), ("127.0.0.1", "localhost")])
async def test_pages_of_other_hosts_must_be_listed(
    broker_at: BrokerAt,
    pages: Pages,
    server_files: Files,
    of: str,
    to: str,
    topic: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Of four listeners one lets the page in."""
    origin = pages.origin(host=of)
    others = [f"https://{of}", origin + "0", pages.origin(host=to)]
    async with broker_at(
        {"websocket": {}},
        {"websocket": {"origins": others}},
        {"websocket": {}, "tls": server_files.tls},
        {"websocket": {"origins": [*others, origin]}},
    ) as broker:
        for scheme, port in zip(("ws", "ws", "wss"), broker.ports, strict=False):
            assert await pages.run(origin, "connect", f"{scheme}://{to}:{port}/mqtt", 5, topic)
        await count(broker, "handshakes_failed", 3)
        await until(lambda: caplog.text.count("pages of this origin may not connect") >= 3)
        assert not await pages.run(origin, "connect", f"ws://{to}:{broker.ports[3]}/mqtt", 5, topic)


async def test_a_name_that_is_made_to_mean_this_machine_is_no_way_in(
    broker_at: BrokerAt, pages: Pages, topic: str
) -> None:
    """DNS rebinding: the page's host is this machine's for the browser, and `anonymous` would let it in."""
    async with broker_at({"websocket": {}}) as broker:
        url = f"ws://rebound.example:{broker.port}/mqtt"
        assert await pages.run(pages.origin(host="rebound.example"), "connect", url, 5, topic)


async def test_chromium_looks_at_the_brokers_certificate(
    broker_at: BrokerAt, pages: Pages, authority: Authority, topic: str
) -> None:
    """What all this says of TLS counts only if another key is refused."""
    other = authority.issue("localhost")
    async with broker_at({"websocket": {}, "tls": other.tls}) as broker:
        url = f"wss://localhost:{broker.port}/mqtt"
        assert await pages.run(pages.origin("https"), "connect", url, 5, topic)
        await count(broker, "handshakes_failed", 1)


@pytest.mark.parametrize("client_cert", ["optional", "required"])
async def test_chromium_gives_up_where_a_certificate_of_its_own_is_wanted(
    broker_at: BrokerAt, pages: Pages, authority: Authority, server_files: Files, client_cert: str, topic: str
) -> None:
    """As the documentation says. In `wss` above it connects to the same listener without these keys."""
    tls = server_files.tls | {"client_ca": authority.ca, "client_cert": client_cert}
    async with broker_at({"websocket": {}, "tls": tls}) as broker:
        url = f"wss://localhost:{broker.port}/mqtt"
        assert await pages.run(pages.origin("https"), "connect", url, 5, topic)
        await count(broker, "handshakes_failed", 1)
