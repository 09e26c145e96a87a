"""Messages cross between TideMQ and Mosquitto, in both directions, at every QoS and with both versions."""

from __future__ import annotations

from pathlib import Path

import pytest
from bridge.kit import bridge_to, broker_with, connected, figures, take, url_of
from client.servers import Server
from waiting import until

from tidemq.client import Client
from tidemq.wire import Properties

VERSIONS = ("3.1.1", "5.0")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_messages_cross_both_ways_with_other_prefixes(
    far: Server, place: str, version: str, qos: int
) -> None:
    topic = {"filter": "#", "direction": "both", "qos": 2}
    topic |= {"local_prefix": "here/", "remote_prefix": f"{place}/"}
    bridge = bridge_to(far.url, topic, protocol_version=version, client_id=place)
    async with (
        broker_with(bridge) as broker,
        Client(url_of(broker)) as here,
        Client(far.url) as there,
    ):
        await connected(broker)
        await here.subscribe("here/#", qos=2)
        await there.subscribe(f"{place}/#", qos=2)
        await here.publish("here/out/a", b"1", qos=qos)
        assert (await take(here, 1), await take(there, 1)) == (
            [("here/out/a", b"1")],
            [(f"{place}/out/a", b"1")],
        )
        await there.publish(f"{place}/in/b", b"2", qos=qos)
        assert (await take(there, 1), await take(here, 1)) == (
            [(f"{place}/in/b", b"2")],
            [("here/in/b", b"2")],
        )
        # neither came back: what follows is the next that each side sees
        await here.publish("here/end", b"3", qos=1)
        assert (await take(here, 1), await take(there, 1)) == ([("here/end", b"3")], [(f"{place}/end", b"3")])
        counts = figures(broker).counts
        assert (counts["messages_out"], counts["messages_in"]) == (2, 1)


async def test_a_bridge_s_filters_keep_their_names(far: Server, place: str, tmp_path: Path) -> None:
    """Whatever topic rules say: by another name it would not know what to pass on."""
    rules = tmp_path / "topics.toml"
    rules.write_text(f'[[rewrite]]\nfilter = "{place}/#"\nto = "other/$1"\naction = "subscribe"\n')
    bridge = bridge_to(far.url, {"filter": f"{place}/#", "direction": "out", "qos": 1}, client_id=place)
    async with (
        broker_with(bridge, topic_rules_file=rules) as broker,
        Client(url_of(broker)) as here,
        Client(far.url) as there,
    ):
        await connected(broker)
        await there.subscribe(f"{place}/#", qos=1)
        await here.publish(f"{place}/x", b"1", qos=1)
        assert await take(there, 1) == [(f"{place}/x", b"1")]


async def test_many_messages_come_in_order_and_once(far: Server, place: str) -> None:
    bridge = bridge_to(far.url, {"filter": f"{place}/#", "qos": 2}, client_id=place)
    async with broker_with(bridge) as broker, Client(url_of(broker)) as here, Client(far.url) as there:
        await connected(broker)
        await there.subscribe(f"{place}/#", qos=2)
        payloads = [b"%d" % number for number in range(3000)]
        await here.publish_many([(f"{place}/{len(each)}", each) for each in payloads], qos=2)
        assert [payload for _, payload in await take(there, len(payloads))] == payloads


async def test_properties_cross_with_5_0(far: Server, place: str) -> None:
    bridge = bridge_to(far.url, {"filter": f"{place}/#", "direction": "out", "qos": 1}, client_id=place)
    async with broker_with(bridge) as broker, Client(url_of(broker)) as here, Client(far.url) as there:
        await connected(broker)
        await there.subscribe(f"{place}/#", qos=1)
        given = Properties(content_type="text/plain", correlation_data=b"c", user_properties=(("a", "b"),))
        await here.publish(f"{place}/x", b"1", qos=1, properties=given)
        message = await anext(there.messages)
        assert message.properties.content_type == "text/plain"
        assert message.properties.correlation_data == b"c"
        assert message.properties.user_properties == (("a", "b"), ("tidemq-hops", "1"))


@pytest.mark.parametrize("retains", [True, False])
async def test_retained_messages_cross_as_such_unless_told_otherwise(
    far: Server, place: str, retains: bool
) -> None:
    topic = {"filter": f"{place}/#", "direction": "out", "qos": 1}
    bridge = bridge_to(far.url, topic, outgoing_retain=retains, client_id=place)
    async with broker_with(bridge) as broker, Client(url_of(broker)) as here:
        await connected(broker)
        await here.publish(f"{place}/old", b"1", qos=1, retain=True)
        await until(lambda: figures(broker).counts["messages_out"] == 1)
        async with Client(far.url) as there:
            await here.publish(f"{place}/probe", b"2", qos=1)
            await until(lambda: figures(broker).counts["messages_out"] == 2)
            await there.subscribe(f"{place}/#", qos=1)
            await there.publish(f"{place}/end", b"3", qos=1)
            came = await take(there, 2 if retains else 1)
        assert came == ([(f"{place}/old", b"1")] if retains else []) + [(f"{place}/end", b"3")]


async def test_a_topic_may_have_another_name_at_the_other_side(far: Server, place: str) -> None:
    topic = {"filter": "", "qos": 1, "local_prefix": "temperature", "remote_prefix": f"{place}/t"}
    bridge = bridge_to(far.url, topic, client_id=place)
    async with broker_with(bridge) as broker, Client(url_of(broker)) as here, Client(far.url) as there:
        await connected(broker)
        await there.subscribe(f"{place}/#", qos=1)
        await here.publish("temperature/inner", b"0", qos=1)
        await here.publish("temperature", b"1", qos=1)
        assert await take(there, 1) == [(f"{place}/t", b"1")]


@pytest.mark.parametrize("version", VERSIONS)
async def test_both_sides_hear_whether_the_bridge_is_connected(far: Server, place: str, version: str) -> None:
    state = f"$SYS/broker/connection/{place}/state"
    bridge = bridge_to(far.url, client_id=place, protocol_version=version)
    async with Client(far.url) as there:
        async with broker_with(bridge) as broker, Client(url_of(broker)) as here:
            await connected(broker)
            await here.subscribe(state)
            await there.subscribe(state)
            assert await take(there, 1) == [(state, b"1")]
            found = dict(await take(here, 1))
            if found == {state: b"0"}:  # what was retained before
                found = dict(await take(here, 1))
            assert found == {state: b"1"}
        assert await take(there, 1) == [(state, b"0")]


async def test_rules_and_clients_limits_do_not_bind_a_bridge(far: Server, place: str, tmp_path: Path) -> None:
    rules = tmp_path / "acl"
    rules.write_text("allow all mine/#\n")
    bridge = bridge_to(far.url, {"filter": f"{place}/#", "direction": "both", "qos": 1}, client_id=place)
    async with broker_with(bridge, acl_file=rules) as broker, Client(far.url) as there:
        await connected(broker)
        async with broker.subscribe(f"{place}/#") as messages:
            await there.publish(f"{place}/x", b"1", qos=1)
            assert (await anext(messages)).payload == b"1"


async def test_of_two_filters_that_overlap_the_higher_qos_counts(far: Server, place: str) -> None:
    """Outwards a message crosses once. Mosquitto sends one for each filter."""
    topics = [
        {"filter": name, "direction": "both", "qos": qos}
        for name, qos in ((f"{place}/#", 0), (f"{place}/+", 1))
    ]
    bridge = bridge_to(far.url, *topics, client_id=place)
    async with broker_with(bridge) as broker, Client(url_of(broker)) as here, Client(far.url) as there:
        await connected(broker)
        await there.subscribe(f"{place}/#", qos=1)
        await here.publish(f"{place}/out", b"1", qos=1)
        await here.publish(f"{place}/out", b"2", qos=1)
        found = [await anext(there.messages) for _ in range(2)]
        assert [(each.payload, each.qos) for each in found] == [(b"1", 1), (b"2", 1)]
        await here.subscribe(f"{place}/#", qos=1)
        await there.publish(f"{place}/in", b"3", qos=1)
        await there.publish(f"{place}/end", b"4", qos=1)
        came = []
        async for message in here.messages:
            came.append((message.payload, message.qos))
            if message.payload == b"4":
                break
        assert sorted(came[:2]) == [(b"3", 0), (b"3", 1)]
