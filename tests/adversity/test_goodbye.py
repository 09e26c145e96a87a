"""Who is disconnected while it still sends learns why; who goes on sending is not listened to for ever."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from conformance.kit import Client, connected
from conformance.packets import packet

if TYPE_CHECKING:
    from adversity.conftest import EngineUnderTest, StartEngine

MALFORMED = packet(0x80, b"\x00\x01")  # SUBSCRIBE with wrong flags
MORE = bytes(1 << 16)


@pytest.fixture
def offender(start_engine: StartEngine) -> tuple[EngineUnderTest, Client]:
    """A client that has just been disconnected, and has not looked yet."""
    engine = start_engine(1)
    client = connected(engine)
    client.send(MALFORMED)
    engine.wait_for("connections_closed")
    return engine, client


def test_reason_reaches_who_still_sends(offender: tuple[EngineUnderTest, Client]) -> None:
    _engine, client = offender
    for _ in range(40):
        client.send(MORE)
    client.expect_closed(0x81)


def test_not_for_ever(offender: tuple[EngineUnderTest, Client]) -> None:
    engine, client = offender

    def send_on() -> None:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            client.send(MORE)
            time.sleep(0.02)

    with pytest.raises((ConnectionResetError, BrokenPipeError)):
        send_on()
    connected(engine).ping()


def test_many_at_once(start_engine: StartEngine) -> None:
    """More of them than are waited for, and none of them closes its end."""
    engine = start_engine(1)
    clients = [connected(engine) for _ in range(1100)]
    for client in clients:
        client.send(MALFORMED)
    engine.wait_for("connections_closed", len(clients))
    connected(engine).ping()
