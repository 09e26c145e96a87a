"""Two brokers and what is between them: the own one, with its bridges, in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from getpass import getuser
from pathlib import Path
from typing import Any

from client.servers import Server
from waiting import until

from tidemq import Broker, Config
from tidemq.bridge.figures import BridgeFigures
from tidemq.client import Client

NAME = "far"


def bridge_to(url: str, *topics: dict[str, Any], name: str = NAME, **settings: Any) -> dict[str, Any]:
    """A table of `[[bridges]]` that reconnects fast."""
    rows = topics or ({"filter": "#", "direction": "both", "qos": 2},)
    return (
        {"name": name, "addresses": [url], "reconnect_s": 0.1, "reconnect_max_s": 0.3}
        | settings
        | {"topics": rows}
    )


def config_with(*bridges: dict[str, Any], **settings: Any) -> Config:
    """Of a broker in this process."""
    least = {"host": "127.0.0.1", "port": 0, "store": "memory", "reactors": 1, "sys_interval_s": 0}
    return Config.model_validate(least | settings | {"bridges": list(bridges)})


@asynccontextmanager
async def broker_with(*bridges: dict[str, Any], **settings: Any) -> AsyncIterator[Broker]:
    async with Broker(config_with(*bridges, **settings)) as broker:
        yield broker


def figures(broker: Broker, name: str = NAME) -> BridgeFigures:
    """Of one bridge."""
    assert broker.monitor is not None
    return next(each for each in broker.monitor.bridges() if each.name == name)


async def connected(broker: Broker, *names: str) -> None:
    """Waits until these bridges are."""
    wanted = names or (NAME,)
    await until(lambda: all(figures(broker, name).status.is_connected for name in wanted), "bridges connect")


async def crossed(broker: Broker, counter: str, done: asyncio.Task[Any]) -> None:
    """Waits until one more message has, or nothing more is published."""
    before = figures(broker).counts[counter]
    await until(lambda: figures(broker).counts[counter] > before or done.done(), "messages cross")


def url_of(broker: Broker) -> str:
    return f"mqtt://127.0.0.1:{broker.port}"


async def take(client: Client, count: int) -> list[tuple[str, bytes]]:
    """The next messages."""
    found = []
    async for message in client.messages:
        found.append((message.topic, message.payload))
        if len(found) == count:
            break
    return found


async def take_until(client: Client, done: Callable[[list[bytes]], bool]) -> list[bytes]:
    """Payloads, up to the one with which it holds."""
    found: list[bytes] = []
    async for message in client.messages:
        found.append(message.payload)
        if done(found):
            break
    return found


def mosquitto(folder: Path, settings: str = "", listener: str = "") -> Server:
    """Not started yet. Started by root it stays root, and may read and write in the test's folder."""
    return Server("mosquitto", folder, listener, f"user {getuser()}\n{settings}")
