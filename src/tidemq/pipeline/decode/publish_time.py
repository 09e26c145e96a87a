"""When a publisher says that it published: a user property's value as a time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc

TIME_TYPE = pa.timestamp("us", tz="UTC")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECONDS_BELOW = 1e11  # larger numbers are milliseconds,
_MILLISECONDS_BELOW = 1e14  # and those above microseconds: the year 5138 as the one, 1973 as the other


def published_times(properties: pa.ListArray, name: str) -> pa.Array:
    """Of each message the time in its first user property of this name; null without one, or where it is no
    time. About a microsecond a message that has it.
    """
    times: list[int | None] = [None] * len(properties)
    pairs = pc.list_flatten(properties)
    found = pc.equal(pc.struct_field(pairs, "name"), name)
    rows = pc.list_parent_indices(properties).filter(found).to_pylist()
    values = pc.struct_field(pairs, "value").filter(found).to_pylist()
    for row, text in zip(reversed(rows), reversed(values), strict=True):  # the first is set last
        times[row] = parse_time_us(text)
    return pa.array(times, pa.int64()).cast(TIME_TYPE)


def parse_time_us(text: str) -> int | None:
    """Microseconds since 1970 of a number of seconds, milliseconds or microseconds since then (by its size),
    or of an ISO 8601 date with time and zone; None of anything else.
    """
    try:
        number = float(text)
    except ValueError:
        try:
            at = datetime.fromisoformat(text)
        except ValueError:
            return None
        return None if at.tzinfo is None else (at - _EPOCH) // timedelta(microseconds=1)
    if not 0 <= number < 1e17:
        return None
    scale = 1e6 if number < _SECONDS_BELOW else 1e3 if number < _MILLISECONDS_BELOW else 1
    return round(number * scale)
