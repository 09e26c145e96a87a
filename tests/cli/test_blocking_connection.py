"""The connection of `tidemq pub` and `sub`: when its server counts as dead."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

import pytest
from waiting import WAIT_S

from tidemq.cli.blocking_connection import Connection, Server
from tidemq.wire import Connect, Publish

MESSAGE = b"\x30\x04\x00\x01ax"
PINGREQ, PINGRESP = b"\xc0\x00", b"\xd0\x00"


def connected(talk: Callable[[socket.socket], None]) -> Connection:
    """To a server that accepts and then talks, with a keep alive of a second."""
    door = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with door, door.accept()[0] as server:
            server.settimeout(WAIT_S)
            server.recv(4096)
            server.sendall(b"\x20\x02\x00\x00")
            talk(server)

    threading.Thread(target=serve, daemon=True).start()
    connect = Connect(version=4, client_id="c", keep_alive_s=1, clean_start=True)
    return Connection(Server("127.0.0.1", door.getsockname()[1]), connect)


def test_an_answer_behind_other_packets_is_waited_for() -> None:
    """Messages are on their way for longer than the keep alive before PINGRESP comes."""
    pings: list[bytes] = []

    def talk(server: socket.socket) -> None:
        pings.append(server.recv(2))
        for _ in range(25):
            server.sendall(MESSAGE)
            time.sleep(0.1)
        server.sendall(PINGRESP + MESSAGE)
        server.recv(4096)

    connection = connected(talk)
    for _ in range(26):
        packet = connection.receive(time.monotonic() + WAIT_S)
        assert isinstance(packet, Publish)
    assert pings == [PINGREQ]
    connection.close()


def test_a_server_that_says_nothing_is_dead() -> None:
    def talk(server: socket.socket) -> None:
        server.recv(2)
        server.sendall(MESSAGE)
        while server.recv(4096):  # it reads, and says no more
            pass

    connection = connected(talk)
    assert isinstance(connection.receive(time.monotonic() + WAIT_S), Publish)
    with pytest.raises(TimeoutError, match="The server does not answer"):
        connection.receive(time.monotonic() + WAIT_S)
    connection.close()
