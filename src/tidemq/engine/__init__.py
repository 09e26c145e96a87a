"""The data plane: reactors, sessions and messages behind one façade, `Engine`."""

from tidemq.engine.engine import Engine
from tidemq.engine.events import (
    AuthRequest,
    Connected,
    ConnectRequest,
    Disconnected,
    Event,
    PublishRequest,
    Received,
    Stopped,
    SubscribeRequest,
)

__all__ = [
    "AuthRequest",
    "ConnectRequest",
    "Connected",
    "Disconnected",
    "Engine",
    "Event",
    "PublishRequest",
    "Received",
    "Stopped",
    "SubscribeRequest",
]
