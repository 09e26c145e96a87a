"""Messages expire in their queues also while nobody is connected and while the broker is down."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from conformance.kit import connected, kept
from conformance.packets import PUBACK, PUBLISH, acknowledge
from waiting import WAIT_S, wait_until

from tidemq.broker.durability import keeper
from tidemq.errors import StoreError

if TYPE_CHECKING:
    from durable.conftest import Servers
    from durable.server import Server


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "SWEEP_S", 0.02)
    monkeypatch.setattr(keeper, "RETRY_S", 0.005)


def leave_session(server: Server, topic: str, qos: int = 2) -> str:
    """A client that subscribes and goes; its session stays."""
    client = connected(server, **kept(5))
    client.subscribe(topic, qos)
    client.disconnect()
    return client.client_id


def publish_mixed(server: Server) -> float:
    """Messages of which every second expires in a second; when the last of them has expired."""
    publisher = connected(server)
    for number in range(10):
        expiry: dict[str, Any] = {} if number % 2 else {"message_expiry": 1}
        publisher.publish("t", b"%d" % number, 1 + number % 3 // 2, **expiry)
    return time.monotonic() + 1


def expect_odd_numbers(server: Server, client_id: str) -> None:
    """What does not expire, in order."""
    client = server.back(client_id)
    for number in range(1, 10, 2):
        client.expect_message("t", b"%d" % number, 1 + number % 3 // 2)
    client.expect_nothing()


@pytest.mark.parametrize("count", [1, 3])
def test_in_queues_of_absent_clients(servers: Servers, count: int) -> None:
    server = servers("rocksdb", 2)
    absent = [leave_session(server, "t") for _ in range(count)]
    publish_mixed(server)
    assert len(server.rows("expiry")) == 5 * count
    assert len(server.rows("payload")) == 10
    server.wait_for("dropped_expired", 5 * count)
    server.wait_for_rows("queue", 5 * count)
    server.wait_for_rows("payload", 5)
    server.wait_for_rows("expiry", 0)
    for client_id in absent:
        expect_odd_numbers(server, client_id)
    server.wait_until_empty()
    assert server.count("dropped_expired") == 5 * count


def test_while_the_broker_is_down(servers: Servers, server: Server, crash: bool) -> None:
    absent = [leave_session(server, "t") for _ in range(2)]
    expired_at = publish_mixed(server)
    server = servers.restart(
        server, crash, meanwhile=lambda: wait_until(lambda: time.monotonic() > expired_at, "it has expired")
    )
    server.wait_for("dropped_expired", 10)
    server.wait_for_rows("payload", 5)
    for client_id in absent:
        expect_odd_numbers(server, client_id)
    server.wait_until_empty()


def test_a_client_that_comes_back_first_gets_nothing_expired(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It finds out itself, in the rows that it reads."""
    monkeypatch.setattr(keeper, "SWEEP_S", 1000)
    server = servers("memory", queue_window_messages=3)
    absent = leave_session(server, "t")
    expired_at = publish_mixed(server)
    wait_until(lambda: time.monotonic() > expired_at, "it has expired")
    expect_odd_numbers(server, absent)
    assert server.count("dropped_expired") == 5
    server.wait_until_empty()


def test_behind_the_window_of_a_slow_client(servers: Servers) -> None:
    server = servers("memory", 2, queue_window_messages=2)
    client = connected(server, receive_max=1, **kept(5))
    client.subscribe("t", 2)
    connected(server).publish("t", b"first", 1)
    first = client.expect(PUBLISH)
    expired_at = publish_mixed(server)
    server.wait_for("dropped_expired", 3)  # at least what is only in the store
    time.sleep(max(expired_at - time.monotonic(), 0))
    client.send(acknowledge(PUBACK, first.packet_id))
    for number in range(1, 10, 2):
        client.expect_message("t", b"%d" % number, 1 + number % 3 // 2)
    client.expect_nothing()
    assert server.count("dropped_expired") == 5
    server.wait_until_empty()


def test_what_was_sent_before_is_completed(servers: Servers, server: Server, crash: bool) -> None:
    """A message in flight does not expire, nor do its rows go before it is acknowledged."""
    client = connected(server, **kept(5))
    client.subscribe("t", 2)
    publisher = connected(server)
    publisher.publish("t", b"1", 1, message_expiry=1)
    publisher.publish("t", b"2", 2, message_expiry=1)
    sent = [client.expect(PUBLISH) for _ in range(2)]
    server.wait_for_in_flight(2)
    client.drop()
    absent = leave_session(server, "t")
    publisher.publish("t", b"expires", 1, message_expiry=1)
    server.wait_for("dropped_expired", 2)
    server.wait_for_rows("queue", 2)
    server = servers.restart(server, crash)
    client = server.back(client.client_id)
    for message in sent:
        client.expect_message("t", message.payload, message.qos, dup=True, packet_id=message.packet_id)
    client.expect_nothing()
    server.back(absent).expect_nothing()
    server.wait_until_empty()


def test_a_report_of_what_is_gone_takes_nothing_from_others(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store reports rows while they are removed on another way: a reference that was taken back twice
    would take the payload from the client that has the message in flight.
    """
    monkeypatch.setattr(keeper, "SWEEP_S", 3600)
    server = servers("rocksdb", 1)
    client = connected(server, **kept(5))
    client.subscribe("t", 1)
    absent = leave_session(server, "t")
    publisher = connected(server)
    publisher.publish("t", b"1", 1, message_expiry=1)
    publisher.publish("t", b"2", 1)
    sent = [client.expect(PUBLISH) for _ in range(2)]
    server.wait_for_in_flight(2)
    [(key, value), _] = [row for row in server.rows("queue").items() if row[0][8] == 1]
    rows = [(key, value, server.rows("payload")[key[9:]])]

    def report() -> None:
        for _ in range(2):
            server.keeper._access.expire(int.from_bytes(key[:8]), rows)

    server.keeper.ask(report).result(WAIT_S)
    server.wait_for("dropped_expired", 1)
    server.wait_for_rows("queue", 3)
    server.keeper.ask(report).result(WAIT_S)
    client.drop()
    server = servers.restart(server, True)
    assert server.count("store_corrupt_rows") == 0
    client = server.back(client.client_id)
    for message in sent:
        client.expect_message("t", message.payload, 1, dup=True, packet_id=message.packet_id)
    server.back(absent).expect_message("t", b"2", 1)
    server.wait_until_empty()


def test_the_interval_goes_on_over_a_restart(servers: Servers) -> None:
    server = servers("memory")
    absent = leave_session(server, "t")
    connected(server).publish("t", b"1", 1, message_expiry=100)
    came_at = time.monotonic()
    wait_until(lambda: time.monotonic() > came_at + 1, "a second is over")
    server = servers.restart(server, crash=True)
    message = server.back(absent).expect_message("t", b"1", 1)
    waited_s = time.monotonic() - came_at
    assert 100 - waited_s - 1 <= message.get("message_expiry") <= 99


def test_a_store_that_fails_meanwhile_counts_nothing_twice(servers: Servers) -> None:
    """Whether it fails before the rows are found or before they are removed."""
    server = servers("memory", 2)
    absent = [leave_session(server, "t") for _ in range(2)]
    expired_at = publish_mixed(server)
    server.store.failure = StoreError("the store cannot be written")
    connected(server).publish("retained", b"", 0, retain=True)  # something to be written
    wait_until(lambda: time.monotonic() > expired_at, "half of them have expired")
    failed = server.store.failed
    wait_until(lambda: server.store.failed > failed + 20, "it was tried again many times")
    server.store.failure = None
    server.wait_for_rows("queue", 10)
    assert server.wait_for("dropped_expired", 10) == 10
    for client_id in absent:
        expect_odd_numbers(server, client_id)
    server.wait_until_empty()


def test_retained_messages(servers: Servers) -> None:
    server = servers("memory")
    publisher = connected(server)
    publisher.publish("t/short", b"1", 1, retain=True, message_expiry=1)
    publisher.publish("t/long", b"2", 1, retain=True, message_expiry=100)
    expired_at = time.monotonic() + 1
    server = servers.restart(
        server,
        crash=True,
        meanwhile=lambda: wait_until(lambda: time.monotonic() > expired_at, "it has expired"),
    )
    client = connected(server)
    client.subscribe("t/#", 1)
    assert 90 < client.expect_message("t/long", b"2", 1, retain=True).get("message_expiry") <= 99
    client.expect_nothing()
    server.wait_for_rows("retained", 1)
    assert server.count("dropped_expired") == 1


def test_the_ttl_of_retained_messages(servers: Servers) -> None:
    server = servers("memory", retained_ttl_s=1)
    publisher = connected(server)
    publisher.publish("t/1", b"1", 1, retain=True)
    publisher.publish("t/2", b"2", 1, retain=True, message_expiry=100)
    expired_at = time.monotonic() + 1
    wait_until(lambda: time.monotonic() > expired_at, "both have expired")
    client = connected(server)
    client.subscribe("t/#", 1)
    client.expect_nothing()
    server.wait_for_rows("retained", 0)
