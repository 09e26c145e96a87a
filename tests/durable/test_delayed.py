"""A message that is delayed outlives the broker, and comes once when it is due; who has a filter to itself
keeps it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from conformance.kit import Client, connected, kept
from conformance.packets import PUBACK, PUBLISH, PUBREC, SUBACK, publish, subscribe
from waiting import wait_until

from tidemq.broker.durability import keeper
from tidemq.engine.door.topic_rule_rows import TopicRuleRows
from tidemq.engine.door.view import EngineView
from tidemq.errors import StoreError

if TYPE_CHECKING:
    from durable.conftest import Servers
    from durable.server import Server

RULES = TopicRuleRows(exclusive=True, delay_s_max=1000, delayed_max=1000, delayed_bytes_max=1 << 20)


def with_rules(server: Server, rows: TopicRuleRows = RULES) -> Server:
    """They are in force when this returns: nobody may delay anything before."""
    EngineView(server.engine).change_topic_rules(rows)
    client = connected(server)
    wait_until(lambda: is_taken(client, "$delayed/0/probe"), "the rules are in force")
    client.disconnect()
    return server


def is_taken(client: Client, topic: str) -> bool:
    client.send(publish(topic, b"", 1, 99))
    return bool(client.expect(PUBACK, packet_id=99).reason < 0x80)


def delay(client: Client, payload: bytes, qos: int, delay_s: int = 1) -> None:
    client.send(publish(f"$delayed/{delay_s}/late", payload, qos, 5))
    client.expect(PUBACK if qos == 1 else PUBREC, packet_id=5, reason=0)


def watch(server: Server, qos: int = 2) -> str:
    """A session for which delayed messages are queued, and which is away."""
    watcher = connected(server, **kept(5))
    watcher.subscribe("late", qos)
    watcher.disconnect()
    return watcher.client_id


def waiting(server: Server) -> list[bytes]:
    """Rows of the messages that wait."""
    return [value for key, value in server.rows("session").items() if key.startswith(b"\0delayed/")]


@pytest.mark.parametrize("qos", [1, 2])
def test_an_acknowledged_one_comes_after_the_restart(
    mode: tuple[str, int, bool], servers: Servers, qos: int
) -> None:
    """With all that it is made of, once, and not before it is due; the rules may be gone by then."""
    kind, reactors, crash = mode
    server = with_rules(servers(kind, reactors))
    watcher, sender = watch(server), connected(server)
    began = time.monotonic()
    delay(sender, b"soon", qos)
    if qos == 1:
        delay(sender, b"much later", qos, 900)
    server = servers.restart(server, crash)
    server.wait_for_rows("queue", 1)
    assert time.monotonic() - began >= 1
    back = server.back(watcher)
    back.expect_message("late", b"soon", qos)
    wait_until(lambda: len(waiting(server)) == (qos == 1), "it has left")
    server.wait_until_empty()
    back.disconnect()
    server = servers.restart(server, crash)
    server.back(watcher).expect_nothing()
    assert server.count("live_delayed") == (qos == 1)


def test_it_is_acknowledged_when_the_store_has_it(servers: Servers) -> None:
    server = with_rules(servers("memory"))
    sender = connected(server)
    server.store.hold()
    sender.send(publish("$delayed/900/late", b"x", 1, 5))
    assert server.store.at_gate.wait(60)
    sender.expect_nothing()
    server.store.let_go()
    sender.expect(PUBACK, packet_id=5, reason=0)
    assert [b"x" in row for row in waiting(server)] == [True]


def test_it_is_refused_while_the_store_fails(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "RETRY_S", 0.005)
    server = with_rules(servers("memory"))
    sender = connected(server)
    server.store.failure = StoreError("the store cannot be written: Input/output error")
    sender.send(publish("$delayed/900/late", b"1", 1, 5))  # finds out that it fails
    assert sender.expect(PUBACK, packet_id=5).reason >= 0x80
    sender.send(publish("$delayed/900/late", b"2", 1, 6))
    assert sender.expect(PUBACK, packet_id=6).reason >= 0x80
    server.store.failure = None
    wait_until(lambda: not server.keeper.failure, "the store works again")
    delay(sender, b"3", 1, 900)
    assert not any(b"2" in row for row in waiting(server))


@pytest.mark.parametrize("qos", [1, 2])
def test_each_of_many_comes_whenever_the_broker_dies(servers: Servers, qos: int) -> None:
    """A crash while they fall due, to sessions on both reactors: none is lost, and at QoS 2 none comes
    twice."""
    server = with_rules(servers("rocksdb", 2))
    watchers = [watch(server) for _ in range(4)]
    sender, payloads = connected(server, **kept(5)), [b"%03d" % number for number in range(40)]
    for number, payload in enumerate(payloads):
        sender.send(publish(f"$delayed/{1 + number % 2}/late", payload, qos, 100 + number))
    answered = {sender.expect(PUBACK if qos == 1 else PUBREC).packet_id for _ in payloads}
    assert answered == {100 + number for number in range(40)}
    server.store.delay_s = 0.003
    wait_until(lambda: len(server.rows("queue")) >= 10, "some are due")
    server = servers.restart(server, crash=True)
    server.store.delay_s = 0
    wait_until(lambda: not waiting(server), "all are due")
    for client_id in watchers:
        back, found = server.back(client_id), list[bytes]()
        while set(found) != set(payloads):
            message = back.expect(PUBLISH)
            back.acknowledge(message)
            found.append(message.payload)
        found += [packet.payload for packet in back.rest() if packet.kind == PUBLISH]
        assert qos == 1 or len(found) == len(payloads)


def test_they_count_as_no_sessions(servers: Servers) -> None:
    server = with_rules(servers("memory", 1, sessions_max=2))
    sender, made = connected(server), server.count("sessions_created")
    for number in range(5):
        delay(sender, b"%d" % number, 1, 900)
    view = EngineView(server.engine)
    assert (view.sessions(), server.count("live_delayed"), server.count("messages_delayed")) == (1, 5, 5)
    connected(server).disconnect()
    assert server.count("sessions_created") == made + 1


@pytest.mark.parametrize("crash", [False, True], ids=["stop", "crash"])
def test_who_has_a_filter_to_itself_has_it_after_a_restart(servers: Servers, crash: bool) -> None:
    server = with_rules(servers("rocksdb", 2))
    holder = connected(server, **kept(5))
    holder.send(subscribe(3, ("$exclusive/mine", 1)))
    holder.expect(SUBACK, packet_id=3, reasons=[1])
    server = with_rules(servers.restart(server, crash))
    other = connected(server)
    other.send(subscribe(3, ("$exclusive/mine", 1)))
    other.expect(SUBACK, packet_id=3, reasons=[0x97])
    other.publish("mine", b"x", 1)
    back = server.back(holder.client_id)
    back.expect_message("mine", b"x", 1)
    back.unsubscribe("$exclusive/mine")
    other.send(subscribe(4, ("$exclusive/mine", 1)))
    other.expect(SUBACK, packet_id=4, reasons=[1])


def test_the_end_of_what_is_retained_is_stored(servers: Servers) -> None:
    """A rule's as a message's own."""
    server = with_rules(servers("rocksdb"), RULES._replace(lifetimes=((b"kept/+", 100_000),)))
    sender = connected(server)
    sender.publish("kept/a", b"x", 1, retain=True)
    sender.publish("kept", b"x", 1, retain=True)
    server = servers.restart(server, crash=True)
    late = connected(server)
    late.subscribe("kept/#", 1)
    found = {message.topic: message.all("message_expiry") for message in late.rest()}
    assert found["kept"] == []
    assert 60 < found["kept/a"][0] <= 100
