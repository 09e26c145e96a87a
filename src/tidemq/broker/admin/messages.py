"""Messages as answers show them."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import Annotated

from pydantic import Field

from tidemq.broker.admin.api import Answer
from tidemq.engine.door.figures import MessageFigures

PAYLOAD_BYTES_MAX = 1 << 20  # of a message that is shown
PAYLOAD_BYTES = 256  # unless more is asked for
CUT_CHARACTER_MAX = 3  # bytes that a cut may have left of a character in UTF-8

PayloadBytes = Annotated[
    int, Field(ge=0, le=PAYLOAD_BYTES_MAX, description="of each message that are shown, the first")
]


class ShownMessage(Answer):
    """A message. `payload`: its beginning as text, where it is UTF-8; if not, `payload_base64`."""

    topic: str
    payload: str | None
    payload_base64: str | None
    payload_bytes: int  # the whole
    qos: int
    retain: bool
    at: datetime | None  # when it came; null: not known
    expires: datetime | None  # null: never


def date_of(ms: int) -> datetime | None:
    """Of a time of the wall clock in ms; 0: none."""
    return datetime.fromtimestamp(ms / 1000, UTC) if ms else None


def text_of(payload: bytes, *, cut: bool) -> str | None:
    """A payload's beginning as text; None where it is none. `cut`: it may end within a character."""
    for left in range(CUT_CHARACTER_MAX + 1 if cut else 1):
        try:
            return payload[: len(payload) - left].decode()
        except UnicodeDecodeError:
            continue
    return None


def shown(figures: MessageFigures) -> ShownMessage:
    """A message that a reactor has found."""
    text = text_of(figures.payload, cut=figures.payload_bytes > len(figures.payload))
    return ShownMessage(
        topic=figures.topic,
        payload=text,
        payload_base64=None if text is not None else base64.b64encode(figures.payload).decode(),
        payload_bytes=figures.payload_bytes,
        qos=figures.qos,
        retain=figures.retain,
        at=date_of(figures.came_ms),
        expires=date_of(figures.expires_ms),
    )
