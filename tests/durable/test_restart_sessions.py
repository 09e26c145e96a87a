"""A session comes back after a restart with its subscriptions as they were; one that has ended does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from conformance.kit import Client, connected, kept
from conformance.packets import options

from tidemq.store import FAMILIES

if TYPE_CHECKING:
    from durable.conftest import Servers
    from durable.server import Server


@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_kept_session_is_there_again(servers: Servers, server: Server, crash: bool, version: int) -> None:
    client = connected(server, version, **kept(version))
    client.subscribe("t/+", 1)
    server = servers.restart(server, crash)
    again = server.back(client.client_id, version)
    connected(server).publish("t/x", b"hello", 1)
    again.expect_message("t/x", b"hello", 1)


def test_subscriptions_keep_options_and_identifiers(servers: Servers, server: Server, crash: bool) -> None:
    client = connected(server, **kept(5))
    client.subscribe("plain", 1)
    client.subscribe("named", 2, subscription_id=268_435_455)
    client.subscribe("named/#", 1, subscription_id=7)
    client.subscribe("own", 1, options(no_local=True))
    client.subscribe("as/published", 0, options(as_published=True))
    client.subscribe("replaced", 0, subscription_id=1)
    client.subscribe("replaced", 2)
    server = servers.restart(server, crash)
    client = server.back(client.client_id)
    client.publish("own", b"from myself", 0)
    other = connected(server)
    other.publish("own", b"from another", 2)
    client.expect_message("own", b"from another", 1)
    other.publish("plain", b"1", 2, retain=True)
    assert not client.expect_message("plain", b"1", 1).retain
    other.publish("as/published", b"2", 2, retain=True)
    assert client.expect_message("as/published", b"2", 0).retain
    other.publish("named", b"3", 2)
    message = client.expect_message("named", b"3", 2)
    assert sorted(message.all("subscription_id")) == [7, 268_435_455]
    other.publish("named/below", b"4", 2)
    assert client.expect_message("named/below", b"4", 1).all("subscription_id") == [7]
    other.publish("replaced", b"5", 2)
    assert client.expect_message("replaced", b"5", 2).all("subscription_id") == []


def test_what_was_unsubscribed_does_not_come_back(servers: Servers, server: Server, crash: bool) -> None:
    client = connected(server, **kept(5))
    client.subscribe("a", 1)
    client.subscribe("b", 1)
    client.unsubscribe("a")
    server = servers.restart(server, crash)
    client = server.back(client.client_id)
    publisher = connected(server)
    publisher.publish("a", b"no", 1)
    publisher.publish("b", b"yes", 1)
    client.expect_message("b", b"yes", 1)
    assert list(client.unsubscribe("a", "b").reasons) == [0x11, 0]


def test_a_shared_subscription_comes_back(servers: Servers, server: Server, crash: bool) -> None:
    client = connected(server, **kept(5))
    client.subscribe("$share/g/t", 1, subscription_id=3)
    server = servers.restart(server, crash)
    connected(server).publish("t", b"while away", 1)
    client = server.back(client.client_id)
    assert client.expect_message("t", b"while away", 1).get("subscription_id") == 3
    connected(server).publish("t", b"while there", 1)
    client.expect_message("t", b"while there", 1)


@pytest.mark.parametrize("crash", [False, True], ids=["stop", "crash"])
def test_sessions_go_on_with_another_number_of_reactors(servers: Servers, crash: bool) -> None:
    server = servers("rocksdb", 2)
    clients = [connected(server, **kept(5)) for _ in range(12)]
    for number, client in enumerate(clients):
        client.subscribe(f"t/{number}", 1)
    for reactors in (1, 3):
        server = servers.restart(server, crash, reactors=reactors)
        publisher = connected(server)
        for number in range(len(clients)):
            publisher.publish(f"t/{number}", b"%d" % number, 1)
        for number, client in enumerate(clients):
            server.back(client.client_id).expect_message(f"t/{number}", b"%d" % number, 1)


def test_a_session_that_ends_with_its_connection_leaves_nothing(
    servers: Servers, server: Server, crash: bool
) -> None:
    client = connected(server)  # session expiry 0
    client.subscribe("t", 1)
    old = connected(server, 4, clean=True)
    old.subscribe("t", 2)
    connected(server).publish("t", b"message", 2)
    assert not server.rows("session")
    server = servers.restart(server, crash)
    server.back(client.client_id, present=False).expect_nothing()
    server.back(old.client_id, 4, present=False).expect_nothing()


def test_a_session_that_was_ended_does_not_come_back(servers: Servers, server: Server, crash: bool) -> None:
    """By a clean start, and by a DISCONNECT with expiry 0; its messages and subscriptions go too."""
    clients = [connected(server, **kept(5)) for _ in range(3)]
    for client in clients:
        client.subscribe("t", 1)
        client.drop()
    connected(server).publish("t", b"message", 1)
    replaced = Client(server.port)
    replaced.connect(clients[0].client_id, clean=True)
    replaced.disconnect()
    ended = server.back(clients[1].client_id)
    ended.expect_message("t", b"message", 1)
    ended.disconnect(session_expiry=0)
    server.wait_for_rows("session", 1)
    server = servers.restart(server, crash)
    for client in clients[:2]:
        server.back(client.client_id, present=False).expect_nothing()
    server.back(clients[2].client_id).expect_message("t", b"message", 1)
    server.wait_until_empty()
    assert len(server.rows("subscription")) == 1


@pytest.mark.parametrize("crash", [False, True], ids=["stop", "crash"])
def test_session_expiry_goes_on_while_the_broker_is_down(servers: Servers, crash: bool) -> None:
    """It ends a second after the connection, whatever becomes of the broker meanwhile."""
    server = servers("rocksdb")
    clients = [connected(server, clean=False, session_expiry=expiry_s) for expiry_s in (1, 3600)]
    for client in clients:
        client.subscribe("t", 1)
        client.disconnect()
    connected(server).publish("t", b"message", 1)
    server = servers.restart(server, crash)
    server.wait_for("sessions_ended")
    server.back(clients[0].client_id, present=False, session_expiry=0).expect_nothing()
    server.back(clients[1].client_id).expect_message("t", b"message", 1)
    server.wait_until_empty()
    assert len(server.rows("subscription")) == 1


def test_a_session_that_was_connected_expires_from_the_restart_on(servers: Servers) -> None:
    server = servers("rocksdb")
    client = connected(server, clean=False, session_expiry=1)
    client.subscribe("t", 1)
    server = servers.restart(server, crash=True)
    server.wait_for("sessions_ended")
    server.wait_for_rows("session", 0)
    assert not server.rows("subscription")
    server.back(client.client_id, present=False, session_expiry=0)


@pytest.mark.parametrize("crash", [False, True], ids=["stop", "crash"])
def test_a_session_comes_back_from_a_restart_as_often_as_it_likes(servers: Servers, crash: bool) -> None:
    server = servers("rocksdb")
    client = connected(server, **kept(5))
    for number in range(4):
        client.subscribe(f"t/{number}", 1)
        server = servers.restart(server, crash)
        client = server.back(client.client_id)
        publisher = connected(server)
        for topic in range(number + 1):
            publisher.publish(f"t/{topic}", b"%d" % number, 1)
            client.expect_message(f"t/{topic}", b"%d" % number, 1)
    client.disconnect(session_expiry=0)
    server.wait_for_rows("session", 0)
    server = servers.restart(server, crash)
    assert not any(server.rows(family) for family in FAMILIES if family != "meta")
