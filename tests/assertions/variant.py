"""The build that checks invariants, and what runs on it."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
TREE = ROOT / "build" / "variant-assert"


def environment(**more: str) -> dict[str, str]:
    """This process's, without what pytest left in it for its own workers."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return {**kept, "PYTHON": sys.executable, **more}


@cache
def built() -> subprocess.CompletedProcess[str]:
    """The build is made, or brought up to date, once in the life of this process."""
    return run(["tools/variant.sh", "assert"], environment())


def checked(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Python with `arguments` on that build; what it and its brokers write is in `stdout`."""
    if built().returncode:
        return built()
    return run([sys.executable, *arguments], environment(PYTHONPATH=f"{TREE / 'src'}:{ROOT / 'tests'}"))


def run(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def pytest_arguments(*tests: str) -> list[str]:
    """Of a run that shows what brokers write."""
    return ["-m", "pytest", "--capture=sys", "-p", "no:cacheprovider", *tests]
