"""Messages with `traceparent` are seen in the traces of a collector, which is a real OTLP server here."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from collector import Collector, collecting
from conformance import packets
from conformance.kit import Client, connected, kept, unique
from conformance.packets import Packet
from opentelemetry.proto.trace.v1.trace_pb2 import Status
from unit.keeper_double import Store
from waiting import WAIT_S, wait_until

from tidemq import Broker, Config, Limits
from tidemq.broker.monitoring.spans import Spans
from tidemq.errors import ConfigError

STEPS = ["receive", "deliver"]


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collecting() as found:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.url)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        yield found


@pytest.fixture
def config(tmp_path: Path) -> Config:
    limits = Limits(spans_per_s=1000)
    return Config(host="127.0.0.1", port=0, reactors=2, sys_interval_s=0, data=tmp_path, limits=limits)


def new_trace(flags: str = "01") -> tuple[str, str, str]:
    """A trace, its publisher's span, and both as `traceparent`."""
    trace, span = secrets.token_hex(16), secrets.token_hex(8)
    return trace, span, f"00-{trace}-{span}-{flags}"


def publish(client: Client, topic: str, traceparent: str, qos: int = 0) -> None:
    client.publish(topic, b"payload", qos, user=[("a", "b"), ("traceparent", traceparent), ("c", "d")])


def parent_of(message: Packet) -> str:
    pairs = message.all("user")
    assert [name for name, _ in pairs] == ["a", "traceparent", "c"]
    return str(pairs[1][1])


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("stored", [False, True])
async def test_a_message_is_received_committed_delivered(
    config: Config, collector: Collector, qos: int, stored: bool
) -> None:
    trace, publisher_span, traceparent = new_trace()
    name = unique("s")

    def act() -> None:
        subscriber = connected(broker, client_id=name, **(kept(5) if stored else {}))
        subscriber.subscribe("a/+", qos)
        publisher = connected(broker, client_id=unique("p"))
        publish(publisher, "a/b", traceparent, qos)
        arrived = parent_of(subscriber.expect_message("a/b", b"payload", qos))
        steps = ["receive", "commit", "deliver"] if stored and qos else STEPS
        wait_until(lambda: sorted(collector.steps_of(trace)) == sorted(steps))
        spans = {each.name: each for each in collector.of(trace)}
        receive = spans["receive"]
        assert receive.parent_span_id.hex() == publisher_span
        assert arrived == f"00-{trace}-{receive.span_id.hex()}-01"
        for step in steps[1:]:
            assert spans[step].parent_span_id == receive.span_id
        for span in spans.values():
            assert 0 < span.end_time_unix_nano - span.start_time_unix_nano < WAIT_S * 1e9
        facts = {each.key: each.value for each in spans["deliver"].attributes}
        assert facts["messaging.destination.name"].string_value == "a/b"
        assert facts["messaging.client.id"].string_value == name
        assert facts["messaging.message.body.size"].int_value == len(b"payload")
        assert facts["mqtt.qos"].int_value == qos
        assert collector.service == "tidemq"
        assert broker.counters()["spans_left_out"] == broker.counters()["spans_lost"] == 0
        wait_until(lambda: broker.counters()["spans_sent"] == len(steps))

    async with Broker(config) as broker:
        await asyncio.to_thread(act)


async def test_every_receiver_has_a_span_and_a_wait_in_a_queue_shows(
    config: Config, collector: Collector
) -> None:
    trace, _, traceparent = new_trace()

    def act() -> None:
        away, here = connected(broker, client_id="away", **kept(5)), connected(broker)
        away.subscribe("t", 1)
        away.disconnect()  # a connection that only drops is a receiver until that is noticed
        here.subscribe("t", 1)
        publisher = connected(broker)
        publish(publisher, "t", traceparent, 1)
        first = parent_of(here.expect_message("t", b"payload", 1))
        wait_until(lambda: sorted(collector.steps_of(trace)) == ["commit", "deliver", "receive"])
        back = connected(broker, client_id="away", **kept(5))
        assert parent_of(back.expect_message("t", b"payload", 1)) == first
        wait_until(lambda: collector.steps_of(trace).count("deliver") == 2)

    async with Broker(config) as broker:
        await asyncio.to_thread(act)


@pytest.mark.parametrize(
    "change",
    [
        lambda given: given[:-1] + "0",  # not sampled
        lambda given: "01" + given[2:],  # a version that may mean something else
        lambda given: given[:-1],
        lambda given: given + "-",
        lambda given: given.replace("-", "_"),
        lambda given: given[:3] + "0" * 32 + given[35:],
        lambda given: given[:36] + "0" * 16 + given[52:],
        lambda given: given[:3] + given[3:35].upper().replace("0", "A") + given[35:],
        lambda given: given[:-2] + "g1",
        lambda given: given[:-1] + "g",
        lambda given: "",
    ],
)
async def test_what_is_none_goes_on_as_it_came(config: Config, collector: Collector, change: object) -> None:
    given = change(new_trace()[2])  # type: ignore[operator]
    trace, _, valid = new_trace()

    def act() -> None:
        client, publisher = connected(broker), connected(broker)
        client.subscribe("t")
        publish(publisher, "t", given)
        assert parent_of(client.expect_message("t", b"payload")) == given
        publish(publisher, "t", valid)
        client.expect_message("t", b"payload")
        wait_until(lambda: collector.steps_of(trace) == STEPS)
        assert len(collector.spans) == len(STEPS)

    async with Broker(config) as broker:
        await asyncio.to_thread(act)


async def test_so_many_a_second(config: Config, collector: Collector) -> None:
    config = config.model_copy(update={"limits": Limits(spans_per_s=7), "reactors": 3})
    messages = 200

    def act() -> None:
        client, publisher = connected(broker), connected(broker)
        client.subscribe("t")
        traces = {}
        for _ in range(messages):
            trace, _, traceparent = new_trace()
            publish(publisher, "t", traceparent)
            traces[trace] = (traceparent, parent_of(client.expect_message("t", b"payload")))
        counters = broker.counters()
        made = 2 * messages - counters["spans_left_out"]
        assert 0 < made < 2 * messages
        wait_until(lambda: len(collector.spans) == made)
        received = {each.trace_id.hex() for each in collector.spans if each.name == "receive"}
        assert received
        for trace, (given, arrived) in traces.items():
            assert (given == arrived) == (trace not in received)

    async with Broker(config) as broker:
        await asyncio.to_thread(act)


async def test_a_collector_that_takes_nothing_holds_up_nobody(config: Config, collector: Collector) -> None:
    collector.status = 400

    def act() -> None:
        client, publisher = connected(broker), connected(broker)
        client.subscribe("t")
        publish(publisher, "t", new_trace()[2])
        client.expect_message("t", b"payload")
        wait_until(lambda: broker.counters()["spans_lost"] == len(STEPS))
        assert broker.counters()["spans_sent"] == 0

    async with Broker(config) as broker:
        await asyncio.to_thread(act)


async def test_without_the_key_nothing_is_looked_for(config: Config, collector: Collector) -> None:
    config = config.model_copy(update={"limits": Limits()})
    traceparent = new_trace()[2]

    def act() -> None:
        client, publisher = connected(broker), connected(broker)
        client.subscribe("t")
        publish(publisher, "t", traceparent)
        assert parent_of(client.expect_message("t", b"payload")) == traceparent
        assert "spans_sent" not in broker.counters()

    async with Broker(config) as broker:
        await asyncio.to_thread(act)
    assert not collector.spans


async def test_a_commit_that_fails_says_so(config: Config, collector: Collector) -> None:
    trace, _, traceparent = new_trace()
    store = Store()

    def act() -> None:
        away = connected(broker, client_id="away", **kept(5))
        away.subscribe("t", 1)
        away.disconnect()  # a connection that only drops is a receiver until that is noticed
        publisher = connected(broker)
        store.refused_family = "queue"  # after a failure of others messages are refused at once
        user = [("traceparent", traceparent)]
        publisher.send(packets.publish("t", b"payload", 1, publisher.next_id(), user=user))
        reason = publisher.expect(packets.PUBACK).reason
        assert reason >= 0x80
        wait_until(lambda: sorted(collector.steps_of(trace)) == ["commit", "receive"])
        commit = next(each for each in collector.of(trace) if each.name == "commit")
        assert commit.status.code == Status.STATUS_CODE_ERROR
        assert commit.status.message == f"reason code 0x{reason:02x}"
        store.refused_family = ""

    async with Broker(config, store=store) as broker:
        await asyncio.to_thread(act)


def test_the_sdk_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.sdk.trace", None)
    monkeypatch.delitem(__import__("sys").modules, "tidemq.broker.monitoring.span_export", raising=False)
    with pytest.raises(ConfigError, match=r"spans_per_s.*tidemq\[otel\]"):
        Spans(1)
