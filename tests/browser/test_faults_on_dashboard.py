"""The three faults of `operations`, and a dead bridge, found by nothing but clicks on the dashboard."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from browser.dashboard import opened
from browser.test_dashboard import chromium_page
from conformance.kit import unique
from operations.test_faults_found import ACL, be_refused, be_slow, disk, fill
from playwright.async_api import Browser, Locator, expect

from tidemq import Broker, Config, Limits
from tidemq.broker.monitoring import alarms, conditions
from tidemq.testing.ports import free_port

__all__ = ["chromium_page", "disk"]


async def test_a_full_disk(
    disk: Path, unused_tcp_port: int, chromium_page: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alarms, "HOLD_S", 1.0)
    config = Config(host="127.0.0.1", port=0, data=disk / "data", admin_port=unused_tcp_port)
    async with Broker(config) as broker, opened(chromium_page, broker.admin_url) as dashboard:
        await dashboard.open()
        await expect(dashboard.page.locator("#view")).to_contain_text("There has been none.")
        ballast = await asyncio.to_thread(fill, disk, broker)
        of_disk = dashboard.page.get_by_role("row", name=re.compile("^disk .* are free .* goes on"))
        await expect(of_disk).to_be_visible()
        of_store = dashboard.page.get_by_role("row", name=re.compile("^store .* goes on"))
        await expect(of_store).to_be_visible()
        ballast.unlink()
        await expect(of_disk).to_be_hidden()
        await expect(of_store).to_be_hidden()
        await expect(dashboard.page.get_by_role("region", name="Alarms")).to_contain_text("disk")


async def test_a_slow_subscriber(tmp_path: Path, unused_tcp_port: int, chromium_page: Browser) -> None:
    limits = Limits(backpressure_s=0, output_high_bytes=100_000, output_bytes_max=1_000_000)
    config = Config(
        host="127.0.0.1", port=0, data=tmp_path, admin_port=unused_tcp_port, limits=limits, sys_interval_s=0
    )
    slow_id, quick_id = unique("slow"), unique("quick")
    async with Broker(config) as broker, opened(chromium_page, broker.admin_url) as dashboard:
        clients = await asyncio.to_thread(be_slow, broker, slow_id, quick_id)
        await dashboard.open()
        lost = dashboard.page.get_by_role("region", name="Dropped and refused")
        await expect(lost).to_contain_text("dropped_slow_consumer")
        await dashboard.page.get_by_role("link", name="Losses").click()
        row = dashboard.page.get_by_role("row", name=re.compile("dropped_slow_consumer"))
        await expect(row).to_contain_text(slow_id)
        assert quick_id not in await dashboard.page.locator("#view").inner_text()
        await dashboard.page.get_by_role("link", name=slow_id).click()
        # by now the system's buffers may have taken what waited: that it was slow is in the losses
        await expect(dashboard.page.get_by_role("heading", name=slow_id)).to_be_visible()
        await expect(dashboard.page.locator(".facts")).to_contain_text("connected")
        for client in clients:
            client.drop()


async def test_a_client_whose_messages_a_rule_refuses(
    tmp_path: Path, unused_tcp_port: int, chromium_page: Browser
) -> None:
    rules = tmp_path / "rules.acl"
    rules.write_text(ACL)
    config = Config(host="127.0.0.1", port=0, data=tmp_path, admin_port=unused_tcp_port, acl_file=rules)
    refused_id, allowed_id = unique("refused"), unique("allowed")
    async with Broker(config) as broker, opened(chromium_page, broker.admin_url) as dashboard:
        await asyncio.to_thread(be_refused, broker, refused_id, allowed_id)
        await dashboard.open("losses")
        row = dashboard.page.get_by_role("row", name=re.compile(f"{refused_id} refused_not_authorised 5"))
        while not await row.is_visible():  # reports come within a tick
            await dashboard.page.get_by_role("button", name="Refresh").click()
            await asyncio.sleep(0.1)
        assert allowed_id not in await dashboard.page.locator("#view").inner_text()


async def test_a_dead_bridge(
    unused_tcp_port: int, chromium_page: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the alarm to the runbook's entry of its name, and there the words of the last error."""
    monkeypatch.setattr(conditions, "BRIDGE_DOWN_S", 0.5)
    topics = [{"filter": "plant/#", "qos": 1}]
    bridge = {"name": "cloud", "addresses": [f"mqtt://127.0.0.1:{free_port()}"], "topics": topics}
    config = Config.model_validate(
        {
            "host": "127.0.0.1",
            "port": 0,
            "store": "memory",
            "admin_port": unused_tcp_port,
            "bridges": [bridge],
        }
    )
    async with Broker(config) as broker, opened(chromium_page, broker.admin_url) as dashboard:
        await broker.publish("plant/1", b"21.5", qos=1)
        await dashboard.open()
        alarm = dashboard.page.get_by_role("row", name=re.compile("^bridge-cloud not connected .* goes on"))
        await expect(alarm).to_be_visible()
        await dashboard.page.get_by_role("link", name="Bridges").click()
        row = dashboard.page.get_by_role("row", name=re.compile("^cloud "))
        while "Connection refused" not in await row.inner_text() or " 1 " not in await _words(row):
            await dashboard.page.get_by_role("button", name="Refresh").click()  # queues: once a second
            await asyncio.sleep(0.1)
        runbook = (Path(__file__).parents[2] / "docs/runbook.md").read_text()
        entry = runbook.split("\n## `bridge-NAME`\n")[1].split("\n## ")[0]
        assert "*Connection refused*" in entry


async def _words(row: Locator) -> str:
    return " ".join((await row.inner_text()).split())
