"""Each target of the Makefile is there once, is known to `make`, and says what it is for."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path


def test_each_target_has_one_rule_and_a_line_of_help(root: Path) -> None:
    text = (root / "Makefile").read_text()
    [phony] = re.findall(r"^\.PHONY: (.*)$", text, flags=re.MULTILINE)
    rules = Counter(re.findall(r"^([\w-]+):.*## \S", text, flags=re.MULTILINE))
    assert rules == Counter(phony.split())
    strange = re.findall(
        r"^(?![\w-]+:|\$\(STAMP\):|[A-Z_]+ [:?]?=|unexport |\.PHONY|\t|#|$).*", text, flags=re.MULTILINE
    )
    assert strange == []
