"""What `tidemq serve` writes of what is logged: lines of text or of JSON, by levels that may change while it
runs, and of no kind more than an operator can read.

A program that embeds a broker sets up `logging` as it likes; the loggers are those of AREAS, below `tidemq`.
"""

from __future__ import annotations

import json
import logging
import time
from datetime import UTC, datetime
from typing import TextIO, get_args

from tidemq.config import Config, LogArea

AREAS: tuple[LogArea, ...] = get_args(LogArea)
FIELDS = ("client", "address", "listener", "user", "reason", "bytes", "seconds")
KIND_LINES_MAX = 100  # a second, of one kind: of one logger and message, whatever stands in it
_NOT_LIMITED = "tidemq.audit"  # whose lines are the operators' own, and are to be all there
_TEXT = "%(asctime)s %(levelname)s %(message)s"


class JsonFormatter(logging.Formatter):
    """A line is a JSON object: `time`, `level`, `logger`, `message`, and those of FIELDS that are known."""

    def format(self, record: logging.LogRecord) -> str:
        """Never more than one line, whatever a client has sent."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: getattr(record, name) for name in FIELDS if getattr(record, name, None) is not None}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


class LineLimit(logging.Filter):
    """Of a handler: lets KIND_LINES_MAX lines of each kind pass in a second, and counts the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.left_out = 0
        self._second = 0
        self._lines: dict[tuple[str, str], int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Called by `logging`, under the handler's lock or not: a count may be off by some."""
        if record.name == _NOT_LIMITED:
            return True
        if int(time.monotonic()) != self._second:
            self._second = int(time.monotonic())
            self._lines.clear()
        kind = (record.name, str(record.msg))
        lines = self._lines[kind] = self._lines.get(kind, 0) + 1
        if lines > KIND_LINES_MAX:
            self.left_out += 1
            return False
        if lines == KIND_LINES_MAX:
            record.msg = f"{record.msg} (further ones of this second are left out: log_lines_left_out)"
        return True


def write_log(config: Config, output: TextIO) -> None:
    """Sends everything that is logged to `output`, from now on."""
    handler = logging.StreamHandler(output)
    handler.setFormatter(JsonFormatter() if config.log_format == "json" else logging.Formatter(_TEXT))
    handler.addFilter(LineLimit())
    logging.getLogger().addHandler(handler)
    set_levels(config)


def set_levels(config: Config) -> None:
    """As the configuration has them."""
    logging.getLogger().setLevel(config.log_level.upper())
    for area in AREAS:
        set_level(area, config.log_levels.get(area))


def lines_left_out() -> int:
    """By the handlers of this process."""
    filters = (each for handler in logging.getLogger().handlers for each in handler.filters)
    return sum(each.left_out for each in filters if isinstance(each, LineLimit))


def set_level(area: str, level: str | None) -> None:
    """Of one of AREAS, or of all that have none of their own (empty). None: as all others."""
    logging.getLogger(f"tidemq.{area}" if area else "tidemq").setLevel(level.upper() if level else "NOTSET")


def levels() -> dict[str, str]:
    """The levels that are in force, by area; that of all others under an empty name."""
    loggers = {area: logging.getLogger(f"tidemq.{area}") for area in AREAS} | {
        "": logging.getLogger("tidemq")
    }
    return {
        area: logging.getLevelName(logger.getEffectiveLevel()).lower() for area, logger in loggers.items()
    }
