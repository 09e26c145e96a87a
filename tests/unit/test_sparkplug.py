"""The plugin `sparkplug`: what a Sparkplug aware MQTT server has to do (specification 3.0, chapter 10)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from conformance.kit import Client, connected, unique
from conformance.packets import PUBACK, Will, publish
from google.protobuf.message import DecodeError

from tidemq import Broker, Config
from tidemq.config import PluginConfig
from tidemq.pipeline.decode.sparkplug import _Payload
from tidemq.plugins.sparkplug import with_timestamp

CERTIFICATES = "$sparkplug/certificates/"
CONFIG = Config(
    host="127.0.0.1",
    port=0,
    reactors=2,
    sys_interval_s=0,
    store="memory",
    plugins=(PluginConfig(name="sparkplug"),),
)


async def play(act: Callable[[Broker], None], config: Config = CONFIG) -> dict[str, int]:
    """What clients do with a broker that has the plugin; its counters in the end."""
    async with Broker(config) as broker:
        await asyncio.to_thread(act, broker)
        return broker.counters()


def payload(timestamp_ms: int, **values: int) -> bytes:
    made = _Payload(timestamp=timestamp_ms, seq=3)
    for name, value in values.items():
        made.metrics.add(name=name, long_value=value, datatype=8)
    data: bytes = made.SerializeToString()
    return data


def kept(broker: Broker, topic_filter: str) -> list[tuple[str, bytes, bool]]:
    """What a client that comes now finds retained."""
    client = connected(broker)
    client.subscribe(topic_filter)
    return sorted((each.topic, each.payload, each.retain) for each in client.rest())


@pytest.mark.parametrize("version", [4, 5])
async def test_births_are_stored_as_they_pass_and_found_retained(version: int) -> None:
    """tck-id-conformance-mqtt-aware-store, -nbirth-mqtt-topic, -nbirth-mqtt-retain, -dbirth-mqtt-topic and
    -dbirth-mqtt-retain, with the specification's own example G1, E1, D1.
    """
    node, device = payload(1, bdSeq=0), payload(2, temperature=21)

    def act(broker: Broker) -> None:
        watcher = connected(broker)
        watcher.subscribe("spBv1.0/#", 1)
        alive = connected(broker)
        alive.subscribe(f"{CERTIFICATES}#", 1)
        edge = connected(broker, version)
        edge.publish("spBv1.0/G1/NBIRTH/E1", node, 1)
        edge.publish("spBv1.0/G1/DBIRTH/E1/D1", device, 1)
        edge.publish("spBv1.0/G1/NDATA/E1", b"data", 1)
        watcher.expect_message("spBv1.0/G1/NBIRTH/E1", node, 1, retain=False)
        watcher.expect_message("spBv1.0/G1/DBIRTH/E1/D1", device, 1, retain=False)
        watcher.expect_message("spBv1.0/G1/NDATA/E1", b"data", 1)
        alive.expect_message(f"{CERTIFICATES}spBv1.0/G1/NBIRTH/E1", node, 1, retain=False)
        alive.expect_message(f"{CERTIFICATES}spBv1.0/G1/DBIRTH/E1/D1", device, 1, retain=False)
        nbirth = (f"{CERTIFICATES}spBv1.0/G1/NBIRTH/E1", node, True)
        dbirth = (f"{CERTIFICATES}spBv1.0/G1/DBIRTH/E1/D1", device, True)
        assert kept(broker, f"{CERTIFICATES}spBv1.0/G1/NBIRTH/E1") == [nbirth]
        assert kept(broker, f"{CERTIFICATES}spBv1.0/G1/DBIRTH/E1/D1") == [dbirth]
        assert kept(broker, f"{CERTIFICATES}#") == [dbirth, nbirth]
        assert kept(broker, "#") == []  # nor do births themselves become retained

    counters = await play(act)
    assert counters["sparkplug_births_kept"] == 2


async def test_the_last_birth_of_each_counts_also_after_its_death() -> None:
    def act(broker: Broker) -> None:
        edge = connected(broker)
        for number in range(5):
            edge.publish("spBv1.0/G1/NBIRTH/E1", payload(number, bdSeq=number), 1)
            edge.publish("spBv1.0/G1/NBIRTH/E2", payload(number, bdSeq=7), 1)
        edge.publish("spBv1.0/G1/NDEATH/E1", payload(9, bdSeq=4), 1)
        edge.publish("spBv1.0/G1/NBIRTH/E1", b"", 1)  # no certificate: the one that is there stays
        births = kept(broker, f"{CERTIFICATES}spBv1.0/+/NBIRTH/+")
        found = {topic: data for topic, data, _ in births}
        assert found == {
            f"{CERTIFICATES}spBv1.0/G1/NBIRTH/E1": payload(4, bdSeq=4),
            f"{CERTIFICATES}spBv1.0/G1/NBIRTH/E2": payload(4, bdSeq=7),
        }

    counters = await play(act)
    assert (counters["sparkplug_births_kept"], counters["sparkplug_births_empty"]) == (10, 1)


async def test_clients_cannot_write_certificates_themselves() -> None:
    def act(broker: Broker) -> None:
        client = connected(broker)
        client.send(publish(f"{CERTIFICATES}spBv1.0/G1/NBIRTH/E1", b"forged", 1, 1, retain=True))
        client.expect(PUBACK, packet_id=1, reason=0x90)
        assert kept(broker, f"{CERTIFICATES}#") == []

    await play(act)


@pytest.mark.parametrize("as_will", [True, False])
async def test_a_death_is_delivered_with_the_time_of_its_delivery(as_will: bool) -> None:
    """tck-id-conformance-mqtt-aware-ndeath-timestamp; whether it is the will or the edge node sends it."""
    topic = "spBv1.0/G1/NDEATH/E1"

    def act(broker: Broker) -> None:
        host = connected(broker)
        host.subscribe("spBv1.0/+/NDEATH/+", 1)
        before_ms = int(time.time() * 1000)
        if as_will:
            connected(broker, client_id=unique("e"), will=Will(topic, payload(1, bdSeq=3), 1)).drop()
        else:
            connected(broker).publish(topic, payload(1, bdSeq=3), 1)
        death = host.receive()
        host.acknowledge(death)
        found = _Payload.FromString(death.payload)
        assert before_ms <= found.timestamp <= time.time() * 1000
        assert [(each.name, each.long_value) for each in found.metrics] == [("bdSeq", 3)]
        assert (death.topic, death.qos, found.seq) == (topic, 1, 3)

    await play(act)


async def test_a_death_that_cannot_be_read_stays_as_it_is() -> None:
    def act(broker: Broker) -> None:
        host = connected(broker)
        host.subscribe("spBv1.0/+/NDEATH/+", 1)
        connected(broker).publish("spBv1.0/G1/NDEATH/E1", b"\xff\xff", 1)
        host.expect_message("spBv1.0/G1/NDEATH/E1", b"\xff\xff", 1)

    counters = await play(act)
    assert counters["sparkplug_deaths_unreadable"] == 1


async def test_deaths_keep_their_time_where_nobody_wants_them_changed() -> None:
    plugin = PluginConfig(name="sparkplug", options={"ndeath_timestamp": False})

    def act(broker: Broker) -> None:
        host: Client = connected(broker)
        host.subscribe("spBv1.0/+/NDEATH/+", 1)
        connected(broker).publish("spBv1.0/G1/NDEATH/E1", payload(1), 1)
        host.expect_message("spBv1.0/G1/NDEATH/E1", payload(1), 1)

    counters = await play(act, CONFIG.model_copy(update={"plugins": (plugin,)}))
    assert counters.get("plugin_messages", 0) == 0


@pytest.mark.parametrize("timestamp_ms", [0, 1, 127, 128, 1_700_000_000_000, 2**64 - 1])
def test_only_the_timestamp_changes(timestamp_ms: int) -> None:
    for before in (payload(5, a=1, b=2), payload(0), b"", payload(2**63, c=7) + b"\x2a\x03xyz"):
        found: Any = _Payload.FromString(with_timestamp(before, timestamp_ms))
        wanted: Any = _Payload.FromString(before)
        wanted.timestamp = timestamp_ms
        assert found == wanted


@pytest.mark.parametrize(
    "wrong",
    [b"\xff", b"\x08", b"\x0a\x05abc", b"\x09abc", b"\x0d\0", b"\x0b", b"\x00\x01", b"\x08" + b"\xff" * 11],
)
def test_what_is_no_message_of_protobuf_is_refused(wrong: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        with_timestamp(wrong, 1)
    with pytest.raises(DecodeError):
        _Payload.FromString(wrong)
