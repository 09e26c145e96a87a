"""Alarms: what whoever looks after the broker should know of now, with begin and end."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

HOLD_S = 60.0  # an alarm ends when nothing was seen of it for so long
ENDED_MAX = 200  # that are remembered

_log = logging.getLogger("tidemq.alarms")


@dataclass(frozen=True, slots=True)
class Alarm:
    """One that goes on, or that has ended. Dates are UTC."""

    name: str
    text: str
    began: datetime
    ended: datetime | None = None

    def describe(self) -> dict[str, str | None]:
        """As JSON has it."""
        ended = self.ended.isoformat(timespec="seconds") if self.ended else None
        began = self.began.isoformat(timespec="seconds")
        return {"name": self.name, "text": self.text, "began": began, "ended": ended}


class Alarms:
    """Those that go on and the last ones that have ended. `publish` is told of each that begins or ends."""

    def __init__(self, publish: Callable[[Alarm], None]) -> None:
        self._publish = publish
        self._active: dict[str, Alarm] = {}
        self._seen_s: dict[str, float] = {}
        self._ended: deque[Alarm] = deque(maxlen=ENDED_MAX)

    @property
    def active(self) -> list[Alarm]:
        """The oldest first."""
        return list(self._active.values())

    @property
    def ended(self) -> list[Alarm]:
        """The last that ended first."""
        return list(reversed(self._ended))

    def look(self, found: Mapping[str, str], now_s: float) -> None:
        """`found`: what is wrong now, texts by name. `now_s` is a monotonic time."""
        now = datetime.now(UTC)
        for name, text in found.items():
            self._seen_s[name] = now_s
            if known := self._active.get(name):
                self._active[name] = replace(known, text=text)
                continue
            alarm = self._active[name] = Alarm(name, text, now)
            _log.warning("alarm %s: %s", name, text)
            self._publish(alarm)
        for name, alarm in list(self._active.items()):
            if now_s - self._seen_s[name] < HOLD_S:
                continue
            del self._active[name], self._seen_s[name]
            over = replace(alarm, ended=now)
            self._ended.append(over)
            _log.info("alarm %s is over; it began at %s", name, alarm.began.isoformat(timespec="seconds"))
            self._publish(over)
