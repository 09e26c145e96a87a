"""What is watched for, who is alarmed, and which alerts there have to be: by the rules' own words, not by the
pipeline's code.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from tidemq.client import Client

ABOVE, CLEARED_AT, COUNT, OF = 60.0, 40.0, 2, 3
SILENT_S = 2.0
AFTER = timedelta(seconds=SILENT_S)
ALERTS = f"""\
[[alerts]]
name = "hot"
filter = "plant/+/json"
kind = "threshold"
value = "level"
above = {ABOVE}
hysteresis = {ABOVE - CLEARED_AT}
count = {COUNT}
of = {OF}

[[alerts]]
name = "silent"
filter = "plant/#"
kind = "absence"
by = "client"
after_s = {SILENT_S}
"""
END = "alerts/end"  # all alerts are before it
Alert = dict[str, Any]  # what its message says
Row = dict[str, Any]  # of the stream


class Alarmed:
    """A client with a session that survives; `came` has each alert as often as it was delivered."""

    def __init__(self) -> None:
        self.came: list[Alert] = []
        self.listening = asyncio.Event()

    async def listen(self, url: str) -> None:
        """Until the end is said."""
        client = Client(
            url,
            client_id="alarmed",
            clean_start=False,
            session_expiry_s=3600,
            retry_first=True,
            backoff_s_min=0.05,
            backoff_s_max=0.3,
        )
        async with client:
            await client.subscribe("alerts/#", qos=1)
            self.listening.set()
            async for message in client.messages:
                if message.topic == END:
                    return
                self.came.append(json.loads(message.payload))


async def say_end(url: str) -> None:
    """Behind all alerts that are published."""
    async with Client(url, retry_first=True, backoff_s_min=0.05, backoff_s_max=0.3) as client:
        await client.publish(END, b"", qos=1)


def due(stream: Iterable[Row]) -> dict[str, Alert]:
    """By identifier, what has to be raised and cleared up to the time of the newest message."""
    rows = sorted(stream, key=lambda row: row["offset"])
    return {alert["id"]: alert for alert in (*_hot(rows), *_silent(rows))}


def _hot(rows: Sequence[Row]) -> Iterator[Alert]:
    last: dict[str, deque[bool]] = defaultdict(lambda: deque(maxlen=OF))
    raised: set[str] = set()
    for row in rows:
        topic = row["topic"]
        if not topic.endswith("/json") or not row["payload"].startswith(b"{"):
            continue
        level = json.loads(row["payload"])["level"]
        last[topic].append(level > (CLEARED_AT if topic in raised else ABOVE))
        if (sum(last[topic]) >= COUNT) == (topic in raised):
            continue
        raised ^= {topic}
        state = "raised" if topic in raised else "cleared"
        yield _alert("hot", state, row, row["received"], level, ABOVE)


def _silent(rows: Sequence[Row]) -> Iterator[Alert]:
    last: dict[str, Row] = {}
    for row in rows:
        if before := last.get(row["client_id"]):
            yield from _silence(before, row["received"])
            if (silent := row["received"] - before["received"]) >= AFTER:
                yield _alert(
                    "silent", "cleared", row, row["received"], silent / timedelta(seconds=1), SILENT_S
                )
        last[row["client_id"]] = row
    newest = max((row["received"] for row in rows), default=datetime.min)
    for before in last.values():
        yield from _silence(before, newest)


def _silence(before: Row, until: datetime) -> Iterator[Alert]:
    """What is raised where nothing comes after a message until then."""
    if until - before["received"] >= AFTER:
        yield _alert("silent", "raised", before, before["received"] + AFTER, SILENT_S, SILENT_S)


def _alert(rule: str, state: str, row: Row, time: datetime, value: float, limit: float) -> Alert:
    return {
        "id": f"{rule}/{state}/{row['epoch']}/{row['offset']}",
        "rule": rule,
        "state": state,
        "topic": row["topic"],
        "client": row["client_id"],
        "value": float(value),
        "limit": limit,
        "offset": row["offset"],
        "time": time.isoformat(timespec="microseconds"),
    }
