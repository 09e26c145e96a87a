"""New rules while a thousand clients are connected: held to at once, without a pause for anybody."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from conformance.kit import Client, connected
from conformance.packets import PING, PINGRESP, PUBACK, Will, publish, subscribe
from conformance.packets import PUBLISH as PUBLISH_PACKET

from tidemq.engine.door.events import PublishRequest
from tidemq.engine.door.rule_row import PUBLISH, SUBSCRIBE, RuleRow

if TYPE_CHECKING:
    from adversity.conftest import EngineUnderTest, StartEngine

CROWD = 600
ALL = PUBLISH | SUBSCRIBE
# so many that it takes a while to hold the crowd's subscriptions against them
MANY = [RuleRow(True, ALL, b"elsewhere/%d/#" % number) for number in range(10_000)]


def crowd_of(engine: EngineUnderTest, **settings: Any) -> list[Client]:
    """Clients that subscribe to what they may; those that came last are looked through first."""
    crowd = [connected(engine, **settings) for _ in range(CROWD)]
    for client in crowd:
        client.subscribe(f"shut/{client.client_id}")
    return crowd


def test_a_change_of_rules_is_spread_over_turns(start_engine: StartEngine) -> None:
    engine = start_engine(1)
    engine.engine.set_rules([*MANY, RuleRow(True, ALL, b"#")])
    crowd = crowd_of(engine)
    turns = engine.count("turns")
    engine.engine.set_rules([*MANY, RuleRow(True, ALL, b"open/#")])
    engine.wait_for("subscriptions_revoked", CROWD)
    assert engine.count("turns") >= turns + 5
    assert engine.count("subscriptions") == 0
    crowd[0].ping()


@pytest.mark.parametrize("reactors", [1, 2])
def test_what_is_sent_under_new_rules_is_judged_by_them(start_engine: StartEngine, reactors: int) -> None:
    """Also by those that have not been looked through yet."""
    engine = start_engine(reactors)
    engine.engine.set_rules([*MANY, RuleRow(True, ALL, b"#")])
    crowd = crowd_of(engine)
    packets = [publish(f"shut/{client.client_id}", b"x", 1, 7) for client in crowd]
    engine.engine.set_rules([*MANY, RuleRow(True, ALL, b"open/#")])
    for client, packet in zip(crowd, packets, strict=True):
        client.send(packet)
    for client in crowd:
        client.expect(PUBACK, packet_id=7, reason=0x87)  # and nothing before it
    engine.wait_for("subscriptions_revoked", CROWD)
    assert engine.count("refused_not_authorised") == CROWD
    engine.engine.set_rules([*MANY, RuleRow(True, ALL, b"#")])
    for client in crowd[:: CROWD // 10]:
        client.subscribe(f"shut/{client.client_id}", 1)
        client.send(publish(f"shut/{client.client_id}", b"y", 0))
        client.expect_message(f"shut/{client.client_id}", b"y")


@pytest.mark.parametrize("reactors", [1, 2])
def test_the_will_of_who_goes_under_new_rules_is_judged_by_them(
    start_engine: StartEngine, reactors: int
) -> None:
    engine = start_engine(reactors)
    engine.engine.set_rules([*MANY, RuleRow(True, ALL, b"#")])
    watcher = connected(engine)
    watcher.subscribe("shut/#", 1)
    crowd = crowd_of(engine, will=Will("shut/will", b"x", 1))
    engine.engine.set_rules([*MANY, RuleRow(True, SUBSCRIBE, b"#"), RuleRow(True, PUBLISH, b"shut/last")])
    for client in crowd:
        client.socket.close()
    engine.wait_for("connections_closed", CROWD)
    assert engine.count("refused_not_authorised") == CROWD
    watcher.send(publish("shut/last", b"x", 0))
    watcher.expect_message("shut/last", b"x")


def test_a_message_that_waits_for_an_answer_is_judged_by_new_rules(start_engine: StartEngine) -> None:
    engine = start_engine(1)
    engine.engine.ask_publish = True
    engine.engine.set_rules([RuleRow(True, ALL, b"#")])
    client = connected(engine)
    for topic, reason in (("open", 0x10), ("shut", 0x87)):
        client.send(publish(topic, b"x", 1, 7))
        while True:
            asked = [event for event in engine.engine.events() if isinstance(event, PublishRequest)]
            if asked:
                break
        engine.engine.set_rules([RuleRow(True, ALL, b"open")])
        engine.engine.answer_publish(asked[0].connection, 0)
        client.expect(PUBACK, packet_id=7, reason=reason)
        engine.engine.set_rules([RuleRow(True, ALL, b"#")])


def test_the_memory_of_rules_is_counted_and_shared(start_engine: StartEngine) -> None:
    """All clients of the same rules share a set; one with a rule of its own has one of its own."""
    engine = start_engine(1)
    engine.engine.set_rules([*MANY, RuleRow(True, ALL, b"own/\xff/#")])
    policy = engine.count("memory_rules")
    assert len(MANY) * 100 < policy < len(MANY) * 500
    clients = [connected(engine)]
    one = engine.wait_for("memory_rules", policy + 1) - policy
    assert len(MANY) * 10 < one < len(MANY) * 50
    clients += [connected(engine) for _ in range(20)]
    assert engine.count("memory_rules") == policy + one
    engine.engine.set_rules([*MANY, RuleRow(True, ALL, b"own/\xff/#", client=b"special")])
    clients += [connected(engine, client_id="special")]
    for client in clients:
        client.ping()  # it has the rules of now, or it has been given them
    assert policy + 2 * one < engine.count("memory_rules") < policy + 2.2 * one
    assert engine.count("live_rules") == 3


def test_retained_messages_stop_with_their_subscription(start_engine: StartEngine) -> None:
    """Of a client that had not read them yet, what is not written stays where it is."""
    count = 10_000
    engine = start_engine(1, output_high_bytes=16_384)
    publisher, reader = connected(engine), connected(engine)
    for number in range(count):
        publisher.send(publish(f"shut/{number}", bytes(1000), 0, retain=True))
    publisher.ping()
    reader.send(subscribe(1, ("shut/#", 0)))
    publisher.ping()
    engine.engine.set_rules([RuleRow(True, ALL, b"open/#")])
    engine.wait_for("subscriptions_revoked")
    got = 0
    reader.send(PING)
    while (packet := reader.receive()).kind != PINGRESP:
        got += packet.kind == PUBLISH_PACKET
    assert 0 < got < count
    reader.expect_nothing()
