"""The streams of a broker, declared and deleted over HTTP; `streams` reads them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

from tidemq.client.errors import ConnectError
from tidemq.client.streams import (
    TIMEOUT_S,
    StreamError,
    StreamState,
    UnknownStreamError,
    authorization,
    state_of,
)


def list_streams(url: str, *, token: str = "") -> list[StreamState]:
    """All streams. Like all here: ConnectError when no broker with streams answers at the `url`, StreamError
    when it wants another token.
    """
    found = _ask("GET", url, "/streams", token)
    if not isinstance(found, list):
        raise ConnectError(f"{url}: no broker with streams answers there: it has no list of them")
    return [state_of(each, url) for each in found]


def declare_stream(
    url: str,
    name: str,
    filters: Sequence[str],
    *,
    retention_s: float | None = None,
    retention_bytes: int | None = None,
    compression: str | None = None,
    last: bool = False,
    token: str = "",
) -> StreamState:
    """Makes a stream, or gives one that is there these filters, this retention and this compression of what
    comes from now on (None: the broker's default). With `last`, only the newest message of each topic is
    kept, and the default is no retention; of a stream that had all messages, the older ones are removed.
    StreamError says what the broker does not accept.
    """
    given = {
        "filters": list(filters),
        "retention_s": retention_s,
        "retention_bytes": retention_bytes,
        "compression": compression,
        "last": last,
    }
    body = {key: value for key, value in given.items() if value is not None}
    return state_of(_ask("PUT", url, f"/streams/{quote(name, safe='')}", token, body), url)


def delete_stream(url: str, name: str, *, token: str = "") -> None:
    """Ends a stream, whose messages are lost. UnknownStreamError where there is none of this name."""
    _ask("DELETE", url, f"/streams/{quote(name, safe='')}", token)


def _ask(method: str, url: str, path: str, token: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    headers = authorization(token)
    try:
        request = Request(url.rstrip("/") + path, data, method=method)
        for name, value in headers.items():
            request.add_unredirected_header(name, value)  # not for whom a redirection names
        with urlopen(request, timeout=TIMEOUT_S) as answer:
            text = answer.read()
            return json.loads(text) if text else None
    except HTTPError as error:
        kind = UnknownStreamError if error.code == 404 and method != "GET" else StreamError
        raise kind(f"{url}: {_reason(error)}") from error
    except (OSError, HTTPException, ValueError) as error:
        raise ConnectError(f"{url}: no broker with streams answers there: {error}") from error


def _reason(error: HTTPError) -> str:
    try:
        return str(json.loads(error.read())["error"])
    except (OSError, ValueError, TypeError, KeyError):
        return error.reason
