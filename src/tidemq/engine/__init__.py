"""The data plane: reactors, sessions and messages behind one façade, `Engine`."""

from tidemq.engine.door.engine import Engine
from tidemq.engine.door.events import (
    AuthRequest,
    Connected,
    ConnectRequest,
    Delivered,
    Disconnected,
    Dropped,
    Event,
    Fed,
    Judged,
    PublishRequest,
    Received,
    Replaying,
    SessionRequest,
    Stopped,
    SubscribeRequest,
    Unsubscribed,
)
from tidemq.engine.door.keeper_access import StoreAccess
from tidemq.engine.door.keeper_work import StoreWork
from tidemq.engine.door.node_access import NodeAccess

__all__ = [
    "AuthRequest",
    "ConnectRequest",
    "Connected",
    "Delivered",
    "Disconnected",
    "Dropped",
    "Engine",
    "Event",
    "Fed",
    "Judged",
    "NodeAccess",
    "PublishRequest",
    "Received",
    "Replaying",
    "SessionRequest",
    "Stopped",
    "StoreAccess",
    "StoreWork",
    "SubscribeRequest",
    "Unsubscribed",
]
