"""Floods of subscriptions and retained messages end at a limit, not when memory does."""

from __future__ import annotations

import resource
import time
from typing import TYPE_CHECKING

from adversity.collisions import colliding
from conformance.kit import Client, connected
from conformance.packets import PUBACK, SUBACK, publish, subscribe

if TYPE_CHECKING:
    from adversity.conftest import EngineUnderTest, StartEngine

BLOCK = 100  # filters of one SUBSCRIBE


def subscribe_to(engine: EngineUnderTest, filters: list[str], client: Client | None = None) -> list[int]:
    """By one client, in blocks; returns the reasons. Without a client by one that is gone afterwards."""
    client = client or connected(engine)
    reasons: list[int] = []
    for start in range(0, len(filters), BLOCK):
        client.send(subscribe(start // BLOCK + 1, *((each, 0) for each in filters[start : start + BLOCK])))
        reasons += client.expect(SUBACK).reasons
    return reasons


def test_no_more_subscriptions_of_all_clients_than_there_may_be(start_engine: StartEngine) -> None:
    engine = start_engine(2, subscriptions_total_max=500)
    first = connected(engine, session_expiry=100)
    for number in range(400):
        first.subscribe(f"a/{number}")
    reasons = subscribe_to(engine, [f"b/{number}" for number in range(300)])
    assert reasons == [0] * 100 + [0x97] * 200
    first.subscribe("a/1")  # it has this one
    assert engine.wait_for("refused_subscriptions", 200) == 200
    first.unsubscribe("a/1")
    first.subscribe("there is room again")


def test_deep_filters_end_at_the_memory_ceiling(start_engine: StartEngine) -> None:
    """Each takes some 4 KB in the tree, which its text does not show."""
    engine = start_engine(1, memory_bytes_max=32 << 20)
    good, publisher = connected(engine), connected(engine)
    good.subscribe("good", 1)
    reasons = []
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    floods = [connected(engine) for _ in range(3)]  # they stay, and with them what they have
    for number, client in enumerate(floods):
        reasons += subscribe_to(engine, [f"{number}/{n}" + "/x" * 60 for n in range(9000)], client)
        if reasons[-1]:
            break
    assert 0x97 in reasons
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 150_000, "in KB"
    publisher.send(publish("good", b"1", 1, 1))  # it is held, until the flooding clients have gone
    engine.wait_for("publishers_paused")
    assert engine.count("live_connections") >= 2


def test_retained_messages_with_long_topics_end_at_the_memory_ceiling(start_engine: StartEngine) -> None:
    engine = start_engine(1, memory_bytes_max=32 << 20, backpressure_s=0)
    publisher = connected(engine)
    refused = number = 0
    while refused < 10:
        number += 1
        assert number < 16_000, "nobody refuses them"
        publisher.send(publish(f"{number}/" + "long" * 1000, b"x", 1, 1, retain=True))
        refused += publisher.expect(PUBACK).reason == 0x97
    # how far it is passed depends on what came within the tick that noticed; from here on it stays
    passed = engine.count("memory_messages")
    for number in range(20_000, 20_500):
        publisher.send(publish(f"{number}/" + "long" * 1000, b"x", 1, 1, retain=True))
        assert publisher.expect(PUBACK).reason == 0x97
    assert engine.count("memory_messages") <= passed


def test_names_made_to_collide_cost_what_others_cost(start_engine: StartEngine) -> None:
    """Filters and client identifiers that have one hash in std::hash, by the processor's time that as many
    ordinary ones take: the shortest of several runs.
    """
    engine = start_engine(1)
    hostile = [text.decode() for text in colliding(8000)]
    ordinary = [f"{number:016}" for number in range(8000)]

    def took(names: list[str]) -> float:
        began = time.process_time()
        assert set(subscribe_to(engine, names)) == {0}
        return time.process_time() - began

    ratio = min(took(hostile) for _ in range(3)) / min(took(ordinary) for _ in range(3))
    assert ratio < 3
    for name in hostile[:50]:
        client = connected(engine, client_id=name)
        client.drop()


def test_nothing_of_a_flood_of_sessions_is_left(start_engine: StartEngine) -> None:
    engine = start_engine(2)
    empty = engine.count("memory_sessions"), engine.count("memory_connections")
    clients = [connected(engine) for _ in range(50)]
    for client in clients:
        client.subscribe("a/" + "b" * 1000)
    assert engine.count("memory_sessions") > empty[0] + 50 * 2500
    assert engine.count("memory_connections") > empty[1] + 50 * 500
    for client in clients:
        client.disconnect()
    engine.wait_for("sessions_ended", 50)
    assert (engine.count("memory_sessions"), engine.count("memory_connections")) == empty
