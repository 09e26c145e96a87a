"""What a broker holds at rest, and whether that grows.

After each load and the rest that follows it, a broker should hold what it held after the one before. What the
engine counts is exact, so it has to come back to the byte; what the process takes of the system is not.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

# may stay: 4 MiB of buffers for each of two reactors; counters in `$SYS`, which get longer; what reactors
# remember of topics, which has a bound of its own
SPARE = {"live_buffers": 128, "memory_buffers": 8 << 20, "memory_messages": 4096, "memory_caches": 64 << 20}
WARM = 0.25  # of the samples, at first, in which caches, memtables and the log of the store fill
SAMPLES_MIN = 12  # fewer say nothing
SLACK = {"rss": 16 << 20, "descriptors": 16, "threads": 2, "disk": 64 << 20}


@dataclass(frozen=True)
class Sample:
    """Of a process: bytes of memory, open files, threads, bytes of its data directory."""

    rss: int
    descriptors: int
    threads: int
    disk: int


def take_sample(pid: int, data: Path) -> Sample:
    """What a process holds now."""
    process = Path(f"/proc/{pid}")
    status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    return Sample(
        rss=int(status["VmRSS"].split()[0]) * 1024,
        descriptors=len(os.listdir(process / "fd")),
        threads=int(status["Threads"]),
        disk=sum(path.stat().st_size for path in data.rglob("*") if path.is_file()),
    )


def held(counters: dict[str, int]) -> dict[str, int]:
    """What the engine holds of each kind."""
    return {
        name: value
        for name, value in counters.items()
        if name.startswith(("live_", "memory_")) or name in ("retained", "subscriptions")
    }


def left_behind(
    before: dict[str, int], now: dict[str, int], spare: Mapping[str, int] = SPARE
) -> dict[str, tuple[int, int]]:
    """What there is more of, with both values."""
    return {name: (before[name], now[name]) for name in now if now[name] > before[name] + spare.get(name, 0)}


def growing(samples: Sequence[Sample]) -> list[str]:
    """A line for each quantity of which the last third of the samples has more, by the median, than the third
    after the warm-up.
    """
    if len(samples) < SAMPLES_MIN:
        return []
    warm = samples[int(len(samples) * WARM) :]
    third = max(1, len(warm) // 3)
    lines = []
    for name, slack in SLACK.items():
        first, last = (
            statistics.median(asdict(each)[name] for each in part) for part in (warm[:third], warm[-third:])
        )
        if last > first + slack:
            lines.append(f"{name} grows: {first:.0f} at first, {last:.0f} at last")
    return lines
