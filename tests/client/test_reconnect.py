"""A lost connection comes back with everything: subscriptions, unacknowledged messages, each as often as it
may."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable
from typing import Any

import pytest
from client.scripted import Peer, ScriptedServer
from client.servers import Server
from waiting import WAIT_S, until

from tidemq.client import Client, DisconnectedError, Message, ReasonCode, ServerRefusedError
from tidemq.client.reconnecting import delay_s
from tidemq.client.settings import Settings
from tidemq.testing import Proxy
from tidemq.wire import (
    Connack,
    Disconnect,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
)

QUICK: dict[str, Any] = {"backoff_s_min": 0.01, "backoff_s_max": 0.05}


async def test_a_broker_is_killed_and_comes_back(own_server: Server, topic: str) -> None:
    """What is published meanwhile arrives, and subscriptions are there again, though the broker forgot
    all."""
    async with asyncio.timeout(WAIT_S), Client(own_server.url, **QUICK) as client:
        subscription = await client.subscribe(f"{topic}/#", qos=1)
        await client.publish(f"{topic}/before", qos=1)
        own_server.kill()
        await until(lambda: not client.is_connected)
        receipts = [client.publish_nowait(f"{topic}/{n}", qos=n % 3) for n in range(9)]
        asking = asyncio.create_task(client.subscribe(f"{topic}x", qos=2))
        await asyncio.sleep(0.1)
        assert not any(each.done for each in receipts)
        assert not asking.done()
        own_server.start()
        await asyncio.gather(*(each.acknowledged for each in receipts))
        assert (await asking).granted_qos == (2,)
        await client.publish(f"{topic}x", qos=2)
        got = {(await anext(client.messages)).topic for _ in range(11)}
        assert got == {f"{topic}/before", f"{topic}x", *(f"{topic}/{n}" for n in range(9))}
        assert subscription.granted_qos == (1,)


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [1, 2])
async def test_cuts_anywhere_lose_nothing(
    server: Server, proxy: Proxy, topic: str, version: int, qos: int
) -> None:
    """Both directions through a proxy that cuts after a random number of bytes: QoS 1 at least once, 2
    exactly once."""
    seed = random.randrange(1 << 32)
    choose = random.Random(seed)
    count = 400
    options: dict[str, Any] = {"version": version, "clean_start": False, "inflight_max": 20, **QUICK}
    publisher = Client(proxy.url, client_id=f"pub{seed}", **options)
    receiver = Client(proxy.url, client_id=f"sub{seed}", receive_max=20, **options)
    got: list[int] = []
    repeated: list[Message] = []
    proxy.accept_delay_s = 0.02

    async def receive() -> None:
        async for message in receiver.messages:
            if int(message.payload) in got:
                repeated.append(message)
            else:
                got.append(int(message.payload))

    async with asyncio.timeout(WAIT_S), receiver, publisher:
        await receiver.subscribe(topic, qos=qos)
        taking = asyncio.create_task(receive())
        receipts = []
        for n in range(count):
            receipts.append(publisher.publish_nowait(topic, str(n), qos=qos))
            if n % 40 == 0:
                proxy.cut_after_bytes = choose.randrange(200, 3000)
                proxy.cut()
            await asyncio.sleep(0.001)
        proxy.cut_after_bytes = None
        await asyncio.gather(*(each.acknowledged for each in receipts))
        await until(lambda: len(got) >= count)
        await asyncio.sleep(0.1)
        taking.cancel()
        await asyncio.wait([taking])
        await receiver.disconnect(properties=Properties(session_expiry_s=0) if version == 5 else Properties())
    assert proxy.connections > 10, seed
    assert sorted(got) == list(range(count)), seed
    if qos == 2:
        assert got == sorted(got), seed
        # Mosquitto 2.0.11 now and then sends PUBLISH again, as a duplicate, after its PUBREL
        assert not [each for each in repeated if server.name != "mosquitto" or not each.dup], seed


async def test_resent_messages_are_marked_and_in_order() -> None:
    """PUBLISH again with DUP and the same identifier, PUBREL where PUBREC had come, then what is new."""
    seen: list[Any] = []
    second = asyncio.Event()

    async def script(peer: Peer) -> None:
        connect = await peer.accept(Connack(session_present=bool(seen)))
        assert connect.clean_start == (not seen)
        if not seen:
            for _ in range(3):
                packet = await peer.receive()
                seen.append(packet)
            peer.send(Pubrec(packet_id=seen[1].packet_id))
            assert isinstance(await peer.receive(), Pubrel)
            return
        for _ in range(3):
            seen.append(await peer.receive())
        second.set()
        seen.append(await peer.receive())
        peer.send(Puback(packet_id=seen[3].packet_id), Pubcomp(packet_id=seen[4].packet_id))
        peer.send(Pubrec(packet_id=seen[5].packet_id), Puback(packet_id=seen[6].packet_id))
        peer.send(Pubcomp(packet_id=(await peer.receive()).packet_id))
        await peer.receive()

    async with asyncio.timeout(WAIT_S), ScriptedServer(script) as server:
        async with Client(server.url, **QUICK) as client:
            receipts = [client.publish_nowait(f"t/{n}", qos=qos) for n, qos in enumerate((1, 2, 2))]
            await second.wait()
            receipts.append(client.publish_nowait("t/new", qos=1))
            await asyncio.gather(*(each.acknowledged for each in receipts))
        assert [each.dup for each in seen[:3]] == [False] * 3
        assert [each.packet_id for each in seen[3:6]] == [each.packet_id for each in seen[:3]]
        assert [type(each) for each in seen[3:]] == [Publish, Pubrel, Publish, Publish]
        assert [each.dup for each in seen[3:] if isinstance(each, Publish)] == [True, True, False]


async def test_a_session_that_is_gone_gets_messages_as_new() -> None:
    seen: list[Publish] = []

    async def script(peer: Peer) -> None:
        await peer.accept()
        while isinstance(packet := await peer.receive(), Publish):
            seen.append(packet)
            if len(seen) == 2:
                return
            if len(seen) > 2:
                peer.send(Puback(packet_id=packet.packet_id))

    async with asyncio.timeout(WAIT_S), ScriptedServer(script) as server:
        async with Client(server.url, **QUICK) as client:
            receipts = [client.publish_nowait(f"t/{n}", qos=1) for n in range(2)]
            await asyncio.gather(*(each.acknowledged for each in receipts))
    assert [(each.topic, each.dup) for each in seen] == [("t/0", False), ("t/1", False)] * 2


async def test_a_duplicate_of_qos_2_is_not_delivered_again() -> None:
    async def script(peer: Peer) -> None:
        first = not server.connections > 1
        await peer.accept(Connack(session_present=not first))
        for _ in range(2):
            peer.send(Publish(topic="t", payload=b"once", qos=2, packet_id=7, dup=not first))
        answer = await peer.receive()
        assert isinstance(answer, Pubrec)
        if first:
            return  # PUBREC was lost, as far as the server knows
        peer.send(Pubrel(packet_id=7))
        while not isinstance(answer, Pubcomp):
            answer = await peer.receive()
        peer.send(Publish(topic="t", payload=b"next", qos=2, packet_id=7))
        while await peer.receive() is not None:
            pass

    async with asyncio.timeout(WAIT_S), ScriptedServer(script) as server:
        async with Client(server.url, **QUICK) as client:
            assert [(await anext(client.messages)).payload for _ in range(2)] == [b"once", b"next"]
            await asyncio.sleep(0.05)
            assert client.messages.take_nowait() == []


async def test_subscriptions_are_made_anew_only_where_they_are_gone() -> None:
    asked: list[list[str]] = []

    async def script(peer: Peer) -> None:
        await peer.accept(Connack(session_present=server.connections == 2))
        asked.append([])
        if server.connections != 2:
            packet = await peer.receive()
            assert isinstance(packet, Subscribe)
            asked[-1] = [each.filter for each in packet.subscriptions]
            peer.send(Suback(packet_id=packet.packet_id, reasons=(1,)))
        peer.send(Publish(topic="a/b", payload=str(server.connections).encode()))
        if server.connections == 3:
            await peer.receive()

    async with asyncio.timeout(WAIT_S), ScriptedServer(script) as server:
        async with Client(server.url, **QUICK) as client:
            subscription = await client.subscribe("a/+", qos=1)
            assert [(await anext(subscription.messages)).payload for _ in range(3)] == [b"1", b"2", b"3"]
    assert asked == [["a/+"], [], ["a/+"]]


@pytest.mark.parametrize("reason", [ReasonCode.SESSION_TAKEN_OVER, ReasonCode.NOT_AUTHORIZED])
async def test_some_reasons_are_final(reason: ReasonCode) -> None:
    async def script(peer: Peer) -> None:
        await peer.accept()
        await peer.receive()
        peer.send(Disconnect(reason=reason, properties=Properties(reason_string="because")))

    async with asyncio.timeout(WAIT_S), ScriptedServer(script) as server:
        client = Client(server.url, **QUICK)
        await client.connect()
        receipt = client.publish_nowait("t", qos=1)
        with pytest.raises(ServerRefusedError, match="because") as caught:
            await anext(client.messages)
        assert caught.value.reason == reason
        with pytest.raises(ServerRefusedError):
            await receipt.acknowledged
        with pytest.raises(ServerRefusedError):
            await client.publish("t")
        with pytest.raises(ServerRefusedError):
            await client.subscribe("t")
        await client.disconnect()
        await asyncio.sleep(0.1)
        assert server.connections == 1


async def test_a_client_taken_over_by_its_name(running: dict[str, Server], topic: str) -> None:
    """Mosquitto 2.0.11 closes the connection without a word: two clients of one name take it from each
    other."""
    server = running["tidemq"]
    async with Client(server.url, client_id=topic.replace("/", "-")) as first:
        async with Client(server.url, client_id=first.client_id):
            with pytest.raises(ServerRefusedError, match="taken over"):
                await anext(first.messages)


async def test_back_off_has_jitter_and_a_bound() -> None:
    settings = Settings(backoff_s_min=1, backoff_s_max=10)
    for attempt, bound_s in ((1, 1), (2, 2), (3, 4), (4, 8), (5, 10), (500, 10)):
        delays = [delay_s(settings, attempt) for _ in range(300)]
        assert min(delays) < 0.2 * bound_s
        assert 0.8 * bound_s < max(delays) <= bound_s


async def test_the_first_attempt_is_repeated_on_demand(own_server: Server) -> None:
    own_server.kill()
    client = Client(own_server.url, retry_first=True, **QUICK)
    connecting = asyncio.create_task(client.connect())
    await asyncio.sleep(0.2)
    assert not connecting.done()
    own_server.start()
    async with asyncio.timeout(WAIT_S):
        await connecting
        await client.publish("a", qos=1)
    await client.disconnect()


async def test_without_reconnecting_the_end_is_an_error(server: Server, proxy: Proxy, topic: str) -> None:
    async with asyncio.timeout(WAIT_S):
        async with Client(proxy.url, reconnect=False) as client:
            proxy.stall()
            receipts = [client.publish_nowait(topic, qos=qos) for qos in (1, 2)]
            subscribing = asyncio.create_task(client.subscribe(topic))
            asking = asyncio.create_task(client.request(topic))
            await asyncio.sleep(0.05)
            proxy.cut()
            answers: list[Awaitable[Any]] = [*(each.acknowledged for each in receipts), subscribing, asking]
            for waiting in answers:
                with pytest.raises(DisconnectedError, match=str(proxy.port)):
                    await waiting
            with pytest.raises(DisconnectedError):
                await anext(client.messages)


async def test_a_receipt_of_qos_0_that_never_left(server: Server, topic: str) -> None:
    async with Proxy(server.port) as proxy, asyncio.timeout(WAIT_S), Client(proxy.url, **QUICK) as client:
        proxy.stall()
        receipts = [client.publish_nowait(topic, b"x" * 100_000) for _ in range(200)]
        sent = [each.sent for each in receipts]
        await asyncio.sleep(0.1)
        assert sent[0].done()
        assert not sent[-1].done()
        proxy.resume()
        proxy.cut()
        done = await asyncio.gather(*sent, return_exceptions=True)
        assert done[0] is None
        assert any(isinstance(each, DisconnectedError) for each in done)
        assert all(each is None or isinstance(each, DisconnectedError) for each in done)
