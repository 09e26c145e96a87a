"""Hashes of passwords: argon2id (RFC 9106), as `tidemq passwd` makes them, and those of Mosquitto's files.

    $argon2id$v=19$m=19456,t=2,p=1$SALT$HASH     PHC string format
    $7$ROUNDS$SALT$HASH                          Mosquitto 2: PBKDF2 (RFC 8018) with HMAC-SHA-512
    $6$SALT$HASH                                 Mosquitto before 2: SHA-512 of the password and the salt
    SCRAM-SHA-256$...                            see `scram`; good for passwords too

Nothing here is secret but what is passed in; no message has a hash or a password.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re

from argon2 import PasswordHasher
from argon2.exceptions import Argon2Error

from tidemq.broker.authenticators import scram
from tidemq.errors import UsageError

# the least that OWASP's password storage cheat sheet has for argon2id: 19 MiB, 20 to 30 ms of a core
_HASHER = PasswordHasher(time_cost=2, memory_cost=19 * 1024, parallelism=1)
_MEMORY_KIB_MAX = 256 * 1024  # a file must not make each login take a gigabyte,
_PASSES_MAX = 64
_LANES_MAX = 64  # each a thread
_DIGEST_BYTES = (16, 24, 32, 48, 64)  # that are in use: one that was cut off mostly has another size
_ARGON2ID = re.compile(
    r"\$argon2id\$v=19\$m=([0-9]{1,7}),t=([0-9]{1,5}),p=([0-9]{1,5})\$([A-Za-z0-9+/]+)\$([A-Za-z0-9+/]+)"
)
_ROUNDS_MAX = 10_000_000  # or a minute


def hash_password(password: bytes) -> str:
    """A new hash of a password, with a salt of its own."""
    return _HASHER.hash(password)


def check_form(hashed: str) -> None:
    """UsageError where it is no hash that `matches` takes, or one that takes too long."""
    try:
        if hashed.startswith("$argon2id$"):
            _check_argon2id(hashed)
        elif hashed.startswith("$7$"):
            rounds, _, _ = _parse_pbkdf2(hashed)
            if not 1 <= rounds <= _ROUNDS_MAX:
                raise UsageError(f"it has {rounds} rounds, more than {_ROUNDS_MAX}")
        elif hashed.startswith("$6$"):
            _parse_sha512(hashed)
        elif hashed.startswith(scram.METHOD):
            scram.parse_keys(hashed)
        else:
            accepted = f"$argon2id$, {scram.METHOD}, $7$ and $6$ (of Mosquitto)"
            raise UsageError(f"its kind is unknown; accepted: {accepted}")
    except ValueError as error:
        raise UsageError("it is not whole, or damaged") from error


def _check_argon2id(hashed: str) -> None:
    """UsageError for one that costs too much, ValueError for one that argon2 would not look at."""
    found = _ARGON2ID.fullmatch(hashed)
    if found is None:
        raise ValueError("its form is another")
    memory_kib, passes, lanes = (int(number) for number in found.groups()[:3])
    if memory_kib > _MEMORY_KIB_MAX or passes > _PASSES_MAX or lanes > _LANES_MAX:
        most = f"{_MEMORY_KIB_MAX} KiB of memory, {_PASSES_MAX} passes or {_LANES_MAX} lanes"
        raise UsageError(f"its cost is above {most}")
    salt, digest = (_decode(text + "=" * (-len(text) % 4)) for text in found.groups()[3:])
    if memory_kib < 8 * lanes or passes < 1 or lanes < 1 or len(salt) < 8 or len(digest) not in _DIGEST_BYTES:
        raise ValueError("its form is another")


def matches(hashed: str, password: bytes) -> bool:
    """Whether this is the password. Takes its time, without the GIL; `check_form` comes first."""
    if hashed.startswith("$argon2id$"):
        try:
            return _HASHER.verify(hashed, password)
        except Argon2Error:
            return False
    if hashed.startswith("$7$"):
        rounds, salt, expected = _parse_pbkdf2(hashed)
        return hmac.compare_digest(hashlib.pbkdf2_hmac("sha512", password, salt, rounds), expected)
    if hashed.startswith(scram.METHOD):
        return scram.fits(scram.parse_keys(hashed), password)
    salt, expected = _parse_sha512(hashed)
    return hmac.compare_digest(hashlib.sha512(password + salt).digest(), expected)


def _parse_pbkdf2(hashed: str) -> tuple[int, bytes, bytes]:
    """Rounds, salt, hash; ValueError."""
    _, _, rounds, salt, digest = hashed.split("$")
    return int(rounds), _decode(salt), _digest(digest)


def _parse_sha512(hashed: str) -> tuple[bytes, bytes]:
    """Salt and hash; ValueError."""
    _, _, salt, digest = hashed.split("$")
    return _decode(salt), _digest(digest)


def _digest(text: str) -> bytes:
    digest = _decode(text)
    if len(digest) != hashlib.sha512().digest_size:
        raise ValueError("it has another size")
    return digest


def _decode(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
