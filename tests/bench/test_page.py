"""docs/bench.md names what the commands have: each command, each option with its default, each workload."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from tidemq.bench.catalogue import SUITE
from tidemq.cli.bench import app

PAGE = Path(__file__).parents[2] / "docs" / "bench.md"
EVERYWHERE = {"--out", "--json", "--help"}  # told of in the text

pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="the source tree is hidden")


def rows(first: str) -> dict[str, list[str]]:
    """The table whose first column has this title: its other cells by the first."""
    table = PAGE.read_text().split(f"| {first} |", 1)[1].split("\n\n", 1)[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    return {re.findall(r"`(.+?)`", row[0])[0]: row[1:] for row in cells}


def options_of(name: str) -> dict[str, object]:
    """The options of a command with their defaults."""
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    return {parameter.opts[0]: parameter.default for parameter in command.params}


def test_every_command_and_its_own_options() -> None:
    documented = {name: set(re.findall(r"`(--[\w-]+)`", cells[1])) for name, cells in rows("command").items()}
    common = {*rows("option"), *EVERYWHERE}
    names = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert list(documented) == [name for name in names if name != "report"]
    for name, own in documented.items():
        assert own <= options_of(name).keys(), name
        assert options_of(name).keys() - own <= common, name


def test_defaults_of_common_options() -> None:
    fan = options_of("fan")
    for option, (default, _) in rows("option").items():
        if option == "--seconds":
            continue  # stands in the catalogue, as --messages may do without
        assert default == (
            ""
            if fan[option] is None
            else f"{fan[option]:g}"
            if isinstance(fan[option], float)
            else str(fan[option])
        ), option


def test_workloads_of_the_suite() -> None:
    (line,) = [
        line for line in PAGE.read_text().splitlines() if line.startswith("`suite` and `compare` know")
    ]
    assert re.findall(r"`([\w-]+)`", line)[2:] == list(SUITE)
