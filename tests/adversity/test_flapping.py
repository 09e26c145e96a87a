"""A client that connects again and again is banned for a while; nobody can have another client banned."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING

import pytest
from conformance.kit import Client, ConnectionEnded, connected, refused, unique
from conformance.packets import CONNACK, connect

from tidemq.engine import ConnectRequest

if TYPE_CHECKING:
    from adversity.conftest import StartEngine


@pytest.mark.parametrize(("version", "code"), [(5, 0x9F), (4, 3)])
def test_one_too_many_connects_are_answered_with_a_ban_that_ends(
    start_engine: StartEngine, version: int, code: int
) -> None:
    engine = start_engine(2, flapping_connects_max=3, flapping_ban_s=2)
    for _ in range(3):
        connected(engine, version, "flapper").disconnect()
    for _ in range(2):  # the second is refused because of the ban, which it does not make longer
        client = Client(engine.port, version)
        client.send(connect("flapper", version))
        refused(client, code)
    connected(engine, version, "other").ping()
    assert engine.count("clients_banned") == 1
    assert engine.wait_for("refused_flapping", 2) == 2
    time.sleep(2.1)
    connected(engine, version, "flapper").ping()


def test_connects_that_are_spread_out_are_none_too_many(start_engine: StartEngine) -> None:
    engine = start_engine(1, flapping_connects_max=2, flapping_window_s=1)
    for _ in range(3):
        connected(engine, client_id="steady").disconnect()
        time.sleep(0.6)
    assert engine.count("refused_flapping") == 0


def test_a_takeover_storm_ends_with_one_client_connected(start_engine: StartEngine) -> None:
    engine = start_engine(2, flapping_connects_max=10, flapping_ban_s=60)
    last = None
    for number in range(1, 12):  # each takes the session over from the other
        client = Client(engine.port)
        client.send(connect("both"))
        assert client.expect(CONNACK).reason == (0x9F if number == 11 else 0)
        last = last if number == 11 else client
    assert last is not None
    last.ping()
    assert engine.count("sessions_taken_over") == 9


def test_nobody_is_banned_by_connects_from_elsewhere(start_engine: StartEngine) -> None:
    engine = start_engine(1, flapping_connects_max=3, flapping_ban_s=60)
    for reason in (0, 0, 0, 0x9F, 0x9F):
        elsewhere = socket.create_connection(("127.0.0.1", engine.port), 5, source_address=("127.0.0.9", 0))
        elsewhere.sendall(connect("victim"))
        assert elsewhere.recv(100)[3] == reason
        elsewhere.close()
    connected(engine, client_id="victim").ping()


@pytest.mark.parametrize("own", ["", "another"])
def test_who_is_given_its_identifier_is_counted_by_that(start_engine: StartEngine, own: str) -> None:
    engine = start_engine(1, flapping_connects_max=3, flapping_ban_s=60)
    engine.engine.ask_connect = True
    for number, reason in enumerate((0, 0, 0, 0x9F, 0x9F)):
        client = Client(engine.port)
        client.send(connect(own and f"{own}{number}"))
        while not (asked := [each for each in engine.engine.events() if isinstance(each, ConnectRequest)]):
            time.sleep(0.01)
        engine.engine.answer_connect(asked[0].connection, 0, client_id="given")
        assert client.expect(CONNACK).reason == reason
    assert engine.count("clients_banned") == 1


def test_the_table_of_clients_is_bounded(start_engine: StartEngine) -> None:
    engine = start_engine(1, flapping_connects_max=1, flapping_clients_max=16, flapping_ban_s=60)
    connected(engine, client_id="first").disconnect()
    for number in range(16):
        connected(engine, client_id=unique(f"c{number}")).disconnect()
    connected(engine, client_id="first").disconnect()  # it was forgotten
    with pytest.raises((AssertionError, ConnectionEnded)):
        connected(engine, client_id="first")
