"""The audit log: each request to the admin listener that would change something, also if it was refused.

A line of `audit_file` is a JSON object; the same, in words, is a line of the log `tidemq.audit`. It has the
path, the query and the body's fields, never a token or what a message holds.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from contextlib import suppress
from datetime import UTC, datetime
from io import TextIOWrapper
from logging.handlers import WatchedFileHandler
from typing import Any

from aiohttp import web

from tidemq.broker.admin.api import FIELDS
from tidemq.broker.admin.guard import HOLDER, READING, Handler
from tidemq.broker.fault_log import Lines
from tidemq.config import Config, refused

TEXT_MAX = 1000  # characters of a path, or of a query or a body

_log = logging.getLogger("tidemq.audit")


class Audit:
    """Of one listener. ConfigError where `audit_file` cannot be written."""

    def __init__(self, config: Config) -> None:
        path = config.audit_file
        self._strangers = Lines(config.fault_lines_max, "requests of strangers to the admin listener")
        self._file: _File | None = None
        self.counts = {"audit_lines_failed": 0}
        if path:
            try:
                self._file = _File(path, self.counts)
            except OSError as error:
                problem = f"{path}: {error.strerror or error}"
                raise refused(
                    "configuration", "audit_file", problem, ["a file that can be written"]
                ) from error

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            with suppress(OSError):  # what it did not take is counted
                self._file.close()

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """For an aiohttp application; outside of what refuses."""
        if request.method in READING:
            return await handler(request)
        try:
            answer = await handler(request)
        except web.HTTPException as error:
            self._note(request, error.status)
            raise
        except BaseException:
            self._note(request, 500)
            raise
        self._note(request, answer.status)
        return answer

    def _note(self, request: web.Request, status: int) -> None:
        """Of who is not known, neither a line for each request, nor what it asked for: it may be anything."""
        holder = request.get(HOLDER)
        if holder is None and not self._strangers.take():
            return
        path, query = (request.path, request.query_string) if holder is not None else ("", "")
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "who": holder.name if holder is not None else None,  # null: nobody who is known
            "role": holder.role.name.lower() if holder is not None else None,
            "from": request.remote,
            "method": request.method,
            "path": path[:TEXT_MAX],
            "query": query[:TEXT_MAX],
            "body": _cut(request.get(FIELDS, {})),
            "status": status,
        }
        fields = {"user": line["who"], "address": line["from"], "reason": str(status)}
        _log.info(
            "%s (%s) %s %r: %d", line["who"], line["from"], request.method, line["path"], status, extra=fields
        )
        if self._file is not None:
            self._file.handle(logging.LogRecord(_log.name, logging.INFO, "", 0, json.dumps(line), None, None))


def _cut(fields: dict[str, Any]) -> dict[str, Any]:
    if len(json.dumps(fields, default=str)) <= TEXT_MAX:
        return fields
    return {name: str(value)[:80] for name, value in list(fields.items())[:10]}


class _File(WatchedFileHandler):
    """For its owner alone. It is opened again after somebody has renamed it (logrotate)."""

    def __init__(self, path: str, counts: dict[str, int]) -> None:
        self._counts = counts
        super().__init__(path, encoding="utf-8")

    def _open(self) -> TextIOWrapper:
        def opener(path: str, flags: int) -> int:
            return os.open(path, flags, 0o600)

        return TextIOWrapper(open(self.baseFilename, "ab", opener=opener), encoding=self.encoding)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """The request is answered all the same; that it is not in the file is counted, and in the log."""
        self._counts["audit_lines_failed"] += 1
        _log.error(
            "audit_file: %s: the line could not be written: %s", sys.exc_info()[1], record.getMessage()
        )
