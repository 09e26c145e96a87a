"""A will outlives the broker: it comes when it is due, if its client is not back by then."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from conformance.kit import Client, connected, kept
from conformance.packets import Will
from durable.server import wait_until

if TYPE_CHECKING:
    from durable.conftest import Servers
    from durable.server import Server


def watch(server: Server) -> Client:
    """A client that gets wills; its session is kept."""
    client = connected(server, **kept(5))
    client.subscribe("will", 2)
    return client


@pytest.mark.parametrize("crash", [False, True], ids=["stop", "crash"])
def test_a_delayed_will_comes_after_the_restart(servers: Servers, crash: bool) -> None:
    """With all that it is made of, when its time has come; the message too is kept for an absent client."""
    server = servers("rocksdb", 2)
    watcher = watch(server)
    properties = [
        ("will_delay", 1),
        ("message_expiry", 50),
        ("content_type", "text/plain"),
        ("user", ("a", "b")),
    ]
    client = connected(server, will=Will("will", b"gone", 1, True, properties), **kept(5))
    client.drop()
    server.wait_for("connections_closed")
    dropped_at = time.monotonic()
    wait_until(lambda: any(b"gone" in row for row in server.rows("session").values()), "the will is stored")
    server = servers.restart(server, crash)
    server.wait_for_rows("queue", 1)
    assert time.monotonic() >= dropped_at + 0.9
    message = server.back(watcher.client_id).expect_message("will", b"gone", 1)
    assert message.all("content_type") == ["text/plain"]
    assert message.all("user") == [("a", "b")]
    assert 48 <= message.get("message_expiry") <= 50
    server.wait_for_rows("retained", 1)
    again = connected(server)
    again.subscribe("will", 1)
    again.expect_message("will", b"gone", 1, retain=True)


def test_the_will_of_a_client_that_was_connected_when_the_broker_crashed(servers: Servers) -> None:
    server = servers("rocksdb")
    watcher = watch(server)
    clients = [
        connected(
            server, will=Will("will", b"%d" % delay_s, 1, properties=[("will_delay", delay_s)]), **kept(5)
        )
        for delay_s in (1, 100)
    ]
    server.wait_for_rows("session", 3)
    server = servers.restart(server, crash=True)
    watcher = server.back(watcher.client_id)
    watcher.expect_message("will", b"1", 1)
    server.back(clients[1].client_id).disconnect()
    watcher.expect_nothing()


def test_a_client_that_is_back_in_time_has_no_will(servers: Servers) -> None:
    server = servers("rocksdb")
    watcher = watch(server)
    client = connected(server, will=Will("will", b"gone", 1, properties=[("will_delay", 1)]), **kept(5))
    client.drop()
    wait_until(lambda: any(b"gone" in row for row in server.rows("session").values()), "the will is stored")
    server = servers.restart(server, crash=True)
    client = server.back(client.client_id)
    back_at = time.monotonic()
    wait_until(lambda: time.monotonic() > back_at + 1.1, "it would have come")
    server.back(watcher.client_id).expect_nothing()
    assert not any(b"gone" in row for row in server.rows("session").values())


@pytest.mark.parametrize("crash", [False, True], ids=["stop", "crash"])
def test_a_client_that_said_goodbye_has_no_will(servers: Servers, crash: bool) -> None:
    server = servers("memory", 2)
    watcher = watch(server)
    client = connected(server, will=Will("will", b"gone", 1), **kept(5))
    client.disconnect()
    wait_until(lambda: not any(b"gone" in row for row in server.rows("session").values()), "it is gone")
    server = servers.restart(server, crash)
    server.back(watcher.client_id).expect_nothing()


@pytest.mark.parametrize("crash", [False, True], ids=["stop", "crash"])
def test_a_will_comes_once(servers: Servers, crash: bool) -> None:
    """Not again after the next restart."""
    server = servers("memory")
    watcher = watch(server)
    client = connected(server, will=Will("will", b"gone", 2), **kept(5))
    client.drop()
    watcher.expect_message("will", b"gone", 2)
    server.wait_until_empty()
    server = servers.restart(server, crash)
    server.back(watcher.client_id).expect_nothing()
    server.back(client.client_id)


def test_the_end_of_the_session_brings_the_will(servers: Servers) -> None:
    """Though its delay is not over [MQTT-3.1.3-9]."""
    server = servers("memory")
    watcher = watch(server)
    will = Will("will", b"gone", 1, properties=[("will_delay", 1000)])
    client = connected(server, will=will, clean=False, session_expiry=1)
    closed = server.count("connections_closed")
    client.drop()
    server.wait_for("connections_closed", closed + 1)  # else it is the broker's end that takes the will away
    server = servers.restart(server, crash=False)
    server.back(watcher.client_id).expect_message("will", b"gone", 1)
    server.wait_for_rows("session", 1)
