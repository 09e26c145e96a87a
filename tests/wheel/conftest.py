"""What is built once, and run with nothing but what is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def run() -> Callable[..., str]:
    """`run(command, ..., cwd=folder)`: what the command printed; it must succeed, and finds no package but
    those installed.
    """

    def run(*command: str | Path, cwd: Path) -> str:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        done = subprocess.run(
            command, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert done.returncode == 0, done.stdout[-6000:]
        return done.stdout

    return run


@pytest.fixture(scope="session")
def wheel(run: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from this tree with what is compiled already."""
    for stale in ROOT.joinpath("build", "lib").rglob("*"):
        if stale.is_file() and stale.suffix != ".so":
            stale.unlink()
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, cwd=ROOT)
    (path,) = folder.glob("tidemq-*.whl")
    return path
