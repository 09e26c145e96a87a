"""A device that loses no reading: each is on disk before it is sent, until the server has acknowledged it.

    python examples/device.py mqtt://localhost /tmp/device.db

Kill it, pull the network, start it again: what was not acknowledged is sent first, and arrives once.
"""

import asyncio
import itertools
import sys
import time

from tidemq.client import Client


async def main(url: str, outbox: str) -> None:
    async with Client(url, outbox=outbox, retry_first=True, session_expiry_s=86_400) as client:
        for number in itertools.count():
            receipt = client.publish_nowait("device/readings", f"{time.time():.0f} {number}", qos=2)
            await receipt.stored
            print("safe:", number, flush=True)
            await asyncio.sleep(1)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:] or ["mqtt://localhost", "device.db"]))
