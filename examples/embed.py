"""A broker inside a program: it publishes, and reads what clients publish."""

import asyncio

from tidemq import Broker, Config


async def main() -> None:
    async with Broker(Config(host="127.0.0.1", port=0)) as broker:
        print(f"listening on port {broker.port}")
        async with broker.subscribe("sensors/#") as messages:
            await broker.publish("sensors/kitchen", "21.5", retain=True)
            message = await anext(messages)
            print(message.topic, message.payload.decode())


asyncio.run(main())
