"""A message that the other side does not take holds up nothing behind it, unless it may be taken later."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from bridge.kit import bridge_to, broker_with, config_with, connected, figures, mosquitto, take, url_of
from client.servers import Server
from waiting import until

from tidemq import Broker
from tidemq.client import Client
from tidemq.wire import Connect, Properties, Publish, encode

FAST: dict[str, Any] = {"reconnect_s": 0.1, "reconnect_max_s": 0.1}


@pytest.mark.parametrize("qos", [1, 2])
async def test_over_what_the_other_side_ends_the_connection_is_found_and_passed_by(
    place: str, qos: int
) -> None:
    """Topics with more levels than are taken there: DISCONNECT, and nobody says for which message."""
    async with Broker(config_with(limits={"topic_levels_max": 3})) as far, Client(url_of(far)) as there:
        bridge = bridge_to(url_of(far), {"filter": "#", "qos": 2}, client_id=place, **FAST)
        async with broker_with(bridge) as broker, Client(url_of(broker)) as here:
            await connected(broker)
            await there.subscribe("#", qos=2)
            deep = {b"3", b"7"}
            payloads = [b"%d" % number for number in range(10)]
            await here.publish_many(
                [("a/b/c/d" if each in deep else "a", each) for each in payloads], qos=qos
            )
            found: list[bytes] = []
            async for message in there.messages:
                found.append(message.payload)
                if message.payload == b"9":
                    break
            wanted = [each for each in payloads if each not in deep]
            assert list(dict.fromkeys(found)) == wanted
            if qos == 2:
                assert found == wanted
            await until(lambda: figures(broker).queued_messages == 0, "the queue is empty")
            await until(lambda: broker.counters()["dropped_bridge_refused"] == len(deep), "it is counted")


async def test_a_payload_that_is_too_large_there_is_passed_by(place: str) -> None:
    async with Broker(config_with(limits={"payload_bytes_max": 10})) as far, Client(url_of(far)) as there:
        bridge = bridge_to(url_of(far), {"filter": "#", "qos": 2}, client_id=place)
        async with broker_with(bridge) as broker, Client(url_of(broker)) as here:
            await connected(broker)
            await there.subscribe("#", qos=1)
            await here.publish_many([("a", bytes(11)), ("a", b"next")], qos=1)
            assert await take(there, 1) == [("a", b"next")]
            await until(lambda: broker.counters()["dropped_bridge_refused"] == 1, "it is counted")
            assert figures(broker).status.failures == 0


async def test_a_payload_that_is_too_large_here_is_passed_by(place: str) -> None:
    async with Broker(config_with()) as far, Client(url_of(far)) as there:
        topic = {"filter": "#", "direction": "in", "qos": 2}
        bridge = bridge_to(url_of(far), topic, client_id=place)
        async with broker_with(bridge, limits={"payload_bytes_max": 10}) as broker:
            await connected(broker)
            async with Client(url_of(broker)) as here:
                await here.subscribe("#", qos=1)
                await there.publish_many([("a", bytes(11)), ("a", b"next")], qos=2)
                assert await take(here, 1) == [("a", b"next")]
            await until(lambda: broker.counters()["dropped_payload_too_large"] == 1, "it is counted")
            assert figures(broker).status.failures == 0


@pytest.mark.parametrize("version", ["3.1.1", "5.0"])
async def test_what_mosquitto_takes_no_more_of_is_passed_by(
    tmp_path: Path, install: object, place: str, version: str
) -> None:
    far = mosquitto(tmp_path, "message_size_limit 10\n").start()
    bridge = bridge_to(far.url, {"filter": "#", "qos": 2}, client_id=place, protocol_version=version)
    try:
        async with broker_with(bridge) as broker, Client(url_of(broker)) as here, Client(far.url) as there:
            await connected(broker)
            await there.subscribe("a", qos=1)
            await here.publish_many([("a", bytes(11)), ("a", b"next")], qos=1)
            assert await take(there, 1) == [("a", b"next")]
            await until(lambda: figures(broker).queued_messages == 0, "the queue is empty")
            # to 3.1.1 it looks taken; Mosquitto ends the connection all the same
            dropped = int(version == "5.0")
            await until(lambda: broker.counters()["dropped_bridge_refused"] == dropped, "it is counted")
    finally:
        far.kill()


async def test_packets_above_a_limit_of_ours_are_passed_by(far: Server, place: str) -> None:
    """For a 3.1.1 broker, which cannot say how large they may be."""
    topic = {"filter": f"{place}/#", "qos": 1}
    limit: dict[str, Any] = {"packet_bytes_max": 1000, "protocol_version": "3.1.1"}
    bridge = bridge_to(far.url, topic, client_id=place, **limit)
    async with broker_with(bridge) as broker, Client(url_of(broker)) as here, Client(far.url) as there:
        await connected(broker)
        await there.subscribe(f"{place}/#", qos=1)
        await here.publish_many([(f"{place}/a", bytes(1000)), (f"{place}/a", b"next")], qos=1)
        assert await take(there, 1) == [(f"{place}/a", b"next")]
        await until(lambda: broker.counters()["dropped_bridge_unfit"] == 1, "it is counted")


async def test_what_may_be_taken_later_is_passed_by_after_the_time_that_is_given(place: str) -> None:
    full = config_with(queue_full="reject", limits={"queued_messages_max": 20})
    async with Broker(full) as far, Client(url_of(far)) as there:
        async with Client(url_of(far), client_id="slow", clean_start=False, session_expiry_s=1000) as slow:
            await slow.subscribe("slow", qos=1)
        await there.publish_many([("slow", b"fills")] * 20, qos=1)
        bridge = bridge_to(
            url_of(far), {"filter": "#", "qos": 1}, client_id=place, refused_retry_s=0.2, **FAST
        )
        async with broker_with(bridge) as broker, Client(url_of(broker)) as here:
            await connected(broker)
            await there.subscribe("other", qos=1)
            await here.publish_many([("slow", b"1"), ("other", b"2"), ("slow", b"3"), ("other", b"4")], qos=1)
            found: list[bytes] = []
            async for message in there.messages:
                found.append(message.payload)
                if message.payload == b"4" and broker.counters()["dropped_bridge_refused"] == 2:
                    break
            assert set(found) == {b"2", b"4"}
            await until(lambda: figures(broker).queued_messages == 0, "the queue is empty")


async def test_a_broker_that_takes_no_qos_above_0_is_bridged_without_a_will(place: str) -> None:
    """The will says that the bridge is gone, and has QoS 1."""
    listener: dict[str, Any] = {"name": "low", "host": "127.0.0.1", "port": 0, "qos_max": 0}
    async with Broker(config_with(listeners=[listener])) as far:
        url = f"mqtt://{far.addresses['low']}"
        async with broker_with(bridge_to(url, {"filter": "#"}, client_id=place)) as broker:
            await connected(broker)
            async with Client(url_of(broker)) as here, Client(url_of(far)) as there:
                await there.subscribe("a")
                await here.publish("a", b"1", qos=1)
                assert await take(there, 1) == [("a", b"1")]


async def test_a_topic_behind_an_alias_may_make_a_packet_larger_than_clients_may_send(
    far: Server, place: str
) -> None:
    """The limit is for what clients send; what the own broker delivers has all of the topic."""
    topic, alias = f"{place}/{'t' * 900}", Properties(topic_alias=1)
    bridge = bridge_to(far.url, {"filter": f"{place}/#", "qos": 1}, client_id=place)
    async with broker_with(bridge, limits={"packet_bytes_max": 1100}) as broker, Client(far.url) as there:
        await connected(broker)
        await there.subscribe(f"{place}/#", qos=1)
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
        writer.write(encode(Connect(version=5, client_id="alias"), 5))
        await reader.read(100)
        for number, (name, payload) in enumerate([(topic, b"1"), ("", bytes(1000))], 1):
            packet = Publish(topic=name, payload=payload, qos=1, packet_id=number, properties=alias)
            writer.write(encode(packet, 5))
        assert await take(there, 2) == [(topic, b"1"), (topic, bytes(1000))]
        writer.close()
        assert figures(broker).status.failures == 0
