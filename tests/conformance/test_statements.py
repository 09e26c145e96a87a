"""Each normative statement has tests or a reason, and each claim of a test is a statement."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
TAG = re.compile(r"\[((?:3\.1\.1 )?MQTT-[\d.]+-\d+)\]")  # a statement's number in a docstring
LISTS = {"mqtt5.toml": "", "mqtt311.toml": "3.1.1 "}  # file: how docstrings mark its numbers
COUNTS = {"mqtt5.toml": 251, "mqtt311.toml": 142}  # numbered statements


def statements() -> dict[str, dict[str, Any]]:
    """All statements by their tag."""
    found = {}
    for name, mark in LISTS.items():
        for number, entry in tomllib.loads((HERE / "statements" / name).read_text()).items():
            found[mark + number] = entry
    return found


def claims() -> dict[str, set[str]]:
    """The tags in each test's docstring, by test."""
    found = {}
    for path in sorted(HERE.glob("test_*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                name = f"tests/conformance/{path.name}::{node.name}"
                found[name] = set(TAG.findall(ast.get_docstring(node) or ""))
    return found


@pytest.mark.parametrize(("name", "count"), COUNTS.items())
def test_lists_are_whole(name: str, count: int) -> None:
    """No statement is lost by accident."""
    assert len(tomllib.loads((HERE / "statements" / name).read_text())) == count


def test_every_statement_is_shown_or_explained() -> None:
    """Exactly one of tests, a reason, or binding clients only; and a line that says it."""
    for tag, entry in statements().items():
        assert len(str(entry["says"])) > 10, tag
        ways = entry.keys() & {"tests", "untestable", "client"}
        assert len(ways) == 1, f"{tag} has {ways or 'neither tests nor a reason'}"
        assert entry[ways.pop()], tag


def test_named_tests_claim_their_statements() -> None:
    """Each test named by a statement exists and has its tag."""
    claimed = claims()
    for tag, entry in statements().items():
        for name in entry.get("tests", []):
            assert name in claimed, f"{tag} names {name}, which does not exist"
            assert tag in claimed[name], f"{tag} names {name}, whose docstring does not claim it"


def test_claims_are_listed() -> None:
    """Each tag in a docstring is a known statement's, which names the test."""
    known = statements()
    for name, tags in claims().items():
        for tag in tags:
            assert tag in known, f"{name} claims {tag}, which is no statement"
            assert name in known[tag].get("tests", []), f"{name} claims {tag}, which does not name it"
