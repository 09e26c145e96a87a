"""For each invariant of the engine a change that breaks it, and tests in which the build finds that."""

from __future__ import annotations

from typing import NamedTuple


class Break(NamedTuple):
    """`old`, which stands once in `file` (a module of the engine), becomes `new`; then `tests` break
    `invariant`."""

    invariant: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
