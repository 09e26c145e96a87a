from typing import Any

from tidemq.cluster.operations import Owner, Stamp

def run_end(text: bytes, at: int, most: int) -> tuple[int, int]: ...
def pack_run(
    described: list[tuple[Any, ...]],
    at: int,
    owners: dict[int | bytes, Owner],
    epochs: dict[str, Stamp],
    shared: set[int | bytes],
    gone: set[tuple[int | bytes, bytes]],
    brought: set[bytes],
) -> tuple[bytes, int, int]: ...
