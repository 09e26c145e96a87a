"""`tidemq` as a later version would be: it reads format 2 too, in which each record has one operation more.

Who reads format 1 alone can apply no record of it, and take no batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tidemq.cli import main
from tidemq.cluster.applying import Applier
from tidemq.cluster.node import Node
from tidemq.cluster.records import LAYOUTS, Layout


@dataclass(frozen=True, slots=True)
class Note:
    """What is to be known of a record."""

    text: str


def make_newer() -> None:
    """From now on this process is a node of the later version."""
    LAYOUTS[2] = Layout({**LAYOUTS[1].forms, Note: (99, "text")})
    begin, write = Applier.__init__, Node.write

    def begin_applier(self: Applier, rows: Any) -> None:
        begin(self, rows)
        self._acts[Note] = lambda _: None

    def write_note(self: Node, operations: Any) -> Any:
        more: list[Any] = [Note("written by the later version")] if self.format == 2 else []
        return write(self, [*operations, *more])

    Applier.__init__, Node.write = begin_applier, write_note  # type: ignore[method-assign]


if __name__ == "__main__":
    make_newer()
    main()
