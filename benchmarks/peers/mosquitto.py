"""Mosquitto, as Debian packages it, single-threaded, with the settings that suit it best under this load.

Its limits on queued and in-flight messages are lifted: with the defaults (1,000 and 20) it would drop
what a subscriber has not fetched yet, and disconnect a publisher with more than 20 QoS 2 messages in
flight. TCP_NODELAY is off, its default, because it delivers half as much again per CPU-second so; where
latency is measured it is on, as otherwise its p99 is above 30 ms.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from workloads import Scenario

from peers.running import Running, free_port, started

NAME = "mosquitto"
SETTINGS = """\
listener {port} 127.0.0.1
allow_anonymous true
persistence false
log_type error
set_tcp_nodelay {nodelay}
max_queued_messages 0
max_inflight_messages 0
"""


def version() -> str:
    """What `mosquitto -h` says; SystemExit when it is not installed."""
    if not shutil.which("mosquitto"):
        raise SystemExit(
            "mosquitto is not installed: install Debian's package, or leave it out with --brokers"
        )
    text = subprocess.run(["mosquitto", "-h"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"version (\S+)", text)
    return found[1] if found else "unknown"


@contextmanager
def start(cores: set[int], reactors: int, scenario: Scenario) -> Iterator[Running]:
    """Mosquitto on a free port; `reactors` is for other peers: it has one thread."""
    port = free_port()
    with TemporaryDirectory() as folder:
        settings = Path(folder) / "mosquitto.conf"
        nodelay = "true" if scenario.kind == "paced" else "false"
        settings.write_text(SETTINGS.format(port=port, nodelay=nodelay))
        with started(["mosquitto", "-c", str(settings)], port, cores) as running:
            yield running
