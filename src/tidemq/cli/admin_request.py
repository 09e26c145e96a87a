"""Requests of `tidemq admin` and `tidemq top` to the admin API of a running broker."""

from __future__ import annotations

import json
import ssl
import sys
from collections.abc import Callable, Iterator, Mapping
from http.client import HTTPException
from typing import Annotated, Any
from urllib.error import HTTPError
from urllib.parse import quote, urlencode
from urllib.request import Request, urlopen

import typer

from tidemq.cli.exit_codes import EXIT_FAILED
from tidemq.errors import TideMQError

TIMEOUT_S = 60.0
DEFAULT_URL = "http://127.0.0.1:18083"

Url = Annotated[
    str, typer.Option(envvar="TIDEMQ_ADMIN_URL", metavar="URL", help="The broker's admin listener.")
]
TokenFile = Annotated[
    str,
    typer.Option(
        envvar="TIDEMQ_ADMIN_TOKEN_FILE",
        metavar="FILE",
        help="With the listener's token; or TIDEMQ_ADMIN_TOKEN has it.",
    ),
]
CaFile = Annotated[
    str, typer.Option("--cafile", metavar="FILE", help="Authorities that may sign its certificate.")
]


class RequestError(TideMQError):
    """The API refuses a request, or nobody answers; the text says why."""


def part(name: str) -> str:
    """A name as a part of a path."""
    return quote(name, safe="")


class Api:
    """The admin API at a URL."""

    def __init__(self, url: str, token_file: str, cafile: str) -> None:
        from tidemq.client.streams import authorization, find_token

        self._url = url.rstrip("/")
        self._headers = authorization(find_token(token_file))
        self._context = ssl.create_default_context(cafile=cafile) if cafile else None

    def ask(
        self, method: str, path: str, query: Mapping[str, object] | None = None, body: object = None
    ) -> Any:
        """The answer's JSON. Values of the query that are None or empty are left out."""
        given = {name: value for name, value in (query or {}).items() if value not in (None, "")}
        where = f"{self._url}{path}?{urlencode(given)}" if given else f"{self._url}{path}"
        data = json.dumps(body).encode() if body is not None else None
        try:
            request = Request(where, data, method=method)
            request.add_header("Content-Type", "application/json")
            for name, value in self._headers.items():
                request.add_unredirected_header(name, value)  # not for whom a redirection names
            with urlopen(request, timeout=TIMEOUT_S, context=self._context) as answer:
                return json.loads(answer.read() or b"null")
        except HTTPError as error:
            raise RequestError(_reason(error)) from error
        except (OSError, HTTPException, ValueError) as error:
            raise RequestError(f"no broker with an admin API answers at {self._url}: {error}") from error

    def events(self, path: str, query: Mapping[str, object]) -> Iterator[Any]:
        """Server-sent events, until the broker ends them."""
        given = {name: value for name, value in query.items() if value not in (None, "")}
        request = Request(f"{self._url}{path}?{urlencode(given)}")
        for name, value in self._headers.items():
            request.add_unredirected_header(name, value)
        try:
            with urlopen(request, timeout=TIMEOUT_S, context=self._context) as answer:
                for line in answer:
                    if line.startswith(b"data: "):
                        yield json.loads(line[6:])
        except HTTPError as error:
            raise RequestError(_reason(error)) from error
        except (OSError, HTTPException, ValueError) as error:
            raise RequestError(f"no broker with an admin API answers at {self._url}: {error}") from error

    def pages(self, path: str, name: str, query: Mapping[str, object], rows_max: int) -> Iterator[Any]:
        """Rows of a list, page by page, until there are no more or so many."""
        cursor: object = None
        left = rows_max
        while left > 0:
            page = self.ask("GET", path, {**query, "limit": min(left, 1000), "cursor": cursor})
            yield from page[name]
            left -= len(page[name])
            cursor = page["cursor"]
            if cursor is None:
                return


def _reason(error: HTTPError) -> str:
    try:
        problem = json.loads(error.read())
        if "problems" in problem:  # of /health and /ready
            return ", ".join(map(str, problem["problems"]))
        return str(problem.get("detail") or problem["error"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return f"{error.code} {error.reason}"


def exit_with(run: Callable[[], None]) -> None:
    """Ends the command; an error is one line on stderr and code 1."""
    code = 0
    try:
        run()
    except KeyboardInterrupt:
        code = 0
    except (TideMQError, OSError) as error:
        print(f"tidemq: {error}", file=sys.stderr)
        code = EXIT_FAILED
    raise typer.Exit(code)


def show_table(heads: list[str], rows: list[list[object]]) -> None:
    """Columns as wide as what is in them; None is a dash. What a client has named cannot move the cursor."""
    texts = [heads, *([_shown(each) for each in row] for row in rows)]
    widths = [max(len(row[at]) for row in texts) for at in range(len(heads))]
    for row in texts:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


def _shown(value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.1f}"
    return printable(str(value))


def printable(text: str) -> str:
    """Without what could move a terminal's cursor."""
    return text if text.isprintable() else text.encode("unicode_escape").decode()
