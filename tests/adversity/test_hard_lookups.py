"""No filters of strangers make a message cost much, and no SUBSCRIBE of theirs a topic's memory."""

from __future__ import annotations

import random
import time
from collections import Counter

import pytest
from adversity.conftest import EngineUnderTest, StartEngine
from conformance.kit import Client
from conformance.packets import PING, PINGRESP, PUBLISH, SUBACK, publish, subscribe

LEVELS = 60
TOPIC = "/".join(["a"] * LEVELS)
FILTERS = 2_000


def connected(engine: EngineUnderTest) -> Client:
    client = Client(engine.port)
    client.connect()
    return client


def granted(client: Client, filters: list[str]) -> list[bool]:
    """Whether each of the filters is granted."""
    outcome: list[bool] = []
    for first in range(0, len(filters), 500):
        client.send(subscribe(1, *((name, 0) for name in filters[first : first + 500])))
        outcome += [reason < 0x80 for reason in client.expect(SUBACK).reasons]
    return outcome


def spread(count: int, seed: int) -> str:
    """A filter that matches `TOPIC`, with so many `+` in random places."""
    wild = random.Random(seed).sample(range(LEVELS), count)
    return "/".join("+" if place in wild else "a" for place in range(LEVELS))


def test_filters_that_would_make_look_ups_hard_are_refused(start_engine: StartEngine) -> None:
    engine = start_engine(1)
    stranger = connected(engine)
    assert not any(granted(stranger, [spread(30, seed) for seed in range(FILTERS)]))
    assert engine.count("refused_subscriptions") == FILTERS
    deep = "/".join(["a"] * 20 + ["+"] * 2 + ["b"] * 9)
    common = ["#", "+/+/+/+", "a/+/c/+/e/+/g/#", "+/" * 10 + "x", deep]
    assert all(granted(stranger, common))


def test_who_publishes_what_is_hard_to_look_up_lets_others_go_first(start_engine: StartEngine) -> None:
    """A turn handles few of such messages."""
    engine = start_engine(1)
    # each way of up to ten levels, and what `#` below it adds
    ways = [[("+" if mask >> place & 1 else "a") for place in range(10)] for mask in range(1 << 10)]
    stranger = connected(engine)
    assert all(granted(stranger, ["/".join([*levels, "#"]) for levels in ways]))
    publisher, other = connected(engine), connected(engine)
    turns, messages = engine.count("turns"), 200
    publisher.send(*(publish(f"{TOPIC}/{number}") for number in range(messages)), PING)
    stranger.expect(PUBLISH)
    other.ping()
    publisher.expect(PINGRESP)
    # 2,047 nodes and 1,024 subscriptions each, of 4,096
    assert engine.count("turns") - turns >= messages // 8


@pytest.fixture
def flow(start_engine: StartEngine) -> tuple[EngineUnderTest, Client, Client]:
    """A subscriber and a publisher to 100 topics, which have been looked up."""
    engine = start_engine(1)
    subscriber, publisher = connected(engine), connected(engine)
    subscriber.subscribe("t/+/v")
    publish_all(subscriber, publisher)
    return engine, subscriber, publisher


def publish_all(subscriber: Client, publisher: Client) -> None:
    for number in range(100):
        publisher.send(publish(f"t/{number}/v", b"x"))
    for number in range(100):
        subscriber.expect_message(f"t/{number}/v", b"x")


def test_subscriptions_to_other_topics_void_no_topic_s_receivers(
    flow: tuple[EngineUnderTest, Client, Client],
) -> None:
    engine, subscriber, publisher = flow
    misses = engine.count("cache_misses")
    changing = connected(engine)
    for round in range(10):
        name = f"other/{round}"
        changing.subscribe(name)
        changing.subscribe(f"t/+/w{round}")
        changing.subscribe(f"{name}/#")
        changing.unsubscribe(name)
        publish_all(subscriber, publisher)
    # 4,000 there would be. All topics have nine marks of 4,096 in common: in a tenth of runs one of the 40
    # filters has one of these; five of them hardly ever
    assert engine.count("cache_misses") - misses < 500


def test_a_subscription_counts_from_the_next_message_on(
    flow: tuple[EngineUnderTest, Client, Client],
) -> None:
    engine, subscriber, publisher = flow
    for filter in ("t/7/v", "t/+/v", "t/#", "#", "+/7/+", "+/7/v/#", "t/7/v/#", "$share/g/t/7/+"):
        late = connected(engine)
        late.subscribe(filter)
        publisher.publish("t/7/v", b"y")
        late.expect_message("t/7/v", b"y")
        subscriber.expect_message("t/7/v", b"y")
        late.unsubscribe(filter)
        publisher.publish("t/7/v", b"z")
        subscriber.expect_message("t/7/v", b"z")
        late.expect_nothing()


def test_a_member_of_a_group_that_comes_or_goes_voids_its_topics_alone(
    flow: tuple[EngineUnderTest, Client, Client],
) -> None:
    engine, subscriber, publisher = flow
    for number in range(2):
        member = Client(engine.port)
        member.connect(f"member{number}", clean=False, session_expiry=60)
        member.subscribe("$share/g/work/+")
        member.disconnect()
    misses = engine.count("cache_misses")
    for round in range(20):
        member = Client(engine.port)
        member.connect(f"member{round % 2}", clean=False, session_expiry=60)
        publisher.publish("work/1", b"%d" % round)
        member.expect_message("work/1", b"%d" % round)
        member.disconnect()
        publish_all(subscriber, publisher)
    assert engine.count("cache_misses") - misses < 200  # two of the group's a round, and some by chance


def test_one_subscribe_holds_no_turn_for_ever(start_engine: StartEngine) -> None:
    client = connected(start_engine(1))
    client.send(subscribe(1, *[("t", 0)] * 18_384))
    assert [*client.expect(SUBACK).reasons] == [0] * 16_384 + [0x97] * 2_000


def test_identifiers_of_many_subscriptions_that_overlap_take_the_room_that_they_need(
    start_engine: StartEngine,
) -> None:
    """Two clients with the same 1,024 filters: their identifiers stand side by side, and are not copied for
    each that comes to them.
    """
    engine = start_engine(1)
    filters = ["/".join("+" if mask >> place & 1 else "a" for place in range(10)) for mask in range(1 << 10)]
    clients = [connected(engine) for _ in range(2)]
    for client in clients:
        for number, name in enumerate(filters):
            client.send(subscribe(1, (name, 4 * (number % 2)), subscription_id=number + 1))
            client.expect(SUBACK)
    clients[0].send(publish("/".join(["a"] * 10), b"x"))
    own, other = clients[0].expect(PUBLISH), clients[1].expect(PUBLISH)
    # the others of its own are no-local
    assert Counter(own.all("subscription_id")) == Counter(range(1, 1025, 2))
    assert Counter(other.all("subscription_id")) == Counter(range(1, 1025))
    time.sleep(0.3)  # it is counted each 100 ms
    assert engine.count("memory_caches") < 200_000


def test_a_full_memory_of_topics_makes_room_for_new_ones(start_engine: StartEngine) -> None:
    """By their receivers: eight a topic, of which 256 in all are remembered."""
    engine = start_engine(1, cache_receivers_max=256)
    subscribers = [connected(engine) for _ in range(8)]
    for subscriber in subscribers:
        subscriber.subscribe("t/#")
    publisher = connected(engine)
    for number in range(100):
        publisher.send(publish(f"t/{number}", b"x"))
    publisher.ping()
    misses = engine.count("cache_misses")
    for number in range(100):
        publisher.send(publish(f"t/{90 + number % 10}", b"x"))
    publisher.ping()
    assert engine.count("cache_misses") - misses < 50  # the last ones are still known
    for subscriber in subscribers:
        for number in [*range(100), *(90 + number % 10 for number in range(100))]:
            subscriber.expect_message(f"t/{number}", b"x")
