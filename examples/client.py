"""A client: publishes the machine's load average every second, and prints what everybody publishes so.

    python examples/client.py mqtt://localhost

Stop it with Ctrl-C; stop and start the broker meanwhile, and it goes on.
"""

import asyncio
import os
import platform
import sys

from tidemq.client import Client


async def publish_load(client: Client) -> None:
    topic = f"load/{platform.node() or 'here'}"
    while True:
        await client.publish(topic, f"{os.getloadavg()[0]:.2f}", qos=1, retain=True)
        await asyncio.sleep(1)


async def main(url: str) -> None:
    async with Client(url) as client:
        await client.subscribe("load/+", qos=1)
        publishing = asyncio.create_task(publish_load(client))
        async for message in client.messages:
            print(message.topic, message.payload.decode(), flush=True)
        await publishing


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:] or ["mqtt://localhost"]))
