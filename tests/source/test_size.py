"""Functions and modules stay small enough to be read."""

from __future__ import annotations

import ast
import statistics
from pathlib import Path

FUNCTION_LINES_MAX = 70
FUNCTION_LINES_MEDIAN_BELOW = 12
MODULE_LINES_MAX = 600


def function_lines(trees: dict[Path, ast.Module]) -> dict[str, int]:
    """Lines of every function, signature and docstring included, decorators not."""
    return {
        f"{path}:{node.lineno} {node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_functions_are_short(trees: dict[Path, ast.Module]) -> None:
    lines = function_lines(trees)
    assert len(lines) > 500  # all were found
    assert not {name: count for name, count in lines.items() if count > FUNCTION_LINES_MAX}
    assert statistics.median(lines.values()) < FUNCTION_LINES_MEDIAN_BELOW


def test_modules_are_short(root: Path) -> None:
    places = ["src", "tests", "benchmarks", "examples", "tools"]
    ends = ["*.py", "*.pxd", "*.pyi"]
    paths = [path for place in places for end in ends for path in (root / place).rglob(end)]
    long = {
        str(path): count for path in paths if (count := len(path.read_text().splitlines())) > MODULE_LINES_MAX
    }
    assert not long
