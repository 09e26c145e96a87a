"""Connections that hold memory and do nothing: no CONNECT, half a packet, output that nobody reads."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from adversity.doors import UPGRADE
from conformance.kit import Client, ConnectionEnded, Silence, connected
from conformance.packets import AUTH, connect, publish
from waiting import LATE_S, WAIT_S

from tidemq.engine import ConnectRequest, Engine
from tidemq.engine.door.listeners import ListenerSettings, tcp_sockets
from tidemq.limits import Limits
from tidemq.net.server_upgrade import WebSocketTerms
from tidemq.net.transport import ServerScheme

if TYPE_CHECKING:
    from adversity.conftest import StartEngine


def ended_after(client: Client, byte_by_byte: bytes) -> float:
    """Sends a byte every tenth of a second; returns after how long the broker closed."""
    began = time.monotonic()
    for value in byte_by_byte:
        try:
            client.send(bytes([value]))
            client.receive(0.1)
        except Silence:
            continue
        except (ConnectionEnded, OSError):
            return time.monotonic() - began
    raise AssertionError("the broker waits for ever")


def test_a_trickle_does_not_make_the_time_for_connect_longer(start_engine: StartEngine) -> None:
    engine = start_engine(1, connect_timeout_s=1)
    client = Client(engine.port)
    assert 0.8 < ended_after(client, connect("c", username="u" * 600)) < LATE_S
    assert engine.wait_for("ended_connect_late") == 1


@pytest.fixture
def web_socket() -> Iterator[socket.socket]:
    """A socket that was upgraded to WebSocket, a second before the broker wants its CONNECT."""
    engine = Engine(Limits(connect_timeout_s=1), reactors=1)
    sockets = tcp_sockets("127.0.0.1", 0, 1)
    engine.listen(sockets, ListenerSettings(scheme=ServerScheme(websocket=WebSocketTerms("/mqtt", ()))))
    engine.start()
    with socket.create_connection(sockets[0].getsockname(), 5) as client:
        client.sendall(UPGRADE)
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += client.recv(1000)
        assert b" 101 " in answer
        yield client
    engine.close()
    assert not any(engine.live_objects().values())


def test_pings_of_websocket_do_not_make_the_time_for_connect_longer(web_socket: socket.socket) -> None:
    began = time.monotonic()
    with contextlib.suppress(OSError):
        while time.monotonic() < began + WAIT_S:
            web_socket.sendall(b"\x89\x80\0\0\0\0")  # masked, empty
            if not web_socket.recv(1000):
                break
            time.sleep(0.1)
    assert 0.7 < time.monotonic() - began < LATE_S


def test_a_client_that_never_answers_a_challenge_is_ended() -> None:
    engine = Engine(Limits(connect_timeout_s=1), reactors=1)
    sockets = tcp_sockets("127.0.0.1", 0, 1)
    engine.listen(sockets)
    engine.ask_connect = True
    engine.start()
    try:
        client = Client(sockets[0].getsockname()[1])
        client.send(connect("c", auth_method="m"))
        while not (asked := [each for each in engine.events() if isinstance(each, ConnectRequest)]):
            time.sleep(0.01)
        time.sleep(1.5)  # the decision's time is not the client's
        engine.answer_connect(asked[0].connection, 0x18, auth_data=b"challenge")
        began = time.monotonic()
        client.expect(AUTH)
        client.expect_closed()
        assert 0.5 < time.monotonic() - began < LATE_S
    finally:
        engine.close()
    assert not any(engine.live_objects().values())


@pytest.mark.parametrize("size", [60, 900_000])
def test_a_packet_that_does_not_become_whole_ends_its_connection(
    start_engine: StartEngine, size: int
) -> None:
    engine = start_engine(1, packet_s_max=1)
    data = publish("t", bytes(size), 1, 1)
    client, good = connected(engine, keep_alive_s=0), connected(engine, keep_alive_s=0)
    client.send(data[: size // 2])
    assert 0.8 < ended_after(client, data[size // 2 :][:600]) < LATE_S
    assert engine.wait_for("ended_packet_late") == 1
    good.ping()
    good.send(data[:5])
    time.sleep(0.3)
    good.send(data[5:])
    time.sleep(0.8)
    good.receive()
    good.ping()
    assert engine.count("ended_packet_late") == 1


def test_who_takes_none_of_its_output_is_ended(start_engine: StartEngine) -> None:
    engine = start_engine(1, output_stalled_s_max=3, backpressure_s=0)
    stalled, slow, publisher = connected(engine), connected(engine), connected(engine)
    for client in (stalled, slow):
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        client.subscribe("t", 0)
    for _ in range(12):
        publisher.publish("t", bytes(1_000_000))
    began = time.monotonic()
    read = 0
    while time.monotonic() < began + 5 or read <= 300_000:  # slow takes some 400 KB a second of 12 MB
        read += len(slow.socket.recv(40_000))
        time.sleep(0.1)
    assert engine.count("ended_output_stalled") == 1
    assert engine.count("live_connections") == 2
    stalled.drop()


def test_the_sockets_of_clients_ask_whether_the_peer_is_there() -> None:
    sockets = tcp_sockets("127.0.0.1", 0, 1)
    engine = Engine(Limits(tcp_keepalive_s=7, tcp_user_timeout_s=9), reactors=1)
    engine.listen(sockets)
    sockets[0].setblocking(True)
    with socket.create_connection(sockets[0].getsockname()):
        accepted, _ = sockets[0].accept()  # the kernel gives it what the listening socket has
        with accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 7
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 9000
    engine.close()
