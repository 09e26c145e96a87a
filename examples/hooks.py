"""A plugin: who is there, and what goes through, on the terminal. Topics below `private/` are vetoed."""

import asyncio

from tidemq import Broker, Config, HeldMessage, hookimpl
from tidemq.broker import Access
from tidemq.engine.door.events import Connected, Disconnected, SubscribeRequest


class Watcher:
    filters = ("#",)  # of messages that `publish` gets

    @hookimpl
    def connect(self, event: Connected) -> None:
        print(f"{event.client_id} came from {event.peer}")

    @hookimpl
    def authorise(self, access: Access) -> bool:
        return not access.topic.startswith("private/")

    @hookimpl
    async def subscribe(self, request: SubscribeRequest) -> None:
        print(f"{request.client_id} reads {[topic_filter for topic_filter, _ in request.filters]}")

    @hookimpl
    async def publish(self, messages: list[HeldMessage]) -> None:
        for each in messages:
            print(f"{each.client_id} writes {len(each.payload)} bytes to {each.topic}")

    @hookimpl
    def disconnect(self, event: Disconnected) -> None:
        print(f"{event.client_id} went, reason {event.reason:#04x}")


async def main() -> None:
    async with Broker(Config(host="127.0.0.1"), plugins=[Watcher()]):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
