"""What a stream keeps is replayed to MQTT clients: from the offset or time they name, and then goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from conformance.kit import connected as raw_client
from conformance.packets import SUBACK, subscribe
from waiting import WAIT_S, until

from tidemq import Broker, Config
from tidemq.broker import replays
from tidemq.broker.providers import Access
from tidemq.client import Client, Message, Properties, SubscribeError
from tidemq.config import StreamConfig

Start = Callable[..., Any]


def config(data: Path, **more: Any) -> Config:
    streams = (
        StreamConfig(name="plant", filters=("plant/#", "$own/#")),
        StreamConfig(name="other", filters=("other",)),
    )
    return Config(host="127.0.0.1", port=0, reactors=2, data=data, sys_interval_s=0, streams=streams, **more)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with Broker(config(tmp_path / "data")) as broker:
        yield broker


@asynccontextmanager
async def connected(broker: Broker, **options: Any) -> AsyncIterator[Client]:
    async with Client(f"mqtt://127.0.0.1:{broker.port}", **options) as client:
        yield client


async def fill(broker: Broker, count: int, topic: str = "plant/{}", first: int = 0) -> None:
    async with connected(broker) as client:
        numbers = range(first, first + count)
        await client.publish_many([(topic.format(each % 3), b"%d" % each) for each in numbers], qos=1)


async def received(client: Client, count: int) -> list[Message]:
    async with asyncio.timeout(WAIT_S):
        return [await anext(client.messages) for _ in range(count)]


async def test_all_comes_in_order_and_then_what_is_new(broker: Broker) -> None:
    await fill(broker, 1000)
    async with connected(broker) as client:
        subscription = await client.subscribe("$stream/plant/first/#", qos=2)
        assert subscription.granted_qos == (0,)
        found = await received(client, 1000)
        assert [int(each.payload) for each in found] == list(range(1000))
        assert {each.topic for each in found} == {f"$stream/plant/first/plant/{each}" for each in range(3)}
        assert dict(found[7].properties.user_properties)["stream-offset"] == "7"
        await fill(broker, 10, first=1000)
        assert [int(each.payload) for each in await received(client, 10)] == list(range(1000, 1010))


@pytest.mark.parametrize("version", [3, 4, 5])
async def test_every_version_may_replay_from_an_offset_and_a_filter(broker: Broker, version: int) -> None:
    await fill(broker, 300)
    async with connected(broker, version=version) as client:
        await client.subscribe("$stream/plant/100/plant/2")
        found = await received(client, 67)
    assert [int(each.payload) for each in found] == list(range(101, 300, 3))


async def test_properties_come_as_they_were_published(broker: Broker) -> None:
    properties = Properties(
        content_type="text/plain",
        response_topic="answer",
        correlation_data=b"\x01",
        user_properties=(("a", "b"), ("a", "c")),
    )
    before = datetime.now(UTC)
    async with connected(broker) as client:
        await broker.publish("$own/x", b"", qos=1, properties=properties)
        await client.subscribe("$stream/plant/first/$own/+", properties=Properties(subscription_ids=(5,)))
        [message] = await received(client, 1)
    got = message.properties
    assert (got.content_type, got.response_topic, got.correlation_data) == ("text/plain", "answer", b"\x01")
    assert got.user_properties[:2] == (("a", "b"), ("a", "c"))
    told = dict(got.user_properties[2:])
    assert told["stream-offset"] == "0"
    assert before <= datetime.fromisoformat(told["stream-received"]) <= datetime.now(UTC)
    assert got.subscription_ids == (5,)
    assert message.payload == b""


async def test_it_begins_at_a_time_or_with_the_next_message(broker: Broker) -> None:
    await fill(broker, 5)
    await asyncio.sleep(0.01)
    at = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    await fill(broker, 5, first=5)
    async with connected(broker) as early, connected(broker) as late:
        await early.subscribe(f"$stream/plant/{at}/#")
        assert [int(each.payload) for each in await received(early, 5)] == list(range(5, 10))
        await late.subscribe("$stream/plant/next/#")
        await fill(broker, 1, first=10)
        assert [int(each.payload) for each in await received(late, 1)] == [10]


async def test_who_unsubscribes_gets_no_more_and_may_begin_anew(broker: Broker) -> None:
    await fill(broker, 10)
    async with connected(broker) as client:
        await client.subscribe("$stream/plant/first/#")
        await received(client, 10)
        await client.unsubscribe("$stream/plant/first/#")
        await fill(broker, 10, first=10)
        await client.subscribe("$stream/plant/15/#")
        assert [int(each.payload) for each in await received(client, 5)] == list(range(15, 20))


async def test_a_slow_client_holds_up_its_own_replay_and_nothing_else(broker: Broker) -> None:
    async with connected(broker) as client:
        await client.publish_many([("plant/large", bytes(100_000))] * 300, qos=1)
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.port, limit=1 << 16)
    writer.write(bytes.fromhex("100d00044d515454040200000001") + b"s")  # CONNECT, client identifier s
    filter = b"$stream/plant/first/#"
    writer.write(bytes([0x82, len(filter) + 5, 0, 1, 0, len(filter)]) + filter + b"\x00")
    assert await reader.readexactly(4 + 5) == bytes.fromhex("20020000 9003000100")
    await asyncio.sleep(0.3)  # it reads nothing
    assert broker.counters()["memory_buffers"] < 5 << 20
    assert broker.counters()["dropped_slow_consumer"] == 0
    async with connected(broker) as client:
        await client.subscribe("$stream/plant/first/#")
        assert len(await received(client, 300)) == 300
    size = 0
    async with asyncio.timeout(WAIT_S):
        while size < 300 * 100_000:
            size += len(await reader.read(1 << 20))
    writer.close()


@pytest.mark.parametrize(
    "topic_filter", ["$stream/nobody/first/#", "$stream/plant/first", "$stream/plant", "$stream/plant/soon/#"]
)
async def test_what_cannot_be_replayed_is_refused_and_the_rest_of_the_packet_granted(
    broker: Broker, topic_filter: str
) -> None:
    async with connected(broker) as client:
        with pytest.raises(SubscribeError, match="0x8f"):
            await client.subscribe(topic_filter)
        assert (await client.subscribe("plain", qos=1)).granted_qos == (1,)
    assert broker.counters()["replays_refused"] == 1


async def test_no_more_than_so_many_at_a_time(tmp_path: Path) -> None:
    async with Broker(config(tmp_path / "data", limits={"replays_max": 1})) as broker:
        async with connected(broker) as client:
            await client.subscribe("$stream/plant/first/#")
            with pytest.raises(SubscribeError, match="0x97"):
                await client.subscribe("$stream/other/first/#")
        async with connected(broker) as client, asyncio.timeout(WAIT_S):
            while True:  # until it is noticed that the first has gone
                try:
                    await client.subscribe("$stream/other/first/#")
                    break
                except SubscribeError:
                    await fill(broker, 1)


async def test_a_client_that_goes_is_noticed_though_nothing_comes(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replays, "ALIVE_S", 0.05)
    async with connected(broker) as client:
        await client.subscribe("$stream/plant/first/#")
        assert len(broker._replays._clients) == 1  # type: ignore[union-attr]
    await until(lambda: not broker._replays._clients)  # type: ignore[union-attr]


async def test_the_end_of_the_stream_ends_the_connection(broker: Broker) -> None:
    async with connected(broker, reconnect=False) as client:
        await client.subscribe("$stream/other/first/#")
        keeper, streams = broker._keeper, broker._streams
        await asyncio.wrap_future(keeper.ask(lambda: streams.delete("other")))  # type: ignore[union-attr]
        with pytest.raises(Exception, match="0x83"):
            await asyncio.wait_for(anext(client.messages), WAIT_S)
    assert broker.counters()["replays_failed"] == 1


async def test_packets_too_large_for_the_client_are_left_out_and_counted(broker: Broker) -> None:
    async with connected(broker) as client:
        await client.publish_many([("plant/a", b"x" * 2000), ("plant/a", b"small")], qos=1)
    async with connected(broker, packet_bytes_max=1000) as client:
        await client.subscribe("$stream/plant/first/#")
        assert [each.payload for each in await received(client, 1)] == [b"small"]
    assert broker.counters()["replays_dropped_packet_too_large"] == 1


async def test_an_authoriser_is_asked_for_the_topics_and_told_the_stream(tmp_path: Path) -> None:
    asked: list[Access] = []

    class Some:
        def authorise(self, access: Access) -> bool:
            asked.append(access)
            return access.topic.startswith("plant/")

    async with Broker(config(tmp_path / "data"), authoriser=Some()) as broker, connected(broker) as client:
        with pytest.raises(SubscribeError, match="0x87"):
            await client.subscribe("$stream/plant/first/#")
        await client.subscribe("$stream/plant/first/plant/#")
    assert [(each.topic, each.stream_name) for each in asked if each.action == "subscribe"] == [
        ("#", "plant"),
        ("plant/#", "plant"),
    ]


async def reasons(client: Client, *filters: str) -> tuple[int, ...]:
    """What one SUBSCRIBE is answered with, some of which is refused."""
    with pytest.raises(SubscribeError) as refused:
        await client.subscribe(*filters)
    return refused.value.reasons


async def test_one_packet_may_ask_for_many_and_gets_no_more_than_there_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with Broker(config(tmp_path / "data", limits={"replays_max": 2})) as broker:
        filters = [f"$stream/plant/first/{each}" for each in range(10_000)]
        client = await asyncio.to_thread(
            raw_client, broker
        )  # ours gives back what was granted beside a refusal

        def ask(*wanted: str) -> list[int]:
            client.send(subscribe(1, *((each, 0) for each in wanted)))
            return client.expect(SUBACK).reasons

        # the same filter again takes the same place
        granted = await asyncio.to_thread(ask, *filters, filters[0])
        assert granted == [0, 0, *[0x97] * 9_998, 0]
        assert len(broker._replays._held) == 2  # type: ignore[union-attr]
        assert await asyncio.to_thread(ask, filters[1], filters[2]) == [0, 0x97]
        assert broker.counters()["replays_refused"] == 9_999
    assert len([each for each in caplog.messages if "is refused" in each]) < 1000  # 20 a second
    assert any(each.endswith("more refused replays were not logged") for each in caplog.messages)


async def test_what_was_asked_for_and_not_answered_holds_no_place(tmp_path: Path) -> None:
    class Fails:
        def authorise(self, access: Access) -> bool:
            if access.topic == "bad":
                raise RuntimeError("no answer")
            return True

    settings = config(tmp_path / "data", limits={"replays_max": 1})
    async with Broker(settings, authoriser=Fails()) as broker, connected(broker) as client:
        for _ in range(3):
            assert await reasons(client, "$stream/plant/first/#", "bad") == (0x83, 0x83)
        await client.subscribe("$stream/plant/first/#")
        await client.unsubscribe("$stream/plant/first/#")
        await client.subscribe("$stream/other/first/#")


async def test_a_filter_that_is_too_long_is_refused_and_not_sent(tmp_path: Path) -> None:
    settings = config(tmp_path / "data", limits={"topic_bytes_max": 60})
    async with Broker(settings) as broker, connected(broker) as client:
        await fill(broker, 3)
        long = "$stream/plant/first/" + "+/" * 20 + "#"
        assert await reasons(client, "$stream/plant/first/plant/0", long) == (0, 0x8F)
        assert len(broker._replays._held) == 1  # type: ignore[union-attr]


async def test_a_replay_to_which_nothing_comes_is_not_looked_at(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    has_more = replays.Replay.has_more

    def counted(replay: replays.Replay) -> bool:
        nonlocal looks
        looks += 1
        return has_more(replay)

    monkeypatch.setattr(replays.Replay, "has_more", counted)
    async with connected(broker) as client:
        await client.subscribe("$stream/plant/first/#")
        await asyncio.sleep(1)
        assert looks < 10
        await fill(broker, 1)
        await received(client, 1)
