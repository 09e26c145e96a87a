"""What a job has done since it began: rows by table, dead letters by cause, seconds by part."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

LOG_S = 10.0  # between two lines
CAUSES_MAX = 100  # that are told apart, by a task and by a job in its life: a publisher may put anything in
OTHER = "others"  # in place of those beyond

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Counts:
    """At one moment."""

    batches: int = 0
    rows: Counter[str] = field(default_factory=Counter)  # that were added, by table
    letters: Counter[tuple[str, str]] = field(default_factory=Counter)  # by rule and cause
    parts: Counter[str] = field(default_factory=Counter)  # how often a part was done
    seconds: Mapping[str, float] = field(default_factory=dict)  # that it took


class Measures:
    """Counted by the thread that works, read by others."""

    def __init__(self, stream: str) -> None:
        self._stream = stream  # whose lines they are
        self._lock = threading.Lock()
        self._batches = 0
        self._rows: Counter[str] = Counter()
        self._letters: Counter[tuple[str, str]] = Counter()
        self._parts: Counter[str] = Counter()
        self._seconds: dict[str, float] = {}
        self._said = Counts()
        self._said_at = time.monotonic()

    def added(self, table: str, rows: int) -> None:
        """Rows of a table, by its name below the stream's folder."""
        with self._lock:
            self._rows[table] += rows

    def dead(self, rule: str, causes: Mapping[str, int]) -> None:
        """Dead letters of a rule, by what they have in common."""
        with self._lock:
            for cause, number in causes.items():
                known = (rule, cause) in self._letters or len(self._letters) < CAUSES_MAX
                self._letters[rule, cause if known else OTHER] += number

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """How long it takes, also where it fails."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.took(name, time.monotonic() - began)

    def took(self, name: str, seconds: float) -> None:
        """So long a part, once."""
        with self._lock:
            self._parts[name] += 1
            self._seconds[name] = self._seconds.get(name, 0.0) + seconds

    def counts(self) -> Counts:
        """Now."""
        with self._lock:
            return Counts(
                self._batches,
                Counter(self._rows),
                Counter(self._letters),
                Counter(self._parts),
                dict(self._seconds),
            )

    def batch(self, behind: int) -> None:
        """One is done. Logs what was done since the last line, if that was some time ago."""
        with self._lock:
            self._batches += 1
        if time.monotonic() - self._said_at >= LOG_S:
            self.log(behind)

    def log(self, behind: int) -> None:
        """What was done since the last line; nothing if that is nothing."""
        now, before = self.counts(), self._said
        self._said, self._said_at = now, time.monotonic()
        if rows := now.rows - before.rows:
            took = {name: seconds - before.seconds.get(name, 0.0) for name, seconds in now.seconds.items()}
            parts = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in took.items() if seconds)
            added = ", ".join(f"{name} {number:,}" for name, number in rows.items())
            _log.info(
                "%s: %d batches: rows %s; %s; %d messages behind",
                self._stream,
                now.batches - before.batches,
                added,
                parts,
                behind,
            )
        for (rule, cause), number in (now.letters - before.letters).items():
            _log.info("%s: the rule %s: %d dead letters: %s", self._stream, rule, number, cause)
