"""What a stream keeps is replayed to MQTT clients: from the offset or time they name, and then goes on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from conformance.kit import connected as raw_client
from conformance.packets import PUBACK, PUBLISH, SUBACK, acknowledge, subscribe
from waiting import WAIT_S, until

from tidemq import Broker, Config
from tidemq.broker import replays
from tidemq.broker.providers import Access
from tidemq.broker.replay_pieces import Replay
from tidemq.broker.stream_filters import parse_wanted
from tidemq.client import Client, Message, Properties, SubscribeError
from tidemq.config import StreamConfig

Start = Callable[..., Any]
CLOCKS = timedelta(milliseconds=50)  # the broker's dates follow the clock, a little behind


def begins(value: str) -> tuple[str, str]:
    """The user property."""
    return "stream-offset", value


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
        subscription = await client.subscribe("$stream/plant/first/#", qos=0)
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
    before = datetime.now(UTC) - CLOCKS
    async with connected(broker) as client:
        await broker.publish("$own/x", b"", qos=1, properties=properties)
        await client.subscribe("$stream/plant/first/$own/+", properties=Properties(subscription_ids=(5,)))
        [message] = await received(client, 1)
    got = message.properties
    assert (got.content_type, got.response_topic, got.correlation_data) == ("text/plain", "answer", b"\x01")
    assert got.user_properties[:2] == (("a", "b"), ("a", "c"))
    told = dict(got.user_properties[2:])
    assert told["stream-offset"] == "0"
    assert before <= datetime.fromisoformat(told["stream-received"]) <= datetime.now(UTC) + CLOCKS
    assert got.subscription_ids == (5,)
    assert message.payload == b""


async def test_it_begins_at_a_time_or_with_the_next_message(broker: Broker) -> None:
    await fill(broker, 5)
    await asyncio.sleep(0.01)
    at = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
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
    "topic_filter",
    ["$stream/nobody/first/#", "$stream/plant/first", "$stream/nobody", "$stream/plant/soon/#"],
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
    has_more = Replay.has_more

    def counted(replay: Replay) -> bool:
        nonlocal looks
        looks += 1
        return has_more(replay)

    monkeypatch.setattr(Replay, "has_more", counted)
    async with connected(broker) as client:
        await client.subscribe("$stream/plant/first/#")
        await asyncio.sleep(1)
        assert looks < 10
        await fill(broker, 1)
        await received(client, 1)


# --- EMQX's form ------------------------------------------------------------------------------------


async def test_emqx_s_form_begins_where_the_user_property_says_under_the_topics_themselves(
    broker: Broker,
) -> None:
    await fill(broker, 6)
    async with connected(broker) as client:
        await client.subscribe("$stream/plant", properties=Properties(user_properties=(begins("earliest"),)))
        found = await received(client, 6)
        assert [(each.topic, int(each.payload)) for each in found] == [
            (f"plant/{n % 3}", n) for n in range(6)
        ]
        assert [dict(each.properties.user_properties)["stream-offset"] for each in found] == list("012345")
        await client.unsubscribe("$stream/plant")
        await client.subscribe("$stream/plant/plant/1", properties=Properties(user_properties=(begins("2"),)))
        assert [int(each.payload) for each in await received(client, 1)] == [4]


async def test_topic_rules_leave_the_user_property_where_it_is(tmp_path: Path) -> None:
    rules = tmp_path / "topics.toml"
    rules.write_text('[[rewrite]]\nfilter = "old/#"\nto = "new/$1"\n')
    settings = config(tmp_path / "data", topic_rules_file=rules)
    async with Broker(settings) as broker, connected(broker) as client:
        await fill(broker, 3)
        await client.subscribe("$stream/plant", properties=Properties(user_properties=(begins("earliest"),)))
        assert [int(each.payload) for each in await received(client, 3)] == [0, 1, 2]


async def test_emqx_s_form_without_the_property_begins_with_the_next_message(broker: Broker) -> None:
    await fill(broker, 3)
    async with connected(broker, version=4) as client:
        await client.subscribe("$stream/plant")
        await fill(broker, 1, first=3)
        assert [(each.topic, each.payload) for each in await received(client, 1)] == [("plant/0", b"3")]


async def test_a_time_as_emqx_gives_it(broker: Broker) -> None:
    await fill(broker, 2)
    await asyncio.sleep(0.01)
    now_us = time.time_ns() // 1000
    await asyncio.sleep(0.1)  # a clock that is put right meanwhile is followed within a tick
    await fill(broker, 1, first=2)
    async with connected(broker) as client:
        await client.subscribe("$stream/plant", properties=Properties(user_properties=(begins(str(now_us)),)))
        assert [each.payload for each in await received(client, 1)] == [b"2"]


def asked(broker: Broker, topic_filter: str, offset: str, **settings: Any) -> tuple[list[int], object]:
    """The reasons of a SUBACK, and its reason string."""
    client = raw_client(broker, **settings)
    client.send(subscribe(1, (topic_filter, 0), ("plain", 1), user=[("stream-offset", offset)]))
    suback = client.expect(SUBACK)
    client.disconnect()
    return suback.reasons, suback.get("reason_string")


async def test_a_refusal_says_why(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    reasons, why = await asyncio.to_thread(asked, broker, "$stream/plant", "soon")
    assert reasons == [0x8F, 1]
    assert str(why).startswith("$stream/plant: stream-offset is 'soon'; accepted: first (earliest)")
    assert any("'$stream/plant'" in each and "stream-offset is 'soon'" in each for each in caplog.messages)
    assert broker.counters()["replays_refused"] == 1
    # [MQTT-3.1.2-29], [MQTT-3.9.2-1]
    for settings in ({"request_problem": 0}, {"packet_max": 40}):
        reasons, why = await asyncio.to_thread(asked, broker, "$stream/plant", "soon", **settings)
        assert (reasons, why) == ([0x8F, 1], None)


# --- QoS 1 ------------------------------------------------------------------------------------------


async def test_who_subscribes_again_at_qos_1_goes_on(broker: Broker) -> None:
    await fill(broker, 3)
    async with connected(broker) as client:
        await client.subscribe("$stream/plant/first/#", qos=1)
        await received(client, 3)
        await client.subscribe("$stream/plant/first/#", qos=1)
        await fill(broker, 1, first=3)
        assert [int(each.payload) for each in await received(client, 1)] == [3]


def come_and_go(broker: Broker) -> list[int]:
    """A session whose client takes two messages at a time, acknowledges the first and goes."""
    found: list[int] = []
    while len(found) < 10:
        client = raw_client(broker, client_id="two", clean=False, session_expiry=60, receive_max=2)
        if not found:
            client.replay("$stream/plant/first/#")
        message = client.expect(PUBLISH, qos=1)
        assert message.dup == bool(found)  # it was sent, and not acknowledged
        found.append(int(message.payload))
        client.send(acknowledge(PUBACK, message.packet_id))
        while len(found) < 10 and int(client.expect(PUBLISH, qos=1).payload) < min(len(found) + 1, 9):
            pass  # the next was sent, too
        client.ping()  # the broker has the acknowledgement
        client.drop()
    return found


async def test_what_was_not_sent_comes_when_the_client_is_back(broker: Broker) -> None:
    await fill(broker, 10)
    assert await asyncio.to_thread(come_and_go, broker) == list(range(10))


async def test_what_is_kept_no_longer_is_told(broker: Broker) -> None:
    await fill(broker, 5)
    keeper, streams = broker._keeper, broker._streams
    log = streams.all["plant"].log  # type: ignore[union-attr]

    def forget() -> None:
        log._ended = True  # the segment, as it is when retention gives it up
        log.forget(list(log.extents))

    await asyncio.wrap_future(keeper.ask(forget))  # type: ignore[union-attr]
    await fill(broker, 2, first=5)
    async with connected(broker) as client:
        for qos, start in ((0, "2"), (1, "1")):
            await client.subscribe(f"$stream/plant/{start}/#", qos=qos)
            found = await received(client, 2)
            told = [dict(each.properties.user_properties).get("stream-gap") for each in found]
            assert told == [str(5 - int(start)), None]
    assert broker.counters()["replays_offsets_missing"] == 3 + 4


async def test_a_replay_that_comes_back_waits_for_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replays, "ALIVE_S", 0.05)
    async with Broker(config(tmp_path / "data", limits={"replays_max": 1})) as broker:
        await fill(broker, 1)
        async with connected(broker, client_id="away", clean_start=False, session_expiry_s=60) as client:
            await client.subscribe("$stream/plant/first/#", qos=1)
            assert [each.payload for each in await received(client, 1)] == [b"0"]
        async with connected(broker) as other:
            await until_granted(other, "$stream/other/first/#")
            await fill(broker, 1, first=1)
            async with connected(broker, client_id="away", clean_start=False, session_expiry_s=60) as client:
                await until(lambda: broker.counters()["replays_delayed"] == 1)
                await other.unsubscribe("$stream/other/first/#")
                assert [each.payload for each in await received(client, 1)] == [b"1"]


@pytest.mark.parametrize("made_anew", [False, True])
async def test_a_stream_that_is_gone_or_another_ends_what_a_session_had_of_it(
    broker: Broker, made_anew: bool
) -> None:
    session: dict[str, Any] = {"client_id": "away", "clean_start": False, "session_expiry_s": 60}
    async with connected(broker, **session) as client:
        await client.subscribe("$stream/other/first/#", qos=1)
        await client.publish("other", b"0", qos=1)
        await received(client, 1)
    # else the end of the replay that is under way would be counted, too
    await until(lambda: broker.counters()["connections_closed"], "the client has gone")
    keeper, streams = broker._keeper, broker._streams

    def change() -> None:
        streams.delete("other")  # type: ignore[union-attr]
        if made_anew:
            streams.declare(StreamConfig(name="other", filters=("other",)))  # type: ignore[union-attr]

    await asyncio.wrap_future(keeper.ask(change))  # type: ignore[union-attr]
    async with connected(broker, **session, reconnect=False) as client:
        with pytest.raises(Exception, match="0x83"):
            await asyncio.wait_for(anext(client.messages), WAIT_S)
    assert broker.counters()["replays_failed"] == 1
    assert broker.counters()["subscriptions_revoked"] == 1
    async with connected(broker, **session) as client:
        await client.subscribe("plain", qos=1)
        await client.publish("other", b"1", qos=1)
        await client.publish("plain", b"behind what must not come", qos=1)
        assert [each.topic for each in await received(client, 1)] == ["plain"]


async def until_granted(client: Client, topic_filter: str) -> None:
    """Until it is noticed that who had the place has gone."""
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                await client.subscribe(topic_filter)
                return
            except SubscribeError:
                await asyncio.sleep(0.01)


async def test_two_judgements_of_one_client_at_once_are_both_answered(broker: Broker) -> None:
    """What goes on when a client is back, and what it subscribes to at the same time."""
    async with connected(broker) as client:
        await client.subscribe("$stream/plant/first/#", qos=0)
        judging = broker._replays
        assert judging is not None
        (connection,) = judging._clients
        asked = [
            replays.Asked(parse_wanted(f"$stream/plant/first/{each}", ()), stream, (each,))
            for each in ("plant/a", "plant/b")
            for stream in [broker._streams.all["plant"]]  # type: ignore[union-attr]
        ]
        async with asyncio.timeout(WAIT_S):
            answers = await asyncio.gather(*(judging.judge(connection, [each]) for each in asked))
        assert answers == [{"plant/a": 2}, {"plant/b": 2}]
        assert not judging._judging
