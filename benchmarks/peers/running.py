"""A broker process that a benchmark started."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

START_LIMIT_S = 10.0
STOP_LIMIT_S = 10.0


@dataclass(frozen=True, slots=True)
class Running:
    """A broker that accepts connections on 127.0.0.1:`port`."""

    port: int
    pid: int


@contextmanager
def started(command: Sequence[str], port: int, cores: set[int]) -> Iterator[Running]:
    """Run `command` on `cores` until the block ends; RuntimeError if it does not come to listen on `port`."""
    pin = partial(os.sched_setaffinity, 0, cores)
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, preexec_fn=pin)
    try:
        await_listener(process, port)
        yield Running(port, process.pid)
    finally:
        process.terminate()
        try:
            process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def await_listener(process: subprocess.Popen[bytes], port: int) -> None:
    """Wait until `port` accepts."""
    deadline = time.monotonic() + START_LIMIT_S
    while process.poll() is None and time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    if process.returncode is not None:
        raise RuntimeError(f"it ended with status {process.returncode} before it listened")
    raise RuntimeError(f"it did not listen within {START_LIMIT_S:g} s")


def free_port() -> int:
    """A TCP port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
