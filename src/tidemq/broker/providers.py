"""The interfaces that a broker's decisions come through, and how one is found by its name.

An entry point in `tidemq.authenticators`, `tidemq.authorisers` or `tidemq.stores` names a factory: a callable
that takes the `Config` and returns the provider. A factory for an authenticator or authoriser may return
None, which says "everything is allowed": then the engine decides without asking Python at all. The built-in
ones come through the same door.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Literal, Protocol, runtime_checkable

from tidemq.config import Config, unknown_name
from tidemq.engine.events import AuthRequest, ConnectRequest

# reason codes that decisions answer with (5.0 section 2.4); below 5.0 the engine maps them
SUCCESS = 0x00
CONTINUE_AUTHENTICATION = 0x18
PROTOCOL_ERROR = 0x82
IMPLEMENTATION_SPECIFIC_ERROR = 0x83
BAD_USER_NAME_OR_PASSWORD = 0x86
NOT_AUTHORIZED = 0x87
SERVER_UNAVAILABLE = 0x88
BAD_AUTHENTICATION_METHOD = 0x8C
TOPIC_FILTER_INVALID = 0x8F
QUOTA_EXCEEDED = 0x97
ADMINISTRATIVE_ACTION = 0x98

Challenge = Callable[[bytes | None], Awaitable[bytes | None]]
"""Sends authentication data to the client in an AUTH packet and returns what it answers."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """An authenticator's answer: a reason code of 0 accepts the client, one of 0x80 and above refuses it."""

    reason: int = SUCCESS
    reason_string: str = ""  # sent to 5.0 clients
    client_id: str = ""  # replaces the client's own, e.g. with the name in its certificate; empty: keep
    auth_data: bytes | None = None  # the last authentication data of an exchange


@dataclass(frozen=True, slots=True)
class Access:
    """What a client wants to do, for an authoriser to allow or refuse."""

    action: Literal["publish", "subscribe"]
    client_id: str
    username: str | None
    topic: str  # topic name, or topic filter without its `$share/group/` or `$stream/name/start/`
    qos: int
    retain: bool = False
    share_name: str | None = None  # of a shared subscription
    stream_name: str | None = None  # of a subscription to what a stream keeps


class Authenticator(Protocol):
    """Decides who may connect.

    Runs on the broker's event loop: a plain method must not block, one that has to wait is `async`. Each
    request is a task of its own with the time-out `decision_s`. An exception refuses the client.
    """

    def authenticate(self, request: ConnectRequest) -> Verdict | Awaitable[Verdict]:
        """Answers a CONNECT without an authentication method."""


@runtime_checkable
class EnhancedAuthenticator(Authenticator, Protocol):
    """An authenticator that also speaks AUTH packets (5.0 section 4.12)."""

    async def converse(self, request: ConnectRequest | AuthRequest, challenge: Challenge) -> Verdict:
        """Answers a CONNECT with an authentication method, or a client that authenticates again.

        `await challenge(data)` is one round trip. The whole exchange has the time-out `decision_s`; it is
        cancelled when that has passed. An unknown `request.auth_method` is refused with 0x8C.
        """


class Authoriser(Protocol):
    """Decides what a client may subscribe to and publish, its will included; runs as an Authenticator."""

    def authorise(self, access: Access) -> bool | Awaitable[bool]:
        """True allows."""


def find_provider(kind: Literal["authenticator", "authoriser", "store"], config: Config) -> Any:
    """Makes the provider of that kind that `config` names; ConfigError when there is none of that name."""
    name = getattr(config, kind)
    known = {point.name: point for point in entry_points(group=f"tidemq.{kind}s")}
    if name not in known:
        raise unknown_name("configuration", kind, name, known)
    factory: Callable[[Config], Any] = known[name].load()
    return factory(config)
