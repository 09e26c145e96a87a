"""A Mosquitto that stays keeps its own bridge, unchanged, to the broker that is TideMQ now."""

from __future__ import annotations

from pathlib import Path

import pytest
from bridge.kit import bridge_to, config_with, connected, figures, mosquitto, take, url_of
from waiting import until

from tidemq import Broker
from tidemq.bridge.relay import HOPS
from tidemq.client import Client
from tidemq.testing.ports import free_port

# without a limit it would say that its Receive Maximum is 0, which MQTT forbids
SETTINGS = """
max_inflight_messages 100
connection {name}
address 127.0.0.1:{port}
remote_clientid {name}
restart_timeout 1
bridge_protocol_version {version}
"""
VERSIONS = ["mqttv50", pytest.param("mqttv311", marks=pytest.mark.long)]  # which comes at its second attempt
RULES = "allow all in/#\nallow all out/#\n"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("rules", ["", RULES], ids=["without rules", "with rules"])
async def test_messages_cross_and_its_state_is_seen(
    tmp_path: Path, install: object, place: str, version: str, rules: str
) -> None:
    state = f"$SYS/broker/connection/{place}/state"
    acl = tmp_path / "rules.acl"
    acl.write_text(rules + "allow subscribe $SYS/#\n")
    settings = (
        SETTINGS.format(name=place, version=version, port="{port}") + "topic in/# in 1\ntopic out/# out 1\n"
    )
    async with (
        Broker(config_with(**({"acl_file": acl} if rules else {}))) as broker,
        Client(url_of(broker)) as here,
    ):
        await here.subscribe(state)
        await here.subscribe("out/#", qos=1)
        far = mosquitto(tmp_path, settings.format(port=broker.port)).start()
        try:
            if not rules:
                assert await take(here, 1) == [(state, b"1")]
            async with Client(far.url) as there:
                await there.subscribe("in/#", qos=1)
                await there.publish("out/a", b"2", qos=1)
                assert await take(here, 1) == [("out/a", b"2")]
                await until(lambda: broker.counters()["subscriptions"] >= 3, "its bridge has subscribed")
                await here.publish("in/a", b"3", qos=1)
                assert await take(there, 1) == [("in/a", b"3")]
        finally:
            far.kill()
        if not rules:
            assert await take(here, 1) == [(state, b"0")]  # its will


async def test_a_ring_with_a_mosquitto_and_its_bridge_ends(
    tmp_path: Path, install: object, place: str
) -> None:
    """One, Mosquitto, two, one: Mosquitto's bridge passes the count of bridges on, and does not count."""
    ports = [free_port() for _ in range(2)]
    topic = {"filter": f"{place}/#", "qos": 1}
    settings = SETTINGS.format(name=f"{place}m", version="mqttv50", port=ports[1])
    far = mosquitto(tmp_path, f"{settings}topic {place}/# out 1\n")
    ring = [bridge_to(url, topic, client_id=f"{place}{url[-1]}", hops_max=4) for url in (
        far.url, f"mqtt://127.0.0.1:{ports[0]}"
    )]  # fmt: skip
    try:
        async with (
            Broker(config_with(ring[0], port=ports[0])) as one,
            Broker(config_with(ring[1], port=ports[1])) as two,
            Client(url_of(one)) as here,
            Client(url_of(two)) as there,
        ):
            far.start()
            await connected(one)
            await connected(two)
            state = f"$SYS/broker/connection/{place}m/state"
            await there.subscribe(state)
            assert await take(there, 1) == [(state, b"1")]
            await here.subscribe(f"{place}/#", qos=1)
            await here.publish(f"{place}/x", b"1", qos=1)
            hops = []
            for _ in range(3):
                message = await anext(here.messages)
                hops.append(dict(message.properties.user_properties).get(HOPS))
            assert hops == [None, "2", "4"]  # as it was published, and twice round the ring
            await until(lambda: one.counters()["dropped_bridge_hops"] == 1, "it ends")
            assert [figures(each).counts["messages_out"] for each in (one, two)] == [2, 2]
    finally:
        far.kill()
