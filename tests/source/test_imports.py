"""Imports point one way: a part of the package sees only the parts below it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

BELOW = {
    "limits": "",
    "errors": "",
    "config": "limits errors",
    "wire": "limits errors",
    "net": "errors",
    "engine": "limits errors wire net",
    "store": "limits errors config wire",
    "stream": "limits errors config wire engine store",
    "broker": "limits errors config wire net engine store stream",
    "client": "limits errors wire",
    "testing": "limits errors config wire engine store broker client",
    "pytest_plugin": "config testing",
    "bench": "limits errors wire net",
    "pipeline": "limits errors wire client",
    "cli": "limits errors config wire store stream broker client bench pipeline",
    "__init__": "limits errors config wire broker",  # what the package offers
}
CIMPORT = re.compile(r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+c?import|c?import[ \t]+([\w., \t]+))", re.MULTILINE)


def part_of(path: Path) -> str:
    """The part that a file belongs to: its first folder, or its own name."""
    return path.parts[0] if len(path.parts) > 1 else path.stem


def names_of_python(path: Path, tree: ast.Module) -> Iterator[str]:
    """The full name of every module that a Python file imports, wherever in the file."""
    package = ["tidemq", *path.parts[:-1]]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


def names_of_declarations(text: str) -> Iterator[str]:
    """The same of a .pxd file."""
    for module, modules in CIMPORT.findall(text):
        yield from (name.strip() for name in (module or modules).split(","))


def parts_seen(names: Iterator[str]) -> set[str]:
    """The parts of the package that the imported names belong to."""
    own = [name.removeprefix("cython.cimports.").split(".") for name in names]
    return {
        words[1] if words[1] in BELOW else "__init__" for words in own if words[0] == "tidemq" and words[1:]
    }


def test_every_part_has_its_place(trees: dict[Path, ast.Module], declarations: dict[Path, str]) -> None:
    assert {part_of(path) for path in [*trees, *declarations]} == set(BELOW)


def test_the_table_itself_points_one_way() -> None:
    seen: set[str] = set()
    for part, below in BELOW.items():
        assert set(below.split()) <= seen, part
        seen.add(part)


def test_nothing_imports_upward(trees: dict[Path, ast.Module], declarations: dict[Path, str]) -> None:
    imported = [(path, parts_seen(names_of_python(path, tree))) for path, tree in trees.items()]
    imported += [(path, parts_seen(names_of_declarations(text))) for path, text in declarations.items()]
    wrong = {
        str(path): sorted(extra)
        for path, parts in imported
        if (extra := parts - {part_of(path), *BELOW[part_of(path)].split()})
    }
    assert not wrong


def test_all_forms_of_import_are_seen() -> None:
    source = """
import tidemq.broker.hooks
from tidemq import limits
from tidemq.wire import codes
from cython.cimports.tidemq.engine.state import Reactor
from ..store import memory
def later():
    from tidemq.cli.pub import pub
"""
    python = parts_seen(names_of_python(Path("bench/x.py"), ast.parse(source)))
    assert python == {"broker", "limits", "wire", "engine", "store", "cli"}
    text = (
        "from tidemq.wire.protocol cimport Span\ncimport tidemq.engine.state\n    from tidemq.store import x"
    )
    assert parts_seen(names_of_declarations(text)) == {"wire", "engine", "store"}
