"""Keys that sign tokens: from a JWKS (RFC 7517) in a file or at a URL, a public key in PEM, or a secret.

Needs PyJWT with cryptography, and aiohttp for a URL.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from jwt import PyJWK
from jwt.exceptions import PyJWTError

from tidemq.broker.authenticators.http_client import CallFailedError, HttpClient, shown_url
from tidemq.broker.host.watched_files import WatchedFiles, read_small_file
from tidemq.config import refused
from tidemq.errors import TideMQError

KEYS_MAX = 100  # of a JWKS
RSA_BITS_MIN = 2048  # RFC 7518 section 3.3
KEYS_AGE_S_MAX = 86_400  # keys from a URL that has not answered for that long count no more

WAITING_MAX = 1000  # clients that wait for keys from a URL; more are refused at once

JWKS_COUNTERS = ("jwks_calls", "jwks_calls_failed", "jwks_refused_over_quota")

_log = logging.getLogger("tidemq.access")


@dataclass(frozen=True, slots=True)
class Key:
    """A public key of cryptography's, or the bytes of a secret, and what it may be used with."""

    value: Any
    algorithms: frozenset[str]
    kid: str | None = None


class Keys(Protocol):
    """Where keys come from."""

    async def find(self, kid: str | None, algorithm: str) -> Sequence[Key]:
        """Keys that may have signed a token with this header; without `kid` all that fit the algorithm."""

    async def reload(self) -> None:
        """Gets them anew; TideMQError where that fails, and those known stay valid."""

    async def close(self) -> None:
        """Ends what it has begun."""


class KeysUnavailableError(TideMQError):
    """The keys cannot be had now. Caught by the authenticator, which refuses for the time being."""


def algorithms_of(value: object) -> frozenset[str]:
    """What a public key can be used with, by its kind; nothing where it is a secret, too weak or unknown."""
    if isinstance(value, RSAPublicKey):
        names = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
        return frozenset(names if value.key_size >= RSA_BITS_MIN else ())
    if isinstance(value, EllipticCurvePublicKey):
        curves = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
        return frozenset({curves[value.curve.name]} if value.curve.name in curves else ())
    return frozenset({"EdDSA"} if isinstance(value, (Ed25519PublicKey, Ed448PublicKey)) else ())


def parse_jwks(data: bytes) -> tuple[Key, ...]:
    """The public keys for signatures in a JWKS. What is of another use, a secret, too weak or unknown is left
    out (RFC 7517 section 5); ValueError where it is no JWKS, or nothing is left.
    """
    try:
        listed = json.loads(data)["keys"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError("it is no JWKS") from error
    if not isinstance(listed, list) or len(listed) > KEYS_MAX:
        raise ValueError(f"it is no JWKS of at most {KEYS_MAX} keys")
    found = [key for each in listed if isinstance(each, dict) and (key := _parse_jwk(each)) is not None]
    if not found:
        raise ValueError("it has no public key for signatures")
    return tuple(found)


def _parse_jwk(jwk: dict[str, Any]) -> Key | None:
    operations = jwk.get("key_ops")
    signs = not isinstance(operations, list) or "verify" in operations
    if jwk.get("use", "sig") != "sig" or not signs or "d" in jwk:
        return None
    try:
        value = PyJWK(jwk).key
    except (PyJWTError, UnsupportedAlgorithm, ValueError, TypeError, KeyError):
        return None
    algorithms = algorithms_of(value)
    if "alg" in jwk:
        algorithms &= {str(jwk["alg"])}
    kid = jwk.get("kid")
    return Key(value, algorithms, kid if isinstance(kid, str) else None) if algorithms else None


def select(keys: Sequence[Key], kid: str | None, algorithm: str) -> list[Key]:
    """The keys that may have signed; one without an identifier may have signed anything."""
    return [each for each in keys if algorithm in each.algorithms and (not kid or each.kid in (kid, None))]


def read_jwks_file(path: Path) -> tuple[Key, ...]:
    """ConfigError for a file that is no JWKS."""
    try:
        return parse_jwks(read_small_file(path))
    except ValueError as error:
        raise refused(str(path), "the file", str(error), ["a JWKS (RFC 7517)"]) from error


def read_public_key_file(path: Path) -> tuple[Key, ...]:
    """ConfigError for a file that is no public key in PEM, or too weak."""
    accepted = [f"a public key in PEM: RSA of {RSA_BITS_MIN} bits or more, P-256, P-384, P-521, Ed25519"]
    try:
        value = load_pem_public_key(read_small_file(path))
    except (ValueError, UnsupportedAlgorithm) as error:
        raise refused(str(path), "the file", "it is no public key", accepted) from error
    algorithms = algorithms_of(value)
    if not algorithms:
        raise refused(str(path), "the file", "this key is too weak, or of another kind", accepted)
    return (Key(value, algorithms),)


def read_secret_file(path: Path, algorithms: Sequence[str]) -> tuple[Key, ...]:
    """The file's bytes, a line feed at the end left out. ConfigError where it is shorter than the hash of an
    algorithm (RFC 7518 section 3.2), or a key of another kind.
    """
    secret = read_small_file(path).rstrip(b"\r\n")
    least = max(int(name[2:]) // 8 for name in algorithms)
    if len(secret) < least or b"-----BEGIN" in secret:
        raise refused(
            str(path), "the file", "it is no secret for these algorithms", [f"{least} random bytes"]
        )
    return (Key(secret, frozenset(algorithms)),)


class FileKeys:
    """Keys of a file, read again when it changes."""

    def __init__(self, file: WatchedFiles[tuple[Key, ...]]) -> None:
        self._file = file

    async def find(self, kid: str | None, algorithm: str) -> Sequence[Key]:
        """See Keys."""
        return select(await self._file.current(), kid, algorithm)

    async def reload(self) -> None:
        """See Keys."""
        await self._file.reload()

    async def close(self) -> None:
        """Nothing to do."""


class UrlKeys:
    """Keys of a URL. They are fetched when first needed, again when `refresh_s` old, and when a token names
    an unknown one, but never within `pause_s` of the last time. Who waits for keys waits for one call, and at
    most `WAITING_MAX` wait.
    """

    def __init__(self, url: str, http: HttpClient, refresh_s: float, pause_s: float) -> None:
        self._url = url
        self._http = http
        self._refresh_s = refresh_s
        self._pause_s = pause_s
        self._keys: tuple[Key, ...] = ()
        self._fetched = -float("inf")  # monotonic
        self._tried = -float("inf")
        self._fetching: asyncio.Task[None] | None = None
        self._waiting = 0
        self.counts: Counter[str] = Counter(dict.fromkeys(JWKS_COUNTERS, 0))

    async def find(self, kid: str | None, algorithm: str) -> Sequence[Key]:
        """See Keys; KeysUnavailableError while there are none."""
        if self._age_s() > KEYS_AGE_S_MAX:
            await self._fetch()
        elif self._age_s() > self._refresh_s:
            self._begin()  # the keys that are known stay valid meanwhile
        if self._age_s() > KEYS_AGE_S_MAX:
            raise KeysUnavailableError
        found = select(self._keys, kid, algorithm)
        if not found:
            await self._fetch()
            found = select(self._keys, kid, algorithm)
        return found

    async def reload(self) -> None:
        """See Keys; the pause does not count."""
        if self._fetching is not None:  # it may bring what was there before
            await asyncio.shield(self._fetching)
        self._tried = -float("inf")
        before, fetching = self._fetched, self._begin()
        assert fetching is not None
        await asyncio.shield(fetching)
        if self._fetched == before:
            raise KeysUnavailableError(f"the keys at {shown_url(self._url)} cannot be had; the log says why")

    async def close(self) -> None:
        """Gives up what is under way."""
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.gather(self._fetching, return_exceptions=True)
        await self._http.close()

    def _age_s(self) -> float:
        return time.monotonic() - self._fetched

    async def _fetch(self) -> None:
        fetching = self._begin()
        if fetching is None:
            return
        if self._waiting >= WAITING_MAX:
            self.counts["jwks_refused_over_quota"] += 1
            raise KeysUnavailableError
        self._waiting += 1
        try:
            await asyncio.shield(fetching)
        finally:
            self._waiting -= 1

    def _begin(self) -> asyncio.Task[None] | None:
        """The call that is under way, or a new one; None within the pause."""
        if self._fetching is None and time.monotonic() - self._tried >= self._pause_s:
            self._tried = time.monotonic()
            self._fetching = asyncio.create_task(self._call())
            self._fetching.add_done_callback(self._ended)
        return self._fetching

    def _ended(self, _: asyncio.Task[None]) -> None:
        self._fetching = None

    async def _call(self) -> None:
        self.counts["jwks_calls"] += 1
        try:
            answer = await self._http.call("GET", self._url)
            if answer.status != 200:
                raise CallFailedError(f"its status is {answer.status}")
            self._keys = parse_jwks(answer.body)
        except (CallFailedError, ValueError) as error:
            self.counts["jwks_calls_failed"] += 1
            text = "the keys at %s: %s; the old keys stay valid for a day"
            _log.error(text, shown_url(self._url), error)
        else:
            self._fetched = time.monotonic()
