"""Who takes which event of the engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tidemq.broker.access.decisions import Decisions
from tidemq.broker.bridging.door import BridgeDoor
from tidemq.broker.fault_log import ClientLog
from tidemq.broker.monitoring.monitor import Monitor
from tidemq.broker.own_plugins import OwnPlugins
from tidemq.broker.program_subscription import Subscriptions
from tidemq.broker.replays import Replays
from tidemq.engine.door.events import (
    Acknowledged,
    AuthRequest,
    Connected,
    ConnectRequest,
    Delivered,
    Disconnected,
    Dropped,
    Fed,
    HeldMessage,
    Judged,
    PublishRequest,
    Received,
    Replaying,
    Revoked,
    SessionRequest,
    Spanned,
    Stopped,
    SubscribeRequest,
    Traced,
    Unsubscribed,
)
from tidemq.engine.door.figures import Finding, Roster


@dataclass(frozen=True, slots=True, kw_only=True)
class EventHandlers:
    """The parts of one broker that are told of events."""

    decisions: Decisions
    plugins: OwnPlugins
    replays: Replays
    monitor: Monitor
    client_log: ClientLog
    subscriptions: Subscriptions
    door: BridgeDoor
    stopped: Callable[[], None]

    def by_kind(self) -> dict[type, Callable[[Any], None]]:
        """The handler of each kind of event."""
        decisions, replays, monitor, door = self.decisions, self.replays, self.monitor, self.door
        return {
            ConnectRequest: lambda event: door.on_connect(event, decisions),
            AuthRequest: decisions.on_auth,
            SessionRequest: decisions.on_session,
            SubscribeRequest: lambda event: door.on_subscribe(event, decisions),
            Unsubscribed: replays.on_unsubscribed,
            Judged: replays.on_judged,
            Replaying: decisions.on_replaying,
            Fed: replays.on_fed,
            Delivered: replays.on_delivered,
            PublishRequest: lambda event: door.on_publish(event, decisions),
            HeldMessage: self.plugins.on_held,
            Acknowledged: self.plugins.on_acknowledged,
            Connected: self._on_connected,
            Disconnected: self._on_disconnected,
            Dropped: self._on_dropped,
            Traced: monitor.traces.on_traced,
            Spanned: monitor.spans.on_span,
            Received: self.subscriptions.on_received,
            Revoked: self.client_log.on_revoked,
            Roster: monitor.questions.on_answer,
            Finding: monitor.questions.on_answer,
            Stopped: lambda _: self.stopped(),
        }

    def _on_connected(self, event: Connected) -> None:
        self.client_log.on_connected(event)
        self.decisions.on_connected(event)

    def _on_disconnected(self, event: Disconnected) -> None:
        self.client_log.on_disconnected(event)
        self.decisions.on_disconnected(event)

    def _on_dropped(self, event: Dropped) -> None:
        self.client_log.on_dropped(event)
        self.monitor.drops.add(event)
