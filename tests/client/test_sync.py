"""The blocking client: the same names, several threads, time-outs, its end."""

from __future__ import annotations

import asyncio
import inspect
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Literal

import pytest
from client.scripted import Peer, ScriptedServer
from client.servers import Server
from waiting import LATE_S, WAIT_S

from tidemq.client import (
    AnswerTimeoutError,
    BufferFullError,
    Client,
    ConnectError,
    ConnectionChange,
    DisconnectedError,
    Message,
    Properties,
    ReasonCode,
    Subscription,
    sync,
)
from tidemq.client.handover import Handover
from tidemq.client.loop_thread import LoopThread, wait_for
from tidemq.client.receipt import Receipt
from tidemq.errors import UsageError
from tidemq.testing.ports import free_port
from tidemq.wire import Puback, Publish, Suback, Subscribe


def test_it_has_the_names_of_the_asynchronous_client() -> None:
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
def test_publish_and_take(server: Server, topic: str, version: Literal[3, 4, 5], qos: int) -> None:
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


def test_many_threads_publish_and_take(server: Server, topic: str) -> None:
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


def test_callbacks_run_in_a_thread_and_may_use_the_client(server: Server, topic: str) -> None:
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


def test_own_iterators_requests_and_properties(server: Server, topic: str) -> None:
    with sync.Client(server.url) as client, sync.Client(server.url) as other:
        subscription = client.subscribe(f"{topic}/own", qos=1)
        client.publish(f"{topic}/own", "x", properties=Properties(content_type="t"))
        assert subscription.messages.get(WAIT_S).content_type == "t"

        def answer(asked: Message) -> None:
            other.respond(asked, b"!" + asked.payload)

        answering = other.subscribe(topic, callback=answer)
        assert answering.filters == (topic,)
        assert client.request(topic, "hello", timeout_s=WAIT_S).payload == b"!hello"
        assert client.unsubscribe(subscription) == (ReasonCode.SUCCESS,)
        assert list(subscription) == []


def test_waiting_ends(server: Server, topic: str) -> None:
    with sync.Client(server.url) as client:
        begun = time.monotonic()
        with pytest.raises(AnswerTimeoutError, match=r"no message within 0\.1 s"):
            client.messages.get(0.1)
        with pytest.raises(TimeoutError):
            client.request(topic, timeout_s=0.1)
        assert time.monotonic() - begun < LATE_S
        client.subscribe(topic)
        client.publish(topic, "after")
        assert client.messages.get(WAIT_S).payload == b"after"


def test_the_end_reaches_every_thread(server: Server, topic: str) -> None:
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


def test_errors_of_connecting_and_usage() -> None:
    port = free_port()
    with pytest.raises(ConnectError, match=str(port)):
        sync.Client(f"mqtt://127.0.0.1:{port}").connect()
    with pytest.raises(DisconnectedError):
        sync.Client(f"mqtt://127.0.0.1:{port}").publish("a", qos=1)
    with pytest.raises(UsageError, match="keep_alive_s"):
        sync.Client("mqtt://host", keep_alive_s=-1)
    assert not [each for each in threading.enumerate() if each.name.startswith("tidemq")]


def test_a_publish_before_the_connection_is_refused_and_forgotten(server: Server, topic: str) -> None:
    client = sync.Client(server.url)
    with pytest.raises(DisconnectedError, match="not connected"):
        client.publish_nowait(topic, "early")
    with client:
        client.subscribe(topic)
        client.publish_nowait(topic, "late")
        assert [each.payload for each in client.messages.each(0.3)] == [b"late"]


async def test_what_is_taken_is_acknowledged_whatever_was_taken_before() -> None:
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
            client.messages.finish()
            assert acknowledged.wait(WAIT_S)

    async with ScriptedServer(script) as server:
        await asyncio.to_thread(take)


def test_a_full_buffer(own_server: Server, topic: str) -> None:
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


def test_a_full_buffer_waits(server: Server, topic: str) -> None:
    with sync.Client(server.url, buffer_messages_max=5) as client, ThreadPoolExecutor(4) as pool:
        client.subscribe(topic, qos=1)
        list(pool.map(lambda n: client.publish(topic, str(n), qos=1, timeout_s=WAIT_S), range(200)))
        assert len({each.payload for each in client.messages.each(0.3)}) == 200


def test_a_full_buffer_of_bytes_holds_back_while_the_loop_is_busy(server: Server, topic: str) -> None:
    """What is handed over counts before the loop has it."""
    busy = threading.Event()
    with sync.Client(server.url, buffer_bytes_max=100_000) as client:
        client.subscribe(topic, qos=1)
        client._loop.post(busy.wait, WAIT_S)
        try:
            receipts = [client.publish_nowait(topic, b"x" * 10_000) for _ in range(9)]
            with pytest.raises(BufferFullError):
                client.publish_nowait(topic, b"x" * 10_000)
        finally:
            busy.set()
        for receipt in receipts:
            receipt.acknowledged(WAIT_S)
        for _ in range(30):
            client.publish(topic, b"x" * 10_000)
        client.flush(WAIT_S)
        for _ in range(39):
            client.messages.get(WAIT_S)


@pytest.mark.parametrize("limits", [{"buffer_messages_max": 3}, {"buffer_bytes_max": 3500}])
def test_room_that_a_thread_was_given_is_nobody_elses(limits: dict[str, Any]) -> None:
    """The loop's own publishers wait until it is free, and are woken where what had it is refused."""
    client = sync.Client("mqtt://host", **limits)
    client._handover.open(lambda: None)
    outgoing = client._async._outgoing
    outgoing.connect(5, 10, 10_000, 2, False, 0)  # no retained messages
    receipts = [outgoing.prepare("t", b"x" * 1000, 1, True, None) for _ in range(4)]
    assert [client._handover.offer(each) for each in receipts] == [True, True, True, False]
    assert not outgoing.has_room(1000)
    with pytest.raises(BufferFullError):
        outgoing.publish("t", b"x" * 1000, 0, False, None)
    waiter: Any = Future()
    outgoing.room_waiters.append(waiter)
    client._handover.accept()
    assert [each.done for each in receipts] == [True, True, True, False]
    assert waiter.done()
    assert outgoing.has_room(1000)
    assert client.held_messages == 0


def within(function: Callable[[], Any], seconds: float = WAIT_S) -> Any:
    """What it returns; where it hangs, the test fails and leaves it."""
    answer: Future[Any] = Future()

    def work() -> None:
        try:
            answer.set_result(function())
        except BaseException as error:  # noqa: BLE001 (raised by who asks for the result)
            answer.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return answer.result(seconds)


class Slow:
    """A handover whose threads learn that there is no room only when there is."""

    def __init__(self, handover: Handover, busy: threading.Event) -> None:
        self._handover, self._busy = handover, busy

    def __getattr__(self, name: str) -> object:
        return getattr(self._handover, name)

    def offer(self, receipt: Receipt) -> bool:
        if self._handover.offer(receipt):
            return True
        self._busy.set()
        deadline_s = time.monotonic() + WAIT_S
        while self._handover.held_messages and time.monotonic() < deadline_s:
            time.sleep(0.001)
        return False


@pytest.mark.parametrize("qos", [0, 1])
def test_who_learns_too_late_of_no_room_is_woken_all_the_same(server: Server, topic: str, qos: int) -> None:
    client = sync.Client(server.url, buffer_messages_max=5)
    client.connect()
    busy = threading.Event()
    client._loop.post(busy.wait, WAIT_S)
    for _ in range(5):
        client.publish_nowait(topic, qos=qos)
    client._handover = Slow(client._handover, busy)  # type: ignore[assignment]
    try:
        assert within(lambda: client.publish(topic, qos=qos)) < 0x80
    finally:
        client.disconnect(wait=False)


@pytest.mark.parametrize("buffer_full", ["wait", "reject", "drop_oldest"])
def test_what_no_buffer_has_room_for_is_refused_at_once(
    server: Server, topic: str, buffer_full: Literal["wait", "reject", "drop_oldest"]
) -> None:
    client = sync.Client(server.url, buffer_full=buffer_full, buffer_bytes_max=2000)
    client.connect()
    text = r"2000 bytes takes 2064 .* accepted: 2000 \(buffer_bytes_max\)"
    try:
        for publish in (client.publish, client.publish_nowait):
            with pytest.raises(BufferFullError, match=text):
                within(partial(publish, topic, b"x" * 2000))
    finally:
        client.disconnect(wait=False)


class Answered(Future[Any]):
    """Has its answer when the one who waited for it gives up."""

    def cancel(self) -> bool:
        self.set_result("heard")
        return super().cancel()


def test_an_answer_in_the_last_moment_counts() -> None:
    assert wait_for(Answered(), 0.01, "no answer") == "heard"
    with pytest.raises(AnswerTimeoutError, match=r"no answer: nothing within 0\.01 s"):
        wait_for(Future(), 0.01, "no answer")


@pytest.mark.parametrize("waits", ["iterate", "subscribe", "publish", "flush", "request", "nothing"])
async def test_a_callback_may_end_the_client_whoever_waits(waits: str) -> None:
    """A server that answers nothing but CONNECT, and sends one message."""

    async def script(peer: Peer) -> None:
        await peer.accept()
        subscribing = await peer.receive()
        assert isinstance(subscribing, Subscribe)
        peer.send(Suback(packet_id=subscribing.packet_id, reasons=(0,)))
        await peer.receive()
        peer.send(Publish(topic="a", payload=b"end"))
        while await peer.receive() is not None:
            pass

    def work() -> str:
        with sync.Client(server.url, close_timeout_s=1) as client:
            client.subscribe("a", callback=lambda _: client.disconnect(wait=False))
            client.publish_nowait("begin")
            try:
                if waits == "iterate":
                    return f"{list(client.messages)}"
                if waits == "subscribe":
                    client.subscribe("b")
                elif waits == "publish":
                    client.publish("b", qos=1)
                elif waits == "flush":
                    client.publish_nowait("b", qos=1)
                    client.flush()
                elif waits == "request":
                    client.request("b", timeout_s=WAIT_S)
            except DisconnectedError:
                return "told"
            return "done"

    async with ScriptedServer(script) as server:
        found = await asyncio.to_thread(within, work)
    assert found == {"iterate": "[]", "nothing": "done"}.get(waits, "told")


async def test_two_callbacks_may_end_the_client_at_once(server: Server, topic: str) -> None:
    def work() -> None:
        together = threading.Barrier(2)
        with sync.Client(server.url) as client:

            def end(_: Message) -> None:
                together.wait(WAIT_S)
                client.disconnect()

            for each in ("a", "b"):
                client.subscribe(f"{topic}/{each}", callback=end)
                client.publish_nowait(f"{topic}/{each}")
            assert list(client.messages) == []

    await asyncio.to_thread(within, work)


def test_what_became_of_a_message_is_known_after_the_end(server: Server, topic: str) -> None:
    with sync.Client(server.url) as client:
        receipts = [client.publish_nowait(topic, qos=qos) for qos in range(3)]
    for receipt in receipts:
        assert receipt.acknowledged(WAIT_S) < 0x80
        receipt.sent(WAIT_S)
        with pytest.raises(UsageError, match="there is no outbox"):
            receipt.stored(WAIT_S)
    with pytest.raises(DisconnectedError):
        client.publish_nowait(topic)
    with pytest.raises(DisconnectedError):
        client.wait_connected()


def test_a_client_connects_again(server: Server, topic: str) -> None:
    client = sync.Client(server.url)
    for n in range(3):
        with client:
            with pytest.raises(UsageError, match="is connected"):
                client.connect()
            client.subscribe(topic, qos=1)
            client.publish(topic, n, qos=1)
            assert int(client.messages.get(WAIT_S).payload) == n
    assert not [each for each in threading.enumerate() if each.name.startswith("tidemq")]


def test_it_is_told_of_its_connection_in_a_thread_and_may_use_the_client(
    own_server: Server, topic: str
) -> None:
    told: list[bool] = []
    made, lost, back = (threading.Event() for _ in range(3))

    def tell(change: ConnectionChange) -> None:
        if change.connected:
            client.publish(topic, qos=1, timeout_s=WAIT_S)
        told.append(change.connected)
        (made, lost, back)[len(told) - 1].set()

    client = sync.Client(own_server.url, on_connection=tell, backoff_s_min=0.01, backoff_s_max=0.05)
    with client:
        assert made.wait(WAIT_S)
        own_server.kill()
        assert lost.wait(WAIT_S)
        own_server.start()
        assert back.wait(WAIT_S)
    assert told == [True, False, True]


def test_what_is_not_sent_in_time_is_taken_back(own_server: Server, topic: str) -> None:
    with sync.Client(own_server.url, close_timeout_s=0) as client:
        own_server.kill()
        while client.is_connected:
            time.sleep(0.01)
        for qos in range(3):
            with pytest.raises(AnswerTimeoutError, match="never will be") as raised:
                client.publish(topic, qos=qos, timeout_s=0.05)
            assert raised.value.withdrawn
        assert client.held_messages == 0


def test_what_finds_no_room_in_time_was_never_held(topic: str) -> None:
    """A server that reads nothing: the buffer stays full."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        url = f"mqtt://127.0.0.1:{door.getsockname()[1]}"
        client = sync.Client(url, version=4, buffer_messages_max=4, close_timeout_s=0)
        with ThreadPoolExecutor() as pool:
            connecting = pool.submit(client.connect)
            server, _ = door.accept()
            server.recv(4096)
            server.sendall(b"\x20\x02\x00\x00")
            connecting.result(WAIT_S)
        receipts = [client.publish_nowait(topic, b"", qos=1) for _ in range(4)]
        for qos in range(3):
            with pytest.raises(AnswerTimeoutError) as raised:
                client.publish(topic, b"", qos=qos, timeout_s=0.05)
            assert raised.value.withdrawn
            assert client.held_messages == 4
        server.sendall(b"".join(b"\x40\x02\x00" + bytes([number]) for number in range(1, 5)))
        for receipt in receipts:
            receipt.acknowledged(WAIT_S)
        assert client.held_messages == 0
        client.flush(WAIT_S)
        client.disconnect(wait=False)
        server.close()


def test_who_asks_while_two_end_the_loop_is_answered() -> None:
    loop = LoopThread()
    loop.start()
    begun, ready, ended = (threading.Event() for _ in range(3))

    async def answer() -> str:
        return "heard"

    loop.post(begun.set)
    loop.post(ready.wait, WAIT_S)
    assert begun.wait(WAIT_S)
    time.sleep(0.05)
    with ThreadPoolExecutor() as pool:
        stops = [pool.submit(loop.stop)]
        while not loop._ends:
            time.sleep(0.001)
        loop.post(ended.wait, WAIT_S)  # in the turn in which the loop is stopped
        ready.set()
        time.sleep(0.05)
        stops.append(pool.submit(loop.stop))
        time.sleep(0.05)
        asked = loop.submit(answer())
        ended.set()
        assert asked.result(WAIT_S) == "heard"
        for stop in stops:
            stop.result(WAIT_S)
