"""paho-mqtt, in MQTT 3.1, 3.1.1 and 5.0, against the broker."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any, Literal

import paho.mqtt.client as paho
import pytest
from conformance.kit import Listening
from conftest import RunningBroker
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions
from waiting import WAIT_S

every_version = pytest.mark.parametrize(
    "version", [paho.MQTTv31, paho.MQTTv311, paho.MQTTv5], ids=["3.1", "3.1.1", "5.0"]
)


class Client:
    """A connected client with its network thread; messages and reason codes wait in queues."""

    def __init__(
        self,
        broker: Listening,
        version: int,
        client_id: str,
        *,
        clean: bool = True,
        will: Any = None,
        transport: Literal["tcp", "websockets", "unix"] = "tcp",
        host: str = "127.0.0.1",
        tls: dict[str, Any] | None = None,
        username: str | None = None,
        **connect: Any,
    ) -> None:
        """`host`: the path, of a Unix socket; `tls`: arguments of paho's tls_set."""
        self.messages: queue.Queue[paho.MQTTMessage] = queue.Queue()
        self.subacks: queue.Queue[list[Any]] = queue.Queue()
        self.disconnected = threading.Event()
        self.connected: queue.Queue[Any] = queue.Queue()
        settings = {} if version == paho.MQTTv5 else {"clean_session": clean}
        self.client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id,
            protocol=MQTTProtocolVersion(version),
            transport=transport,
            reconnect_on_failure=False,
            **settings,
        )
        if tls:
            self.client.tls_set(**tls)
        self.client.username_pw_set(username)
        self.client.on_message = lambda client, data, message: self.messages.put(message)
        self.client.on_connect = lambda client, data, flags, reason, props: self.connected.put(
            (flags, reason, props)
        )
        self.client.on_subscribe = lambda client, data, mid, reasons, props: self.subacks.put(reasons)
        self.client.on_disconnect = lambda *arguments: self.disconnected.set()
        if will:
            self.client.will_set(**will)
        if version == paho.MQTTv5:
            connect |= {"clean_start": clean}
        self.client.connect(host, broker.port, **connect)
        self.client.loop_start()
        self.flags, reason, self.properties = self.connected.get(timeout=WAIT_S)
        assert not reason.is_failure

    def subscribe(self, topic: str, qos: int = 0, **settings: Any) -> None:
        self.client.subscribe(topic, qos, **settings)
        assert not self.subacks.get(timeout=WAIT_S)[0].is_failure

    def publish(self, topic: str, payload: bytes, qos: int = 0, **settings: Any) -> None:
        self.client.publish(topic, payload, qos, **settings).wait_for_publish(WAIT_S)

    def message(self) -> paho.MQTTMessage:
        return self.messages.get(timeout=WAIT_S)

    def close(self) -> None:
        self.client.disconnect()
        assert self.disconnected.wait(WAIT_S)
        self.client.loop_stop()

    def drop(self) -> None:
        """Ends the connection without DISCONNECT."""
        self.client.loop_stop()
        link = self.client.socket()
        assert link is not None
        link.close()


@pytest.fixture
def opened(broker: RunningBroker) -> Iterator[Callable[..., Client]]:
    """Makes clients and closes them after the test."""
    clients: list[Client] = []

    def make(version: int, client_id: str, **settings: Any) -> Client:
        clients.append(Client(broker, version, client_id, **settings))
        return clients[-1]

    yield make
    for client in clients:
        client.client.disconnect()
        client.client.loop_stop()


@every_version
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_publish_and_subscribe(
    opened: Callable[..., Client], version: MQTTProtocolVersion, qos: int, topic: str
) -> None:
    """A hundred messages of every QoS, in order and each once."""
    receiver, sender = opened(version, f"{topic}r"[-20:]), opened(version, f"{topic}s"[-20:])
    receiver.subscribe(f"{topic}/+", qos)
    for number in range(100):
        sender.publish(f"{topic}/a", b"%d" % number, qos)
    got = [receiver.message() for _ in range(100)]
    assert [int(message.payload) for message in got] == list(range(100))
    assert {(message.topic, message.qos, message.retain) for message in got} == {(f"{topic}/a", qos, False)}


@every_version
def test_retained(opened: Callable[..., Client], version: MQTTProtocolVersion, topic: str) -> None:
    """A stored message, and its removal."""
    sender = opened(version, f"{topic}s"[-20:])
    sender.publish(topic, b"kept", 1, retain=True)
    receiver = opened(version, f"{topic}r"[-20:])
    receiver.subscribe(topic, 1)
    message = receiver.message()
    assert (message.payload, message.retain) == (b"kept", True)
    sender.publish(topic, b"", 1, retain=True)
    assert receiver.message().payload == b""
    later = opened(version, f"{topic}l"[-20:])
    later.subscribe(topic, 1)
    with pytest.raises(queue.Empty):
        later.messages.get(timeout=0.2)


@every_version
def test_will(opened: Callable[..., Client], version: MQTTProtocolVersion, topic: str) -> None:
    """A broken connection publishes it."""
    watcher = opened(version, f"{topic}w"[-20:])
    watcher.subscribe(topic, 2)
    dying = opened(
        version, f"{topic}d"[-20:], will={"topic": topic, "payload": b"gone", "qos": 2, "retain": True}
    )
    dying.drop()
    message = watcher.message()
    assert (message.payload, message.qos, message.retain) == (b"gone", 2, False)


@every_version
def test_session(opened: Callable[..., Client], version: MQTTProtocolVersion, topic: str) -> None:
    """Messages wait for a client that is away."""
    keep: dict[str, Any] = {"clean": False}
    if version == paho.MQTTv5:
        keep["properties"] = Properties(PacketTypes.CONNECT)
        keep["properties"].SessionExpiryInterval = 300
    name = topic.replace("/", "")[-20:]
    receiver, sender = opened(version, name, **keep), opened(version, f"{topic}s"[-20:])
    receiver.subscribe(topic, 2)
    receiver.close()
    for number in range(10):
        sender.publish(topic, b"%d" % number, 2)
    receiver = opened(version, name, **keep)
    assert receiver.flags.session_present == (version != paho.MQTTv31)
    assert [int(receiver.message().payload) for _ in range(10)] == list(range(10))


def test_properties(opened: Callable[..., Client], topic: str) -> None:
    """Everything that 5.0 passes on, and a subscription identifier."""
    receiver, sender = opened(paho.MQTTv5, ""), opened(paho.MQTTv5, "")
    assert receiver.properties.AssignedClientIdentifier != sender.properties.AssignedClientIdentifier
    identifier = Properties(PacketTypes.SUBSCRIBE)
    identifier.SubscriptionIdentifier = 12345
    receiver.subscribe(topic, options=SubscribeOptions(qos=1, noLocal=True), properties=identifier)
    sent = Properties(PacketTypes.PUBLISH)
    sent.PayloadFormatIndicator = 1
    sent.MessageExpiryInterval = 100
    sent.ContentType = "text/plain"
    sent.ResponseTopic = "answers"
    sent.CorrelationData = b"\x00\x01"
    sent.UserProperty = [("b", "2"), ("a", "1")]
    receiver.publish(topic, b"own", 1)
    sender.publish(topic, b"hello", 1, properties=sent)
    message = receiver.message()
    assert message.payload == b"hello"
    assert message.properties is not None
    got = message.properties.json()
    assert got.pop("MessageExpiryInterval") in (99, 100)
    assert got.pop("SubscriptionIdentifier") == [12345]
    assert got == {name: value for name, value in sent.json().items() if name != "MessageExpiryInterval"}


def test_takeover(opened: Callable[..., Client], topic: str) -> None:
    """The older of two clients of one name is told why it is disconnected."""
    reasons: queue.Queue[Any] = queue.Queue()
    old = opened(paho.MQTTv5, topic)
    old.client.on_disconnect = lambda client, data, flags, reason, props: reasons.put(reason)
    opened(paho.MQTTv5, topic)
    assert reasons.get(timeout=WAIT_S) == "Session taken over"
