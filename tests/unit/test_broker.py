"""The broker's object: life cycle, publishing, subscribing, counters, $SYS, admin endpoint, fault log."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from unit.conftest import BrokerOnFake
from waiting import until

import tidemq
from tidemq.broker import Verdict, fault_log
from tidemq.broker.fault_log import DROPS, DropLog, FaultLog
from tidemq.broker.sys_topics import SysTopics
from tidemq.config import Config, Listener
from tidemq.engine.door.events import Connected, ConnectRequest, Disconnected, Dropped, Received
from tidemq.errors import ConfigError, UsageError
from tidemq.wire import Properties

NO_EVENT: Any = "no event"
QUIET = Config(host="127.0.0.1", port=0, sys_interval_s=0)


async def test_it_listens_on_every_address_and_says_the_bound_ports(
    broker_on_fake: type[BrokerOnFake],
) -> None:
    further = Listener(host="127.0.0.2", port=0, name="further")
    config = Config(host="127.0.0.1", port=0, listeners=(further,), reactors=3, sys_interval_s=0)
    async with broker_on_fake(config) as broker:
        engine = broker.engine
        bound = [each.getsockname() for each in engine.sockets]
        assert bound == 3 * [("127.0.0.1", broker.ports[0])] + 3 * [("127.0.0.2", broker.ports[1])]
        assert [settings.name for settings in engine.listeners] == ["default", "further"]
        assert broker.port == broker.ports[0]
        assert broker.addresses["further"] == f"127.0.0.2:{broker.ports[1]}"
        assert engine.reactors == 3
    assert broker.engine.calls == ["start", "stop", "close"]


async def test_by_default_the_engine_asks_nothing(broker_on_fake: type[BrokerOnFake]) -> None:
    async with broker_on_fake(QUIET) as broker:
        engine = broker.engine
        assert not logging.getLogger("tidemq").isEnabledFor(logging.DEBUG)
        asked = [engine.ask_connect, engine.ask_subscribe, engine.ask_publish, engine.report_connections]
        assert not any(asked)


async def test_a_port_that_cannot_be_bound_leaves_nothing_behind(broker_on_fake: type[BrokerOnFake]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        broker = broker_on_fake(Config(host="127.0.0.1", port=taken.getsockname()[1]))
        with pytest.raises(OSError, match="in use"):
            await broker.start()
    assert broker.engine.calls == ["close"]
    await broker.stop()


async def test_it_runs_once(broker_on_fake: type[BrokerOnFake]) -> None:
    broker = broker_on_fake(QUIET)
    with pytest.raises(UsageError, match="not running"):
        await broker.publish("a", b"")
    async with broker:
        with pytest.raises(UsageError, match="once"):
            await broker.start()
    await broker.stop()
    with pytest.raises(UsageError, match="once"):
        await broker.start()


@pytest.mark.parametrize("kind", ["store", "authenticator", "authoriser"])
async def test_an_unknown_provider_is_refused_with_the_known_ones(
    broker_on_fake: type[BrokerOnFake], kind: str
) -> None:
    known = {"store": "memory", "authenticator": "static", "authoriser": "allow"}[kind]
    with pytest.raises(ConfigError) as caught:
        await broker_on_fake(Config.model_validate({kind: known + "x"})).start()
    expected = rf"{kind}: '{known}x' is unknown, did you mean {known}\?; accepted: .*{known}"
    assert re.search(expected, str(caught.value))


async def test_publish_passes_on_and_refuses_what_is_no_topic_name(
    broker_on_fake: type[BrokerOnFake],
) -> None:
    async with broker_on_fake(QUIET) as broker:
        await broker.publish("a/b", "grüß", qos=1, retain=True)
        assert broker.engine.published == [("a/b", "grüß".encode(), 1, True)]
        for topic in ("", "a/+", "#", "a\0b"):
            with pytest.raises(UsageError):
                await broker.publish(topic, b"")
        with pytest.raises(UsageError):
            await broker.publish("a", b"", qos=3)
        assert len(broker.engine.published) == 1


async def test_properties_go_down_encoded_and_come_up_decoded(broker_on_fake: type[BrokerOnFake]) -> None:
    properties = Properties(message_expiry_s=9, content_type="x", user_properties=(("a", "1"), ("a", "2")))
    async with broker_on_fake(QUIET) as broker, broker.subscribe("a") as messages:
        await broker.publish("a", b"", properties=properties)
        assert broker.engine.message_expiries_s == [9]
        assert (await anext(messages)).properties == replace(properties, message_expiry_s=None)
        await broker.publish("a", b"")
        assert (await anext(messages)).properties == Properties()


async def test_a_malformed_filter_is_refused(broker_on_fake: type[BrokerOnFake]) -> None:
    async with broker_on_fake(QUIET) as broker:
        for topic_filter in ("", "a/#/b", "a+"):
            with pytest.raises(UsageError):
                broker.subscribe(topic_filter)


async def test_a_subscription_yields_in_order_until_it_is_left(broker_on_fake: type[BrokerOnFake]) -> None:
    async with broker_on_fake(QUIET) as broker:
        async with broker.subscribe("a", qos=1) as messages:
            assert broker.engine.receivers == {1: ("a", 1)}
            for number in range(3):
                await broker.publish("a", str(number))
            got = [await anext(messages) for _ in range(3)]
        assert [message.payload for message in got] == [b"0", b"1", b"2"]
        assert broker.engine.receivers == {}
        with pytest.raises(UsageError, match="closed"):
            await messages.__aenter__()


async def test_a_subscription_may_be_iterated_at_once_and_ends_with_the_loop(
    broker_on_fake: type[BrokerOnFake],
) -> None:
    async with broker_on_fake(QUIET) as broker:

        async def read() -> Any:
            async for message in broker.subscribe("a"):
                return message

        task = asyncio.create_task(read())
        await until(lambda: broker.engine.receivers, "subscribed")
        await broker.publish("a", b"1")
        assert (await task).payload == b"1"
        assert broker.engine.receivers == {}


async def test_a_subscription_ends_when_the_broker_stops(broker_on_fake: type[BrokerOnFake]) -> None:
    async with broker_on_fake(QUIET) as broker:
        subscription = broker.subscribe("a")
        task = asyncio.create_task(_collect(subscription))
        await until(lambda: broker.engine.receivers, "subscribed")
        await broker.publish("a", b"1")
    assert [message.payload for message in await task] == [b"1"]


async def _collect(subscription: Any) -> list[Any]:
    return [message async for message in subscription]


async def test_a_full_queue_drops_the_new_message_and_counts_it(broker_on_fake: type[BrokerOnFake]) -> None:
    async with broker_on_fake(QUIET) as broker, broker.subscribe("a", queue_messages_max=2) as messages:
        for number in range(5):
            await broker.publish("a", str(number))
        await until(lambda: messages.dropped == 3, "three dropped")
        assert [(await anext(messages)).payload for _ in range(2)] == [b"0", b"1"]
        assert broker.counters()["dropped_program_queue"] == 3


async def test_an_event_that_fails_does_not_hold_up_the_next(
    broker_on_fake: type[BrokerOnFake], caplog: pytest.LogCaptureFixture
) -> None:
    async with broker_on_fake(QUIET) as broker, broker.subscribe("a") as messages:
        broker.engine.say(NO_EVENT, Received(1, "a", b"x", 0, False, b""))
        assert (await anext(messages)).payload == b"x"
    assert "event str failed" in caplog.text


async def test_disconnect_passes_on(broker_on_fake: type[BrokerOnFake]) -> None:
    async with broker_on_fake(QUIET) as broker:
        await broker.disconnect("c1")
        assert broker.engine.disconnected == [("c1", 0x98)]


async def test_two_brokers_in_one_process_share_nothing(broker_on_fake: type[BrokerOnFake]) -> None:
    async with broker_on_fake(QUIET) as one, broker_on_fake(QUIET) as two, two.subscribe("a"):
        await one.publish("a", b"")
        assert (len(one.engine.published), len(two.engine.published)) == (1, 0)
        assert one.engine.receivers == {}


async def test_sys_topics_are_published_retained_and_again(broker_on_fake: type[BrokerOnFake]) -> None:
    async with broker_on_fake(Config(port=0, sys_interval_s=0.02)) as broker:
        published = broker.engine.published
        await until(lambda: sum(p[0] == "$SYS/broker/uptime" for p in published) >= 2, "two rounds")
    assert ("$SYS/broker/clients/connected", b"3", 0, True) in published
    assert all(retain for *_, retain in published)


def test_sys_messages_leave_out_what_the_engine_does_not_count() -> None:
    topics = SysTopics()
    topics.look({"messages_sent": 4, "dropped_a": 1, "dropped_b": 2}, 0.0)
    planned = topics.plan(uptime_s=9)
    assert planned["$SYS/broker/uptime"] == "9 seconds"
    assert planned["$SYS/broker/messages/sent"] == "4"
    assert planned["$SYS/broker/messages/dropped"] == "3"
    assert "$SYS/broker/messages/received" not in planned
    assert "$SYS/broker/load/bytes/sent/1min" not in planned


def test_sys_messages_have_maxima_and_moving_averages_a_minute() -> None:
    topics = SysTopics()
    for second in range(600):  # ten messages a second, and five clients that go in the end
        clients = 5 if second < 300 else 1
        counters = {"messages_received": 10 * second, "live_connections": clients, "sessions": 7}
        topics.look(counters | {"memory_used": 100 - second // 10}, 1.0)
    planned = topics.plan(uptime_s=600)
    assert planned["$SYS/broker/clients/maximum"] == "5"
    assert planned["$SYS/broker/clients/disconnected"] == "6"
    assert planned["$SYS/broker/heap/maximum size"] == "100"
    assert planned["$SYS/broker/heap/current size"] == "41"
    loads = [float(planned[f"$SYS/broker/load/publish/received/{each}min"]) for each in (1, 5, 15)]
    assert loads == [pytest.approx(600, abs=1), pytest.approx(519, abs=1), pytest.approx(291, abs=1)]


async def _http(port: int, request: bytes) -> tuple[bytes, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return head.split(b"\r\n")[0], body


async def test_the_admin_endpoint_tells_health_and_counters(
    broker_on_fake: type[BrokerOnFake], unused_tcp_port: int
) -> None:
    config = Config(port=0, sys_interval_s=0, admin_port=unused_tcp_port)
    async with broker_on_fake(config) as broker:
        port = broker.admin_port
        status, body = await _http(port, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert status == b"HTTP/1.1 200 OK"
        assert json.loads(body) == {"status": "ok"}
        _, body = await _http(port, b"GET /counters HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert json.loads(body)["messages_received"] == 7
        status, body = await _http(port, b"GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert status == b"HTTP/1.1 404 Not Found"
        paths = json.loads(body)["paths"]
        _, body = await _http(port, b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n")
        own = {"/", "/alarms", "/counters", "/health", "/metrics", "/openapi.json", "/ready", "/reload"}
        assert paths == sorted({*json.loads(body)["paths"], *own})
        status, _ = await _http(port, b"POST /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert status == b"HTTP/1.1 405 Method Not Allowed"
        assert (await _http(port, b"x" * 20_000 + b"\r\n\r\n"))[0] == b"HTTP/1.0 400 Bad Request"
    with pytest.raises(OSError):  # noqa: PT011 - any refusal to connect
        await asyncio.open_connection("127.0.0.1", port)


async def test_connections_are_lines_of_the_log(
    broker_on_fake: type[BrokerOnFake], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tidemq")
    async with broker_on_fake(QUIET) as broker:
        assert broker.engine.report_connections
        broker.engine.say(Connected(1, "c1", "p", 5, False), Disconnected(1, "c1", "p", 0x8B, 0))
        await until(lambda: len(caplog.records) == 2, "two lines")
    assert caplog.messages == [
        "client 'c1' (p) connected",
        "client 'c1' (p) disconnected, reason 0x8b",
        "the broker stops: clients are told, and the last messages written",
        "the broker has stopped",
    ]


async def test_many_connections_are_no_flood_of_lines(
    broker_on_fake: type[BrokerOnFake], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fault_log, "PAUSE_S", 0.5)
    caplog.set_level(logging.INFO, "tidemq")
    async with broker_on_fake(Config(fault_lines_max=5, sys_interval_s=0, store="memory")) as broker:
        broker.engine.say(*(Connected(each, f"c{each}", "p", 5, False) for each in range(1000)))
        await until(lambda: not broker.engine.report_connections, "no more reports")
        await until(lambda: broker.engine.report_connections, "reports again")
    lines = [each for each in caplog.messages if each.endswith("connected")]
    assert 5 <= len(lines) <= 10
    assert any(
        each.endswith("more connects and disconnects (at least) were not logged") for each in caplog.messages
    )


async def test_where_an_authenticator_must_know_reports_go_on(
    broker_on_fake: type[BrokerOnFake], caplog: pytest.LogCaptureFixture
) -> None:
    class Everybody:
        def authenticate(self, request: ConnectRequest) -> Verdict:
            return Verdict()

    caplog.set_level(logging.INFO, "tidemq")
    settings = Config(fault_lines_max=0, sys_interval_s=0, store="memory")
    async with broker_on_fake(settings, authenticator=Everybody()) as broker:
        broker.engine.say(*(Connected(each, f"c{each}", "p", 5, False) for each in range(100)))
        await asyncio.sleep(0.05)
        assert broker.engine.report_connections


async def test_what_the_engine_leaves_behind_is_an_error(
    broker_on_fake: type[BrokerOnFake], caplog: pytest.LogCaptureFixture
) -> None:
    async with broker_on_fake(QUIET):
        pass
    assert not caplog.records
    async with broker_on_fake(QUIET) as broker:
        broker.engine.left = {"live_messages": 2, "live_sessions": 0}
    assert caplog.messages == ["the engine left objects behind: {'live_messages': 2}"]


async def test_each_fault_is_one_line(
    broker_on_fake: type[BrokerOnFake], caplog: pytest.LogCaptureFixture
) -> None:
    async with broker_on_fake(QUIET) as broker:
        broker.engine.say(Disconnected(1, "c\n1", "10.0.0.1:5", 0x81, 5), Disconnected(2, "c2", "p", 0, 0))
        await until(lambda: caplog.records, "a line")
    (record,) = caplog.records
    assert record.name == "tidemq.clients"
    assert r"client 'c\n1' (10.0.0.1:5, listener 'default')" in record.message


async def test_what_is_dropped_is_logged_with_the_client(
    broker_on_fake: type[BrokerOnFake], caplog: pytest.LogCaptureFixture
) -> None:
    async with broker_on_fake(QUIET) as broker:
        broker.engine.say(Dropped("c\n1", "dropped_queue_full", 7), Dropped("", "dropped_retained_full", 1))
        await until(lambda: len(caplog.records) == 2, "two lines")
    assert caplog.messages == [
        r"client 'c\n1': 7 messages dropped: its queue is full (queued_messages_max, queued_bytes_max)",
        "some client: 1 messages not retained: retained_messages_max",
    ]


def test_lines_on_dropped_messages_are_bounded_too(caplog: pytest.LogCaptureFixture) -> None:
    log = DropLog(1)
    for now_s in (1.0, 1.1, 2.0):
        log.log(Dropped("c", "dropped_queue_full", 1), now_s)
    assert "1 more lines on dropped messages" in caplog.messages[1]
    assert len(caplog.messages) == 3


def test_the_counters_page_marks_what_is_logged() -> None:
    text = (Path(__file__).parents[2] / "docs/counters.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \|.* † \|$", text, re.MULTILINE)) == DROPS.keys()


def test_fault_lines_are_bounded_a_second_and_the_rest_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    log = FaultLog(2)
    for now_s in (1.0, 1.1, 1.2, 1.3, 2.0):
        log.log(Disconnected(1, "c", "p", 0x81, 5), now_s)
    assert [record.message.startswith("client") for record in caplog.records] == [True, True, False, True]
    assert "2 more faults" in caplog.records[2].message


def test_every_name_of_the_package_is_there() -> None:
    """All that a plugin or a provider has to name, too."""
    assert {"Access", "AclRule", "ConnectRequest", "HeldMessage", "Verdict"} < set(tidemq.__all__)
    for name in tidemq.__all__:
        assert getattr(tidemq, name) is not None
