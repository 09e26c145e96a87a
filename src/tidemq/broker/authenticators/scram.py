"""SCRAM-SHA-256 (RFC 5802, RFC 7677): what is kept of a password, and the server's side of an exchange.

    SCRAM-SHA-256$ITERATIONS:SALT$STOREDKEY:SERVERKEY      as PostgreSQL keeps it

The exchange goes over AUTH packets (5.0 section 4.12): the client's first message is the authentication data
of CONNECT, the server's last one that of CONNACK. Channel binding is not offered: clients that say so ("n")
and those that could have bound ("y") are served, those that want to ("p=") are refused.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable
from typing import NamedTuple

from scramp import ScramException, ScramMechanism
from scramp.utils import saslprep

from tidemq.broker.providers import (
    BAD_AUTHENTICATION_METHOD,
    BAD_USER_NAME_OR_PASSWORD,
    PROTOCOL_ERROR,
    Challenge,
    Verdict,
)
from tidemq.engine.door.events import AuthRequest, ConnectRequest
from tidemq.errors import UsageError

METHOD = "SCRAM-SHA-256"
ITERATIONS = 600_000  # what OWASP's password storage cheat sheet has for PBKDF2 with SHA-256
ITERATIONS_MIN = 4096  # RFC 7677 section 4
ITERATIONS_MAX = 10_000_000  # a file must not make each login take a minute
TEXT_BYTES_MAX = 1024  # of a password, of a client's message: to normalise it takes 3 us a character
_SALT_BYTES_MIN = 12  # that clients take

_MECHANISM = ScramMechanism(METHOD)
_FORM = re.compile(r"SCRAM-SHA-256\$([1-9][0-9]{0,8}):([^$:]+)\$([^$:]+):([^$:]+)")


class Keys(NamedTuple):
    """What the server knows of a password, in the order of scramp's `make_auth_info`. Whoever has it can
    pose as the server; to log in takes the password (RFC 5802 section 9)."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int


def hash_for_scram(password: bytes, iterations: int = ITERATIONS) -> str:
    """What is kept of a password, with a salt of its own. UsageError for one that SCRAM cannot take."""
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise UsageError(f"{iterations} iterations; accepted: {ITERATIONS_MIN} to {ITERATIONS_MAX}")
    if len(password) > TEXT_BYTES_MAX:
        raise UsageError(f"a password for SCRAM has at most {TEXT_BYTES_MAX} bytes")
    try:
        keys = _derive(password, iterations, None)
    except (ScramException, UnicodeDecodeError) as error:
        raise UsageError(f"SCRAM cannot take the password (RFC 4013): {_reason(error)}") from None
    salt, stored_key, server_key = (base64.b64encode(each).decode() for each in keys[:3])
    return f"{METHOD}${iterations}:{salt}${stored_key}:{server_key}"


def check_name(user: str) -> None:
    """UsageError for a user name that clients would change before they send it (RFC 5802 section 5.1)."""
    try:
        prepared = saslprep(user)
    except ScramException as error:
        raise UsageError(f"SCRAM cannot take the user name {user!r} (RFC 4013): {error}") from None
    if prepared != user:
        raise UsageError(f"by SCRAM the user name {user!r} would be {prepared!r} (RFC 4013); give that one")


def parse_keys(kept: str) -> Keys:
    """The keys that `hash_for_scram` wrote; UsageError where it is something else."""
    found = _FORM.fullmatch(kept)
    if found is None:
        raise UsageError("it is not whole, or damaged")
    iterations = int(found[1])
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise UsageError(f"it has {iterations} iterations, not {ITERATIONS_MIN} to {ITERATIONS_MAX}")
    try:
        salt, stored_key, server_key = (base64.b64decode(each, validate=True) for each in found.groups()[1:])
    except binascii.Error as error:
        raise UsageError("it is not whole, or damaged") from error
    size = hashlib.sha256().digest_size
    if len(salt) < _SALT_BYTES_MIN or len(stored_key) != size or len(server_key) != size:
        raise UsageError("it is not whole, or damaged")
    return Keys(salt, stored_key, server_key, iterations)


def fits(keys: Keys, password: bytes) -> bool:
    """Whether this is the password. Takes as long as a client takes for its side of the exchange."""
    if len(password) > TEXT_BYTES_MAX:
        return False
    try:
        given = _derive(password, keys.iterations, keys.salt)
    except (ScramException, UnicodeDecodeError):
        return False
    return hmac.compare_digest(given.stored_key, keys.stored_key)


def make_up(kind: Keys, secret: bytes, name: str) -> Keys:
    """Keys for a user that is not there: always the same for a name, as those of `kind` to look at, and of
    no password that anybody knows."""
    seed = hmac.digest(secret, name.encode(), "sha512")
    salt = hashlib.shake_256(seed).digest(len(kind.salt))
    return Keys(salt, seed[:32], seed[32:], kind.iterations)


async def prove(
    request: ConnectRequest | AuthRequest, challenge: Challenge, find: Callable[[str], tuple[Keys, bool]]
) -> Verdict:
    """One exchange. `find` gives a user's keys and whether they are any user's; made-up ones never fit.

    The name in the exchange must be that of CONNECT, for that one is what authorisation goes by.
    """
    known = False

    def look_up(name: str) -> Keys:
        nonlocal known
        keys, there = find(name)
        known = there and name == request.username
        return keys

    server = _MECHANISM.make_server(look_up)
    try:
        data = request.auth_data
        if data is None:  # the client wants to be asked first
            data = await challenge(None)
        server.set_client_first(_text(data))
        proof = await challenge(server.get_server_first().encode())
        server.set_client_final(_text(proof))
    except (ScramException, UsageError) as error:
        return _refusal(error)
    if not known:
        return Verdict(BAD_USER_NAME_OR_PASSWORD)
    return Verdict(auth_data=server.get_server_final().encode())


def _derive(password: bytes, iterations: int, salt: bytes | None) -> Keys:
    """ScramException where the password has characters that may not be in one, UnicodeDecodeError where it is
    no text."""
    return Keys(*_MECHANISM.make_auth_info(password.decode(), iterations, salt))


def _text(data: bytes | None) -> str:
    """A message of the client's; UsageError where it can be none."""
    if not data or len(data) > TEXT_BYTES_MAX:
        raise UsageError(f"a message of SCRAM has 1 to {TEXT_BYTES_MAX} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise UsageError("a message of SCRAM is UTF-8") from error


def _refusal(error: Exception) -> Verdict:
    said = getattr(error, "server_error", None)
    name = "" if said is None else said.value  # RFC 5802 section 7, server-error-value
    if name == "invalid-proof":
        return Verdict(BAD_USER_NAME_OR_PASSWORD)
    if "channel-binding" in name:
        return Verdict(BAD_AUTHENTICATION_METHOD, name)
    return Verdict(PROTOCOL_ERROR, _reason(error))


def _reason(error: Exception) -> str:
    return "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
