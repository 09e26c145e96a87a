"""A session that is taken over again and again, from both reactors, loses nothing."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest
from adversity.doors import UPGRADE
from conformance.kit import Client, connected
from conformance.packets import (
    CONNACK,
    PING,
    PINGRESP,
    PUBACK,
    PUBLISH,
    acknowledge,
    connect,
    publish,
    subscribe,
)

from tidemq.engine import Engine
from tidemq.engine.door.listeners import ListenerSettings, tcp_sockets
from tidemq.engine.door.view import EngineView
from tidemq.limits import Limits
from tidemq.net.server_upgrade import WebSocketTerms
from tidemq.net.transport import ServerScheme

if TYPE_CHECKING:
    from adversity.conftest import StartEngine

TAKEOVERS = 200


def publish_until(publisher: Client, enough: threading.Event, sent: list[int]) -> None:
    """Publishes numbers at QoS 1, one acknowledged after the other."""
    number = 0
    while not enough.is_set():
        publisher.publish("numbers", b"%d" % number, 1)
        sent.append(number)
        number += 1


def test_two_hundred_takeovers_in_a_row_from_two_reactors(start_engine: StartEngine) -> None:
    engine = start_engine(2)
    kept: dict[str, Any] = {"clean": False, "session_expiry": 100}
    holders = [connected(engine, client_id="throne", **kept)]
    holders[0].subscribe("numbers", 1)
    enough = threading.Event()
    sent: list[int] = []
    received: list[int] = []
    publisher = connected(engine)
    sending = threading.Thread(target=publish_until, args=(publisher, enough, sent))
    sending.start()
    for _ in range(TAKEOVERS):
        holder = Client(engine.port)
        holder.send(connect("throne", **kept))
        holder.expect(CONNACK, reason=0, session_present=True)
        while (last := holders[-1].receive()).kind == PUBLISH:  # what it had got before
            received.append(int(last.payload))
        assert last.reason == 0x8E
        holders.append(holder)
        message = holder.expect(PUBLISH)
        received.append(int(message.payload))
        holder.send(acknowledge(PUBACK, message.packet_id))
    enough.set()
    sending.join()
    publisher.disconnect()
    while not received or received[-1] != sent[-1]:
        message = holders[-1].expect(PUBLISH)
        received.append(int(message.payload))
        holders[-1].send(acknowledge(PUBACK, message.packet_id))
    assert list(dict.fromkeys(received)) == sent, "lost, or first seen out of order"
    assert engine.count("sessions_taken_over") == TAKEOVERS
    assert engine.count("connections_moved") > TAKEOVERS / 10, "all came to the reactor of the session"
    engine.wait_for("connections_closed", TAKEOVERS + 1)  # the publisher's, too
    each = EngineView(engine.engine).reactors()
    assert sorted(figures.connections for figures in each) == [0, 1], "counted where it came in"
    assert sorted(figures.sessions for figures in each) == [0, 1]


@pytest.mark.parametrize("reactors", [2, 4])
def test_a_client_that_is_everywhere_at_once(start_engine: StartEngine, reactors: int) -> None:
    """Many connect under one name at once, with and without a clean start: one is left in the end."""
    engine = start_engine(reactors)

    def usurp(index: int) -> None:
        for turn in range(40):
            client = Client(engine.port)
            clean = (index + turn) % 3 > 0
            client.send(connect("same", clean=clean, session_expiry=turn % 2 * 100), subscribe(1, ("t/#", 1)))
            client.send(publish("t/1", b"", 1, 1))
            if turn % 2:
                client.expect(CONNACK, reason=0)
            client.drop()

    threads = [threading.Thread(target=usurp, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # a reactor may come to a CONNECT late, long after its client is gone: it would take over from `last`
    engine.wait_for("connections_closed", 8 * 40)
    last = connected(engine, client_id="same")
    last.ping()
    last.subscribe("t/2", 1)
    publisher = connected(engine)
    publisher.publish("t/2", b"for one", 1)
    last.expect_message("t/2", b"for one", 1)
    assert engine.count("live_sessions") == 2


def test_a_client_that_ends_within_its_connect_is_closed_wherever_its_session_is() -> None:
    """CONNECT and WebSocket's Close in one piece: the end is seen before the connection has moved."""
    engine = Engine(Limits(), reactors=2)
    sockets = tcp_sockets("127.0.0.1", 0, 2)
    engine.listen(sockets, ListenerSettings(scheme=ServerScheme(websocket=WebSocketTerms())))
    engine.start()
    packet = connect("kept", clean=False, session_expiry=100)
    frames = bytes([0x82, 0x80 | len(packet)]) + bytes(4) + packet + b"\x88\x80" + bytes(4)
    for _ in range(40):
        with socket.create_connection(sockets[0].getsockname(), 5) as client:
            client.sendall(UPGRADE + frames)
            while client.recv(4096):
                pass
    engine.close()
    assert engine.counters()["connections_moved"] > 0
    assert not any(engine.live_objects().values())


def test_what_comes_behind_the_connect_that_takes_over_is_handled(start_engine: StartEngine) -> None:
    """Though the broker throws away what the earlier connection had not been read of, in the same moment."""
    engine = start_engine(1, output_high_bytes=4096)
    earlier = connected(engine, 4, client_id="one")
    earlier.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    earlier.socket.settimeout(0.3)
    with pytest.raises(TimeoutError):  # it reads no answer, so that in the end it is not read from either
        earlier.socket.sendall(b"\xc0\x00" * (16 << 20))
    client = Client(engine.port, 4)
    client.send(connect("one", version=4) + publish("t", b"important", 1, 7) + PING)
    client.expect(CONNACK, reason=0)
    client.expect(PUBACK, packet_id=7)
    client.expect(PINGRESP)
    client.expect_nothing()
