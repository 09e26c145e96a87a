from typing import Any

class StoreWork:
    described: list[tuple[Any, ...]] | None
    writes: list[tuple[str, bytes, bytes | None]]
    references: list[tuple[bytes, int]]
    reads: list[tuple[int, int, bytes, int]]
    trims: list[tuple[int, bytes, int]]
    expired: list[bytes]
    purges: list[bytes]
    left: list[tuple[bytes, int, bool]]
    arrived: list[tuple[bytes, bool]]
    elsewhere: set[bytes]
    given: list[tuple[int, int]]
    let_go: list[int]
    adds: bool
    outdated: bool
    more: bool
    streams: int
