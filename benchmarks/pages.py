"""What all pages of benchmarks have: where it was measured, goals and whether they are met, remarks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from machine import Machine

from tidemq.bench.report.tables import markdown_rows

GOALS_HEAD = ("", "", "goal", "")


def measured_on(here: Machine, cores: int | None = None) -> str:
    """The machine and the software in a line; `cores`, where this process may not use all."""
    return (
        f"{here.cpu}; {cores or here.cores} cores, {here.memory_gib} GiB; {here.kernel}; "
        f"Python {here.python}; commit {here.commit}"
    )


def verdict(met: bool | None) -> str:
    return "—" if met is None else "met" if met else "**missed**"


def ratio(ours: float | None, theirs: float | None) -> float | None:
    return ours / theirs if ours and theirs else None


def figure(value: float | None) -> str:
    """A ratio."""
    return "—" if value is None else f"{value:.2f}"


def part(title: str, note: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A section with a table."""
    return [f"## {title}", "", *([note, ""] if note else []), markdown_rows(head, rows)]


def remarks_part(remarks: Sequence[str]) -> list[str]:
    """What could not be run, and every run that a reader should distrust."""
    lines = [f"- {remark}" for remark in remarks]
    return [
        "## Remarks on single runs",
        "",
        *(lines or ["None: every message arrived once and in order."]),
        "",
    ]


def write(stem: Path, text: str, here: Machine, content: Mapping[str, Any]) -> None:
    """The page as STEM.md and all that was measured as STEM.json."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    stem.with_suffix(".md").write_text(text)
    stem.with_suffix(".json").write_text(
        json.dumps({"machine": asdict(here), **content}, indent=1, default=str) + "\n"
    )
    print(f"written: {stem.with_suffix('.md')} and {stem.with_suffix('.json')}")
