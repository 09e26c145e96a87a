"""What another process of this machine has used: exact CPU time and resident memory; which one listens."""

from __future__ import annotations

import os
import time
from pathlib import Path

CPUCLOCK_SCHED = 2  # of the kernel's clock ids: nanoseconds that the scheduler charged
LISTENING = "0A"  # a state in /proc/net/tcp


def cpu_s(pid: int) -> float:
    """CPU seconds of all threads of `pid`, ended ones too, to the nanosecond; or ProcessLookupError.

    This is the clock that clock_getcpuclockid(3) names: its id is the complement of the pid and three bits.
    """
    try:
        return time.clock_gettime(~pid << 3 | CPUCLOCK_SCHED)
    except OSError as error:
        raise ProcessLookupError(f"no process {pid}") from error


def ready_s_of_thread() -> float:
    """Seconds that the calling thread has run or waited for a core; its CPU time where Linux keeps no such
    account.
    """
    try:
        return ready_s(Path("/proc/thread-self/schedstat"))
    except FileNotFoundError:
        return time.thread_time()


def ready_s(account: Path) -> float:
    """The same of any thread, by its file schedstat: nanoseconds run, nanoseconds waited, times run."""
    ran, waited, _times = account.read_text().split()
    return (int(ran) + int(waited)) / 1e9


def ready_s_by_thread(pid: int) -> dict[str, float]:
    """The same of every thread of a process; empty where it has ended, or Linux keeps no such account."""
    found: dict[str, float] = {}
    for account in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            found[account.parent.name] = ready_s(account)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def resident_bytes(pid: int) -> int:
    """Memory that `pid` holds in RAM now (/proc/PID/statm)."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def resident_bytes_peak(pid: int) -> int:
    """The most memory that `pid` ever held in RAM (/proc/PID/status)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (kibibytes,) = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
    return int(kibibytes) * 1024


def listener_pid(port: int = 0, path: str = "") -> int | None:
    """The process that listens on a TCP port of this machine, or on a Unix socket.

    None where nobody does, or it is another user's; the lowest of several that share it.
    """
    sockets = tcp_listeners(port) if port else unix_listeners(path)
    wanted = {f"socket:[{inode}]" for inode in sockets}
    pids = sorted(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return next((pid for pid in pids if wanted & descriptors(pid)), None) if wanted else None


def tcp_listeners(port: int) -> set[str]:
    """Inodes of the listening sockets of a port."""
    found = set()
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        lines = table.read_text().splitlines()[1:] if table.exists() else []
        for fields in map(str.split, lines):
            if fields[3] == LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                found.add(fields[9])
    return found


def unix_listeners(path: str) -> set[str]:
    """Inodes of the sockets bound to a path."""
    table = Path("/proc/net/unix")
    lines = [line.split(maxsplit=7) for line in table.read_text().splitlines()[1:]] if table.exists() else []
    return {fields[6] for fields in lines if len(fields) == 8 and fields[7] == path}


def descriptors(pid: int) -> set[str]:
    """What a process's file descriptors are; empty where it may not be known."""
    found = set()
    try:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            found.add(os.readlink(entry))
    except OSError:
        pass  # not ours to look at, or gone
    return found


def machine_text() -> str:
    """This machine in one line: CPU, cores, memory, kernel."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    gibibytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    kernel = os.uname()
    cpu = names[0] if names else kernel.machine
    return f"{cpu}, {os.cpu_count()} cores, {gibibytes:.1f} GiB, {kernel.sysname} {kernel.release}"
