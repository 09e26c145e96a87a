"""TideMQ of this or another checkout, as its command starts it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import machine

from peers.peer import Conditions, Peer


class TideMQ(Peer):
    """`tidemq serve` with one of its stores and nothing else but its defaults. ``checkout``: another folder
    that is built (`make setup`), in place of this one.
    """

    def __init__(self, name: str, store: str, checkout: Path | None = None) -> None:
        self.name = name
        self.store = store  # empty: its default, RocksDB, made durable before anything is acknowledged
        self.commands = Path(sys.executable).parent
        self.checkout = "this checkout"
        if checkout is not None:
            self.commands, self.checkout = checkout / ".venv/bin", machine.commit(checkout)

    def version(self) -> str:
        return self.checkout + (f", --store {self.store}" if self.store else ", durable, its default")

    def command(self, folder: Path, port: int, conditions: Conditions) -> Sequence[str]:
        command = [str(self.commands / "tidemq"), "serve", "--host", "127.0.0.1"]
        command += ["--port", str(port), "--log-level", "warning", "--data", str(folder / "data")]
        command += ["--store", self.store] if self.store else []
        return command + (["--reactors", str(conditions.reactors)] if conditions.reactors else [])
