"""What becomes of messages where one of the two brokers has lost its session of the bridge, or has to have
another.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from bridge.kit import (
    bridge_to,
    broker_with,
    config_with,
    connected,
    figures,
    take,
    url_of,
)
from client.scripted import Peer, ScriptedServer
from client.servers import Server
from waiting import until

from tidemq import Broker
from tidemq.client import Client
from tidemq.engine.door.figures import Inquiry, InquiryKind
from tidemq.wire import Connack, Pubcomp, Publish, Pubrec, Pubrel, Suback, Subscribe

IN = {"filter": "#", "direction": "in", "qos": 2}
OUT = {"filter": "#", "direction": "out", "qos": 2}


async def answer_subscribe(peer: Peer) -> None:
    packet = await peer.receive()
    assert isinstance(packet, Subscribe)
    peer.send(Suback(packet_id=packet.packet_id, reasons=(2,) * len(packet.subscriptions)))


async def received(peer: Peer, kind: type) -> Any:
    """The next packet of this kind."""
    while (packet := await peer.receive()) is not None:
        if isinstance(packet, kind):
            return packet
    raise AssertionError(f"the bridge has gone, and no {kind.__name__} has come")


async def test_a_new_message_with_an_identifier_from_before_is_no_copy(place: str) -> None:
    """The other side has lost its session between PUBREC and PUBREL, and begins with identifier 1 again."""
    payloads = [b"before", b"after"]
    somebody_listens = asyncio.Event()

    async def far(peer: Peer) -> None:
        await peer.accept(Connack(session_present=False))
        await answer_subscribe(peer)
        await somebody_listens.wait()
        if payloads:
            peer.send(Publish(topic="a", payload=payloads.pop(0), qos=2, packet_id=1))
        if payloads:
            await received(peer, Pubrec)
        else:  # who waits for the last message may end everything before the bridge has said PUBREC
            while await peer.receive() is not None:
                pass

    async with ScriptedServer(far) as server:
        bridge = bridge_to(server.url, IN, client_id=place, notifications=False)
        async with broker_with(bridge) as broker, broker.subscribe("a") as messages:
            somebody_listens.set()
            found = [(await anext(messages)).payload for _ in range(2)]
            assert found == [b"before", b"after"]


async def test_the_other_side_takes_no_new_message_for_one_of_a_session_that_is_gone(place: str) -> None:
    """The own session is ended between PUBREC and PUBREL: of identifier 1, the other side knows a message."""
    taken: list[list[Any]] = []  # payloads of each connection

    async def far(peer: Peer) -> None:
        await peer.accept(Connack(session_present=bool(taken)))
        known = {1} if taken else set()  # whose message it has
        taken.append([])
        while (packet := await peer.receive()) is not None:
            if isinstance(packet, Pubrel):
                if len(taken) == 1:
                    return
                known.discard(packet.packet_id)
                peer.send(Pubcomp(packet_id=packet.packet_id))
            if isinstance(packet, Publish):
                assert packet.packet_id == 1
                taken[-1] += [packet.payload] if packet.packet_id not in known else []
                peer.send(Pubrec(packet_id=1))

    async with ScriptedServer(far) as server:
        bridge = bridge_to(
            server.url, OUT, client_id=place, notifications=False, reconnect_s=0.5, reconnect_max_s=0.5
        )
        async with broker_with(bridge) as broker, Client(url_of(broker)) as here:
            await connected(broker)
            await here.publish("a", b"before", qos=2)
            await until(lambda: figures(broker).status.failures == 1, "the other side has gone")
            assert broker.monitor is not None
            await broker.monitor.questions.ask(0, Inquiry(kind=InquiryKind.END, text="$bridge/far"))
            await until(lambda: _is_subscribed(broker), "it has come back, with a new session")
            await here.publish("a", b"after", qos=2)
            await until(lambda: any(b"after" in each for each in taken), "the new message is taken")


async def _is_subscribed(broker: Broker) -> bool:
    assert broker.monitor is not None
    found = await broker.monitor.clients.one("$bridge/far")
    return found is not None and found.figures.subscriptions > 0


@pytest.mark.parametrize("change", ["qos", "version"])
async def test_a_change_of_how_a_filter_is_subscribed_to_reaches_the_other_side(
    far: Server, place: str, change: str
) -> None:
    topic = {"filter": f"{place}/#", "direction": "both", "qos": 0 if change == "qos" else 1}
    first = bridge_to(far.url, topic, client_id=place, try_private=False, protocol_version="3.1.1")
    second = first | ({"topics": ({**topic, "qos": 1},)} if change == "qos" else {"protocol_version": "5.0"})
    configs = [config_with(first)]
    async with Broker(configs[-1], reread=lambda: configs[-1]) as broker:
        await connected(broker)
        configs.append(config_with(second))
        assert (await broker.reload())["bridges"] == ""
        await connected(broker)
        async with Client(far.url) as there, Client(url_of(broker)) as here:
            await here.subscribe(f"{place}/#", qos=1)
            await there.publish(f"{place}/in", b"1", qos=1)
            message = await anext(here.messages)
            assert (message.payload, message.qos) == (b"1", 1)
            if change == "version":  # No Local, which 3.1.1 has not
                await here.publish(f"{place}/out", b"2", qos=1)
                await there.publish(f"{place}/in", b"3", qos=1)
                assert [payload for _, payload in await take(here, 2)] == [b"2", b"3"]
                await until(lambda: figures(broker).counts["messages_in"] == 2, "both are counted")
