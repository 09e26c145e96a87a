"""MQTT clients, for any server: `Client` for asyncio, `tidemq.client.sync.Client` for threads.

async with Client("mqtt://localhost") as client:
    await client.subscribe("sensors/#", qos=1)
    await client.publish("sensors/kitchen", "21.5", qos=1)
    async for message in client.messages:
        print(message.topic, message.payload)
"""

from tidemq.client.authentication import Authentication, Scram
from tidemq.client.callbacks import ConnectionChange
from tidemq.client.client import Client
from tidemq.client.errors import (
    AnswerTimeoutError,
    BufferFullError,
    ConnectError,
    DisconnectedError,
    FalseServerError,
    PublishError,
    ReasonError,
    ServerRefusedError,
    SubscribeError,
)
from tidemq.client.message import Message
from tidemq.client.queue import MessageIterator, MessageQueue
from tidemq.client.receipt import Receipt
from tidemq.client.settings import Settings
from tidemq.client.subscription import Subscription
from tidemq.wire import NO_PROPERTIES, Properties, ReasonCode, Will

__all__ = [
    "NO_PROPERTIES",
    "AnswerTimeoutError",
    "Authentication",
    "BufferFullError",
    "Client",
    "ConnectError",
    "ConnectionChange",
    "DisconnectedError",
    "FalseServerError",
    "Message",
    "MessageIterator",
    "MessageQueue",
    "Properties",
    "PublishError",
    "ReasonCode",
    "ReasonError",
    "Receipt",
    "Scram",
    "ServerRefusedError",
    "Settings",
    "SubscribeError",
    "Subscription",
    "Will",
]
