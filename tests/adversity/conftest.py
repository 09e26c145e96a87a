"""An engine of its own for each test, and afterwards the proof that nothing of it is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from conformance.kit import Client
from waiting import WAIT_S

from tidemq.engine import Connected, Engine
from tidemq.engine.door.listeners import ListenerSettings, tcp_sockets
from tidemq.engine.door.node_access import NodeAccess
from tidemq.limits import Limits
from tidemq.net.transport import ServerScheme

StartEngine = Callable[..., "EngineUnderTest"]


class EngineUnderTest:
    """A running engine; `port` is where it listens, plain or wrapped as `scheme` says. `linked`: with
    `nodes`, its links to others, of batches of so many bytes. Further keywords are limits.
    """

    def __init__(
        self,
        reactors: int = 1,
        scheme: ServerScheme | None = None,
        *,
        linked: int = 0,
        prefers_own: bool = False,
        **limits: Any,
    ) -> None:
        self.engine = Engine(Limits(**limits), reactors=reactors)
        if linked:
            self.nodes = NodeAccess(self.engine, batch_bytes_max=linked, prefers_own=prefers_own)
        self.engine.report_connections = True
        sockets = tcp_sockets("127.0.0.1", 0, reactors)
        self.engine.listen(sockets, ListenerSettings(scheme=scheme))
        self.port: int = sockets[0].getsockname()[1]
        self.engine.start()

    def count(self, name: str) -> int:
        value: int = self.engine.counters()[name]
        return value

    def wait_for(self, name: str, least: int = 1) -> int:
        """Waits until a counter has reached a value; returns what it has."""
        deadline = time.monotonic() + WAIT_S
        while (value := self.count(name)) < least:
            assert time.monotonic() < deadline, f"{name} is {value} after {WAIT_S} s, not {least}"
            time.sleep(0.002)
        return value

    def reactor_of(self, client: Client) -> int:
        """The reactor that a client which has just connected lives on."""
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            for event in self.engine.events():
                if isinstance(event, Connected) and event.client_id == client.client_id:
                    return event.connection >> 56
            time.sleep(0.001)
        raise AssertionError(f"no event tells of {client.client_id}")

    def connected_on(
        self, reactor: int, version: int = 5, client_id: str | None = None, **settings: Any
    ) -> Client:
        """A client with a new session whose connection the system gave to this reactor."""
        for _ in range(200):
            client = Client(self.port, version)
            client.connect(client_id, **settings)
            if self.reactor_of(client) == reactor:
                return client
            client.disconnect()
            if client_id is not None:  # a kept session would draw its client to its reactor for ever
                ended = Client(self.port, version)
                ended.connect(client_id, clean=True)
                self.reactor_of(ended)  # or its event would be taken for the next one's
                ended.disconnect()
        raise AssertionError(f"the system gives no connection to reactor {reactor}")

    def close(self) -> None:
        """Closes the engine; nothing of it may be left."""
        self.engine.close()
        left = {name: value for name, value in self.engine.live_objects().items() if value}
        assert not left, f"left after close(): {left}"


@pytest.fixture
def start_engine() -> Iterator[StartEngine]:
    """Starts engines: `start_engine(2, backpressure_s=1)`. They are closed and checked after the test."""
    started: list[EngineUnderTest] = []

    def start(reactors: int = 1, **settings: Any) -> EngineUnderTest:
        started.append(EngineUnderTest(reactors, **settings))
        return started[-1]

    yield start
    for engine in started:
        engine.close()
