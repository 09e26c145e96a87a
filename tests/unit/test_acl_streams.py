"""What rules say of a stream's topics holds for its replays, in both forms and at both QoS."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from unit.test_acl_broker import broker_with, client_of, publishes, reloaded
from waiting import WAIT_S, until

from tidemq.broker.host import watched_files
from tidemq.client import Properties, SubscribeError
from tidemq.config import StreamConfig


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_files, "CHECK_S", 0.02)


OPEN_RULES = "allow publish plant/#\nallow subscribe plant/open/#"
STREAMS = (
    StreamConfig(name="plant", filters=("plant/#",)),
    StreamConfig(name="open", filters=("plant/open/#",)),
    StreamConfig(name="both", filters=("plant/open/#", "plant/shut/#")),
)
EARLIEST = Properties(user_properties=(("stream-offset", "earliest"),))


def with_streams(data: Path) -> dict[str, Any]:
    return {"store": "rocksdb", "data": data, "streams": STREAMS}


@pytest.mark.parametrize("qos", [0, 1])
async def test_of_a_stream_a_client_gets_only_what_its_rules_allow(tmp_path: Path, qos: int) -> None:
    """It may not read `#`: neither what a filter covers beside that, nor all of a stream that has more."""
    async with (
        broker_with(tmp_path / "acl", OPEN_RULES, **with_streams(tmp_path / "data")) as broker,
        client_of(broker) as client,
    ):
        await client.publish_many(
            [each for n in range(100) for each in (("plant/shut/x", b"secret"), ("plant/open/x", b"%d" % n))],
            qos=1,
        )
        refused = ["first/#", "first/plant/#", "first/plant/+/x", "0/plant/shut/x", "next/+/open/#"]
        for topic_filter in (f"$stream/plant/{each}" for each in refused):
            with pytest.raises(SubscribeError, match="0x87"):
                await client.subscribe(topic_filter, qos=qos)
        whole = ["$stream/plant", "$stream/both", "$stream/plant/#", "$stream/both/plant/shut/x"]
        for topic_filter in (*whole, "$stream/plant/plant/#"):
            for properties in (EARLIEST, Properties()):
                with pytest.raises(SubscribeError, match="0x87"):
                    await client.subscribe(topic_filter, qos=qos, properties=properties)
        assert broker.counters()["replays_refused"] == len(refused) + 2 * 5
        for topic_filter in ("$stream/open", "$stream/plant/plant/open/#", "$stream/both/plant/open/x"):
            granted = await client.subscribe(topic_filter, qos=qos, properties=EARLIEST)
            assert granted.granted_qos == (qos,)
            found = [await asyncio.wait_for(anext(client.messages), WAIT_S) for _ in range(100)]
            assert {each.topic for each in found} == {"plant/open/x"}
            assert [int(each.payload) for each in found] == list(range(100))
            await client.unsubscribe(topic_filter)
        await client.subscribe("$stream/plant/first/plant/open/#", qos=qos)
        for number in range(100):
            message = await asyncio.wait_for(anext(client.messages), WAIT_S)
            assert (message.topic, message.payload) == (
                "$stream/plant/first/plant/open/x",
                b"%d" % number,
            )


async def test_what_rules_say_of_the_qos_holds_for_replays(tmp_path: Path) -> None:
    text = "allow publish plant/#\nallow subscribe plant/open/# qos 0\nallow subscribe plant/shut/#"
    async with (
        broker_with(tmp_path / "acl", text, **with_streams(tmp_path / "data")) as broker,
        client_of(broker) as client,
    ):
        for topic_filter, granted in (("$stream/both", 0), ("$stream/both/plant/shut/#", 1)):
            assert (await client.subscribe(topic_filter, qos=2)).granted_qos == (granted,)


async def test_a_session_s_replay_is_judged_again_when_its_client_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept: dict[str, Any] = {"client_id": "reader", "clean_start": False, "session_expiry_s": 60}
    settings = with_streams(tmp_path / "data")
    async with broker_with(tmp_path / "acl", OPEN_RULES, **settings) as broker:
        async with client_of(broker, **kept) as client:
            await client.subscribe("$stream/open", qos=1)
        await reloaded(broker, tmp_path / "acl", "allow publish plant/#\nallow subscribe other", 1)
        async with client_of(broker) as publisher:
            assert await publishes(publisher, "plant/open/x")
        async with client_of(broker, **kept) as client:
            await until(lambda: broker.counters()["subscriptions_revoked"] == 1)
            await client.subscribe("other")
            await broker.publish("other", b"behind what must not come")
            assert (await asyncio.wait_for(anext(client.messages), WAIT_S)).topic == "other"
        assert any("the rules do not allow" in each and "ends" in each for each in caplog.messages)
