"""Who sends faster than it may is read later: nothing is dropped, nobody else waits."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest
from conformance.kit import Client, connected
from conformance.packets import CONNACK, PING, PUBACK, PUBLISH, connect, publish
from waiting import LATE_S, WAIT_S

from tidemq.engine import Engine
from tidemq.engine.door.listeners import ListenerRates, ListenerSettings, tcp_sockets
from tidemq.limits import Limits
from tidemq.net.transport import ServerScheme

if TYPE_CHECKING:
    from adversity.conftest import StartEngine


def flood(client: Client, count: int, payload: bytes = b"") -> None:
    """QoS 1 messages to "t", numbered from 1, in one piece."""
    client.send(*(publish("t", b"%d " % n + payload, 1, n) for n in range(1, count + 1)))


def expect_acknowledged(client: Client, count: int) -> float:
    """All of them, in order; returns how long that took."""
    began = time.monotonic()
    for number in range(1, count + 1):
        client.expect(PUBACK, packet_id=number)
    return time.monotonic() - began


def test_a_client_s_messages_wait_for_its_bucket(start_engine: StartEngine) -> None:
    engine = start_engine(1, client_messages_per_s=40)
    receiver, publisher, bystander = connected(engine), connected(engine), connected(engine)
    receiver.subscribe("t", 0)
    flood(publisher, 70)
    bystander.ping()
    took = expect_acknowledged(publisher, 70)
    assert 0.5 < took < LATE_S, "40 at once with CONNECT, then 40 a second"
    for number in range(1, 71):  # its acknowledgements would not count, and QoS 0 has none
        assert receiver.expect(PUBLISH).payload == b"%d " % number
    assert engine.count("clients_throttled") >= 1
    engine.wait_for("throttled_ms", 400)


def test_acknowledgements_are_no_messages(start_engine: StartEngine) -> None:
    engine = start_engine(1, client_messages_per_s=20)
    receiver = connected(engine)
    receiver.subscribe("t", 1)
    publishers = [connected(engine) for _ in range(10)]
    for publisher in publishers:
        flood(publisher, 15)
    for _ in range(150):
        receiver.acknowledge(receiver.expect(PUBLISH))
    assert engine.count("clients_throttled") == 0


def test_a_client_s_bytes_wait_for_its_bucket(start_engine: StartEngine) -> None:
    engine = start_engine(1, client_bytes_per_s=100_000)
    publisher = connected(engine)
    flood(publisher, 25, bytes(8000))
    took = expect_acknowledged(publisher, 25)
    assert 0.7 < took < LATE_S, "100 KB at once, then 100 KB a second"
    assert engine.count("clients_throttled") >= 1


def test_a_packet_larger_than_the_bucket_passes(start_engine: StartEngine) -> None:
    engine = start_engine(1, client_bytes_per_s=200_000)
    publisher = connected(engine)
    publisher.send(publish("t", bytes(300_000), 1, 1))
    publisher.expect(PUBACK, packet_id=1)


@pytest.mark.parametrize("rates", [{"listener_messages_per_s": 60}, {"listener_bytes_per_s": 60 * 1000}])
def test_the_clients_of_a_listener_share_a_bucket_and_all_get_their_turn(
    start_engine: StartEngine, rates: dict[str, int]
) -> None:
    engine = start_engine(2, **rates)
    publishers = [connected(engine) for _ in range(6)]
    times: list[float] = []

    def publish_all(client: Client) -> None:
        flood(client, 20, bytes(985))
        times.append(expect_acknowledged(client, 20))

    began = time.monotonic()
    threads = [threading.Thread(target=publish_all, args=(client,)) for client in publishers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.monotonic() - began
    assert len(times) == 6
    # 126 messages, of which 60 go at once; each client may take one step, or one read, in advance
    assert 0.4 < took < LATE_S
    assert engine.count("clients_throttled") >= 3


def test_a_throttled_client_s_keep_alive_does_not_run_out(start_engine: StartEngine) -> None:
    engine = start_engine(1, client_messages_per_s=1)
    client = Client(engine.port)
    client.connect(keep_alive_s=1)
    client.send(PING * 3)  # the last is handled after some 3 s, and one and a half are allowed
    for _ in range(3):
        client.expect_bytes(b"\xd0\x00")
    assert engine.count("faults") == 0


def test_what_one_listener_has_does_not_count_at_another() -> None:
    engine = Engine(Limits(client_messages_per_s=1000), reactors=1)
    slow, fast = tcp_sockets("127.0.0.1", 0, 1), tcp_sockets("127.0.0.1", 0, 1)
    engine.listen(slow, ListenerSettings(name="slow", rates=ListenerRates(client_messages_per_s=10)))
    engine.listen(fast, ListenerSettings(name="fast", rates=ListenerRates()))
    engine.start()
    try:
        for sockets, least_s, throttled in ((slow, 0.8, 1), (fast, 0.0, 0)):
            before = engine.counters()["clients_throttled"]
            client = Client(sockets[0].getsockname()[1])
            client.connect()
            flood(client, 20)
            assert least_s <= expect_acknowledged(client, 20) < LATE_S
            assert (engine.counters()["clients_throttled"] > before) == throttled
            client.disconnect()
    finally:
        engine.close()
    assert not any(engine.live_objects().values())


@pytest.mark.parametrize("shared", [False, True])
def test_connections_wait_in_the_kernel_for_their_listener_s_bucket(shared: bool) -> None:
    engine = Engine(Limits(connects_per_s=20), reactors=2)
    sockets = tcp_sockets("127.0.0.1", 0, 1 if shared else 2)
    engine.listen(sockets)
    engine.start()
    try:
        began = time.monotonic()
        clients = [Client(sockets[0].getsockname()[1]) for _ in range(40)]
        for client in clients:
            client.send(connect(""))
        accepted = engine.counters()["connections_accepted"]
        assert accepted <= 25 + 20 * (time.monotonic() - began)
        for client in clients:
            assert client.receive().raw[0] == 0x20
        took = time.monotonic() - began
        assert 0.7 < took < LATE_S, "20 at once, then 20 a second"
        counters = engine.counters()
        assert counters["connections_accepted"] == 40
        assert counters["connections_refused"] == 0
        assert counters["listeners_throttled"] >= 1
        assert counters["turns"] < 2000, "it spins"
    finally:
        engine.close()
    assert not any(engine.live_objects().values())


def test_an_address_has_no_more_connections_than_it_may(start_engine: StartEngine) -> None:
    engine = start_engine(2, connections_per_address_max=3)
    clients = [connected(engine) for _ in range(3)]
    extra = [socket.create_connection(("127.0.0.1", engine.port)) for _ in range(3)]
    for each in extra:
        each.settimeout(WAIT_S)
        with each, contextlib.suppress(ConnectionResetError):
            assert each.recv(1) == b""
    engine.wait_for("refused_address", 3)
    other = socket.create_connection(("127.0.0.1", engine.port), source_address=("127.0.0.2", 0))
    other.sendall(connect("other"))
    assert other.recv(1) == b"\x20"
    for client in clients:
        client.ping()
    clients.pop().disconnect()
    engine.wait_for("connections_closed", 1)
    connected(engine).ping()
    other.close()


def test_behind_a_proxy_the_client_s_address_counts() -> None:
    engine = Engine(Limits(connections_per_address_max=2), reactors=2)
    sockets = tcp_sockets("127.0.0.1", 0, 2)
    engine.listen(sockets, ListenerSettings(scheme=ServerScheme(proxy_protocol=True)))
    engine.start()
    try:
        clients = []
        for header, allowed in (
            (b"PROXY TCP4 203.0.113.7 127.0.0.1 1 2\r\n", True),
            (b"PROXY TCP4 203.0.113.7 127.0.0.1 3 2\r\n", True),
            (b"PROXY TCP4 203.0.113.7 127.0.0.1 4 2\r\n", False),
            (b"PROXY TCP4 203.0.113.8 127.0.0.1 5 2\r\n", True),
            (b"PROXY TCP6 2001:db8::1 ::1 6 2\r\n", True),
            (b"PROXY TCP6 2001:db8::2:1 ::1 7 2\r\n", True),
            (b"PROXY TCP6 2001:db8::ffff:3 ::1 8 2\r\n", False),  # of the same /64
            (b"PROXY TCP6 2001:db8:0:1::1 ::1 9 2\r\n", True),
            (b"PROXY UNKNOWN\r\n", True),
        ):
            client = Client(sockets[0].getsockname()[1])
            client.send(header + connect(""))
            if allowed:
                client.expect(CONNACK, reason=0)
                clients.append(client)
            else:
                client.expect_closed()
        for client in clients:
            client.ping()
        assert engine.counters()["refused_address"] == 2
    finally:
        engine.close()
    assert not any(engine.live_objects().values())
