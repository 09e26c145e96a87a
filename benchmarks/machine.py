"""What a result was measured on."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine and the software, as far as they bear on a figure."""

    cpu: str
    cores: int
    memory_gib: float
    kernel: str
    python: str
    commit: str


def describe() -> Machine:
    """This machine, now."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Machine(
        cpu=cpu_model(),
        cores=os.cpu_count() or 1,
        memory_gib=round(pages / 2**30, 1),
        kernel=f"{platform.system()} {platform.release()}",
        python=sys.version.split()[0],
        commit=commit(),
    )


def cpu_model() -> str:
    """The CPU's name, family and model, from /proc/cpuinfo."""
    fields: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    name = fields.get("model name", platform.machine())
    return f"{name}, family {fields.get('cpu family', '?')}, model {fields.get('model', '?')}"


def commit(checkout: Path = Path()) -> str:
    """A checkout's commit, with a + where files differ from it."""
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty=+", "--exclude=*"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
