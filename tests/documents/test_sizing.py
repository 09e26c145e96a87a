"""docs/how-to/sizing.md computes right, and what it says of bytes is what a broker takes."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs/how-to/sizing.md"


def number(text: str) -> int:
    return int(text.replace(",", ""))


def tables() -> list[list[list[str]]]:
    """Each table's rows, without its heads."""
    found = re.findall(r"(?:^\|.*\n)+", PAGE.read_text(), re.MULTILINE)
    return [
        [[cell.strip() for cell in line.strip("|\n ").split("|")] for line in table.splitlines()[2:]]
        for table in found
    ]


def examples() -> list[list[list[str]]]:
    return [table for table in tables() if len(table[0]) == 4]


def test_there_are_examples() -> None:
    assert len(examples()) == 2


@pytest.mark.parametrize("example", examples())
def test_an_example_is_computed_from_the_figures(example: list[list[str]]) -> None:
    (figures, *_others) = tables()
    known = {number(each) for row in figures for each in re.findall(r"\b\d[\d,]*\d\b", " ".join(row))}
    *rows, (_, _, _, together) = example
    for _what, count, each, product in rows:
        assert number(each) in known
        assert number(count) * number(each) == number(product)
    assert sum(number(row[3]) for row in rows) == number(together)


def test_the_time_of_a_start_is_computed_right() -> None:
    (things, per_s, seconds) = re.findall(r"^([\d,]+) / ([\d,]+) = ([\d.]+) seconds", PAGE.read_text(), re.M)[
        0
    ]
    assert round(number(things) / number(per_s), 1) == float(seconds)
    (start,) = [table for table in tables() if len(table[0]) == 2 and table[-1][0] == "together"]
    assert sum(number(row[1]) for row in start[:-1]) == number(start[-1][1]) == number(things)


def test_the_bytes_of_a_row_are_those_of_the_format() -> None:
    text = (PAGE.parents[1] / "store.md").read_text()
    assert "A message is `>BBqIII`" in text
    assert "queue (8), status (1: 1 idle, 2 in flight), message id | `>BBIqQ`" in text
    assert f"payload and {16 + struct.calcsize('>BBqIII')} bytes" in PAGE.read_text()
    assert f"and {8 + 1 + 16 + struct.calcsize('>BBIqQ')} bytes for each client" in PAGE.read_text()
