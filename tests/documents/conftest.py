"""Pages that are read as a reader reads them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from documents import terminals
from waiting import WAIT_S

OWN_NETWORK = ["unshare", "--user", "--map-root-user", "--net"]
Read = Callable[..., None]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """`read(page, folder)` types the page's commands; with `installed=True` not those that install."""
    if not shutil.which("unshare") or subprocess.run([*OWN_NETWORK, "true"], capture_output=True).returncode:
        pytest.skip("a network of its own may not be made here")

    def read(page: Path, folder: Path, *, installed: bool = False, wait_s: float = WAIT_S) -> None:
        command = [*OWN_NETWORK, sys.executable, terminals.__file__, str(page), str(folder)]
        command += ["--wait-s", str(wait_s), *(["--installed"] if installed else [])]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert done.returncode == 0, done.stdout

    return read
