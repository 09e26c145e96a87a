"""The providers that come with the broker: authenticators `anonymous` and `static`, authoriser `allow`."""

from __future__ import annotations

import hashlib
import hmac
import logging
import time

from pydantic import BaseModel, ConfigDict, StrictBool

from tidemq.broker.access.peer_address import is_local
from tidemq.broker.providers import (
    BAD_USER_NAME_OR_PASSWORD,
    NOT_AUTHORIZED,
    UNKNOWN,
    Options,
    Verdict,
    read_options,
)
from tidemq.config import Config
from tidemq.engine.door.events import ConnectRequest

REMOTE_REFUSED = (
    "without an authenticator only clients of this machine may connect: "
    "set authenticator, or authenticator_options.remote = true"
)
_LOG_S = 60.0  # between two lines about clients of other machines

_log = logging.getLogger("tidemq.access")


class LocalOnly:
    """Everybody on this machine may connect, with any user name and password: at a loopback address or a Unix
    socket. Where nobody else is asked besides, the engine does the same by itself.
    """

    def __init__(self) -> None:
        self._logged_s = -_LOG_S

    def authenticate(self, request: ConnectRequest) -> Verdict:
        """Refuses clients of other machines, and says so in the log once in a while."""
        if is_local(request.peer):
            return Verdict()
        now_s = time.monotonic()
        if now_s - self._logged_s >= _LOG_S:
            self._logged_s = now_s
            fields = {"client": request.client_id, "address": request.peer, "user": request.username}
            values = request.client_id, request.peer, REMOTE_REFUSED
            _log.warning("client %r (%s) was refused: %s", *values, extra=fields | {"reason": REMOTE_REFUSED})
        return Verdict(NOT_AUTHORIZED, REMOTE_REFUSED)


class Nameless:
    """Who gives a user name is not known, so that no chain lets in a stranger under somebody's name; of the
    others `inner` decides, None: they may connect.
    """

    def __init__(self, inner: LocalOnly | None) -> None:
        self._inner = inner

    def authenticate(self, request: ConnectRequest) -> Verdict:
        """As above."""
        if request.username is not None:
            return UNKNOWN
        return Verdict() if self._inner is None else self._inner.authenticate(request)


class AnonymousOptions(BaseModel):
    """Who may connect besides clients of this machine without a user name."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    remote: StrictBool = False  # clients of other machines
    named: StrictBool = True  # clients that give a user name, whatever it is


def make_anonymous(_: Config, options: Options) -> LocalOnly | Nameless | None:
    """The entry point `anonymous`."""
    given = read_options("anonymous", AnonymousOptions, options)
    found = None if given.remote else LocalOnly()
    return found if given.named else Nameless(found)


def make_allow(_: Config, __: Options) -> None:
    """Everybody may publish and subscribe to everything."""
    return None


class StaticAuthenticator:
    """Compares with the users and passwords of the configuration, in constant time."""

    def __init__(self, users: dict[str, str]) -> None:
        self._digests = {name: _digest(password.encode()) for name, password in users.items()}

    def authenticate(self, request: ConnectRequest) -> Verdict:
        """Accepts a known user with the right password."""
        expected = self._digests.get(request.username or "", _digest(b""))
        same = hmac.compare_digest(expected, _digest(request.password or b""))
        if request.username not in self._digests:
            return UNKNOWN
        return Verdict() if same else Verdict(BAD_USER_NAME_OR_PASSWORD)


class StaticOptions(BaseModel):
    """Users and their passwords."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    users: dict[str, str]


def make_static(_: Config, options: Options) -> StaticAuthenticator:
    """The entry point `static`."""
    return StaticAuthenticator(read_options("static", StaticOptions, options).users)


def _digest(password: bytes) -> bytes:
    # equal lengths for the comparison, no storage: the passwords stand in the configuration
    return hashlib.sha256(password).digest()
