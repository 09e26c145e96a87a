"""What the disk itself can do, measured beside what brokers do with it; and what they left there."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from tempfile import TemporaryFile

from tidemq.config import Config

RECORD_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskLatency:
    """How long fdatasync takes after one record was appended to a file, in microseconds."""

    p50_us: float
    p99_us: float
    file_system: str


def measure_disk(folder: Path, records: int) -> DiskLatency:
    """Append and sync `records` one after the other in a file of `folder`."""
    waits_us = []
    with TemporaryFile(dir=folder, buffering=0) as file:
        for _record in range(records):
            file.write(bytes(RECORD_BYTES))
            started_ns = time.perf_counter_ns()
            os.fdatasync(file.fileno())
            waits_us.append((time.perf_counter_ns() - started_ns) / 1000)
    cuts = statistics.quantiles(waits_us, n=100, method="inclusive")
    return DiskLatency(p50_us=cuts[49], p99_us=cuts[98], file_system=file_system(folder))


def file_system(folder: Path) -> str:
    """The type of the file system that holds `folder`, as `stat` names it: tmpfs is no disk at all."""
    command = ["stat", "--file-system", "--format=%T", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def size_bytes(folder: Path) -> int:
    """What the files below `folder` take on the disk, holes not counted."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def compact(folder: Path, store: str) -> None:
    """Let the store that keeps `folder` give back what deleted entries take; no broker may use it."""
    (point,) = entry_points(group="tidemq.stores", name=store)
    opened = point.load()(Config(store=store, data=folder), {})
    opened.open()
    try:
        opened.compact()
    finally:
        opened.close()
