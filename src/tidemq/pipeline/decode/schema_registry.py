"""A schema registry, asked over HTTP for the schemas that payloads name, by Confluent's protocol: a payload
begins with a byte 0 and the schema's id, four bytes.

The driver reads the password and the certificates; executors get them with the rule. An executor's process
asks for an id once (`known_schema`).
"""

from __future__ import annotations

import base64
import json
import ssl
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from functools import lru_cache
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from tidemq.errors import ConfigError, TideMQError

IDS_MAX = 1000  # schemas that a process keeps, and as many ids that are none
UNKNOWN_S = 60.0  # after which such an id is asked for again
REFERENCES_MAX = 100  # further schemas that one is made of
TIMEOUT_S = 5.0  # of silence
TRIES_MAX = 4  # before a task fails, which Spark tries again
PAUSE_S = 0.5  # before the second try; each further pause is twice as long
SCHEMA_BYTES_MAX = 4 << 20
_HEAD_BYTES = 5
_NOT_FOUND = 40403  # Confluent's, of an id
_REFUSED = (401, 403, 407)


class RegistryError(TideMQError):
    """A registry cannot be asked. A rule is held back for it; a task fails."""


class UnknownSchemaError(TideMQError):
    """The registry has no schema of this id. Caught by who decodes the payload."""


class UnusableSchemaError(TideMQError):
    """What a registry has under an id cannot decode payloads. Caught by who decodes them."""


class Source(NamedTuple):
    """A schema as a registry has it."""

    kind: str  # AVRO, PROTOBUF, JSON
    text: str
    references: tuple[tuple[str, Source], ...] = ()  # the schemas that it is made of, by their names in it


@dataclass(frozen=True, slots=True)
class Registry:
    """Where schemas are, and what is said there of who asks."""

    url: str
    user: str = ""
    password: str = field(default="", repr=False)
    authority: str = field(default="", repr=False)  # certificates in PEM that are trusted; none: the system's

    def __post_init__(self) -> None:
        """ConfigError says what is wrong."""
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
            raise ConfigError(
                f"{self.url!r} is no registry's address; accepted: http[s]://host[:port][/path]"
            )
        if self.authority:
            self._context()

    def check(self) -> None:
        """Whether it answers. ConfigError where it refuses who asks, or is no registry; RegistryError where
        it cannot be reached.
        """
        status, said = self._asked("/schemas/types", tries_max=1)
        if status in _REFUSED:
            raise ConfigError(f"{self.url}: the schema registry answers {status}: {_said(said)}")
        if not (isinstance(said, list) or (isinstance(said, dict) and "error_code" in said)):
            raise ConfigError(f"{self.url}: no schema registry answers there, but {status}")

    def schema(self, number: int, *, serialized: bool) -> Source:
        """That of an id, with those that it refers to; of Protobuf `serialized`, as a descriptor in base64.

        UnknownSchemaError where there is none, RegistryError where it cannot be asked.
        """
        status, said = self._asked(f"/schemas/ids/{number}{'?format=serialized' * serialized}")
        if status == 404 and isinstance(said, dict) and said.get("error_code") == _NOT_FOUND:
            raise UnknownSchemaError(f"not in the schema registry: schema {number}")
        return self._source(status, said, serialized, [REFERENCES_MAX])

    def _source(self, status: int, said: Any, serialized: bool, left: list[int]) -> Source:
        """Of an answer, and of those to further questions, of which so many are left."""
        if status != 200 or not isinstance(said, dict) or not isinstance(said.get("schema"), str):
            raise RegistryError(f"{self.url}: the schema registry answers {status}: {_said(said)}")
        references = []
        for each in said.get("references") or ():
            left[0] -= 1
            if left[0] < 0:
                raise UnusableSchemaError(f"it refers to more than {REFERENCES_MAX} others")
            subject, version = quote(str(each["subject"]), safe=""), int(each["version"])
            path = f"/subjects/{subject}/versions/{version}{'?format=serialized' * serialized}"
            references.append((str(each["name"]), self._source(*self._asked(path), serialized, left)))
        return Source(str(said.get("schemaType") or "AVRO"), said["schema"], tuple(references))

    def _asked(self, path: str, tries_max: int = TRIES_MAX) -> tuple[int, Any]:
        """Status and JSON of an answer, or None of what is no JSON. RegistryError without an answer."""
        pause_s = PAUSE_S
        for left in reversed(range(tries_max)):
            try:
                status, body = self._request(path)
                if status < 500 and status != 429:
                    break
                problem = f"{status}: {body[:200].decode(errors='replace')}"
            except (OSError, HTTPException) as error:
                problem = str(error) or type(error).__name__
            if not left:
                raise RegistryError(f"{self.url}: the schema registry cannot be asked: {problem}")
            time.sleep(pause_s)
            pause_s *= 2
        try:
            return status, json.loads(body)
        except ValueError:
            return status, None

    def _request(self, path: str) -> tuple[int, bytes]:
        parts = urlsplit(self.url)
        host, port = parts.hostname or "", parts.port
        connection = (
            HTTPSConnection(host, port, timeout=TIMEOUT_S, context=self._context())
            if parts.scheme == "https"
            else HTTPConnection(host, port, timeout=TIMEOUT_S)
        )
        headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if self.user:
            code = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
            headers["Authorization"] = f"Basic {code}"
        with closing(connection):
            connection.request("GET", parts.path.rstrip("/") + path, headers=headers)
            answer = connection.getresponse()
            body = answer.read(SCHEMA_BYTES_MAX + 1)
        if len(body) > SCHEMA_BYTES_MAX:
            raise HTTPException(f"an answer of more than {SCHEMA_BYTES_MAX} bytes")
        return answer.status, body

    def _context(self) -> ssl.SSLContext:
        try:
            return ssl.create_default_context(cadata=self.authority or None)
        except ssl.SSLError as error:
            raise ConfigError(f"no certificates can be read: {error}") from error


def framed(payload: bytes) -> tuple[int, bytes] | str:
    """The id of a payload's schema, and what follows it; or why there is none."""
    if len(payload) < _HEAD_BYTES or payload[0]:
        return "no schema's id: a byte 0 and four bytes"
    return int.from_bytes(payload[1:_HEAD_BYTES]), payload[_HEAD_BYTES:]


# --- what a process knows --------------------------------------------------------------------------

_unknown: OrderedDict[tuple[Registry, int], float] = OrderedDict()  # until when


@lru_cache(IDS_MAX)
def known_schema(registry: Registry, number: int, make: Callable[[Source], Any]) -> Any:
    """What `make` makes of the schema of this id, once in a process; UnusableSchemaError's text where it
    raises that. UnknownSchemaError, RegistryError.
    """
    now = time.monotonic()
    if _unknown.get((registry, number), 0.0) > now:
        raise UnknownSchemaError(f"not in the schema registry: schema {number}")
    try:
        return make(registry.schema(number, serialized=getattr(make, "serialized", False)))
    except UnusableSchemaError as error:
        return f"a schema that cannot be used: {number}: {error}"
    except UnknownSchemaError:
        _unknown[registry, number] = now + UNKNOWN_S
        if len(_unknown) > IDS_MAX:
            _unknown.popitem(last=False)
        raise


def _said(answer: Any) -> str:
    return str(answer.get("message", answer) if isinstance(answer, dict) else answer)[:200]
