"""TideMQ of this checkout, as its command starts it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from peers.peer import Conditions, Peer


class TideMQ(Peer):
    """`tidemq serve` with one of its stores and nothing else but its defaults."""

    def __init__(self, name: str, store: str) -> None:
        self.name = name
        self.store = store  # empty: its default, RocksDB, made durable before anything is acknowledged

    def version(self) -> str:
        return "this checkout" + (f", --store {self.store}" if self.store else ", durable, its default")

    def command(self, folder: Path, port: int, conditions: Conditions) -> Sequence[str]:
        command = [str(Path(sys.executable).parent / "tidemq"), "serve", "--host", "127.0.0.1"]
        command += ["--port", str(port), "--log-level", "warning", "--data", str(folder / "data")]
        command += ["--store", self.store] if self.store else []
        return command + (["--reactors", str(conditions.reactors)] if conditions.reactors else [])
