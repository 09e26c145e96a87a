"""Each target of the Makefile is there once, is known to `make`, and says what it is for."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from importlib.metadata import distributions
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name


def test_each_target_has_one_rule_and_a_line_of_help(root: Path) -> None:
    text = (root / "Makefile").read_text()
    [phony] = re.findall(r"^\.PHONY: (.*)$", text, flags=re.MULTILINE)
    rules = Counter(re.findall(r"^([\w-]+):.*## \S", text, flags=re.MULTILINE))
    assert rules == Counter(phony.split())
    strange = re.findall(
        r"^(?![\w-]+:|\$\(STAMP\):|[A-Z_]+ [:?]?=|unexport |\.PHONY|\t|#|$).*", text, flags=re.MULTILINE
    )
    assert strange == []


def test_what_setup_installs_by_version_takes_the_oldest_python(root: Path) -> None:
    """Debian's 3.11 is 3.11.2: a package that wants a later one ends `make serve` there."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    [oldest] = re.findall(r"^>=([\d.]+)$", project["requires-python"])
    needed = [each for extra in project["optional-dependencies"].values() for each in extra]
    pinned = {canonicalize_name(each.split("==")[0].split("[")[0]) for each in needed if "==" in each}
    wanted = {
        canonicalize_name(each.name): str(each.metadata.json.get("requires_python", ""))
        for each in distributions()
        if canonicalize_name(each.name) in pinned
    }
    assert len(wanted) > 5
    assert not [name for name, text in wanted.items() if not SpecifierSet(text).contains(f"{oldest}.0")]
