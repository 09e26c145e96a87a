"""The blocking client: the same names, several threads, time-outs, its end."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from client.scripted import Peer, ScriptedServer

from tidemq.client import (
    AnswerTimeoutError,
    BufferFullError,
    Client,
    ConnectError,
    DisconnectedError,
    Message,
    Properties,
    ReasonCode,
    Subscription,
    sync,
)
from tidemq.client.receipt import Receipt
from tidemq.errors import UsageError
from tidemq.testing.ports import free_port
from tidemq.wire import Puback, Publish

pytestmark = pytest.mark.timeout(30)
WAIT_S = 20.0


def test_it_has_the_names_of_the_asynchronous_client():
    for one, other in ((Client, sync.Client), (Receipt, sync.Receipt)):
        names = {name for name in dir(one) if not name.startswith(("_", "notify", "refuse", "topic", "qos"))}
        assert names - {"connack"} <= set(dir(other)), other
    assert {"messages", "reasons", "granted_qos"} <= set(vars(sync.Subscription)) | {"reasons", "granted_qos"}
    assert "messages" in dir(Subscription)
    for name in ("publish", "publish_nowait", "publish_many", "subscribe", "request", "disconnect"):
        here = list(inspect.signature(getattr(sync.Client, name)).parameters)
        there = list(inspect.signature(getattr(Client, name)).parameters)
        assert [each for each in here if each != "timeout_s" or each in there] == there, name


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_publish_and_take(server, topic, version, qos):
    with sync.Client(server.url, version=version) as client:
        assert client.is_connected
        subscription = client.subscribe(f"{topic}/#", qos=qos)
        assert subscription.granted_qos == (qos,)
        assert client.publish(f"{topic}/a", "text", qos=qos) == ReasonCode.SUCCESS
        assert client.messages.get(WAIT_S).payload == b"text"
        receipt = client.publish_nowait(f"{topic}/b", b"bytes", qos=qos)
        receipt.sent(WAIT_S)
        assert receipt.acknowledged(WAIT_S) == receipt.reason == ReasonCode.SUCCESS
        assert client.publish_many(((topic, str(n)) for n in range(500)), qos=qos) == 500
        got = list(client.messages.each(0.3))
    assert [each.payload for each in got] == [b"bytes", *(str(n).encode() for n in range(500))]


def test_many_threads_publish_and_take(server, topic):
    """Every thread's messages arrive once and in its order; several threads share one iterator."""
    threads, count = 8, 300
    got: list[Message] = []
    with sync.Client(server.url) as client:
        client.subscribe(f"{topic}/+", qos=1)

        def publish(thread: int) -> None:
            for n in range(count):
                name, payload = f"{topic}/{thread}", str(n)
                if n % 3 == 0:
                    client.publish(name, payload, qos=1, timeout_s=WAIT_S)
                else:
                    client.publish_nowait(name, payload, qos=1)

        def take() -> list[Message]:
            return list(client.messages.each(1.0))

        with ThreadPoolExecutor(threads + 2) as pool:
            takers = [pool.submit(take) for _ in range(2)]
            list(pool.map(publish, range(threads)))
            for each in takers:
                part = each.result()
                for thread in range(threads):
                    mine = [int(m.payload) for m in part if m.topic == f"{topic}/{thread}"]
                    assert mine == sorted(mine)
                got += part
    assert len(got) == threads * count
    assert len({(each.topic, each.payload) for each in got}) == threads * count


def test_callbacks_run_in_a_thread_and_may_use_the_client(server, topic):
    done = threading.Event()
    names: set[str] = set()

    with sync.Client(server.url) as client:

        def answer(message: Message) -> None:
            names.add(threading.current_thread().name)
            client.publish(f"{topic}/answer", message.payload.upper(), qos=1, timeout_s=WAIT_S)

        client.subscribe(f"{topic}/question", qos=1, callback=answer)
        client.subscribe(f"{topic}/answer", qos=1, callback=lambda message: done.set())
        client.publish(f"{topic}/question", "q", qos=1)
        assert done.wait(WAIT_S)
    assert names == {"tidemq-callback"}


def test_own_iterators_requests_and_properties(server, topic):
    with sync.Client(server.url) as client, sync.Client(server.url) as other:
        subscription = client.subscribe(f"{topic}/own", qos=1)
        client.publish(f"{topic}/own", "x", properties=Properties(content_type="t"))
        assert subscription.messages.get(WAIT_S).content_type == "t"
        answering = other.subscribe(topic, callback=lambda m: other.respond(m, b"!" + m.payload))
        assert answering.filters == (topic,)
        assert client.request(topic, "hello", timeout_s=WAIT_S).payload == b"!hello"
        assert client.unsubscribe(subscription) == (ReasonCode.SUCCESS,)
        assert list(subscription) == []


def test_waiting_ends(server, topic):
    with sync.Client(server.url) as client:
        begun = time.monotonic()
        with pytest.raises(AnswerTimeoutError, match=r"no message within 0\.1 s"):
            client.messages.get(0.1)
        with pytest.raises(TimeoutError):
            client.request(topic, timeout_s=0.1)
        assert time.monotonic() - begun < 5
        client.subscribe(topic)
        client.publish(topic, "after")
        assert client.messages.get(WAIT_S).payload == b"after"


def test_the_end_reaches_every_thread(server, topic):
    """Closing ends iterators; what is queued may still be taken; afterwards every call says so."""
    client = sync.Client(server.url)
    client.connect()
    client.subscribe(topic, qos=1)
    with ThreadPoolExecutor(1) as pool:
        other = client.subscribe(f"{topic}/other")
        waiting = pool.submit(list, other)
        client.publish(topic, "queued", qos=1)
        deadline = time.monotonic() + WAIT_S
        while not len(client._async.messages) and time.monotonic() < deadline:
            time.sleep(0.01)
        client.disconnect()
        assert waiting.result(WAIT_S) == []
    assert [each.payload for each in client.messages] == [b"queued"]
    for call in (client.publish, client.publish_nowait, client.subscribe):
        with pytest.raises(DisconnectedError):
            call(topic)
    client.disconnect()
    assert not [each for each in threading.enumerate() if each.name.startswith("tidemq")]


def test_errors_of_connecting_and_usage():
    port = free_port()
    with pytest.raises(ConnectError, match=str(port)):
        sync.Client(f"mqtt://127.0.0.1:{port}").connect()
    with pytest.raises(DisconnectedError):
        sync.Client(f"mqtt://127.0.0.1:{port}").publish("a", qos=1)
    with pytest.raises(UsageError, match="keep_alive_s"):
        sync.Client("mqtt://host", keep_alive_s=-1)
    assert not [each for each in threading.enumerate() if each.name.startswith("tidemq")]


def test_a_publish_before_the_connection_is_refused_and_forgotten(server, topic):
    client = sync.Client(server.url)
    with pytest.raises(DisconnectedError, match="not connected"):
        client.publish_nowait(topic, "early")
    with client:
        client.subscribe(topic)
        client.publish_nowait(topic, "late")
        assert [each.payload for each in client.messages.each(0.3)] == [b"late"]


async def test_what_is_taken_is_acknowledged_whatever_was_taken_before():
    """At QoS 0 there is nothing to say; the QoS 1 message behind it is acknowledged at once all the same."""
    acknowledged = threading.Event()

    async def script(peer: Peer) -> None:
        await peer.accept()
        peer.send(Publish(topic="a", payload=b"0"), Publish(topic="a", payload=b"1", qos=1, packet_id=7))
        assert await peer.receive() == Puback(packet_id=7)
        acknowledged.set()
        await peer.receive()

    def take() -> None:
        with sync.Client(server.url) as client:
            assert [client.messages.get(WAIT_S).qos for _ in range(2)] == [0, 1]
            assert acknowledged.wait(WAIT_S)

    async with ScriptedServer(script) as server:
        await asyncio.to_thread(take)


def test_a_full_buffer(own_server, topic):
    with sync.Client(
        own_server.url, buffer_messages_max=5, buffer_full="reject", close_timeout_s=0.1
    ) as client:
        own_server.kill()
        while client.is_connected:
            time.sleep(0.01)
        for _ in range(5):
            client.publish_nowait(topic, qos=1)
        with pytest.raises(BufferFullError):
            client.publish(topic, qos=1)
        with pytest.raises(BufferFullError):
            client.publish_nowait(topic)


def test_a_full_buffer_waits(server, topic):
    with sync.Client(server.url, buffer_messages_max=5) as client, ThreadPoolExecutor(4) as pool:
        client.subscribe(topic, qos=1)
        list(pool.map(lambda n: client.publish(topic, str(n), qos=1, timeout_s=WAIT_S), range(200)))
        assert len({each.payload for each in client.messages.each(0.3)}) == 200
