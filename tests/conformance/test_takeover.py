"""Session takeover: a client identifier has one connection, the newest."""

from __future__ import annotations

import threading

import pytest
from conformance.kit import Client, ConnectionEnded, connected, kept, unique
from conformance.packets import PUBLISH, publish
from conftest import RunningBroker

every_version = pytest.mark.parametrize("version", [3, 4, 5])


@every_version
def test_old_connection_ends(broker: RunningBroker, version: int) -> None:
    """In 5.0 with DISCONNECT 0x8E.
    [MQTT-3.1.4-3] [MQTT-3.14.4-1] [MQTT-3.14.4-2] [MQTT-3.14.2-1] [MQTT-3.14.2-2] [3.1.1 MQTT-3.1.4-2]"""
    old = connected(broker, version)
    new = connected(broker, version, old.client_id)
    old.expect_closed(0x8E)
    new.ping()


@pytest.mark.parametrize("version", [4, 5])
def test_session_goes_on(broker: RunningBroker, version: int) -> None:
    """Subscriptions and unacknowledged messages come to the new connection.
    [MQTT-3.1.2-5] [MQTT-4.4.0-1] [MQTT-3.2.2-3] [3.1.1 MQTT-3.1.2-4] [3.1.1 MQTT-4.4.0-1]"""
    topic = unique("t/")
    old, sender = connected(broker, version, **kept(version)), connected(broker, version)
    old.subscribe(topic, 1)
    sender.publish(topic, b"first", 1)
    message = old.expect(PUBLISH, payload=b"first")
    new = Client(broker.port, version)
    assert new.connect(old.client_id, **kept(version)).session_present
    again = new.expect(PUBLISH)
    assert again.raw == publish(topic, b"first", 1, message.packet_id, version, dup=True)
    new.acknowledge(again)
    sender.publish(topic, b"second", 1)
    new.expect_message(topic, b"second", 1)
    old.expect_closed(0x8E)


@every_version
def test_clean_start_takes_over_without_the_session(broker: RunningBroker, version: int) -> None:
    """[MQTT-3.1.2-4] [MQTT-3.2.2-2] [3.1.1 MQTT-3.1.2-6] [3.1.1 MQTT-3.2.2-1]"""
    topic = unique("t/")
    old = connected(broker, version, **kept(version))
    old.subscribe(topic, 1)
    new = Client(broker.port, version)
    assert not new.connect(old.client_id, clean=True).session_present
    connected(broker, version).publish(topic, b"x", 1)
    new.expect_nothing()


@pytest.mark.parametrize("version", [4, 5])
def test_across_versions(broker: RunningBroker, version: int) -> None:
    """[MQTT-3.1.4-3] [3.1.1 MQTT-3.1.4-2]"""
    old = connected(broker, version)
    new = connected(broker, 9 - version, old.client_id)
    old.expect_closed(0x8E)
    new.ping()


def test_client_ids_are_compared_exactly(broker: RunningBroker) -> None:
    """Letters of the other case, composed and decomposed letters, and a space make other clients.
    [MQTT-3.1.3-2] [3.1.1 MQTT-3.1.3-2]"""
    base = unique("c")
    names = [f"{base}a", f"{base}A", f"{base}\u00e4", f"{base}a\u0308", f"{base}a ", f"{base}\ufeffa"]
    clients = [connected(broker, client_id=name) for name in names]
    for client in clients:
        client.ping()


@every_version
def test_many_at_once(broker: RunningBroker, version: int) -> None:
    """Twenty connections fight for one identifier: exactly one is left, and it works.
    [MQTT-3.1.4-3] [3.1.1 MQTT-3.1.4-2]"""
    name, clients = unique("c"), [Client(broker.port, version) for _ in range(20)]

    def fight(client: Client) -> None:
        try:
            client.connect(name, **kept(version))
        except (ConnectionEnded, ConnectionError, AssertionError):
            client.drop()

    threads = [threading.Thread(target=fight, args=[client]) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    alive = [client for client in clients if client.socket.fileno() >= 0 and is_open(client)]
    assert len(alive) == 1
    alive[0].subscribe(name, 1)
    alive[0].publish(name + "/other", b"x", 1)


def is_open(client: Client) -> bool:
    try:
        client.rest()
    except (ConnectionEnded, OSError):
        return False
    return True
