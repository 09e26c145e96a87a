"""The providers that come with the broker: authenticators `anonymous` and `static`, authoriser `allow`."""

from __future__ import annotations

import hashlib
import hmac

from tidemq.broker.providers import BAD_USER_NAME_OR_PASSWORD, Verdict
from tidemq.config import Config, refused, unknown_name
from tidemq.engine.events import ConnectRequest


def make_anonymous(_: Config) -> None:
    """Everybody may connect, with any user name and password."""
    return None


def make_allow(_: Config) -> None:
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
        known = request.username in self._digests
        return Verdict() if same and known else Verdict(BAD_USER_NAME_OR_PASSWORD)


def make_static(config: Config) -> StaticAuthenticator:
    """Reads `authenticator_options.users`, a table from user name to password."""
    options = config.authenticator_options
    for name in options.keys() - {"users"}:
        raise unknown_name("configuration", f"authenticator_options.{name}", name, ("users",))
    users = options.get("users")
    if not isinstance(users, dict) or not all(isinstance(password, str) for password in users.values()):
        accepted = ["a table from user name to password"]
        raise refused("configuration", "authenticator_options.users", f"a {type(users).__name__}", accepted)
    return StaticAuthenticator(users)


def _digest(password: bytes) -> bytes:
    # equal lengths for the comparison, no storage: the passwords stand in the configuration
    return hashlib.sha256(password).digest()
