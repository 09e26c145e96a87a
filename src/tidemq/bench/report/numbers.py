"""Figures for people: three digits that count, the unit that suits, the middle of several; and faults."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from statistics import median
from typing import Protocol

Show = Callable[[float], str]
NOTHING = "—"


class Counted(Protocol):
    """What a run says of what went wrong in it."""

    @property
    def end(self) -> str: ...
    @property
    def lost(self) -> int: ...
    @property
    def duplicates(self) -> int: ...
    @property
    def disordered(self) -> int: ...
    @property
    def foreign(self) -> int: ...
    @property
    def ack_errors(self) -> int: ...


def short(figure: float) -> str:
    """Three digits that count: 1.23 M, 45.6 k, 678, 7.89."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if figure >= size * 0.9995:
            return f"{_three(figure / size)} {unit}"
    return _three(figure)


def duration(us: float) -> str:
    """Microseconds in the unit that suits them: 47 µs, 1.23 ms, 4.5 s."""
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if us >= size * 0.9995:
            return f"{_three(us / size)} {unit}"
    return f"{_three(us)} µs"


def _three(value: float) -> str:
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.3g}"


def spread(figures: Iterable[float], show: Show = short, to: str = "-") -> str:
    """Median (lowest-highest), of one the figure itself, of none a dash."""
    values = sorted(figures)
    if len(values) < 2:
        return show(values[0]) if values else NOTHING
    return f"{show(median(values))} ({show(values[0])}{to}{show(values[-1])})"


def faults(run: Counted) -> list[str]:
    """What went wrong in a run, a few words each."""
    counts = {
        "lost": run.lost,
        "twice": run.duplicates,
        "out of order": run.disordered,
        "not sent to that subscriber": run.foreign,
        "wrong acknowledgements": run.ack_errors,
    }
    said = [] if run.end == "complete" else [run.end]
    return said + [f"{count:,} {what}" for what, count in counts.items() if count]
