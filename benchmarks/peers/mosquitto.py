"""Mosquitto, as Debian packages it: one thread.

Its limits on queued and in-flight messages are lifted: with the defaults (1,000 and 20) it would drop
what a subscriber has not fetched yet, and disconnect a publisher with more than 20 QoS 2 messages in
flight. TCP_NODELAY is off, its default, because it delivers half as much again per CPU-second so; where
latency is measured it is on, as otherwise its p99 is above 30 ms.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from getpass import getuser
from pathlib import Path

from peers.peer import Conditions, Peer, install_debian, said_by

SETTINGS = """\
listener {port} 127.0.0.1
allow_anonymous true
persistence false
log_type error
set_tcp_nodelay {nodelay}
max_queued_messages 0
max_inflight_messages 0
user {user}
"""


class Mosquitto(Peer):
    """Without persistence."""

    name = "mosquitto"

    def install(self) -> None:
        install_debian("mosquitto", "mosquitto")

    def version(self) -> str:
        found = re.search(r"version (\S+)", said_by("mosquitto", "-h"))
        return found[1] if found else "unknown"

    def command(self, folder: Path, port: int, conditions: Conditions) -> Sequence[str]:
        settings = folder / "mosquitto.conf"
        nodelay = "true" if conditions.nodelay else "false"
        # started by root it would become a user who may not read here
        settings.write_text(SETTINGS.format(port=port, nodelay=nodelay, user=getuser()))
        return ["mosquitto", "-c", str(settings)]
