"""`make screenshots`: pictures of the dashboard for the documents, of a broker that does something."""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from browser.dashboard import PHONE, WIDE, browser, opened  # noqa: E402

from tidemq import Broker, Config  # noqa: E402
from tidemq.client import Client  # noqa: E402

IMAGES = HERE.parent.parent / "docs" / "images"
ADMIN_PORT = 18093
TRAFFIC_S = 45.0
PUMPS = 10


async def pump(url: str, number: int) -> None:
    """Reports ten times a second."""
    async with Client(url, client_id=f"pump-{number}", clean_start=False, session_expiry_s=3600) as client:
        await client.subscribe(f"plant/pump-{number}/set", qos=1)
        while True:
            topic = f"plant/hall-{number % 3 + 1}/pump-{number}/state"
            text = f'{{"bar": {random.gauss(4, 0.3):.2f}, "rpm": {random.gauss(1450, 20):.0f}}}'
            await client.publish(topic, text, qos=1, retain=True)
            await asyncio.sleep(random.expovariate(10))


async def historian(url: str) -> None:
    """Takes everything."""
    async with Client(url, client_id="historian") as client:
        await client.subscribe("plant/#", qos=1)
        async for _ in client.messages:
            pass


async def night_shift(url: str) -> None:
    """Subscribes and goes: messages wait for it."""
    async with Client(url, client_id="night-shift", clean_start=False, session_expiry_s=36000) as client:
        await client.subscribe("plant/hall-1/#", qos=1)


async def take(url: str) -> None:
    """The pictures."""
    async with browser() as chromium:
        async with opened(chromium, url, size=WIDE) as dashboard:
            await dashboard.open()
            await asyncio.sleep(TRAFFIC_S)
            await dashboard.page.screenshot(path=IMAGES / "dashboard.png")
            for view, name in (("clients/night-shift", "client"), ("topics", "topics")):
                await dashboard.open(view)
                await asyncio.sleep(1)
                await dashboard.page.screenshot(path=IMAGES / f"dashboard-{name}.png")
        async with (
            opened(chromium, url, size=WIDE, dark=True) as dark,
            opened(chromium, url, size=PHONE) as phone,
        ):
            for dashboard, name in ((dark, "dark"), (phone, "phone")):
                await dashboard.open()
                await asyncio.sleep(8)
                await dashboard.page.screenshot(path=IMAGES / f"dashboard-{name}.png")


async def main() -> None:
    """A broker, devices, pictures."""
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as data:
        config = Config(host="127.0.0.1", port=0, data=Path(data), admin_port=ADMIN_PORT)
        async with Broker(config) as broker:
            url = f"mqtt://127.0.0.1:{broker.port}"
            await night_shift(url)
            devices = [asyncio.create_task(pump(url, number)) for number in range(1, PUMPS + 1)]
            devices.append(asyncio.create_task(historian(url)))
            await take(broker.admin_url)
            for device in devices:
                device.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.gather(*devices, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main())
