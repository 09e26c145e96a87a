"""Each alarm that the broker can raise has its entry in the runbook, and its line in the table of alarms."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUNBOOK = ROOT / "docs/runbook.md"
MONITORING = ROOT / "src/tidemq/broker/monitoring"
PARTS = ["Meaning", "See", "Do", "Over"]


def name_of(key: ast.expr) -> str | None:
    """An alarm's name; what differs from one to the next is `*`."""
    if isinstance(key, ast.Constant) and isinstance(key.value, str):
        return key.value
    if isinstance(key, ast.JoinedStr):
        return "".join(str(each.value) if isinstance(each, ast.Constant) else "*" for each in key.values)
    return None


def raised() -> set[str]:
    """The names that the code gives texts by: the keys of dicts in `conditions.py`, and what is put into
    `found` there and where the monitor looks once a second.
    """
    conditions, monitor = (
        ast.parse((MONITORING / file).read_text()) for file in ("conditions.py", "monitor.py")
    )
    (look,) = [
        node
        for node in ast.walk(monitor)
        if isinstance(node, ast.AsyncFunctionDef) and node.name == "_look_once_a_second"
    ]
    names: set[str | None] = set()
    for node in [*ast.walk(conditions), *ast.walk(look)]:
        if isinstance(node, ast.Dict):
            names |= {name_of(key) for key in node.keys if key is not None}
        elif isinstance(node, ast.Subscript) and ast.unparse(node.value) == "found":
            names.add(name_of(node.slice))
    return {name for name in names if name is not None}


def written(name: str) -> str:
    """`certificate-LISTENER` as the code has it."""
    return re.sub(r"[A-Z]+", "*", name)


def entries() -> dict[str, str]:
    found = re.findall(r"^## `([\w-]+)`\n(.*?)(?=^## |\Z)", RUNBOOK.read_text(), re.MULTILINE | re.DOTALL)
    return dict(found)


def test_the_code_is_read_as_it_is() -> None:
    assert {"store", "certificate-*", "standstill"} <= raised()


def test_whatever_is_looked_at_stands_in_the_file_that_is_read() -> None:
    (conditions,) = [
        node
        for node in ast.walk(ast.parse((MONITORING / "monitor.py").read_text()))
        if isinstance(node, ast.FunctionDef) and node.name == "_conditions"
    ]
    (listed,) = [node.elts for node in ast.walk(conditions) if isinstance(node, ast.List)]
    assert len(listed) > 4
    assert not [each for each in map(ast.unparse, listed) if not each.startswith("conditions.")]


def test_each_alarm_has_its_entry_and_no_entry_is_left_over() -> None:
    assert {written(name) for name in entries()} == raised()


def test_each_alarm_stands_in_the_table_of_alarms() -> None:
    text = (ROOT / "docs/configuration.md").read_text().partition("\n## Alarms\n")[2]
    assert set(re.findall(r"^\| `([\w-]+)` \|", text, re.MULTILINE)) == set(entries())


@pytest.mark.parametrize("name", entries())
def test_an_entry_says_what_it_means_how_to_see_it_what_to_do_and_when_it_is_over(name: str) -> None:
    assert re.findall(r"^- \*\*(\w+):\*\* \S", entries()[name], re.MULTILINE) == PARTS


def test_what_the_entries_tell_to_look_at_exists() -> None:
    """Counters, metrics, limits: other tests hold these pages to the code."""
    pages = "".join(
        (ROOT / f"docs/{page}.md").read_text() for page in ("counters", "configuration", "streams")
    )
    named = set(re.findall(r"`([a-z]+(?:_[a-z0-9]+)+)[{`]", RUNBOOK.read_text()))
    assert named
    assert not {name for name in named if f"`{name}`" not in pages}
