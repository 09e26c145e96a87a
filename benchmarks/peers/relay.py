"""The calibration relay: bytes passed on unparsed, the ceiling of this machine's sockets. QoS 0 only."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from peers.peer import Conditions, Peer

PROGRAM = (
    "import sys; from tidemq.bench.peer.relay import Relay; Relay(int(sys.argv[1]), int(sys.argv[2])).serve()"
)


class Relay(Peer):
    """One thread; it must be told how long the packets are."""

    name = "relay"

    def version(self) -> str:
        return "unparsed"

    def command(self, folder: Path, port: int, conditions: Conditions) -> Sequence[str]:
        return [sys.executable, "-c", PROGRAM, str(port), str(conditions.frame_bytes)]
