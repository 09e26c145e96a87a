"""The source tree, for the tests that read it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "tidemq"


@pytest.fixture(scope="session")
def root() -> Path:
    """The project's folder: where pyproject.toml lies."""
    return ROOT


@pytest.fixture(scope="session")
def trees() -> dict[Path, ast.Module]:
    """Every Python module of the package, by path relative to it, parsed."""
    paths = sorted(PACKAGE.rglob("*.py"))
    return {path.relative_to(PACKAGE): ast.parse(path.read_text()) for path in paths}


@pytest.fixture(scope="session")
def declarations() -> dict[Path, str]:
    """The text of every .pxd file, by path relative to the package."""
    return {path.relative_to(PACKAGE): path.read_text() for path in sorted(PACKAGE.rglob("*.pxd"))}
