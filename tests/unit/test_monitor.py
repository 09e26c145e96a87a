"""What a running broker shows: metrics, alarms, whether it is ready, its clients."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from conformance.kit import Client, connected, kept, unique
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from waiting import WAIT_S, until

from tidemq import Broker, Config
from tidemq.broker.durability.storage import Storage
from tidemq.broker.monitoring import monitor as monitoring
from tidemq.broker.monitoring.client_lists import ClientLists, Cursor
from tidemq.broker.monitoring.metric_names import metric_name
from tidemq.broker.monitoring.metrics import (
    BRIDGE,
    BRIDGE_DROPS,
    BRIDGE_GAUGES,
    CLUSTER_GAUGES,
    CLUSTER_MEMBERS,
    GAUGES,
    HISTOGRAMS,
    MEMBER_GAUGES,
    REACTOR,
    WATCHES,
    of_counters,
)
from tidemq.broker.monitoring.monitor import Monitor
from tidemq.engine.door.figures import ClientFigures, Question
from tidemq.errors import UsageError
from tidemq.store import MemoryStore

ROOT = Path(__file__).parents[2]


@pytest.fixture
def config(tmp_path: Path, unused_tcp_port: int) -> Config:
    return Config(
        host="127.0.0.1",
        port=0,
        reactors=2,
        sys_interval_s=0,
        data=tmp_path / "d",
        admin_port=unused_tcp_port,
    )


def get(broker: Broker, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", broker.admin_port, timeout=WAIT_S)
    connection.request("GET", path)
    answer = connection.getresponse()
    return answer.status, answer.read()


def monitor_of(broker: Broker) -> Monitor:
    assert broker.monitor is not None
    return broker.monitor


async def scrape(broker: Broker) -> dict[str, Metric]:
    status, body = await asyncio.to_thread(get, broker, "/metrics")
    assert status == 200
    return {family.name: family for family in text_string_to_metric_families(body.decode())}


def value(families: dict[str, Metric], name: str, **labels: str) -> float:
    """Of the one sample of that name with these labels."""
    family = families[max((key for key in families if name.startswith(key)), key=len)]
    found = [
        each.value for each in family.samples if each.name == name and labels.items() <= each.labels.items()
    ]
    assert len(found) == 1, f"{name} {labels}: {found}"
    return found[0]


async def test_every_counter_is_a_metric_of_the_same_value(config: Config) -> None:
    async with Broker(config) as broker:
        families = await scrape(broker)
        counters = broker.counters()
    for counter in counters:
        named = metric_name(counter)
        labels = {"reason": named.reason} if named.reason else {}
        sample = named.name if named.is_gauge else f"{named.name}_total"
        assert value(families, sample, **labels) >= 0, counter
    total = value(families, "tidemq_connections_accepted_total")
    assert total == counters["connections_accepted"] == 0


def test_metrics_of_all_documented_counters_have_names_of_their_own() -> None:
    text, of_metrics = (ROOT / "docs/counters.md").read_text().split("\n## Prometheus\n")
    counters = re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)
    names = [metric_name(counter) for counter in counters]
    assert len({(each.name, each.reason) for each in names}) == len(counters) > 90
    now = re.findall(r"^\| `(\w+)` \|", text.split("\n## Now\n")[1].split("\n## ")[0], re.MULTILINE)
    assert {counter for counter in counters if metric_name(counter).is_gauge} == set(now)
    documented = set(re.findall(r"^\| `(tidemq_\w+)` \|", of_metrics, re.MULTILINE))
    own = {name for name, _, _ in (*HISTOGRAMS.values(), *REACTOR.values())} | set(GAUGES)
    own |= {"tidemq_build_info", "tidemq_listener_connections", "tidemq_certificate_days", "tidemq_alarm"}
    own |= {f"{name}_total" for name in WATCHES}
    own |= {name for name, _ in BRIDGE.values()} | set(BRIDGE_GAUGES) | {BRIDGE_DROPS}
    own |= {*CLUSTER_GAUGES, CLUSTER_MEMBERS, *MEMBER_GAUGES}
    assert documented == own


@pytest.mark.parametrize("file", ["grafana.json", "alerts.yml"])
async def test_ready_dashboards_and_alerts_name_metrics_that_there_are(config: Config, file: str) -> None:
    async with Broker(config) as broker:
        names = {sample.name for family in (await scrape(broker)).values() for sample in family.samples}
        names |= set(await scrape(broker))  # those without a sample as long as nothing is wrong
    text = (ROOT / "examples/monitoring" / file).read_text()
    used = set(re.findall(r"\btidemq_\w+", text))
    assert len(used) > 8
    assert used <= names, used - names


def test_counters_of_providers_with_odd_names_make_no_series_twice() -> None:
    counters = {"a-b": 1, "a_b": 2, "refused": 3, "refused_x": 4, "memory_mine": 5}
    found = {
        (sample.name, sample.labels.get("reason"), sample.value)
        for family in of_counters(counters)
        for sample in family.samples
    }
    assert found == {
        ("tidemq_a_b_total", None, 3),
        ("tidemq_refused_total", "", 3),
        ("tidemq_refused_total", "x", 4),
        ("tidemq_memory_mine_bytes", None, 5),
    }


async def test_how_long_things_take_is_counted_once_each(config: Config) -> None:
    topic, messages = unique("t"), 50

    def act() -> None:
        publisher, subscriber = connected(broker), connected(broker)
        subscriber.subscribe(topic, qos=2)
        for number in range(messages):
            publisher.publish(topic, b"x", qos=1 + number % 2)
        for _ in range(messages):
            subscriber.acknowledge(subscriber.receive())

    async with Broker(config) as broker:
        await asyncio.to_thread(act)
        families = await scrape(broker)
        for qos in "12":
            assert value(families, "tidemq_publish_seconds_count", qos=qos) == messages / 2
            assert value(families, "tidemq_publish_seconds_sum", qos=qos) > 0
        assert value(families, "tidemq_queued_seconds_count") == messages
        assert value(families, "tidemq_connect_seconds_count") == 2
        assert value(families, "tidemq_turn_seconds_count") > messages
        assert value(families, "tidemq_turn_seconds_count") <= broker.counters()["turns"]
        assert value(families, "tidemq_commit_seconds_count") == broker.counters()["store_batches"]


def leave_a_message(broker: Broker, client_id: str, topic: str) -> None:
    """For a client that is away."""
    subscriber = connected(broker, client_id=client_id, **kept(5))
    subscriber.subscribe(topic, qos=1)
    subscriber.disconnect()
    connected(broker).publish(topic, b"x", qos=1)


async def test_what_waits_for_a_client_is_timed_from_when_it_came(config: Config) -> None:
    topic, client_id = unique("t"), unique("c")

    def come_back() -> None:
        connected(broker, client_id=client_id, **kept(5)).expect_message(topic, b"x", 1)

    async with Broker(config) as broker:
        await asyncio.to_thread(leave_a_message, broker, client_id, topic)
        await asyncio.sleep(1.05)  # dates are those of a reactor's turn, which is a moment old
        monitor = monitor_of(broker)
        oldest_ms, who = await monitor.clients.oldest()
        assert who == client_id
        assert oldest_ms >= 1000
        await asyncio.to_thread(come_back)
        families = await scrape(broker)
        assert value(families, "tidemq_queued_seconds_count") == 1
        assert 1.0 <= value(families, "tidemq_queued_seconds_sum") < WAIT_S

        async def empty() -> bool:
            return (await monitor.clients.oldest())[0] == -1

        await until(empty, "the acknowledgement")


async def test_a_message_that_waits_across_a_restart_keeps_its_age(config: Config) -> None:
    topic, client_id = unique("t"), unique("c")

    async with Broker(config) as broker:
        await asyncio.to_thread(leave_a_message, broker, client_id, topic)
    await asyncio.sleep(1.0)
    async with Broker(config) as broker:
        oldest_ms, who = await monitor_of(broker).clients.oldest()
        assert (who, oldest_ms >= 1000, oldest_ms < WAIT_S * 1000) == (client_id, True, True)


async def everybody(lists: ClientLists, question: Question) -> list[ClientFigures]:
    found: list[ClientFigures] = []
    cursor: Cursor | None = None
    while True:
        page = await lists.page(question, cursor)
        assert len(page.clients) <= question.rows_max
        found += page.clients
        cursor = page.cursor
        if cursor is None:
            return found


@pytest.mark.parametrize("rows_max", [1, 7, 1000])
async def test_every_client_is_listed_once_whatever_the_pages_are(config: Config, rows_max: int) -> None:
    prefix = unique("c")

    def act() -> list[Client]:
        here = [connected(broker, client_id=f"{prefix}-here-{number}") for number in range(40)]
        for number in range(40):
            connected(broker, client_id=f"{prefix}-away-{number}", **kept(5)).disconnect()
        return here

    async with Broker(config) as broker:
        keep = await asyncio.to_thread(act)
        lists = monitor_of(broker).clients
        await until(lambda: broker.counters()["live_connections"] == 40, "those that are away")
        found = await everybody(lists, Question(rows_max=rows_max, client_id=prefix))
        assert sorted(each.client_id for each in found) == sorted(
            f"{prefix}-{place}-{number}" for place in ("here", "away") for number in range(40)
        )
        assert {each.client_id for each in found if each.connected} == {
            f"{prefix}-here-{number}" for number in range(40)
        }
        assert {each.reactor for each in found} == {0, 1}
        for wanted in ("connected", "away"):
            question = Question(
                rows_max=rows_max,
                client_id=prefix,
                connected=wanted == "connected",
                away=wanted == "away",
            )
            some = await everybody(lists, question)
            assert len(some) == 40
            assert all(each.connected == (wanted == "connected") for each in some)
        assert not await everybody(lists, Question(rows_max=rows_max, client_id=prefix + "x"))
        assert (
            len(await everybody(lists, Question(rows_max=9, address="127.0.0.1", listener="default"))) == 40
        )
        assert not await everybody(lists, Question(rows_max=9, address="127.0.0.2"))
        assert not await everybody(lists, Question(rows_max=9, listener="other"))
        assert not await everybody(lists, Question(rows_max=9, username="nobody"))
        with pytest.raises(UsageError, match="reactor 2"):
            await lists.page(Question(), (2, None))
        del keep


async def test_long_names_end_a_page_early_and_nobody_is_missed(config: Config) -> None:
    """A megabyte of names in an answer is enough."""
    prefix, users = unique("c"), {f"{number}-{'x' * 60_000}": "secret" for number in range(30)}
    config = config.model_copy(
        update={"authenticator": "static", "authenticator_options": {"users": users}, "reactors": 1}
    )

    def act() -> list[Client]:
        return [
            connected(broker, client_id=f"{prefix}-{number}", username=user, password=b"secret")
            for number, user in enumerate(users)
        ]

    async with Broker(config) as broker:
        keep = await asyncio.to_thread(act)
        lists = monitor_of(broker).clients
        page = await lists.page(Question(rows_max=1000))
        assert 17 <= len(page.clients) <= 19
        assert page.cursor is not None
        found = await everybody(lists, Question(rows_max=1000))
        assert sorted(each.username or "" for each in found) == sorted(users)
        one = await everybody(lists, Question(rows_max=1000, username=next(iter(users))))
        assert [each.client_id for each in one] == [f"{prefix}-0"]
        del keep


async def test_a_client_of_ipv4_is_found_at_a_listener_for_both(config: Config) -> None:
    async with Broker(config.model_copy(update={"host": "::"})) as broker:
        client = await asyncio.to_thread(connected, broker)
        found = await everybody(monitor_of(broker).clients, Question(rows_max=9, address="127.0.0.1"))
        assert [each.client_id for each in found] == [client.client_id]


async def test_the_oldest_message_counts_whoever_it_waits_for(config: Config) -> None:
    """Behind one that is in flight, and in the queue of a shared group."""
    topic, client_id = unique("t"), unique("c")

    def one_in_flight() -> Client:
        client = connected(broker, client_id=client_id, receive_max=1, **kept(5))
        client.subscribe(topic, qos=1)
        publisher = connected(broker)
        for _ in range(2):
            publisher.publish(topic, b"x", qos=1)
        return client

    def again(client: Client) -> Client:
        client.drop()
        return connected(broker, client_id=client_id, receive_max=1, **kept(5))

    def shared() -> None:
        member = connected(broker, **kept(5))
        member.subscribe(f"$share/g/{topic}/shared", qos=1)
        member.disconnect()
        connected(broker).publish(f"{topic}/shared", b"x", qos=1)

    async with Broker(config.model_copy(update={"store": "memory"})) as broker:
        lists = monitor_of(broker).clients
        client = await asyncio.to_thread(one_in_flight)
        await asyncio.sleep(1.0)
        client = await asyncio.to_thread(again, client)
        oldest_ms, who = await lists.oldest()
        assert who == client_id
        assert oldest_ms >= 1000  # not since it was sent again
    async with Broker(config.model_copy(update={"store": "memory"})) as broker:
        lists = monitor_of(broker).clients
        await asyncio.to_thread(shared)
        await asyncio.sleep(0.5)
        oldest_ms, who = await lists.oldest()
        assert (oldest_ms >= 500, who) == (True, "")


async def test_a_client_is_shown_with_its_session_and_why_it_went(config: Config) -> None:
    client_id, topic = unique("c"), unique("t")

    def come() -> Client:
        client = connected(broker, client_id=client_id, keep_alive_s=60, **kept(5))
        client.subscribe(f"{topic}/#", qos=1)
        client.subscribe(f"{topic}/a", qos=2)
        return client

    def go(client: Client) -> None:
        client.send(b"\xc0\x01\x00")  # a PINGREQ with a body
        client.expect_closed(0x81)
        connected(broker).publish(f"{topic}/a", b"12345", qos=1)

    async with Broker(config) as broker:
        lists = monitor_of(broker).clients
        assert await lists.one(client_id) is None
        client = await asyncio.to_thread(come)
        shown = await lists.one(client_id)
        assert shown is not None
        figures = shown.figures
        assert (figures.client_id, figures.connected, figures.listener) == (client_id, True, "default")
        assert (figures.protocol_version, figures.keep_alive_s) == (5, 60)
        assert figures.session_expiry_s == 3600
        assert figures.peer.startswith("127.0.0.1:")
        assert figures.since_ms > 1_700_000_000_000
        assert figures.left_ms == 0
        assert sorted((each, options & 3) for each, options, _ in shown.filters) == [
            (f"{topic}/#", 1),
            (f"{topic}/a", 2),
        ]
        assert figures.subscriptions == 2
        await asyncio.to_thread(go, client)
        shown = await lists.one(client_id)
        assert shown is not None
        figures = shown.figures
        assert not figures.connected
        assert figures.left_fault > 0
        assert figures.left_reason == 0x81
        assert figures.left_ms >= figures.since_ms
        assert figures.queued_messages == 1
        assert figures.queued_bytes >= 5
        assert figures.oldest_ms >= 0
        assert figures.ends_ms > figures.left_ms


async def test_a_roll_call_beside_clients_that_come_and_go_misses_nobody_who_stays(config: Config) -> None:
    prefix, ended = unique("c"), threading.Event()

    def stay() -> list[Client]:
        return [connected(broker, client_id=f"{prefix}-{number}") for number in range(100)]

    def churn() -> None:
        number = 0
        while not ended.is_set():
            number += 1
            connected(broker, client_id=unique("other"), **(kept(5) if number % 2 else {})).disconnect()

    async with Broker(config) as broker:
        keep = await asyncio.to_thread(stay)
        churning = asyncio.create_task(asyncio.to_thread(churn))
        for _ in range(50):
            found = await everybody(monitor_of(broker).clients, Question(rows_max=13, client_id=prefix))
            assert sorted(each.client_id for each in found) == sorted(f"{prefix}-{n}" for n in range(100))
        ended.set()
        await churning
        del keep


async def test_a_broker_that_loads_is_alive_and_not_ready(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    load = Storage._load

    def slowly(*parts: Any) -> object:
        assert go_on.wait(WAIT_S)
        return load(*parts)

    monkeypatch.setattr(Storage, "_load", slowly)
    broker = Broker(config)
    starting = asyncio.create_task(broker.start())
    await until(lambda: broker.admin_port and broker.addresses, "the listener")
    said = [await asyncio.to_thread(get, broker, path) for path in ("/health", "/ready", "/counters")]
    assert [status for status, _ in said] == [200, 503, 503]
    assert json.loads(said[1][1])["problems"] == ["the broker loads what is stored"]
    go_on.set()
    await starting
    try:
        assert (await asyncio.to_thread(get, broker, "/ready"))[0] == 200
        assert (await asyncio.to_thread(get, broker, "/counters"))[0] == 200
        assert (await asyncio.to_thread(get, broker, "/streams"))[0] == 200
    finally:
        await broker.stop()


async def test_an_alarm_is_at_the_listener_and_a_retained_message(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitoring, "LOOK_S", 0.02)
    monkeypatch.setattr("tidemq.broker.monitoring.alarms.HOLD_S", 0.5)
    config = config.model_copy(update={"sys_interval_s": 1.0})
    async with Broker(config) as broker:
        assert monitor_of(broker).view.memory()[1] > 0
        stuck = True
        found = ["reactor 9 has not turned for 99 s"]
        monkeypatch.setattr(monitor_of(broker).pulse, "look", lambda: found if stuck else [])
        await until(lambda: monitor_of(broker).alarms.active, "the alarm")
        status, body = await asyncio.to_thread(get, broker, "/alarms")
        assert status == 200
        active = json.loads(body)["active"]
        assert [(each["name"], each["text"]) for each in active] == [("standstill", found[0])]
        health = await asyncio.to_thread(get, broker, "/health")
        assert (health[0], json.loads(health[1])["problems"]) == (503, found)
        assert value(await scrape(broker), "tidemq_alarm", reason="standstill") == 1
        async with broker.subscribe("$SYS/broker/alarms/standstill") as messages:
            message = await anext(messages)
            assert (message.retain, json.loads(message.payload)["ended"]) == (True, None)
            stuck = False
            message = await anext(messages)
            assert json.loads(message.payload)["ended"] is not None
        assert not monitor_of(broker).alarms.active
        status, body = await asyncio.to_thread(get, broker, "/alarms")
        assert [each["name"] for each in json.loads(body)["ended"]] == ["standstill"]


async def test_a_program_s_own_store_in_memory_has_metrics_too(config: Config) -> None:
    async with Broker(config.model_copy(update={"store": "memory"}), store=MemoryStore()) as broker:
        families = await scrape(broker)
    assert "tidemq_store_bytes" not in families
    assert "tidemq_memory_used_bytes" in families
