"""Formats: how nodes of different versions understand each other (docs/decisions/0026).

One number says how records, batches of messages and all else is laid out that nodes send each other. A
version reads some of them, and a cluster writes the highest that all its members read.
"""

from __future__ import annotations

from typing import NamedTuple


class Formats(NamedTuple):
    """What a node reads: these, and all in between."""

    lowest: int
    highest: int

    def reads(self, number: int) -> bool:
        """Whether this one."""
        return self.lowest <= number <= self.highest

    def __str__(self) -> str:
        return f"{self.lowest}" if self.lowest == self.highest else f"{self.lowest} to {self.highest}"
