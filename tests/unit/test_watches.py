"""Messages on watched topic filters are counted, on whichever reactor they come, and no others."""

from __future__ import annotations

import asyncio
import http.client
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from conformance.kit import connected
from prometheus_client.parser import text_string_to_metric_families
from waiting import WAIT_S, wait_until

from tidemq import Broker, Config
from tidemq.broker.admin import watch_api
from tidemq.broker.monitoring import watches
from tidemq.errors import ConfigError

JSON = {"Content-Type": "application/json"}
MESSAGES = 50


@pytest.fixture
def config(tmp_path: Path, unused_tcp_port: int) -> Config:
    return Config(
        host="127.0.0.1", port=0, reactors=2, sys_interval_s=0, data=tmp_path, admin_port=unused_tcp_port
    )


def asked(broker: Broker, method: str, body: object = None, **query: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", broker.admin_port, timeout=WAIT_S)
    path = f"/api/v1/watched-topics?{urlencode(query)}" if query else "/api/v1/watched-topics"
    connection.request(method, path, None if body is None else json.dumps(body), JSON)
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def counts(broker: Broker) -> dict[str, tuple[int, int]]:
    """Messages and bytes, by filter."""
    rows = asked(broker, "GET")[1]["watched"]
    return {each["topic_filter"]: (each["messages"], each["payload_bytes"]) for each in rows}


def watch(broker: Broker, topic_filter: str) -> None:
    before = broker.counters()["subscriptions"]
    assert asked(broker, "POST", {"topic_filter": topic_filter})[0] == 201
    wait_until(lambda: broker.counters()["subscriptions"] == before + 1)


async def test_what_matches_is_counted_and_nothing_else(config: Config) -> None:
    def act() -> None:
        clients = [connected(broker) for _ in range(4)]
        clients[0].publish("plant/1", b"before", qos=1, retain=True)
        watch(broker, "plant/+")
        watch(broker, "plant/1")
        assert asked(broker, "POST", {"topic_filter": "plant/1"})[0] == 201  # again: nothing new
        for number in range(MESSAGES):
            clients[number % 4].publish("plant/1", b"12345", qos=number % 3)
            clients[number % 4].publish("plant/2", b"1", qos=0, retain=True)
            clients[number % 4].publish("office/1", b"1")
        expected = {"plant/+": (2 * MESSAGES, 6 * MESSAGES), "plant/1": (MESSAGES, 5 * MESSAGES)}
        wait_until(lambda: counts(broker) == expected)
        assert asked(broker, "DELETE", topic_filter="plant/+")[0] == 200
        assert asked(broker, "DELETE", topic_filter="plant/+")[0] == 404
        wait_until(lambda: broker.counters()["subscriptions"] == 1)
        clients[0].publish("plant/1", b"12345", qos=1)
        wait_until(lambda: counts(broker) == {"plant/1": (MESSAGES + 1, 5 * MESSAGES + 5)})
        watch(broker, "office/#")  # at the place that has become free
        assert counts(broker)["office/#"] == (0, 0)

    async with Broker(config) as broker:
        await asyncio.to_thread(act)


async def test_a_wrong_one_and_too_many_are_refused(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_api, "WATCHES_MAX", 2)

    def act() -> None:
        for body in ({}, {"topic_filter": ""}, {"topic_filter": "a#"}, {"filter": "a"}):
            assert asked(broker, "POST", body)[0] == 400
        for topic_filter in ("$share/group/a", "$exclusive/a"):  # which would take from others
            assert asked(broker, "POST", {"topic_filter": topic_filter})[0] == 400
        for topic_filter, status in (("a", 201), ("b", 201), ("c", 409), ("a", 201)):
            assert asked(broker, "POST", {"topic_filter": topic_filter})[0] == status

    async with Broker(config) as broker:
        await asyncio.to_thread(act)


def metrics(broker: Broker) -> dict[tuple[str, str], float]:
    """Those of watched topics, by name and filter, as Prometheus's own parser reads them."""
    connection = http.client.HTTPConnection("127.0.0.1", broker.admin_port, timeout=WAIT_S)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    return {
        (sample.name, sample.labels["filter"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("tidemq_watched_topic_")
    }


async def test_those_of_the_configuration_are_metrics_by_the_filter_that_was_named(config: Config) -> None:
    odd = 'plant/"a\\b"/+'
    config = config.model_copy(update={"watched_topics": ("plant/+/temp", odd, "plant/+/temp")})
    names = ("tidemq_watched_topic_messages_total", "tidemq_watched_topic_payload_bytes_total")

    def act() -> None:
        clients = [connected(broker) for _ in range(4)]
        for number in range(MESSAGES):  # from the first message on, whoever publishes it
            clients[number % 4].publish(f"plant/{number}/temp", b"12345", qos=number % 2)
        clients[0].publish('plant/"a\\b"/1', b"1", qos=1)
        clients[0].publish("plant/1/other", b"1", qos=1)
        expected = dict(zip(names, (MESSAGES, 5 * MESSAGES), strict=True))
        wanted = {(name, "plant/+/temp"): count for name, count in expected.items()}
        wait_until(lambda: metrics(broker) == wanted | {(name, odd): 1.0 for name in names})
        assert asked(broker, "DELETE", topic_filter=odd)[0] == 200
        assert {topic_filter for _, topic_filter in metrics(broker)} == {"plant/+/temp"}

    async with Broker(config) as broker:
        await asyncio.to_thread(act)


@pytest.mark.parametrize("topic_filter", ["", "a#", "a/#/b", "$share/group/a"])
async def test_a_wrong_one_of_the_configuration_is_refused(config: Config, topic_filter: str) -> None:
    with pytest.raises(ConfigError, match=r"configuration: watched_topics: .*accepted: topic filters"):
        await Broker(config.model_copy(update={"watched_topics": (topic_filter,)})).start()


def test_the_configuration_names_as_many_as_are_counted() -> None:
    for count in (watches.WATCHES_MAX, watches.WATCHES_MAX + 1):
        named = tuple(f"a/{number}" for number in range(count))
        if count == watches.WATCHES_MAX:
            assert len(Config(watched_topics=named).watched_topics) == count
        else:
            with pytest.raises(ValueError, match="watched_topics"):
                Config(watched_topics=named)
