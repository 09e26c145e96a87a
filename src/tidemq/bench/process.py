"""What another process of this machine has used: exact CPU time and resident memory."""

from __future__ import annotations

import os
import time
from pathlib import Path

CPUCLOCK_SCHED = 2  # of the kernel's clock ids: nanoseconds that the scheduler charged


def cpu_s(pid: int) -> float:
    """CPU seconds of all threads of `pid`, ended ones too, to the nanosecond; or ProcessLookupError.

    This is the clock that clock_getcpuclockid(3) names: its id is the complement of the pid and three bits.
    """
    try:
        return time.clock_gettime(~pid << 3 | CPUCLOCK_SCHED)
    except OSError as error:
        raise ProcessLookupError(f"no process {pid}") from error


def resident_bytes(pid: int) -> int:
    """Memory that `pid` holds in RAM now (/proc/PID/statm)."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def resident_bytes_peak(pid: int) -> int:
    """The most memory that `pid` ever held in RAM (/proc/PID/status)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (kibibytes,) = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
    return int(kibibytes) * 1024
