"""A small HTTP endpoint for health checks: `GET /health` and `GET /counters`, as JSON."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from http import HTTPStatus

REQUEST_S = 5.0  # for the whole request to arrive


class AdminServer:
    """Answers on one address until closed. It changes nothing in the broker."""

    def __init__(self, counters: Callable[[], Mapping[str, int]]) -> None:
        self._counters = counters
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listens and gives the bound port; OSError if it can't be bound."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=8192)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def close(self) -> None:
        """Stops to listen."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request, one answer, then the connection is closed."""
        try:
            async with asyncio.timeout(REQUEST_S):
                head = await reader.readuntil(b"\r\n\r\n")
                status, body = self._answer(head.split(b"\r\n", 1)[0])
                payload = json.dumps(body).encode()
                writer.write(
                    f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/json\r\n"
                    f"Content-Length: {len(payload)}\r\nConnection: close\r\n\r\n".encode()
                )
                writer.write(payload)
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # a broken request gets no answer
        finally:
            writer.close()

    def _answer(self, request_line: bytes) -> tuple[HTTPStatus, Mapping[str, object]]:
        method, _, rest = request_line.partition(b" ")
        path = rest.split(b" ", 1)[0]
        if method != b"GET":
            return HTTPStatus.METHOD_NOT_ALLOWED, {"error": "only GET"}
        if path == b"/health":
            return HTTPStatus.OK, {"status": "ok"}
        if path == b"/counters":
            return HTTPStatus.OK, dict(self._counters())
        return HTTPStatus.NOT_FOUND, {"error": "unknown path", "paths": ["/health", "/counters"]}
