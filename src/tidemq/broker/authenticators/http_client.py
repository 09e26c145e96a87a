"""HTTP calls of providers: bounded in time, connections and size of the answer. Needs aiohttp."""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import aiohttp
from pydantic import AfterValidator

from tidemq.config import refused
from tidemq.errors import TideMQError

ANSWER_BYTES_MAX = 256 << 10
_LENGTHS = ("Content-Length", "Transfer-Encoding")


class CallFailedError(TideMQError):
    """A call had no answer that could be used. Caught by the provider, which refuses. Holds no secret."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server sent."""

    status: int
    body: bytes
    has_length: bool  # else it ended with the connection, and may have been cut off (RFC 9112 section 8)

    def json(self) -> Any:
        """The body as JSON; CallFailedError where it is none."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise CallFailedError("the answer is not JSON") from error


def check_url(url: str) -> str:
    """ValueError unless it is `http://` or `https://` with a host and without a password, which logs show."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable or "@" in parts.netloc or parts.fragment:
        raise ValueError("http:// or https://, a host, no user or password")
    return url


def shown_url(url: str) -> str:
    """For logs: without the query, where some servers want a key."""
    return url.partition("?")[0]


Url = Annotated[str, AfterValidator(check_url)]


class HttpClient:
    """Calls servers. An answer is not followed to another address, nothing is kept from one to the next.

    ConfigError where `ca_file`, the authorities that servers' certificates must come from, cannot be read;
    None: those of the system.
    """

    def __init__(self, *, timeout_s: float, connections_max: int, ca_file: Path | None = None) -> None:
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._connections_max = connections_max
        self._session: aiohttp.ClientSession | None = None
        try:
            self._tls = ssl.create_default_context(cafile=ca_file)
        except (OSError, ssl.SSLError) as error:
            accepted = ["a readable file with certificates in PEM"]
            raise refused(str(ca_file), "the file", error.strerror or "no certificate", accepted) from error

    async def call(
        self, method: str, url: str, *, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Sends a request, with JSON where there is a body; CallFailedError in time where that fails."""
        if self._session is None:  # belongs to the loop that runs now
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._connections_max, ssl=self._tls),
                timeout=self._timeout,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
            )
        sent = {"Accept": "application/json", "Accept-Encoding": "identity", **(headers or {})}
        if body is not None:
            sent["Content-Type"] = "application/json"
        try:
            async with self._session.request(
                method, url, data=body, headers=sent, allow_redirects=False
            ) as response:
                has_length = response.status == 204 or not response.headers.keys().isdisjoint(_LENGTHS)
                return Answer(response.status, await _read(response), has_length)
        except TimeoutError as error:
            raise CallFailedError(f"no answer within {self._timeout.total} s") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise CallFailedError(_explain(error)) from error

    async def close(self) -> None:
        """Closes the connections."""
        if self._session is not None:
            await self._session.close()


async def _read(response: aiohttp.ClientResponse) -> bytes:
    parts = bytearray()
    async for part in response.content.iter_any():
        parts += part
        if len(parts) > ANSWER_BYTES_MAX:
            raise CallFailedError(f"the answer is larger than {ANSWER_BYTES_MAX} bytes")
    return bytes(parts)


def _explain(error: Exception) -> str:
    """In a line; a malformed answer is not shown, for it may hold anything."""
    if isinstance(error, (aiohttp.ClientConnectorError, OSError)):
        return str(error)
    return type(error).__name__
