"""gmqtt, an independent implementation of MQTT 5.0 and 3.1.1, against the broker."""

from __future__ import annotations

import asyncio
from typing import Any

import gmqtt  # type: ignore[import-untyped]
import pytest
from conformance.kit import Listening
from conftest import RunningBroker
from gmqtt.mqtt.constants import MQTTv50, MQTTv311  # type: ignore[import-untyped]
from waiting import WAIT_S

every_version = pytest.mark.parametrize("version", [MQTTv311, MQTTv50], ids=["3.1.1", "5.0"])


class Client:
    """A gmqtt client whose messages, subscriptions and connections wait in queues."""

    def __init__(self, client_id: str, **settings: Any) -> None:
        self.client = gmqtt.Client(client_id, **settings)
        self.messages: asyncio.Queue[Any] = asyncio.Queue()
        self.subscribed: asyncio.Queue[Any] = asyncio.Queue()
        self.client.on_message = self.on_message
        self.client.on_subscribe = lambda client, mid, qos, properties: self.subscribed.put_nowait(qos)

    async def on_message(
        self, client: Any, topic: str, payload: bytes, qos: int, properties: dict[str, Any]
    ) -> int:
        self.messages.put_nowait((topic, payload, qos, properties))
        return 0

    async def connect(
        self, broker: Listening, version: int, host: str = "127.0.0.1", ssl: Any = False
    ) -> Client:
        """`ssl`: as gmqtt takes it."""
        await asyncio.wait_for(self.client.connect(host, broker.port, ssl, version=version), WAIT_S)
        return self

    async def subscribe(self, topic: str, qos: int, **settings: Any) -> None:
        self.client.subscribe(topic, qos, **settings)
        await asyncio.wait_for(self.subscribed.get(), WAIT_S)

    async def message(self) -> tuple[str, bytes, int, dict[str, Any]]:
        return await asyncio.wait_for(self.messages.get(), WAIT_S)

    async def close(self) -> None:
        await self.client.disconnect()


@every_version
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_publish_and_subscribe(broker: RunningBroker, version: int, qos: int, topic: str) -> None:
    """In order, each once."""
    receiver = await Client(f"{topic}r").connect(broker, version)
    sender = await Client(f"{topic}s").connect(broker, version)
    await receiver.subscribe(f"{topic}/#", qos)
    for number in range(50):
        sender.client.publish(f"{topic}/a", b"%d" % number, qos=qos)
    got = [await receiver.message() for _ in range(50)]
    assert [int(payload) for _, payload, _, _ in got] == list(range(50))
    assert {(name, granted) for name, _, granted, _ in got} == {(f"{topic}/a", qos)}
    await sender.close()
    await receiver.close()


@every_version
async def test_retained(broker: RunningBroker, version: int, topic: str) -> None:
    """A stored message has its flag."""
    sender = await Client(f"{topic}s").connect(broker, version)
    sender.client.publish(topic, b"kept", qos=1, retain=True)
    await asyncio.sleep(0.1)
    receiver = await Client(f"{topic}r").connect(broker, version)
    await receiver.subscribe(topic, 1)
    _, payload, _, properties = await receiver.message()
    assert payload == b"kept"
    assert properties["retain"] == 1
    sender.client.publish(topic, b"", qos=1, retain=True)
    assert (await receiver.message())[1] == b""
    await sender.close()
    await receiver.close()


@every_version
async def test_will(broker: RunningBroker, version: int, topic: str) -> None:
    """A broken connection publishes it."""
    watcher = await Client(f"{topic}w").connect(broker, version)
    await watcher.subscribe(topic, 1)
    will = gmqtt.Message(topic, b"gone", qos=1)
    dying = Client(f"{topic}d", will_message=will)
    dying.client.set_config({"reconnect_retries": 0})
    await dying.connect(broker, version)
    dying.client._connection._transport.abort()
    assert (await watcher.message())[1] == b"gone"
    await watcher.close()


async def test_session(broker: RunningBroker, topic: str) -> None:
    """A session with an expiry keeps its messages."""
    settings = {"clean_session": False, "session_expiry_interval": 300}
    receiver = await Client(f"{topic}r", **settings).connect(broker, MQTTv50)
    await receiver.subscribe(topic, 1)
    await receiver.close()
    sender = await Client(f"{topic}s").connect(broker, MQTTv50)
    for number in range(5):
        sender.client.publish(topic, b"%d" % number, qos=1)
    await asyncio.sleep(0.1)
    receiver = await Client(f"{topic}r", **settings).connect(broker, MQTTv50)
    assert [int((await receiver.message())[1]) for _ in range(5)] == list(range(5))
    await receiver.close()
    await sender.close()


async def test_properties(broker: RunningBroker, topic: str) -> None:
    """Properties of 5.0 arrive as they were sent."""
    receiver = await Client(f"{topic}r").connect(broker, MQTTv50)
    sender = await Client(f"{topic}s").connect(broker, MQTTv50)
    await receiver.subscribe(topic, 1, subscription_identifier=55)
    sent = {
        "content_type": "text/plain",
        "response_topic": "answers",
        "correlation_data": b"c1",
        "message_expiry_interval": 100,
        "user_property": [("b", "2"), ("a", "1")],
    }
    sender.client.publish(topic, b"hello", qos=1, **sent)
    _, payload, _, got = await receiver.message()
    assert payload == b"hello"
    assert got["content_type"] == ["text/plain"]
    assert got["response_topic"] == ["answers"]
    assert got["correlation_data"] == [b"c1"]
    assert got["message_expiry_interval"][0] in (99, 100)
    assert got["user_property"] == [("b", "2"), ("a", "1")]
    assert got["subscription_identifier"] == [55]
    await receiver.close()
    await sender.close()
