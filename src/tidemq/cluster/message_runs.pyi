from collections.abc import Callable, Iterable
from typing import Any

from tidemq.cluster.operations import Owner
from tidemq.store import Write

SOURCES_MAX: int

def run_end(text: bytes, at: int, most: int) -> tuple[int, int]: ...
def group_end(run: bytes, at: int) -> int: ...
def pack_run(
    described: list[tuple[Any, ...]],
    at: int,
    owners: dict[int | bytes, Owner],
    apart: set[str],
    brought: set[bytes],
) -> tuple[bytes, int, int]: ...
def add_run(
    run: bytes,
    at: int,
    dot: bytes,
    newest: NewestIds,
    place: Callable[[str], bytes],
    writes: list[Write],
) -> int: ...

class NewestIds:
    def __init__(self, rows: Iterable[tuple[int, int, int]]) -> None: ...
    def note(self, clock: int, incarnation: int) -> None: ...
    def changes(self) -> list[tuple[int, int, int]]: ...
    def confirm(self) -> None: ...
