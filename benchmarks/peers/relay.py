"""The calibration relay: bytes passed on unparsed, the ceiling of this machine's sockets. QoS 0 only."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from workloads import Scenario

from peers.running import Running, free_port, started
from tidemq.bench.frames import encode_publish

NAME = "relay"
PROGRAM = (
    "import sys; from tidemq.bench.relay import Relay; Relay(int(sys.argv[1]), int(sys.argv[2])).serve()"
)


def version() -> str:
    """It is part of this checkout."""
    return "unparsed"


@contextmanager
def start(cores: set[int], reactors: int, scenario: Scenario) -> Iterator[Running]:
    """The relay on a free port, for the frames of this workload; it has one thread."""
    port = free_port()
    frame_bytes = len(encode_publish(scenario.workload, 0))
    with started([sys.executable, "-c", PROGRAM, str(port), str(frame_bytes)], port, cores) as running:
        yield running
