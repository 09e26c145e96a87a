"""A will outlives the broker: it comes when it is due, if its client is not back by then."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest
from conformance.kit import Client, connected, kept
from conformance.packets import Will, publish
from waiting import wait_until

from tidemq.broker.durability import keeper
from tidemq.errors import StoreError
from tidemq.store import Write

if TYPE_CHECKING:
    from durable.conftest import Servers
    from durable.server import Server


def watch(server: Server) -> Client:
    """A client that gets wills; its session is kept."""
    client = connected(server, **kept(5))
    client.subscribe("will", 2)
    return client


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("crash", [False, True], ids=["stop", "crash"])
def test_a_delayed_will_comes_after_the_restart(servers: Servers, crash: bool, qos: int) -> None:
    """With all that it is made of, when its time has come; the message too is kept for an absent client."""
    server = servers("rocksdb", 2)
    watcher = watch(server)
    properties = [
        ("will_delay", 1),
        ("message_expiry", 50),
        ("content_type", "text/plain"),
        ("user", ("a", "b")),
    ]
    client = connected(server, will=Will("will", b"gone", qos, True, properties), **kept(5))
    client.drop()
    server.wait_for("connections_closed")
    dropped_at = time.monotonic()
    wait_until(lambda: any(b"gone" in row for row in server.rows("session").values()), "the will is stored")
    server = servers.restart(server, crash)
    server.wait_for_rows("queue", 1)
    assert time.monotonic() >= dropped_at + 0.9
    message = server.back(watcher.client_id).expect_message("will", b"gone", qos)
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


def leave_watcher(server: Server, reactor: int) -> str:
    """A session on this reactor, for which wills are queued."""
    watcher = server.connected_on(reactor, **kept(5))
    watcher.subscribe("will", 2)
    watcher.disconnect()
    return watcher.client_id


@pytest.mark.parametrize("qos", [1, 2])
def test_a_will_leaves_its_session_when_everybody_has_it(servers: Servers, qos: int) -> None:
    """Whatever two batches a crash comes between, the will is in a row or in every queue; at QoS 2 the
    store goes from the one to the other at once, for it would come twice.
    """
    server = servers("memory", 2)
    watchers = {leave_watcher(server, reactor) for reactor in (0, 1)}
    batches = log_batches(server)
    clients = []
    for number in range(24):
        will = Will("will", b"gone %02d" % number, qos, properties=[("will_delay", number % 2)])
        clients.append(server.connected_on(0, will=will, **kept(5)))
    server.store.delay_s = 0.002
    for client in clients:
        client.drop()
        time.sleep(0.003)
    server.wait_for_rows("queue", len(clients) * len(watchers))
    wait_until(lambda: not any(b"gone" in row for row in server.rows("session").values()), "all are gone")
    too_early, twice = [], []
    for number, client in enumerate(clients):
        queued = batches_with(batches, b"gone %02d" % number)
        left = next(
            at
            for at, batch in enumerate(batches)
            for family, key, value in batch
            if (family, key) == ("session", client.client_id.encode()) and value and b"gone" not in value
        )
        assert len(queued) == len(watchers)
        too_early += [number] * (left < max(queued))
        twice += [number] * (qos == 2 and left != min(queued))
    assert (too_early, twice) == ([], [])


def log_batches(server: Server) -> list[list[Write]]:
    """Every batch that the store gets from now on."""
    batches: list[list[Write]] = []
    write = server.store.write

    def log(batch: Sequence[Write], *, sync: bool) -> None:
        batches.append(list(batch))
        write(batch, sync=sync)

    server.store.write = log  # type: ignore[method-assign]
    return batches


def batches_with(batches: list[list[Write]], payload: bytes) -> list[int]:
    """In which batch each queue row of a message was written first."""
    ids = {key for batch in batches for _, key, value in batch if value and value.endswith(payload)}
    found: dict[bytes, int] = {}
    for at, batch in enumerate(batches):
        for family, key, value in batch:
            if family == "queue" and value is not None and key[9:] in ids:
                found.setdefault(key[:8], at)
    return list(found.values())


@pytest.mark.parametrize("applied", [False, True], ids=["not written", "written all the same"])
@pytest.mark.parametrize("qos", [1, 2])
def test_a_will_waits_for_a_store_that_fails(
    servers: Servers, monkeypatch: pytest.MonkeyPatch, qos: int, applied: bool
) -> None:
    """It comes when the store works again, though nobody publishes it a second time; once at QoS 2."""
    monkeypatch.setattr(keeper, "RETRY_S", 0.005)
    server = servers("memory", 2)
    watchers = [leave_watcher(server, reactor) for reactor in (0, 1)]
    clients = [server.connected_on(0, will=Will("will", b"gone %d" % at, qos), **kept(5)) for at in range(2)]
    server.store.applied = applied
    server.store.failure = StoreError("the store cannot be written: Input/output error")
    clients[0].drop()  # finds out that the store fails
    wait_until(lambda: server.keeper.failure, "the store fails")
    clients[1].drop()
    wait_until(lambda: server.store.failed > 5, "failures")
    server.store.failure = None
    for client_id in watchers:
        wait_until(lambda: not server.keeper.failure, "the store works again")
        watcher = server.back(client_id)
        got = [watcher.receive().payload for _ in range(2)]
        while qos == 1 and len(set(got)) < 2:
            got.append(watcher.receive().payload)  # one that is published again may come twice
        assert set(got) == {b"gone 0", b"gone 1"}


@pytest.mark.parametrize("delay_s", [0, 1])
def test_a_due_will_that_waits_for_the_store_goes_out_when_its_client_is_back(
    servers: Servers, monkeypatch: pytest.MonkeyPatch, delay_s: int
) -> None:
    """To whom needs no store: its client's return comes too late to cancel it [MQTT-3.1.2-8]."""
    monkeypatch.setattr(keeper, "RETRY_S", 0.005)
    server = servers("memory", 1)
    leave_watcher(server, 0)
    there = connected(server)
    there.subscribe("will", 0)
    will = Will("will", b"gone", 1, properties=[("will_delay", delay_s)])
    client = connected(server, will=will, **kept(5))
    server.store.failure = StoreError("the store cannot be written: Input/output error")
    connected(server).send(publish("poke", b"", 1, 1, retain=True))  # finds out that the store fails
    wait_until(lambda: server.store.failed > 1, "the store fails, and that is known")
    closed = server.count("connections_closed")
    client.drop()
    server.wait_for("connections_closed", closed + 1)
    time.sleep(delay_s * 1.5)
    there.expect_nothing()
    server.back(client.client_id)
    there.expect_message("will", b"gone")
    server.store.failure = None
