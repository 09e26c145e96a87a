"""The interfaces that a broker's decisions come through, and how one is found by its name.

An entry point in `tidemq.authenticators`, `tidemq.authorisers`, `tidemq.stores` or `tidemq.plugins` names a
factory: a callable that takes the `Config` and the options of this provider, a table, and returns the
provider. The options are not looked up in the `Config`: a listener and a chain have their own. A factory for
an authenticator or authoriser may return None, which says "everything is allowed": then the engine decides
without asking Python at all. The built-in ones come through the same door.

What a provider may have besides, looked for by name:

    counts           a mapping from counters to numbers, shown among the broker's
    bounds_itself    true: it limits how many of its decisions are under way; the others share `decisions_max`
    async close()    called once when the broker stops
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from pydantic import BaseModel, ValidationError

from tidemq.broker.acl_rules import AclRule
from tidemq.config import Config, read_text, refused, unknown_name
from tidemq.engine.door.events import AuthRequest, ConnectRequest
from tidemq.errors import UsageError

# reason codes that decisions answer with (5.0 section 2.4); below 5.0 the engine maps them
SUCCESS = 0x00
CONTINUE_AUTHENTICATION = 0x18
PROTOCOL_ERROR = 0x82
IMPLEMENTATION_SPECIFIC_ERROR = 0x83
BAD_USER_NAME_OR_PASSWORD = 0x86
NOT_AUTHORIZED = 0x87
SERVER_UNAVAILABLE = 0x88
SERVER_BUSY = 0x89
BAD_AUTHENTICATION_METHOD = 0x8C
TOPIC_FILTER_INVALID = 0x8F
QUOTA_EXCEEDED = 0x97
ADMINISTRATIVE_ACTION = 0x98
CONNECTION_RATE_EXCEEDED = 0x9F
MAXIMUM_CONNECT_TIME = 0xA0
BANNED = 0x8A

NAME_CHARACTERS_MAX = 1024  # of a user name or client identifier that a provider gives
CLOSE_S = 5.0  # for a provider to end what it has begun

_log = logging.getLogger("tidemq")

Challenge = Callable[[bytes | None], Awaitable[bytes | None]]
"""Sends authentication data to the client in an AUTH packet and returns what it answers."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """An authenticator's answer: a reason code of 0 accepts the client, one of 0x80 and above refuses it.

    The fields from `username` on count where the client is accepted.
    """

    reason: int = SUCCESS
    reason_string: str = ""  # sent to 5.0 clients
    client_id: str = ""  # replaces the client's own, e.g. with the name in its certificate; empty: keep
    auth_data: bytes | None = None  # the last authentication data of an exchange
    unknown: bool = False  # of a refusal: "I do not know this client", so a chain asks the next
    username: str | None = None  # replaces the client's own for rules and authorisers; None: keep
    groups: tuple[str, ...] = ()  # that rules may name; handed to authorisers with each Access
    rules: tuple[AclRule, ...] | None = None  # of this client alone, asked before those of all; None: none
    expires_s: float | None = None  # until the right to be connected ends; then the client is disconnected

    def __post_init__(self) -> None:
        if self.unknown and self.reason == SUCCESS:
            raise UsageError("a verdict that does not know the client has a reason of 0x80 or above")


UNKNOWN = Verdict(BAD_USER_NAME_OR_PASSWORD, unknown=True)
"""The refusal of an authenticator that does not know the client."""


@dataclass(frozen=True, slots=True)
class Access:
    """What a client wants to do, for an authoriser to allow or refuse."""

    action: Literal["publish", "subscribe"]
    client_id: str
    username: str | None
    topic: str  # topic name, or topic filter without its `$share/group/`; of a stream, that of its topics
    qos: int
    retain: bool = False
    share_name: str | None = None  # of a shared subscription
    stream_name: str | None = None  # of a subscription to what a stream keeps
    groups: tuple[str, ...] = ()  # that the authenticator has put the client into


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
    """Decides what a client may subscribe to and publish, its will included; runs as an Authenticator.

    What it answers is remembered for `decision_cache_s`, until the client disconnects or authenticates again.
    """

    def authorise(self, access: Access) -> bool | Awaitable[bool]:
        """True allows."""


@runtime_checkable
class Reloadable(Protocol):
    """A provider that reads files, and again at `Broker.reload`. Runs on the broker's event loop."""

    def reload(self) -> Awaitable[None] | None:
        """Reads them again; where something is wrong, raises, and goes on with what it had."""


Kind = Literal["authenticator", "authoriser", "store", "plugin"]
Options = Mapping[str, Any]


@cache
def _installed() -> Any:
    """The EntryPoints of all packages; to look for them takes its time."""
    return entry_points()


def find_provider(kind: Kind, name: str, options: Options, config: Config, key: str = "") -> Any:
    """Makes the provider of that kind and name; ConfigError when there is none of that name, its options are
    wrong, or a package that it needs is not installed. `key`: where the name stands; empty: under its kind.
    """
    return find_factory(kind, name, key)(config, options)


def find_factory(kind: Kind, name: str, key: str = "") -> Callable[[Config, Options], Any]:
    """What makes it; ConfigError when there is none of that name, or a package that it needs is missing."""
    known = {point.name: point for point in _installed().select(group=f"tidemq.{kind}s")}
    if name not in known:
        raise unknown_name("configuration", key or kind, name, known)
    try:
        factory: Callable[[Config, Options], Any] = known[name].load()
    except ImportError as error:
        ours = known[name].value.startswith("tidemq.")
        extra = "json-schema" if kind == "plugin" else "auth"
        accepted = [f"pip install 'tidemq[{extra}]'" if ours else f"an installed {error.name}"]
        raise refused(
            "configuration", key or kind, f"{name} needs the package {error.name}", accepted
        ) from error
    return factory


Model = TypeVar("Model", bound=BaseModel)


def read_options(name: str, model: type[Model], options: Options) -> Model:
    """The options of the provider `name`, checked; ConfigError names the one that is wrong, and no value."""
    try:
        return model.model_validate(read_text(model, options))
    except ValidationError as error:
        detail = error.errors(include_input=False, include_url=False)[0]
    key = f"options of {name}" + "".join(f".{part}" for part in detail["loc"])
    if detail["type"] == "extra_forbidden":
        raise unknown_name("configuration", key, str(detail["loc"][-1]), model.model_fields)
    accepted = detail["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    problem = "it is missing" if detail["type"] == "missing" else "its value is refused"
    raise refused("configuration", key, problem, [accepted])


def is_name(text: object) -> bool:
    """Whether this may be a user name or client identifier that a provider gives: printable, not empty."""
    return isinstance(text, str) and 0 < len(text) <= NAME_CHARACTERS_MAX and text.isprintable()


def counts_of(provider: object) -> Mapping[str, int]:
    """The provider's counters; empty where it has none."""
    counts: Mapping[str, int] = getattr(provider, "counts", {})
    return counts


def bounds_itself(provider: object) -> bool:
    """Whether the provider limits how many of its decisions are under way."""
    return bool(getattr(provider, "bounds_itself", False))


async def close_provider(provider: object) -> None:
    """Lets the provider end what it has begun, within `CLOSE_S`; what goes wrong is logged."""
    close = getattr(provider, "close", None)
    if close is None:
        return
    try:
        async with asyncio.timeout(CLOSE_S):
            await close()
    except Exception:  # noqa: BLE001 - a provider may raise anything
        _log.exception("%s did not close", type(provider).__name__)
