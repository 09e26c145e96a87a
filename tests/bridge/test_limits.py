"""What clients are limited in, bridges are not: they bring what another broker has accepted."""

from __future__ import annotations

from bridge.kit import (
    bridge_to,
    broker_with,
    connected,
    figures,
    take,
    take_until,
    url_of,
)
from client.servers import Server
from waiting import until

from tidemq.client import Client
from tidemq.testing import Proxy
from tidemq.testing.ports import free_port

OUT = {"filter": "#", "direction": "out", "qos": 2}


async def test_how_long_sessions_may_last_does_not_bind_a_bridge(place: str) -> None:
    """Else its queue would be gone an hour after the other side."""
    limits = {"session_expiry_s_max": 3600}
    unreachable = f"mqtt://127.0.0.1:{free_port()}"
    async with broker_with(bridge_to(unreachable, OUT, client_id=place), limits=limits) as broker:
        assert broker.monitor is not None
        found = await broker.monitor.clients.one("$bridge/far")
        assert found is not None
        assert found.figures.session_expiry_s == 0xFFFFFFFF
        async with Client(url_of(broker)) as here:
            await here.publish("a", b"0")  # of QoS 0 nothing is kept
            await here.publish("a", b"1", qos=1)
        await until(lambda: figures(broker).queued_messages == 1)


async def test_a_bridge_may_come_more_often_send_more_and_be_silent_for_longer_than_clients(
    far: Server, place: str
) -> None:
    limits = {"flapping_connects_max": 2, "client_messages_per_s": 1, "keep_alive_s_max": 5}
    async with Proxy(far.port) as proxy:
        topic = {"filter": f"{place}/#", "direction": "in", "qos": 1}
        bridge = bridge_to(proxy.url, topic, client_id=place)
        async with broker_with(bridge, limits=limits) as broker:
            for count in range(1, 5):
                await until(lambda count=count: figures(broker).status.connects >= count)  # type: ignore[misc]
                proxy.cut()
            await connected(broker)
            async with Client(far.url) as there, Client(url_of(broker)) as here:
                await here.subscribe(f"{place}/#", qos=1)
                await until(lambda: figures(broker).status.is_connected)
                payloads = [b"%d" % number for number in range(200)]
                await there.publish_many([(f"{place}/a", each) for each in payloads], qos=1)
                assert [payload for _, payload in await take(here, len(payloads))] == payloads
            assert broker.counters()["refused_flapping"] == 0
            assert broker.monitor is not None
            found = await broker.monitor.clients.one("$bridge/far")
            assert found is not None
            assert (found.figures.connected, found.figures.keep_alive_s) == (True, 0)


async def test_more_qos_2_messages_than_clients_may_send_at_once(own_far: Server, place: str) -> None:
    """3.1.1 has no Receive Maximum: the other side sends all that it has."""
    own_far.start()
    topic = {"filter": "#", "direction": "in", "qos": 2}
    bridge = bridge_to(own_far.url, topic, client_id=place, protocol_version="3.1.1")
    async with broker_with(bridge, limits={"receive_max": 2}) as broker, Client(own_far.url) as there:
        await connected(broker)
        async with Client(url_of(broker)) as here:
            await here.subscribe("a", qos=2)
            payloads = [b"%d" % number for number in range(500)]
            await there.publish_many([("a", each) for each in payloads], qos=2)
            assert await take_until(here, lambda found: len(found) == len(payloads)) == payloads
        assert figures(broker).status.failures == 0
