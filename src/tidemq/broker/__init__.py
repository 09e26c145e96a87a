"""The control plane: the broker as an object, its providers and its hooks."""

from tidemq.broker.acl_rules import AclRule
from tidemq.broker.broker import Broker
from tidemq.broker.hooks import hookimpl
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
    AuthRequest,
    Connected,
    ConnectRequest,
    Disconnected,
    PublishRequest,
    SubscribeRequest,
)

__all__ = [
    "Access",
    "AclRule",
    "AuthRequest",
    "Authenticator",
    "Authoriser",
    "Broker",
    "Challenge",
    "ConnectRequest",
    "Connected",
    "Disconnected",
    "EnhancedAuthenticator",
    "Message",
    "PublishRequest",
    "SubscribeRequest",
    "Subscription",
    "Verdict",
    "hookimpl",
]
