"""Brokers that the client is tested against, by name, on a port that they keep over restarts."""

from __future__ import annotations

import socket
import subprocess
import time
from pathlib import Path

import forks
from waiting import WAIT_S

from tidemq.testing.ports import free_port

NAMES = ("tidemq", "mosquitto")
_MOSQUITTO = """\
listener {port} 127.0.0.1
{listener}
allow_anonymous true
max_queued_messages 0
max_inflight_messages 0
set_tcp_nodelay true
log_type error
"""


class Server:
    """A broker's process; what it holds in memory goes with it. `listener` is more of Mosquitto's
    settings, `store` is TideMQ's."""

    def __init__(
        self, name: str, folder: Path, listener: str = "", settings: str = "", store: str = "memory"
    ) -> None:
        self.name, self.folder, self.port = name, folder, free_port()
        self._listener, self._settings, self._store = listener, settings, store
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"

    def start(self) -> Server:
        log = (self.folder / f"{self.name}.log").open("ab")
        start = forks.Tidemq if self.name == "tidemq" else subprocess.Popen
        self.process = start(self._command(), stdout=log, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline and self.process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return self
            time.sleep(0.01)
        self.kill()
        raise AssertionError(
            f"{self.name} does not listen: {(self.folder / f'{self.name}.log').read_text()[-2000:]}"
        )

    def _command(self) -> list[str]:
        if self.name == "mosquitto":
            config = self.folder / "mosquitto.conf"
            text = _MOSQUITTO.format(port=self.port, listener=self._listener)
            config.write_text(f"{text}{self._settings}\n")
            return ["mosquitto", "-c", str(config)]
        config = self.folder / "tidemq.toml"
        config.write_text(self._settings)
        command = ["serve", "--host", "127.0.0.1", "--port", str(self.port), "--store", self._store]
        command += ["--reactors", "1"]
        command += ["--data", str(self.folder / "data")]
        return [*command, "--config", str(config)]

    def kill(self) -> None:
        """SIGKILL."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
