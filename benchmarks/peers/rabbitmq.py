"""RabbitMQ with its MQTT plugin alone, as Debian packages it: an Erlang scheduler per core, MQTT 3.1.1.

A plain process with a node name, directories, ports and an epmd of its own, whoever starts it, and beside
any RabbitMQ that runs already. Anonymous clients are its user `guest`. It has no QoS 2: what is published
so is delivered at QoS 1. By default it sends a subscriber ten QoS 1 messages before it wants an
acknowledgement; here a hundred, as many as a publisher of the benchmarks has in flight.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from peers.peer import Conditions, Peer, install_debian, said_by
from tidemq.testing.ports import free_port

# Debian's command of that name insists on its own user and directories, this does not
SERVER = "/usr/lib/rabbitmq/bin/rabbitmq-server"
SETTINGS = """\
listeners.tcp = none
mqtt.listeners.tcp.1 = 127.0.0.1:{port}
mqtt.allow_anonymous = true
mqtt.prefetch = 100
log.file = false
log.console = true
log.console.level = error
"""


class RabbitMQ(Peer):
    """In memory as far as it goes: sessions of the benchmarks are clean, so their queues are not durable."""

    name = "rabbitmq"

    def __init__(self) -> None:
        self.ports: dict[Path, str] = {}  # of each folder's epmd

    def install(self) -> None:
        install_debian("rabbitmqctl", "rabbitmq-server")

    def version(self) -> str:
        return said_by("dpkg-query", "--show", "--showformat=${Version}", "rabbitmq-server").split("-")[0]

    def command(self, folder: Path, port: int, conditions: Conditions) -> Sequence[str]:
        (folder / "rabbitmq.conf").write_text(SETTINGS.format(port=port))
        (folder / "enabled_plugins").write_text("[rabbitmq_mqtt].\n")
        return [SERVER]

    def environment(self, folder: Path) -> Mapping[str, str]:
        self.ports[folder] = str(free_port())
        paths = {
            "MNESIA_BASE": "data",
            "LOG_BASE": "log",
            "CONFIG_FILE": "rabbitmq.conf",
            "ADVANCED_CONFIG_FILE": "advanced.config",
            "ENABLED_PLUGINS_FILE": "enabled_plugins",
            "PLUGINS_EXPAND_DIR": "plugins",
            "GENERATED_CONFIG_DIR": "config",
            "FEATURE_FLAGS_FILE": "feature_flags",
            "PID_FILE": "pid",
        }
        return {f"RABBITMQ_{key}": str(folder / name) for key, name in paths.items()} | {
            "HOME": str(folder),  # of the cookie
            "RABBITMQ_CONF_ENV_FILE": os.devnull,
            "RABBITMQ_NODENAME": f"bench{self.ports[folder]}@localhost",
            "RABBITMQ_DIST_PORT": str(free_port()),
            "ERL_EPMD_PORT": self.ports[folder],
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "detached": "1",  # the script becomes the server, so that its process is the one to measure
        }

    def clean_up(self, folder: Path) -> None:
        """The port mapper, which the server starts as a daemon."""
        environment = {**os.environ, "ERL_EPMD_PORT": self.ports.pop(folder)}
        subprocess.run(["epmd", "-kill"], env=environment, capture_output=True, check=False)
