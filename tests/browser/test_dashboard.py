"""The dashboard of a running broker, in a real browser: what one would click is what the tests do."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from browser.dashboard import PHONE, VIEWS, Dashboard, browser, opened
from conformance.kit import Client, connected, kept, unique
from playwright.async_api import Browser, expect
from waiting import WAIT_S, until

from tidemq import Broker, Config
from tidemq.cluster.host import ClusterHost

LIVE_MS = 5000
SERIOUS = ("serious", "critical")
LONG_CONTENT = {"clients": "#view table", "topics": "#view .tree >> nth=0"}
MARKUP = "<img src=/none onerror=document.title='hacked'>"


@pytest.fixture
async def chromium_page(install: Callable[[str, str], None]) -> AsyncIterator[Browser]:
    install("chromium", "chromium")
    async with browser() as chromium:
        yield chromium


@pytest.fixture
def config(tmp_path: Path, unused_tcp_port: int) -> Config:
    return Config(host="127.0.0.1", port=0, sys_interval_s=0, data=tmp_path, admin_port=unused_tcp_port)


async def served(
    config: Config, chromium: Browser, act: Callable[[Broker, Dashboard], Awaitable[None]]
) -> None:
    """Acts on the page of a running broker; nothing may go wrong in it."""
    async with Broker(config) as broker, opened(chromium, broker.admin_url) as dashboard:
        await act(broker, dashboard)
    assert not dashboard.wrong


def start_serve(folder: Path) -> subprocess.Popen[str]:
    command = [str(Path(sys.executable).with_name("tidemq")), "serve", "--port", "0", "--host", "127.0.0.1"]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def publish_one(port: int) -> None:
    client = Client(port, 5)
    client.connect()
    client.publish("first", b"x", qos=1)
    client.drop()


async def test_a_broker_just_started_shows_its_first_message(chromium_page: Browser, tmp_path: Path) -> None:
    process = start_serve(tmp_path)
    assert process.stdout is not None
    try:
        ready = await asyncio.to_thread(process.stdout.readline)
        address = await asyncio.to_thread(process.stdout.readline)
        port = int(re.search(r":(\d+)$", ready.strip())[1])  # type: ignore[index]
        assert address.startswith("dashboard: http://127.0.0.1:")
        async with opened(chromium_page, address.removeprefix("dashboard: ").strip()) as dashboard:
            await dashboard.open()
            await asyncio.to_thread(publish_one, port)
            await expect(dashboard.page.locator("#state")).to_have_text("live", timeout=LIVE_MS)
            shown = dashboard.page.locator("figure", has_text="PUBLISH to PUBACK").locator("figcaption")
            await expect(shown).to_contain_text(re.compile("PUBLISH to PUBACK [0-9]"), timeout=LIVE_MS)
            assert not dashboard.wrong
    finally:
        process.terminate()
        process.communicate(timeout=WAIT_S)


async def test_traffic_is_shown_as_it_is(config: Config, chromium_page: Browser) -> None:
    async def act(broker: Broker, dashboard: Dashboard) -> None:
        client = await asyncio.to_thread(connected, broker, client_id=unique("c"))
        await dashboard.open()
        await expect(dashboard.tile("Connections")).to_have_text("1")

        async def publish() -> None:
            while True:
                await asyncio.to_thread(client.publish, "plant/1", b"x")
                await asyncio.sleep(0.02)

        publishing = asyncio.create_task(publish())
        await expect(dashboard.tile("Messages in")).to_have_text(re.compile(r"^[1-9]\d(\.\d)?/s$"))
        publishing.cancel()
        await asyncio.gather(publishing, return_exceptions=True)
        await asyncio.to_thread(client.drop)
        await expect(dashboard.tile("Connections")).to_have_text("0")
        await expect(dashboard.tile("Messages in")).to_have_text("0/s")
        assert await dashboard.page.locator(".charts canvas").count() == 4

    await served(config, chromium_page, act)


async def test_a_client_is_found_and_disconnected(config: Config, chromium_page: Browser) -> None:
    name, other = unique("pump"), unique("valve")

    async def act(broker: Broker, dashboard: Dashboard) -> None:
        client = await asyncio.to_thread(connected, broker, client_id=name, **kept(5))
        await asyncio.to_thread(client.subscribe, "plant/#", 1)
        valve = await asyncio.to_thread(connected, broker, client_id=other)
        page = dashboard.page
        await dashboard.open("clients")
        await expect(page.get_by_role("link", name=other)).to_be_visible()
        await page.get_by_label("Identifier begins with").fill("pump")
        await page.get_by_role("button", name="Show").click()
        await expect(page.get_by_role("link", name=other)).to_be_hidden()
        await page.get_by_role("link", name=name).click()
        await expect(page.locator(".facts")).to_contain_text("MQTT 5.0")
        await expect(page.get_by_role("region", name="Subscriptions")).to_contain_text("plant/#")
        await page.get_by_role("button", name="Disconnect").click()
        await page.get_by_role("button", name="No", exact=True).click()
        await asyncio.to_thread(client.ping)
        await page.get_by_role("button", name="Disconnect").click()
        await dashboard.confirm()
        await expect(page.locator("#said")).to_contain_text("is being ended")
        await expect(page.locator(".facts")).to_contain_text("away")
        await expect(page.locator(".facts")).to_contain_text("Administrative action")
        await broker.publish("plant/1", "for later", qos=1)
        await page.get_by_role("button", name="Refresh").click()
        await expect(page.get_by_role("region", name="Waiting messages")).to_contain_text("for later")
        await dashboard.open("sessions")
        await expect(page.get_by_role("row", name=re.compile(name))).to_contain_text("Administrative action")
        await page.get_by_role("link", name=name).click()
        await page.get_by_role("button", name="Purge queue").click()
        await dashboard.confirm()
        await expect(page.locator("#said")).to_contain_text("1 messages were dropped")
        await page.get_by_role("button", name="End session").click()
        await dashboard.confirm()
        await until(lambda: _sessions(broker) == 1)
        await page.get_by_role("button", name="Refresh").click()
        await expect(page.locator("#view")).to_contain_text("There is no such client")
        await asyncio.to_thread(valve.ping)

    await served(config, chromium_page, act)


def _sessions(broker: Broker) -> int:
    assert broker.monitor is not None
    return broker.monitor.counters_and_sizes()["sessions"]


async def test_a_message_is_published_and_seen(config: Config, chromium_page: Browser) -> None:
    name = unique("c")

    async def act(broker: Broker, dashboard: Dashboard) -> None:
        client = await asyncio.to_thread(connected, broker, client_id=name)
        await asyncio.to_thread(client.subscribe, "plant/+", 1)
        page = dashboard.page
        await dashboard.open("try-out")
        await page.get_by_label("Topic", exact=True).fill("plant/1")
        await page.get_by_role("button", name="Who would get it?").click()
        await expect(page.get_by_role("region", name="Would get plant/1")).to_contain_text(name)
        await page.get_by_label("Topic filter").fill("plant/#")
        await page.get_by_role("button", name="Subscribe").click()
        await expect(page.get_by_text("subscribed to plant/#")).to_be_visible()
        await until(lambda: broker.counters()["subscriptions"] == 2)
        await page.get_by_label("Payload").fill("grün")
        await page.get_by_label("QoS").select_option("1")
        await page.get_by_role("button", name="Publish").click()
        received = await asyncio.to_thread(client.expect_message, "plant/1", "grün".encode(), 1)
        await asyncio.to_thread(client.acknowledge, received)
        await expect(page.get_by_role("region", name="Messages")).to_contain_text("grün")
        await page.get_by_role("button", name="Stop").click()
        await until(lambda: broker.counters()["subscriptions"] == 1)
        await page.get_by_label("Topic", exact=True).fill("plant/#")
        await page.get_by_role("button", name="Publish").click()
        await expect(page.locator("#said")).to_contain_text("topic")

    await served(config, chromium_page, act)


async def test_retained_messages_are_a_tree_and_removed(config: Config, chromium_page: Browser) -> None:
    async def act(broker: Broker, dashboard: Dashboard) -> None:
        page = dashboard.page
        for topic in ("plant/hall/1", "plant/hall/2", "office/1"):
            await broker.publish(topic, f"of {topic}", retain=True)
        await dashboard.open("topics")
        await expect(page.locator("#view")).to_contain_text("3 retained messages")
        for text in ("plant", "hall", "of plant/hall/2", "of office/1"):
            await expect(page.get_by_text(text, exact=True)).to_be_visible()
        await page.get_by_label("Topic filter").fill("plant/#")
        await page.get_by_role("button", name="Remove those that match").click()
        await expect(page.get_by_role("dialog")).to_contain_text(
            "Remove 2 retained messages that match plant/#?"
        )
        await dashboard.confirm()
        await expect(page.locator("#said")).to_have_text("2 retained messages were removed.")
        await expect(page.locator("#view")).to_contain_text("0 retained messages")

    await served(config, chromium_page, act)


async def test_names_and_payloads_are_never_markup(config: Config, chromium_page: Browser) -> None:
    async def act(broker: Broker, dashboard: Dashboard) -> None:
        client = await asyncio.to_thread(connected, broker, client_id=MARKUP, **kept(5))
        await asyncio.to_thread(client.subscribe, f"{MARKUP}/#", 1)
        await asyncio.to_thread(client.drop)
        await broker.publish(f"{MARKUP}/1", MARKUP, qos=1, retain=True)
        page = dashboard.page
        for view in VIEWS:
            await dashboard.open(view)
        await dashboard.open("sessions")
        await page.get_by_role("link", name=MARKUP).click()
        await expect(page.get_by_role("region", name="Waiting messages")).to_contain_text(MARKUP)
        await expect(page.get_by_role("heading", name=MARKUP)).to_be_visible()
        assert await page.locator("img").count() == 0
        assert "hacked" not in await page.title()

    await served(config, chromium_page, act)


async def test_a_token_is_asked_for_and_kept_nowhere(
    config: Config, tmp_path: Path, chromium_page: Browser
) -> None:
    file = tmp_path / "token"
    file.write_text("a-long-and-secret-token")
    os.chmod(file, 0o600)
    config = config.model_copy(update={"admin_token_file": str(file)})

    async def act(broker: Broker, dashboard: Dashboard) -> None:
        page = dashboard.page
        await page.goto(broker.admin_url)
        dialog = page.get_by_role("dialog", name="Admin token")
        await expect(dialog).to_be_visible()
        assert "tidemq" not in (await page.locator("#view").inner_text()).lower()
        await page.get_by_label("Token", exact=True).fill("wrong")
        await page.keyboard.press("Enter")
        await expect(dialog).to_contain_text("This token is wrong.")
        await page.get_by_label("Token", exact=True).fill("a-long-and-secret-token")
        await page.keyboard.press("Enter")
        await expect(page.locator("#state")).to_have_text("live")
        await expect(dialog).to_be_hidden()
        kept_there = (
            "() => JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie, location.href])"
        )
        assert "secret" not in await page.evaluate(kept_there)
        await page.reload()
        await expect(dialog).to_be_visible()

    await served(config, chromium_page, act)


async def test_a_broker_that_is_gone_and_comes_back(config: Config, chromium_page: Browser) -> None:
    async with opened(chromium_page, f"http://127.0.0.1:{config.admin_port}/") as dashboard:
        state = dashboard.page.locator("#state")
        async with Broker(config):
            await dashboard.open()
            await expect(state).to_have_text("live")
        await expect(state).to_contain_text("trying again")
        async with Broker(config) as broker:
            await expect(state).to_have_text("live")
            client = await asyncio.to_thread(connected, broker)
            await expect(dashboard.tile("Connections")).to_have_text("1")
            client.drop()


async def test_the_keyboard_is_enough(config: Config, chromium_page: Browser) -> None:
    async def act(broker: Broker, dashboard: Dashboard) -> None:
        client = await asyncio.to_thread(connected, broker, client_id="only")
        page = dashboard.page
        await dashboard.open()
        await page.keyboard.press("Tab")
        await expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
        for _ in range(2):
            await page.keyboard.press("Tab")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", name="Clients")).to_be_visible()
        await page.get_by_role("link", name="only").focus()
        await page.keyboard.press("Enter")
        await page.get_by_role("button", name="Disconnect").focus()
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("button", name="No", exact=True)).to_be_focused()
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("dialog")).to_be_hidden()
        await asyncio.to_thread(client.ping)

    await served(config, chromium_page, act)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
async def test_nothing_keeps_anybody_out(
    config: Config, chromium_page: Browser, node_modules: Path, dark: bool
) -> None:
    axe = (node_modules / "axe-core" / "axe.min.js").read_text()
    async with Broker(config) as broker, opened(chromium_page, broker.admin_url, dark=dark) as dashboard:
        client = await asyncio.to_thread(connected, broker, client_id="pump", **kept(5))
        await asyncio.to_thread(client.subscribe, "a/#", 1)
        await asyncio.to_thread(client.drop)
        await broker.publish("a/b", "x", qos=1, retain=True)
        await dashboard.open()
        await dashboard.page.evaluate(axe)
        for view in (*VIEWS, "clients/pump"):
            await dashboard.open(view)
            await expect(
                dashboard.page.locator("#view table, #view .tree, #view canvas").first
            ).to_be_visible()
            found: Any = await dashboard.page.evaluate("axe.run()")
            assert found["passes"]
            assert not [each for each in found["violations"] if each["impact"] in SERIOUS], view


async def test_a_phone_shows_all_of_it(config: Config, chromium_page: Browser) -> None:
    async with (
        Broker(config) as broker,
        opened(chromium_page, broker.admin_url, size=PHONE) as dashboard,
    ):
        client = await asyncio.to_thread(connected, broker, client_id="a-client-with-a-long-name" * 4)
        await broker.publish("a-level/" * 20, "x" * 200, retain=True)
        for view in VIEWS:
            await dashboard.open(view)
            if view in LONG_CONTENT:
                await expect(dashboard.page.locator(LONG_CONTENT[view])).to_be_visible()
            width = await dashboard.page.evaluate("document.documentElement.scrollWidth")
            assert width <= PHONE[0], view
        assert not dashboard.wrong
        client.drop()


async def test_the_nodes_of_a_cluster_are_on_the_overview(config: Config, chromium_page: Browser) -> None:
    password = config.data / "password"
    password.write_text("c" * 32)
    password.chmod(0o600)
    node = config.model_copy(
        update={
            "cluster_name": "farm",
            "cluster_node": "barn",
            "cluster_listen": "127.0.0.1:0",
            "cluster_password_file": str(password),
            "data": config.data / "barn",
        }
    )
    async with (
        Broker(node, cluster=ClusterHost(node)) as broker,
        opened(chromium_page, broker.admin_url) as dashboard,
    ):
        await dashboard.open()
        row = dashboard.page.get_by_role("row", name=re.compile("^barn alive "))
        await expect(row).to_be_visible(timeout=LIVE_MS)
    assert not dashboard.wrong
