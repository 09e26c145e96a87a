"""What became of each line of somebody's configuration: taken, changed in meaning, or not taken, and why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Fate = Literal["taken", "changed", "not taken"]
HEADINGS: dict[Fate, str] = {
    "taken": "Taken",
    "changed": "Changed in meaning",
    "not taken": "Not taken",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """What became of one thing. `place`: file and line; `what`: the option with its value, if no secret."""

    fate: Fate
    place: str
    what: str
    text: str

    def __str__(self) -> str:
        return f"{self.place}: {self.what}: {self.text}"


def _place_of(finding: Finding) -> tuple[str, int]:
    file, _, number = finding.place.rpartition(":")
    return (file, int(number)) if number.isdigit() else (finding.place, 0)


class Report:
    """Findings in the order in which they were made."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []

    def add(self, fate: Fate, place: str, what: str, text: str) -> None:
        """One more."""
        self.findings.append(Finding(fate, place, what, text))

    def of(self, fate: Fate) -> list[Finding]:
        """Those with this fate, by file and line."""
        return sorted((each for each in self.findings if each.fate == fate), key=_place_of)

    def lines(self) -> Iterator[str]:
        """The report as text, what was not taken last: a reader begins at the end."""
        for fate, heading in HEADINGS.items():
            found = self.of(fate)
            yield f"{heading}: {len(found)}"
            yield from (f"  {each}" for each in found)
