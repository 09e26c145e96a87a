"""The linter, the formatter and the type checker have nothing to say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TYPED = ["benchmarks", "examples", "tests", "tools"]  # beside the package


def said(root: Path, *arguments: str) -> str:
    """What a checker printed; empty where it was content."""
    done = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=root, capture_output=True, text=True, timeout=900
    )
    return done.stdout + done.stderr if done.returncode else ""


def test_ruff_check(root: Path) -> None:
    assert not said(root, "ruff", "check", "--quiet", "--output-format", "concise")


def test_ruff_format(root: Path) -> None:
    assert not said(root, "ruff", "format", "--quiet", "--check")


def test_mypy_strict(root: Path) -> None:
    """Whatever is not compiled; compiled modules by their .pyi where they have one."""
    source = root / "src"
    paths = [path for path in source.rglob("*.py") if not path.with_suffix(".pxd").exists()]
    paths += source.rglob("*.pyi")
    assert not said(root, "mypy", *map(str, paths), *TYPED)
