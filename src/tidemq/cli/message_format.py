"""`-F FORMAT`: how `tidemq sub` prints a message, as mosquitto_sub's manual has it.

`%` and a letter stand for a part of the message, between them `-`, `0`, a width and `.` with a number of
characters, as in printf; `@` and a letter for the time, as in strftime; a backslash for what cannot be typed.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

from tidemq.errors import UsageError
from tidemq.wire import Properties, Publish

Piece = Callable[[Publish, int], bytes]
"""A part of what is printed, of a message and the time in ns."""

_ESCAPES = {"\\": "\\", "0": "\0", "a": "\a", "e": "\033", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_PIECE = re.compile(
    r"%(?P<left>-?)(?P<zero>0?)(?P<width>\d*)(?:\.(?P<most>\d+))?(?P<part>.)"
    r"|@(?P<time>.)|\\(?P<escape>.)|[%@\\]|[^%@\\]+",
    re.DOTALL,
)
_TIMES = "aAbBcCdDeFgGhHIjklmMnpPrRsStTuUVwWxXyYzZ"


def _local(now_ns: int) -> datetime:
    return datetime.fromtimestamp(now_ns // 1_000_000_000, UTC).astimezone()


def _or_empty(value: object) -> str:
    return "" if value is None else str(value)


# parts that are text
_TEXTS: dict[str, Callable[[Publish, int], str]] = {
    "A": lambda m, _: _or_empty(m.properties.topic_alias),
    "C": lambda m, _: _or_empty(m.properties.content_type),
    "D": lambda m, _: (m.properties.correlation_data or b"").decode(errors="replace"),
    "E": lambda m, _: _or_empty(m.properties.message_expiry_s),
    "F": lambda m, _: _or_empty(m.properties.payload_format),
    "I": lambda _, now_ns: _local(now_ns).strftime("%Y-%m-%dT%H:%M:%S%z"),
    "l": lambda m, _: str(len(m.payload)),
    "m": lambda m, _: str(m.packet_id),
    "P": lambda m, _: " ".join(f"{name}:{value}" for name, value in m.properties.user_properties),
    "q": lambda m, _: str(m.qos),
    "R": lambda m, _: _or_empty(m.properties.response_topic),
    "r": lambda m, _: str(int(m.retain)),
    "S": lambda m, _: " ".join(str(each) for each in m.properties.subscription_ids),
    "t": lambda m, _: m.topic,
    "U": lambda _, now_ns: f"{now_ns // 1_000_000_000}.{now_ns % 1_000_000_000:09}",
    "x": lambda m, _: m.payload.hex(),
    "X": lambda m, _: m.payload.hex().upper(),
}  # fmt: skip
_PARTS = "".join(sorted([*_TEXTS, "j", "J", "p", "%"]))


class NotJsonError(UsageError):
    """The payload is no JSON, as the format wants it. Caught by who prints, who says so."""


class MessageFormat:
    """A format, understood. UsageError where it cannot be."""

    def __init__(self, text: str, *, pretty: bool = False) -> None:
        self._pieces = [_piece(match, pretty) for match in _PIECE.finditer(text)]

    def show(self, message: Publish, now_ns: int | None = None) -> bytes:
        """The message in this form; NotJsonError."""
        at_ns = time.time_ns() if now_ns is None else now_ns
        return b"".join(piece(message, at_ns) for piece in self._pieces)


def _piece(match: re.Match[str], pretty: bool) -> Piece:
    part, clock, escape = match["part"], match["time"], match["escape"]
    if part is not None:
        return _part(match, part, pretty)
    if clock is not None:
        return _time(clock)
    if escape is not None:
        if escape not in _ESCAPES:
            raise UsageError(f"the format has \\{escape}; accepted: {', '.join(map(_escaped, _ESCAPES))}")
        return _plain(_ESCAPES[escape])
    if match[0] in ("%", "@", "\\"):
        raise UsageError(f"the format ends with {match[0]}, after which a letter has to come")
    return _plain(match[0])


def _escaped(letter: str) -> str:
    return "\\" + letter


def _plain(text: str) -> Piece:
    data = text.encode(errors="surrogateescape")
    return lambda *_: data


def _part(match: re.Match[str], part: str, pretty: bool) -> Piece:
    if part not in _PARTS:
        raise UsageError(f"the format has %{part}; accepted: %{', %'.join(_PARTS)}")
    if part == "%":
        return _plain("%")
    if part in "jJ":
        return lambda message, now_ns: _json(message, now_ns, is_json=part == "J", pretty=pretty)
    width, fill = int(match["width"] or 0), b"0" if match["zero"] and not match["left"] else b" "
    pad = bytes.ljust if match["left"] else bytes.rjust
    if part == "p":
        return lambda message, _: pad(message.payload, width, fill)
    most = None if match["most"] is None else int(match["most"])
    text = _TEXTS[part]
    return lambda message, now_ns: pad(text(message, now_ns)[:most].encode(), width, fill)


def _time(letter: str) -> Piece:
    if letter == "@":
        return _plain("@")
    if letter == "N":
        return lambda _, now_ns: b"%09d" % (now_ns % 1_000_000_000)
    if letter not in _TIMES:
        raise UsageError(f"the format has @{letter}; accepted: @@, @N, and letters of strftime")
    return lambda _, now_ns: _local(now_ns).strftime(f"%{letter}").encode()


def _json(message: Publish, now_ns: int, *, is_json: bool, pretty: bool) -> bytes:
    """The message as an object: the payload as text or, where it `is_json`, as what it is."""
    at = _local(now_ns)
    shown: dict[str, Any] = {
        "tst": f"{at:%Y-%m-%dT%H:%M:%S}.{now_ns % 1_000_000_000 // 1000:06}Z{at:%z}",
        "topic": message.topic,
        "qos": message.qos,
        "retain": int(message.retain),
        "payloadlen": len(message.payload),
    }
    if message.qos:
        shown["mid"] = message.packet_id
    if properties := _properties(message.properties):
        shown["properties"] = properties
    if is_json:
        try:
            shown["payload"] = json.loads(message.payload)
        except (ValueError, RecursionError) as error:
            raise NotJsonError(f"Message payload is not valid JSON on topic {message.topic}") from error
    else:
        shown["payload"] = message.payload.decode(errors="replace")
    encode = partial(json.dumps, shown, ensure_ascii=False)
    return (encode(indent="\t") if pretty else encode(separators=(",", ":"))).encode(errors="replace")


def _text_of(data: bytes | None) -> str | None:
    return None if data is None else data.decode(errors="replace")


def _properties(given: Properties) -> dict[str, Any]:
    named = {
        "payload-format-indicator": given.payload_format,
        "message-expiry-interval": given.message_expiry_s,
        "content-type": given.content_type,
        "response-topic": given.response_topic,
        "correlation-data": _text_of(given.correlation_data),
        "user-properties": dict(given.user_properties) or None,
        "subscription-identifier": list(given.subscription_ids) or None,
        "topic-alias": given.topic_alias,
    }
    return {name: value for name, value in named.items() if value is not None}
