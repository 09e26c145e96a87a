"""A file system of its own that is soon full."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(path: Path, mib: int) -> Iterator[Path]:
    """Mounted at `path`, which is made; the test is skipped where that cannot be."""
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(path)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("only root can mount a small file system, and not in every container")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)
