"""TideMQ of this checkout, as its command starts it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from workloads import Scenario

from peers.running import Running, free_port, started

NAME = "tidemq"


def version() -> str:
    """This checkout's."""
    return "this checkout"


@contextmanager
def start(cores: set[int], reactors: int, scenario: Scenario) -> Iterator[Running]:
    """`tidemq serve` on a free port with `reactors` (0: its default), the same for every scenario."""
    port = free_port()
    command = [
        str(Path(sys.executable).parent / "tidemq"),
        "serve",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    command += ["--store", "memory", "--log-level", "warning"]
    command += ["--reactors", str(reactors)] if reactors else []
    with started(command, port, cores) as running:
        yield running
