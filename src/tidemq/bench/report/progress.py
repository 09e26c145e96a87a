"""How a run goes on, shown on a terminal while it lasts."""

from __future__ import annotations

import time

from rich.console import Console
from rich.status import Status

from tidemq.bench.report.numbers import duration, short
from tidemq.bench.result import Interval


class Progress:
    """One line on standard error that changes some times a second; nothing where that is no terminal."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._status: Status | None = None
        self._head = ""
        self._connections = 0
        self._sent = self._received = 0

    def begin(self, label: str, broker: str, connections: int) -> None:
        self._head, self._connections = f"{label}: {broker}", connections
        self._sent = self._received = 0
        self._began_s = time.monotonic()
        if self._console.is_terminal:
            self._status = self._console.status(f"{self._head}: connecting")
            self._status.start()

    def connected(self, count: int) -> None:
        seconds = time.monotonic() - self._began_s
        rate = count / seconds if seconds else 0.0
        self._show(f"{count:,} of {self._connections:,} connections, {short(rate)}/s")

    def interval(self, interval: Interval) -> None:
        self._sent += interval.sent
        self._received += interval.received
        if not interval.seconds:
            return
        text = f"{interval.start_s + interval.seconds:.1f} s"
        for name, total, now in (
            ("sent", self._sent, interval.sent),
            ("received", self._received, interval.received),
        ):
            text += f"  {name} {total:,} ({short(now / interval.seconds)}/s)"
        if interval.p50_us is not None and interval.p99_us is not None:
            text += f"  p50 {duration(interval.p50_us)}, p99 {duration(interval.p99_us)}"
        self._show(text)

    def end(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None

    def _show(self, text: str) -> None:
        if self._status is not None:
            self._status.update(f"{self._head}: {text}")
