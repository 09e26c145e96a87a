"""The wall clocks of nodes, set by the test: compiles `clock.c`, and tells it how wrong each clock is."""

from __future__ import annotations

import mmap
import struct
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("clock.c")
COMPILE_S = 60
SECOND_NS = 1_000_000_000


def compile_clock(folder: Path) -> Path:
    """The shared library, made by gcc in `folder`."""
    library = folder / "clock.so"
    flags = ["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run(["gcc", *flags, "-o", library, SOURCE, "-ldl"], check=True, timeout=COMPILE_S)
    return library


class Clock:
    """One node's. `environment` goes to its process, and `file` is where the two meet."""

    def __init__(self, library: Path, file: Path) -> None:
        file.write_bytes(bytes(8))
        with file.open("r+b") as opened:
            self._memory = mmap.mmap(opened.fileno(), 8)
        self.environment = {"LD_PRELOAD": str(library), "CLUSTER_CLOCK": str(file)}

    def set(self, off_s: float) -> None:
        """From now on it is so many seconds off."""
        struct.pack_into("=q", self._memory, 0, int(off_s * SECOND_NS))
