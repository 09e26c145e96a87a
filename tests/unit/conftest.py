"""A double of the engine's façade, to test the control plane alone: `broker_on_fake` makes brokers on it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from socket import socket
from typing import Any

import pytest

from tidemq.broker import Broker
from tidemq.config import Config
from tidemq.engine.door.events import Event, Received, Stopped
from tidemq.engine.door.figures import Histogram, Question, ReactorFigures
from tidemq.engine.door.listeners import ListenerSettings
from tidemq.engine.door.rule_row import RuleRow
from tidemq.limits import Limits


class FakeEngine:
    """Keeps what the broker told it, in order; `say` makes events arrive."""

    def __init__(self, limits: Limits, *, reactors: int) -> None:
        self.limits = limits
        self.reactors = reactors
        self.ask_connect = self.ask_subscribe = self.ask_publish = self.report_connections = False
        self.listeners: list[ListenerSettings] = []
        self.sockets: list[socket] = []
        self.answers: list[tuple[Any, ...]] = []
        self.names: list[
            tuple[str | None, tuple[str, ...], Sequence[RuleRow] | None]
        ] = []  # of the client, with each of its answers
        self.ttls_s: list[float] = []
        self.published: list[tuple[str, bytes, int, bool]] = []
        self.message_expiries_s: list[int | None] = []
        self.receivers: dict[int, tuple[str, int]] = {}
        self.disconnected: list[tuple[str, int]] = []
        self.calls: list[str] = []
        self.left: dict[str, int] = {"live_messages": 0}
        self._events: list[Event] = []
        self._fd = os.eventfd(0, os.EFD_NONBLOCK)

    def say(self, *events: Event) -> None:
        self._events += events
        os.eventfd_write(self._fd, 1)

    def listen(self, sockets: Sequence[socket], settings: ListenerSettings) -> int:
        self.sockets += sockets
        self.listeners.append(settings)
        return len(self.listeners) - 1

    def start(self) -> None:
        self.calls.append("start")

    def stop(self) -> None:
        self.calls.append("stop")
        self.say(Stopped())

    def close(self) -> None:
        self.calls.append("close")
        for listening in self.sockets:
            listening.close()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def fileno(self) -> int:
        return self._fd

    def events(self) -> list[Event]:
        os.eventfd_read(self._fd)
        events, self._events = self._events, []
        return events

    def answer_connect(
        self,
        connection: int,
        reason: int,
        *,
        client_id: str = "",
        auth_data: bytes | None = None,
        reason_string: str = "",
        username: str | None = None,
        groups: Sequence[str] = (),
        rules: Sequence[RuleRow] | None = None,
    ) -> None:
        self.names.append((username, tuple(groups), rules))
        self.answers.append(("connect", connection, reason, client_id, auth_data, reason_string))

    def answer_auth(
        self,
        connection: int,
        reason: int,
        auth_data: bytes | None = None,
        *,
        username: str | None = None,
        groups: Sequence[str] = (),
        rules: Sequence[RuleRow] | None = None,
    ) -> None:
        self.names.append((username, tuple(groups), rules))
        self.answers.append(("auth", connection, reason, auth_data))

    def answer_subscribe(
        self, connection: int, reasons: Sequence[int], reason_string: str = "", starts: bytes = b""
    ) -> None:
        self.answers.append(("subscribe", connection, tuple(reasons)))

    def answer_publish(self, connection: int, reason: int, *, ttl_s: float = 0) -> None:
        self.ttls_s.append(ttl_s)
        self.answers.append(("publish", connection, reason))

    def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        qos: int = 0,
        retain: bool = False,
        properties: bytes = b"",
        message_expiry_s: int | None = None,
    ) -> None:
        self.published.append((topic, payload, qos, retain))
        self.message_expiries_s.append(message_expiry_s)
        for receiver, (topic_filter, _) in self.receivers.items():
            if topic_filter == topic:  # no wildcards: matching is the engine's business
                self.say(Received(receiver, topic, payload, qos, retain, properties))

    def subscribe(self, topic_filter: str, qos: int = 2) -> int:
        receiver = len(self.receivers) + 1
        self.receivers[receiver] = (topic_filter, qos)
        return receiver

    def unsubscribe(self, receiver: int) -> None:
        del self.receivers[receiver]

    def disconnect(self, client_id: str, reason: int) -> bool:
        self.disconnected.append((client_id, reason))
        return True

    def counters(self) -> dict[str, int]:
        return {
            "live_connections": 3,
            "messages_received": 7,
            "dropped_slow_consumer": 2,
            "dropped_expired": 1,
        }

    def live_objects(self) -> dict[str, int]:
        return self.left

    def join(self) -> None:
        pass


class FakePluginAccess:
    """Keeps which filters plugins want, and what they decided."""

    def __init__(self) -> None:
        self.filters: tuple[list[str], list[str]] = ([], [])
        self.batches: list[list[tuple[int, int, int, bytes | None]]] = []

    def set_filters(self, publish: Sequence[str], delivered: Sequence[str]) -> None:
        self.filters = list(publish), list(delivered)

    def answer(self, answers: Sequence[tuple[int, int, int, bytes | None]]) -> None:
        self.batches.append(list(answers))

    @property
    def answers(self) -> list[tuple[int, int, int, bytes | None]]:
        return [each for batch in self.batches for each in batch]


class FakeView:
    """What can be seen of it: nothing."""

    def change_limits(self, limits: Limits) -> None:
        """Nothing follows them."""

    def histograms(self) -> dict[str, Histogram]:
        return {}

    def reactors(self) -> list[ReactorFigures]:
        return []

    def listeners(self) -> dict[str, int]:
        return {}

    def sessions(self) -> int:
        return 0

    def shared_groups(self) -> int:
        return 0

    def memory(self) -> tuple[int, int, bool]:
        return 0, 1, False

    def ask(self, reactor: int, number: int, question: Question) -> None:
        pass


class BrokerOnFake(Broker):
    """A broker whose engine is the double; `engine` is it."""

    engine: FakeEngine
    access: FakePluginAccess

    def __init__(self, config: Config, **parts: Any) -> None:
        if config.store == Config().store:  # which keeps files
            config = config.model_copy(update={"store": "memory"})
        super().__init__(config, **parts)

    def _make_engine(self) -> Any:
        self.engine = FakeEngine(self.config.limits, reactors=self.config.reactors)
        return self.engine

    def _plugin_access(self, engine: Any) -> Any:
        self.access = FakePluginAccess()
        return self.access

    def _make_view(self, engine: Any) -> Any:
        return FakeView()


@pytest.fixture
def broker_on_fake() -> type[BrokerOnFake]:
    return BrokerOnFake
