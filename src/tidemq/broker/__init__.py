"""The control plane: the broker as an object, its providers and its hooks."""

from tidemq.broker.broker import Broker
from tidemq.broker.hooks import hookimpl
from tidemq.broker.providers import (
    Access,
    Authenticator,
    Authoriser,
    Challenge,
    EnhancedAuthenticator,
    Verdict,
)
from tidemq.broker.subscription import Message, Subscription

__all__ = [
    "Access",
    "Authenticator",
    "Authoriser",
    "Broker",
    "Challenge",
    "EnhancedAuthenticator",
    "Message",
    "Subscription",
    "Verdict",
    "hookimpl",
]
