"""The control plane: the broker as an object, its providers and its hooks."""

from tidemq.broker.acl_rules import AclRule
from tidemq.broker.broker import Broker
from tidemq.broker.hooks import hookimpl
from tidemq.broker.plugins.forks import SessionForked
from tidemq.broker.plugins.messages import Decision, Route
from tidemq.broker.plugins.plugin import Plugin
from tidemq.broker.program_subscription import Message, Subscription
from tidemq.broker.providers import (
    Access,
    Authenticator,
    Authoriser,
    Challenge,
    EnhancedAuthenticator,
    Verdict,
)
from tidemq.engine.door.events import (
    Acknowledged,
    AuthRequest,
    Connected,
    ConnectRequest,
    Disconnected,
    HeldMessage,
    SubscribeRequest,
)

__all__ = [
    "Access",
    "Acknowledged",
    "AclRule",
    "AuthRequest",
    "Authenticator",
    "Authoriser",
    "Broker",
    "Challenge",
    "ConnectRequest",
    "Connected",
    "Decision",
    "Disconnected",
    "EnhancedAuthenticator",
    "HeldMessage",
    "Message",
    "Plugin",
    "Route",
    "SessionForked",
    "SubscribeRequest",
    "Subscription",
    "Verdict",
    "hookimpl",
]
