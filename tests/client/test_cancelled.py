"""Every public coroutine of the client: cancelled, repeated, called twice at once; and the client's second
life."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest
from client.scripted import Peer, ScriptedServer
from client.servers import Server
from waiting import WAIT_S, until

from tidemq.client import (
    AnswerTimeoutError,
    Client,
    ConnectError,
    ConnectionChange,
    DisconnectedError,
    Message,
    ReasonCode,
    ServerRefusedError,
    SubscribeError,
)
from tidemq.errors import UsageError
from tidemq.testing import Proxy
from tidemq.testing.ports import free_port
from tidemq.wire import (
    Connack,
    Disconnect,
    Packet,
    Puback,
    Publish,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)

QUICK: dict[str, Any] = {"backoff_s_min": 0.01, "backoff_s_max": 0.05}


async def cancelled(task: asyncio.Task[object]) -> None:
    """It is, and has come to its end."""
    await asyncio.sleep(0.02)
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_every_public_coroutine_has_its_test() -> None:
    """A new one is to be tried here, in a way that `tried` names."""
    tried = "connect disconnect flush publish publish_many subscribe unsubscribe request respond"
    tried += " reauthenticate wait_connected"  # that is in test_auth
    found = {name for name, each in vars(Client).items() if inspect.iscoroutinefunction(each)}
    assert {name for name in found if not name.startswith("_")} == set(tried.split())


async def test_a_cancelled_subscribe_is_no_subscription(server: Server, topic: str) -> None:
    async with asyncio.timeout(WAIT_S), Client(server.url) as client, Client(server.url) as other:
        for _ in range(3):
            task = asyncio.create_task(client.subscribe(topic, qos=1))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await client.subscribe(f"{topic}/end", qos=1)  # behind all of it
        await other.publish(topic, "to nobody", qos=1)
        await other.publish(f"{topic}/end", "end", qos=1)
        assert (await anext(client.messages)).payload == b"end"
        again = await client.subscribe(topic, qos=1)  # and it can be had again
        await other.publish(topic, "to somebody", qos=1)
        assert (await anext(again.messages)).payload == b"to somebody"


async def test_what_was_cancelled_is_not_made_anew_on_the_next_connection(server: Server, topic: str) -> None:
    async with asyncio.timeout(WAIT_S), Proxy(server.port) as proxy:
        async with Client(f"mqtt://127.0.0.1:{proxy.port}", session_expiry_s=0, **QUICK) as client:
            await client.subscribe(f"{topic}/stays", qos=1)
            proxy.stall()
            await cancelled(asyncio.create_task(client.subscribe(f"{topic}/sent", qos=1)))
            proxy.resume()
            proxy.refuse()
            proxy.cut()
            await until(lambda: not client.is_connected)
            await cancelled(asyncio.create_task(client.subscribe(f"{topic}/unsent", qos=1)))
            await proxy.open()
            await client.wait_connected()
            await client.subscribe(f"{topic}/end", qos=1)
            async with Client(server.url) as other:
                for each in ("sent", "unsent", "stays", "end"):
                    await other.publish(f"{topic}/{each}", each, qos=1)
            got = [await anext(client.messages) for _ in range(2)]
            assert [each.payload for each in got] == [b"stays", b"end"]


async def test_a_refused_filter_leaves_none_of_the_call() -> None:
    asked: list[Packet] = []

    async def script(peer: Peer) -> None:
        await peer.accept()
        while (packet := await peer.receive()) is not None:
            asked.append(packet)
            if isinstance(packet, Subscribe):
                peer.send(Suback(packet_id=packet.packet_id, reasons=(0, ReasonCode.NOT_AUTHORIZED)))
            elif isinstance(packet, Unsubscribe):
                peer.send(Unsuback(packet_id=packet.packet_id, reasons=(0,)))

    async with asyncio.timeout(WAIT_S), ScriptedServer(script) as server, Client(server.url) as client:
        with pytest.raises(SubscribeError, match="not authorized"):
            await client.subscribe("granted", "refused")
        await asyncio.sleep(0.05)
    (unsubscribing,) = [each for each in asked if isinstance(each, Unsubscribe)]
    assert unsubscribing.filters == ("granted",)


async def test_a_cancelled_unsubscribe_that_was_sent_has_effect() -> None:
    asked: list[Packet] = []

    async def script(peer: Peer) -> None:
        await peer.accept()
        while (packet := await peer.receive()) is not None:
            asked.append(packet)
            if isinstance(packet, Subscribe):
                peer.send(Suback(packet_id=packet.packet_id, reasons=(0,)))
            elif isinstance(packet, Unsubscribe):
                await asyncio.sleep(0.1)
                peer.send(Unsuback(packet_id=packet.packet_id, reasons=(0,)))
            elif isinstance(packet, Publish):
                return  # and the next connection begins

    async with (
        asyncio.timeout(WAIT_S),
        ScriptedServer(script) as server,
        Client(server.url, **QUICK) as client,
    ):
        await client.subscribe("t")
        await cancelled(asyncio.create_task(client.unsubscribe("t")))
        await asyncio.sleep(0.2)
        client.publish_nowait("end")
        await until(lambda: server.connections >= 2)
        await client.wait_connected()
        await asyncio.sleep(0.05)
    assert len([each for each in asked if isinstance(each, Subscribe)]) == 1


async def test_publishing_is_cancelled_and_flush_leaves_nothing() -> None:
    """Cancelling a `publish` stops the waiting, not the message."""
    received: list[bytes] = []
    may_answer = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.accept()
        while (packet := await peer.receive()) is not None:
            if isinstance(packet, Publish):
                received.append(packet.payload)
                await may_answer.wait()
                peer.send(Puback(packet_id=packet.packet_id))

    async with asyncio.timeout(WAIT_S), ScriptedServer(script) as server, Client(server.url) as client:
        await cancelled(asyncio.create_task(client.publish("t", "1", qos=1)))
        await cancelled(asyncio.create_task(client.publish_many([("t", "2"), ("t", "3")], qos=1)))
        for _ in range(10):
            await cancelled(asyncio.create_task(client.flush()))
        assert not client._outgoing.room_waiters
        may_answer.set()
        await asyncio.gather(client.flush(), client.flush())
        assert received == [b"1", b"2", b"3"]
        assert client.held_messages == 0


async def test_requests_are_cancelled_and_repeated(server: Server, topic: str) -> None:
    async with asyncio.timeout(WAIT_S), Client(server.url) as client, Client(server.url) as other:
        early = asyncio.create_task(client.request(topic, timeout_s=WAIT_S))
        await asyncio.sleep(0)
        early.cancel()
        await asyncio.gather(early, return_exceptions=True)
        await cancelled(asyncio.create_task(client.request(topic, timeout_s=WAIT_S)))
        with pytest.raises(UsageError):
            await client.request("a/+")
        await asyncio.sleep(0)
        assert not client._requesting._waiting

        async def answer(message: Message) -> None:
            await other.respond(message, b"!" + message.payload)

        await other.subscribe(topic, callback=answer)
        answers = await asyncio.gather(*(client.request(topic, n, timeout_s=WAIT_S) for n in range(5)))
        assert [each.payload for each in answers] == [b"!%d" % n for n in range(5)]


async def test_connecting_is_cancelled_and_repeated(server: Server, topic: str) -> None:
    client = Client(server.url)
    task = asyncio.create_task(client.connect())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    async with asyncio.timeout(WAIT_S):
        for n in range(3):
            await client.connect()
            with pytest.raises(UsageError, match="is connected"):
                await client.connect()
            await client.subscribe(topic, qos=1)
            await client.publish(topic, n, qos=1)
            assert int((await anext(client.messages)).payload) == n
            await asyncio.gather(client.disconnect(), client.disconnect())
            with pytest.raises(DisconnectedError, match="the client is closed"):
                await client.publish(topic)


async def test_a_client_that_could_not_connect_tries_again() -> None:
    port = free_port()
    client = Client(f"mqtt://127.0.0.1:{port}")
    for _ in range(2):
        with pytest.raises(ConnectError, match=str(port)):
            await client.connect()


async def test_a_cancelled_disconnect_is_done_again() -> None:
    async def script(peer: Peer) -> None:
        await peer.accept()
        while await peer.receive() is not None:
            pass

    async with asyncio.timeout(WAIT_S), ScriptedServer(script) as server:
        client = Client(server.url, close_timeout_s=0.2)
        await client.connect()
        client.publish_nowait("t", qos=1)  # never acknowledged
        for _ in range(2):
            await cancelled(asyncio.create_task(client.disconnect()))
        await client.disconnect()
        assert not client.is_connected
        await client.disconnect()


async def test_who_waits_for_a_connection_is_told_that_there_will_be_none() -> None:
    accepts = True

    async def script(peer: Peer) -> None:
        nonlocal accepts
        await peer.accept(Connack(reason=ReasonCode.SUCCESS if accepts else ReasonCode.NOT_AUTHORIZED))
        accepts = False

    async with asyncio.timeout(WAIT_S), ScriptedServer(script) as server:
        client = Client(server.url, **QUICK)
        await client.connect()
        await until(lambda: not client.is_connected)
        await cancelled_or_refused(client)
        with pytest.raises(ServerRefusedError):
            await client.wait_connected()
        await client.disconnect()


async def cancelled_or_refused(client: Client) -> None:
    waiting = [asyncio.create_task(client.wait_connected()) for _ in range(3)]
    waiting[0].cancel()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(each) for each in results] == [asyncio.CancelledError, *[ServerRefusedError] * 2]


# --- what was not sent in time


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_what_is_not_sent_in_time_is_taken_back(own_server: Server, topic: str, qos: int) -> None:
    async with asyncio.timeout(WAIT_S), Client(own_server.url, close_timeout_s=0, **QUICK) as client:
        own_server.kill()
        await until(lambda: not client.is_connected)
        with pytest.raises(AnswerTimeoutError, match="never will be") as raised:
            await client.publish(topic, "open the door", qos=qos, timeout_s=0.05)
        assert raised.value.withdrawn
        assert client.held_messages == 0
        client.publish_nowait(topic, "later", qos=1, retain=True)
        own_server.start()
        await client.wait_connected()
        await client.flush()
        await client.subscribe(topic, qos=1)
        assert (await anext(client.messages)).payload == b"later"


async def test_what_was_sent_and_not_answered_in_time_goes_to_no_new_session() -> None:
    received: list[bytes] = []

    async def script(peer: Peer) -> None:
        await peer.accept()
        while isinstance(packet := await peer.receive(), Publish):
            received.append(packet.payload)
            if packet.payload == b"last":
                peer.send(Puback(packet_id=packet.packet_id))
            elif packet.payload == b"end":
                return  # without an answer to any

    async with (
        asyncio.timeout(WAIT_S),
        ScriptedServer(script) as server,
        Client(server.url, **QUICK) as client,
    ):
        with pytest.raises(AnswerTimeoutError) as raised:
            await client.publish("t", "command", qos=1, timeout_s=0.05)
        assert not raised.value.withdrawn
        client.publish_nowait("t", "end")
        await until(lambda: server.connections >= 2)
        await client.publish("t", "last", qos=1, timeout_s=WAIT_S)
        assert client.held_messages == 0
    assert received == [b"command", b"end", b"last"]


async def test_what_waits_for_room_in_vain_is_not_published() -> None:
    async with asyncio.timeout(WAIT_S), ScriptedServer(_accept_and_read) as server:
        async with Client(server.url, buffer_messages_max=1, close_timeout_s=0) as client:
            client.publish_nowait("t", qos=1)
            with pytest.raises(AnswerTimeoutError) as raised:
                await client.publish("t", qos=1, timeout_s=0.05)
            assert raised.value.withdrawn
            assert client.held_messages == 1


async def _accept_and_read(peer: Peer) -> None:
    await peer.accept()
    while await peer.receive() is not None:
        pass


# --- the program is told of the connection


async def test_a_program_is_told_that_the_connection_is_lost_and_made_again() -> None:
    told: list[ConnectionChange] = []

    async def script(peer: Peer) -> None:
        await peer.accept()
        if server.connections == 1:
            peer.send(Disconnect(reason=ReasonCode.SERVER_SHUTTING_DOWN))
        elif server.connections == 2:
            peer.send(Disconnect(reason=ReasonCode.SESSION_TAKEN_OVER))

    async with asyncio.timeout(WAIT_S), ScriptedServer(script) as server:

        async def tell(change: ConnectionChange) -> None:
            await asyncio.sleep(0.01)
            told.append(change)

        client = Client(server.url, on_connection=tell, **QUICK)
        await client.connect()
        await until(lambda: len(told) >= 4)
        await client.disconnect()
    assert [each.connected for each in told] == [True, False, True, False]
    assert told[0].connack == Connack()
    errors = [told[1].error, told[3].error]
    assert [type(each) for each in errors] == [ServerRefusedError] * 2
    assert [each.reason for each in errors] == [  # type: ignore[union-attr]
        ReasonCode.SERVER_SHUTTING_DOWN,
        ReasonCode.SESSION_TAKEN_OVER,
    ]
    assert [told[1].comes_back, told[3].comes_back] == [True, False]


async def test_a_program_may_end_the_client_when_it_is_told() -> None:
    async def script(peer: Peer) -> None:
        await peer.accept()

    async with asyncio.timeout(WAIT_S), ScriptedServer(script) as server:
        ended = asyncio.Event()

        async def tell(change: ConnectionChange) -> None:
            if not change.connected:
                await client.disconnect()
                ended.set()

        client = Client(server.url, on_connection=tell, **QUICK)
        await client.connect()
        await ended.wait()
        assert not client.is_connected


async def test_what_is_subscribed_to_behind_an_unsubscribe_stays(server: Server, topic: str) -> None:
    """Their answers come after both were asked."""
    async with asyncio.timeout(WAIT_S), Client(server.url) as client:
        await client.subscribe(topic, qos=1)
        ending = asyncio.create_task(client.unsubscribe(topic))
        await asyncio.sleep(0)
        again = asyncio.create_task(client.subscribe(topic, qos=1))
        await ending
        subscription = await again
        assert client._subscribing._active == [subscription]
        messages = subscription.messages
        await client.publish(topic, "x", qos=1)
        assert (await anext(messages)).payload == b"x"
