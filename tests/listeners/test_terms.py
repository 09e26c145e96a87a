"""Listeners that take less than others of the same broker."""

from __future__ import annotations

import asyncio

from conformance.kit import Client as RawClient
from conformance.kit import refused
from conformance.packets import connect
from listeners.conftest import BrokerAt
from waiting import WAIT_S, until

from tidemq.broker import Broker
from tidemq.client import Client


def url_of(broker: Broker, name: str) -> str:
    return f"mqtt://{broker.addresses[name]}"


def announced(client: Client) -> tuple[int | None, bool | None]:
    assert client.connack is not None
    return client.connack.properties.maximum_qos, client.connack.properties.retain_available


async def test_a_listener_has_its_own_maximum_and_another_the_brokers(broker_at: BrokerAt) -> None:
    narrow = {"name": "narrow", "qos_max": 0, "retain_available": False, "client_id_required": True}
    wide = {"name": "wide", "qos_max": 2, "retain_available": True}
    async with broker_at(narrow, wide, {"name": "own"}, qos_max=1) as broker:
        async with asyncio.timeout(WAIT_S), Client(url_of(broker, "wide"), client_id="w") as client:
            assert announced(client) == (None, None)
            await client.publish("kept", "x", qos=2, retain=True)
        async with asyncio.timeout(WAIT_S), Client(url_of(broker, "own")) as client:
            assert announced(client) == (1, None)
        async with asyncio.timeout(WAIT_S), Client(url_of(broker, "narrow"), client_id="n") as client:
            assert announced(client) == (0, False)
            granted = await client.subscribe("kept", qos=2)
            message = await anext(granted.messages)  # what others have retained is there
            assert (message.payload, message.qos) == (b"x", 0)
        await asyncio.to_thread(enter_without_identifier, broker)


def enter_without_identifier(broker: Broker) -> None:
    """Where it has to have one, and where it is given one."""
    ports = [int(broker.addresses[name].rpartition(":")[2]) for name in ("narrow", "wide")]
    raw = RawClient(ports[0])
    raw.send(connect(""))
    refused(raw, 0x85)
    assert RawClient(ports[1]).connect("").get("assigned_client_id")


async def test_payloads_that_are_too_large_are_counted(broker_at: BrokerAt) -> None:
    async with broker_at({"name": "a"}, limits={"payload_bytes_max": 10}) as broker:
        async with asyncio.timeout(WAIT_S), Client(url_of(broker, "a"), client_id="large") as client:
            await client.publish("t", bytes(11))
            await client.publish("t", bytes(10), qos=1)
        await until(lambda: broker.counters()["dropped_payload_too_large"] == 1, "the drop is counted")
        assert broker.counters()["messages_received"] >= 1
