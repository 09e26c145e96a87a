"""What a subscription to a stream asks for, as it is written: `$stream/NAME/START/FILTER`, or, as EMQX 6.1
has it, `$stream/NAME[/FILTER]` with the start in the user property `stream-offset` of SUBSCRIBE.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from tidemq.broker.providers import TOPIC_FILTER_INVALID
from tidemq.errors import TideMQError
from tidemq.stream import Stream
from tidemq.wire.filters import overlap

PREFIX = "$stream/"
OFFSET_PROPERTY = "stream-offset"
TIME_US_MIN = 10**14  # a number from here on is a time, as EMQX gives it; of 1973, and more than any offset
_DIGITS_MAX = 18
_STARTS = "first (earliest), next (latest), an offset, or a time in UTC such as 2026-01-31T12:00Z"


class ReplayRefusedError(TideMQError):
    """There is no such replay, or there are too many. Caught by who answers the SUBSCRIBE with `reason`."""

    def __init__(self, message: str, reason: int = TOPIC_FILTER_INVALID) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Wanted:
    """One such subscription. `topics` is None where all of the stream is wanted; `prefix` comes before the
    topics of what is sent.
    """

    name: str
    start: str
    topics: str | None
    prefix: str

    def filters_of(self, stream: Stream) -> tuple[str, ...]:
        """The filters of the topics that are asked for. ReplayRefusedError where none of them can come."""
        if self.topics is None:
            return stream.config.filters
        topics = self.topics
        if not self.prefix and not any(overlap(topics, each) for each in stream.config.filters):
            raise ReplayRefusedError(
                f"{topics!r} is no START/FILTER, and as a FILTER it has no topic of the stream "
                f"{self.name}: START is {_STARTS}"
            )
        return (topics,)


def parse_wanted(topic_filter: str, properties: Sequence[tuple[str, str]]) -> Wanted:
    """What a filter below `$stream/` asks for, with the user properties of its packet. ReplayRefusedError."""
    offsets = {value for name, value in properties if name == OFFSET_PROPERTY}
    if len(offsets) > 1:
        raise ReplayRefusedError(f"the user property {OFFSET_PROPERTY} has {len(offsets)} different values")
    name, _, rest = topic_filter.removeprefix(PREFIX).partition("/")
    if topic_filter.endswith("/") and not rest:
        raise ReplayRefusedError("nothing follows the last /")
    first, _, topics = rest.partition("/")
    if offsets:
        [start] = offsets
        if is_start(first):
            raise ReplayRefusedError(f"START is given twice: {first!r}, and in {OFFSET_PROPERTY}")
        if not is_start(start):
            raise ReplayRefusedError(f"{OFFSET_PROPERTY} is {start!r}; accepted: {_STARTS}, or one in µs")
        return Wanted(name, start, rest or None, "")
    if not is_start(first):
        return Wanted(name, "next", rest or None, "")
    if not topics:
        raise ReplayRefusedError("it has to be $stream/NAME/START/FILTER, and the FILTER is missing")
    return Wanted(name, first, topics, f"{PREFIX}{name}/{first}/")


def is_start(text: str) -> bool:
    """Whether it says where to begin."""
    return text in ("first", "next", "earliest", "latest") or _number(text) is not None or bool(_time(text))


def find_offset(stream: Stream, start: str) -> int:
    """The offset to begin with, of what is one."""
    if start in ("first", "earliest"):
        return stream.log.first_offset
    if start in ("next", "latest"):
        return stream.log.next_offset
    number = _number(start)
    if number is not None and number < TIME_US_MIN:
        return number
    if number is None:
        at = _time(start)
        assert at is not None
        number = int(at.timestamp() * 1_000_000)
    return stream.log.offset_at(number - number % 1000)  # dates of messages are kept in milliseconds


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX else None


def _time(text: str) -> datetime | None:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at if at.tzinfo == UTC else None
