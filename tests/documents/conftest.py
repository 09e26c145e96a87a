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
    """`read(page, folder)` types a page's commands, but those that install; `part="install"` these alone."""
    if not shutil.which("unshare") or subprocess.run([*OWN_NETWORK, "true"], capture_output=True).returncode:
        pytest.skip("a network of its own may not be made here")

    def read(page: Path, folder: Path, *, part: str = "rest", wait_s: float = WAIT_S) -> None:
        command = [*([] if part == terminals.INSTALL else OWN_NETWORK), sys.executable, terminals.__file__]
        command += [str(page), str(folder), "--part", part, "--wait-s", str(wait_s)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert done.returncode == 0, done.stdout

    return read
