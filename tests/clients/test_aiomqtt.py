"""aiomqtt against the broker."""

from __future__ import annotations

import asyncio
from typing import Any

import aiomqtt
import pytest
from aiomqtt import ProtocolVersion
from conftest import RunningBroker
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from waiting import WAIT_S

every_version = pytest.mark.parametrize(
    "version", [ProtocolVersion.V31, ProtocolVersion.V311, ProtocolVersion.V5]
)


def client(broker: RunningBroker, version: aiomqtt.ProtocolVersion, **settings: Any) -> aiomqtt.Client:
    return aiomqtt.Client("127.0.0.1", broker.port, protocol=version, timeout=WAIT_S, **settings)


async def take(subscriber: aiomqtt.Client, count: int) -> list[aiomqtt.Message]:
    found = []
    async with asyncio.timeout(WAIT_S):
        async for message in subscriber.messages:
            found.append(message)
            if len(found) == count:
                return found
    raise AssertionError(f"{len(found)} messages of {count}")


@every_version
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_publish_and_subscribe(
    broker: RunningBroker, version: ProtocolVersion, qos: int, topic: str
) -> None:
    """In order, each once."""
    async with client(broker, version) as receiver, client(broker, version) as sender:
        await receiver.subscribe(f"{topic}/#", qos)
        for number in range(50):
            await sender.publish(f"{topic}/{number % 2}", b"%d" % number, qos)
        messages = await take(receiver, 50)
    assert [int(message.payload) for message in messages] == list(range(50))
    assert {message.qos for message in messages} == {qos}


@every_version
async def test_retained_and_will(broker: RunningBroker, version: ProtocolVersion, topic: str) -> None:
    """A retained will is stored when its client breaks off."""
    will = aiomqtt.Will(topic, b"gone", 1, retain=True)
    async with client(broker, version) as watcher:
        await watcher.subscribe(topic, 1)
        async with client(broker, version, will=will) as dying:
            dying._client.socket().shutdown(2)  # type: ignore[union-attr]
            (message,) = await take(watcher, 1)
            assert (message.payload, message.retain) == (b"gone", False)
            with pytest.raises(aiomqtt.MqttError):
                await dying.publish(topic, b"x", 1)
    async with client(broker, version) as later:
        await later.subscribe(topic, 1)
        (message,) = await take(later, 1)
        assert (message.payload, message.retain) == (b"gone", True)
        await later.publish(topic, b"", 1, retain=True)


@every_version
async def test_session(broker: RunningBroker, version: ProtocolVersion, topic: str) -> None:
    """What came while the client was away."""
    settings: dict[str, Any] = {"identifier": topic.replace("/", "")[-20:], "clean_session": False}
    if version == ProtocolVersion.V5:
        del settings["clean_session"]
        settings |= {"clean_start": False, "properties": Properties(PacketTypes.CONNECT)}
        settings["properties"].SessionExpiryInterval = 300
    async with client(broker, version, **settings) as receiver:
        await receiver.subscribe(topic, 2)
    async with client(broker, version) as sender:
        for number in range(5):
            await sender.publish(topic, b"%d" % number, 2)
    async with client(broker, version, **settings) as receiver:
        assert [int(message.payload) for message in await take(receiver, 5)] == list(range(5))


async def test_many_clients(broker: RunningBroker, topic: str) -> None:
    """Fifty clients at once, each sending to all."""
    everybody = [client(broker, ProtocolVersion.V5) for _ in range(50)]
    async with asyncio.TaskGroup() as group:
        for number, each in enumerate(everybody):
            group.create_task(converse(each, f"{topic}/{number}", topic, len(everybody)))


async def converse(each: aiomqtt.Client, own: str, topic: str, count: int) -> None:
    async with each:
        await each.subscribe(f"{topic}/+", 1)
        await each.publish(f"{topic}/ready", b"", 1)
        ready = 0
        async with asyncio.timeout(WAIT_S):
            async for message in each.messages:
                if str(message.topic) == own:
                    return
                ready += str(message.topic).endswith("ready")
                if ready == 1:
                    await each.publish(own, b"x", 1)
    raise AssertionError(f"{each} did not get its own message of {count}")
