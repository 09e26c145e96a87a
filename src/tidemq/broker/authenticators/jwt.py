"""The authenticator `jwt`: a signed token (RFC 7519) says who a client is, what it may do and for how long.

The token is the client's password or user name, or comes as authentication data with the method `JWT` (5.0
section 4.12): such a client can show its next token without connecting again. Needs PyJWT with cryptography.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import jwt
from jwt.exceptions import PyJWTError
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from tidemq.broker.authenticators.claims import AclClaim, rules_of
from tidemq.broker.authenticators.http_client import HttpClient, Url
from tidemq.broker.authenticators.token_keys import (
    FileKeys,
    Keys,
    KeysUnavailableError,
    UrlKeys,
    read_jwks_file,
    read_public_key_file,
    read_secret_file,
)
from tidemq.broker.host.watched_files import WatchedFiles
from tidemq.broker.providers import (
    BAD_AUTHENTICATION_METHOD,
    BAD_USER_NAME_OR_PASSWORD,
    NOT_AUTHORIZED,
    SERVER_UNAVAILABLE,
    UNKNOWN,
    Challenge,
    Options,
    Verdict,
    counts_of,
    is_name,
    read_options,
)
from tidemq.config import Config
from tidemq.engine.door.events import AuthRequest, ConnectRequest

METHOD = "JWT"  # of enhanced authentication
TOKEN_BYTES_MAX = 32 << 10
GROUPS_MAX = 1000
KEYS_TRIED_MAX = 8  # for one token that names none
CONNECTIONS_MAX = 2  # to the server of the keys

_DATES = ("exp", "nbf", "iat")
_EXPIRY_MAX = 1 << 40  # seconds of Unix time: nobody will see it

_ACL = TypeAdapter(AclClaim)

Algorithm = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
    "HS256", "HS384", "HS512",
]  # fmt: skip


class JwtOptions(BaseModel):
    """Keys, and what a token must say."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    algorithms: Annotated[tuple[Algorithm, ...], Field(min_length=1)]
    jwks_file: Path | None = None  # one of these four
    jwks_url: Url | None = None
    public_key_file: Path | None = None
    secret_file: Path | None = None
    refresh_s: Annotated[StrictFloat, Field(gt=0, le=86_400)] = 300.0  # age of keys from a URL
    pause_s: Annotated[StrictFloat, Field(gt=0, le=3600)] = 10.0  # between two calls of it
    timeout_s: Annotated[StrictFloat, Field(gt=0, le=300)] = 3.0  # of a call
    ca_file: Path | None = None  # certificates of the authorities to trust there; None: the system's

    issuer: str | None = None  # None: any
    audience: tuple[str, ...] = ()  # one of these; empty: tokens without an audience
    leeway_s: Annotated[StrictInt, Field(ge=0, le=600)] = 5  # for clocks that differ
    expiry_required: StrictBool = True
    ends_with_token: StrictBool = True  # the connection

    token_from: Literal["password", "username"] = "password"
    username_claim: str = "sub"
    client_id_claim: str = ""  # empty: none, the client's own is free
    client_id: Literal["equal", "replace"] = "equal"  # the client's own, against the claim
    groups_claim: str = "groups"
    acl_claim: str = "acl"

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        sources = (self.jwks_file, self.jwks_url, self.public_key_file, self.secret_file)
        if sum(source is not None for source in sources) != 1:
            raise ValueError("exactly one of jwks_file, jwks_url, public_key_file and secret_file")
        secret = self.secret_file is not None
        if any(name.startswith("HS") != secret for name in self.algorithms):
            raise ValueError("HS... in algorithms with secret_file, and only there")
        return self


class JwtAuthenticator:
    """Accepts who has a token that a key of ours has signed and whose claims are as the options want them.

    A client without a token, or with one of another issuer or of a key that is not ours, is unknown. Nobody
    waits but for keys from a URL, and of those not many.
    """

    bounds_itself = True

    def __init__(self, options: JwtOptions, keys: Keys) -> None:
        self._options = options
        self._keys = keys

    @property
    def counts(self) -> Mapping[str, int]:
        """Of the keys."""
        return counts_of(self._keys)

    async def authenticate(self, request: ConnectRequest) -> Verdict:
        """Looks at the password, or the user name."""
        if self._options.token_from == "password":
            token = request.password or b""
        else:
            token = (request.username or "").encode()
        return await self._judge(token, request.client_id)

    async def converse(self, request: ConnectRequest | AuthRequest, _: Challenge) -> Verdict:
        """Looks at the authentication data. There is nothing to ask back."""
        if request.auth_method != METHOD:
            return Verdict(BAD_AUTHENTICATION_METHOD)
        return await self._judge(request.auth_data or b"", request.client_id)

    async def reload(self) -> None:
        """Gets the keys anew."""
        await self._keys.reload()

    async def close(self) -> None:
        """Closes the source of the keys."""
        await self._keys.close()

    async def _judge(self, token: bytes, client_id: str) -> Verdict:
        if not token or len(token) > TOKEN_BYTES_MAX:
            return UNKNOWN
        try:
            unverified = jwt.decode_complete(token, options={"verify_signature": False})
        except (PyJWTError, ValueError, RecursionError):
            return UNKNOWN
        issuer = unverified["payload"].get("iss")
        if self._options.issuer is not None and issuer != self._options.issuer:
            return UNKNOWN
        algorithm, kid = unverified["header"].get("alg"), unverified["header"].get("kid")
        if algorithm not in self._options.algorithms or not (kid is None or isinstance(kid, str)):
            return Verdict(BAD_USER_NAME_OR_PASSWORD)
        try:
            candidates = await self._keys.find(kid, algorithm)
        except KeysUnavailableError:
            return Verdict(SERVER_UNAVAILABLE)
        if not candidates:
            return UNKNOWN
        for key in candidates[:KEYS_TRIED_MAX]:
            try:
                claims = self._verify(token, key.value, algorithm)
            except jwt.InvalidSignatureError:
                continue
            except (PyJWTError, ValueError, TypeError, OverflowError, RecursionError):
                break  # signed, but not for us, or not now
            return self._verdict(claims, client_id)
        return Verdict(BAD_USER_NAME_OR_PASSWORD)

    def _verify(self, token: bytes, key: Any, algorithm: str) -> dict[str, Any]:
        """PyJWTError, or what else is wrong with it, where it is not good now."""
        options = self._options
        claims: dict[str, Any] = jwt.decode(
            token,
            key,
            algorithms=[algorithm],
            audience=list(options.audience) or None,
            issuer=options.issuer,
            leeway=options.leeway_s,
            options={"require": ["exp"] if options.expiry_required else []},
        )
        for name in _DATES:
            if name in claims and type(claims[name]) not in (int, float):  # PyJWT takes what int() takes
                raise ValueError(f"{name} is no number (RFC 7519 section 2)")
        return claims

    def _verdict(self, claims: Mapping[str, Any], client_id: str) -> Verdict:
        """What the claims of a token that is good make of its client."""
        options = self._options
        username = claims.get(options.username_claim)
        groups = claims.get(options.groups_claim, [])
        groups = [groups] if isinstance(groups, str) else groups
        replaced = ""
        if not is_name(username) or not isinstance(groups, list) or len(groups) > GROUPS_MAX:
            return Verdict(NOT_AUTHORIZED)
        if not all(is_name(group) for group in groups):
            return Verdict(NOT_AUTHORIZED)
        if options.client_id_claim:
            claimed = claims.get(options.client_id_claim)
            if not is_name(claimed) or (options.client_id == "equal" and claimed != client_id):
                return Verdict(NOT_AUTHORIZED)
            replaced = str(claimed)
        rules = None
        if options.acl_claim in claims:
            try:
                rules = rules_of(_ACL.validate_python(claims[options.acl_claim]))
            except ValidationError:
                return Verdict(NOT_AUTHORIZED)
        expires_s = None
        if options.ends_with_token and "exp" in claims:
            ends = min(int(claims["exp"]), _EXPIRY_MAX)
            expires_s = max(0.0, ends + options.leeway_s - time.time())
        return Verdict(
            client_id=replaced,
            username=username,
            groups=tuple(groups),
            rules=rules,
            expires_s=expires_s,
        )


def make_jwt(_: Config, given: Options) -> JwtAuthenticator:
    """The entry point `jwt`."""
    options = read_options("jwt", JwtOptions, given)
    return JwtAuthenticator(options, _find_keys(options))


def _find_keys(options: JwtOptions) -> Keys:
    if options.jwks_url is not None:
        http = HttpClient(
            timeout_s=options.timeout_s, connections_max=CONNECTIONS_MAX, ca_file=options.ca_file
        )
        return UrlKeys(options.jwks_url, http, options.refresh_s, options.pause_s)
    if options.jwks_file is not None:
        path, read = options.jwks_file, read_jwks_file
    elif options.public_key_file is not None:
        path, read = options.public_key_file, read_public_key_file
    else:
        assert options.secret_file is not None
        path, read = options.secret_file, partial(read_secret_file, algorithms=options.algorithms)
    return FileKeys(WatchedFiles([path], partial(read, path)))
