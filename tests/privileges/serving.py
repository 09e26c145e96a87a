"""`tidemq serve` as a process that a test looks at from outside."""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from waiting import WAIT_S, wait_until

COMMAND = [sys.executable, "-c", "from tidemq.cli import main; main()", "serve"]


class Serving:
    """A broker; `log` is what it has written to standard output and error so far."""

    def __init__(self, process: subprocess.Popen[bytes], path: Path, admin_port: int) -> None:
        self.process = process
        self.admin_port = admin_port
        self.port = 0  # once it is ready
        self._path = path

    @property
    def log(self) -> str:
        return self._path.read_text()

    def wait_until_ready(self) -> None:
        wait_until(lambda: "is ready on" in self.log or self.process.poll() is not None, "ready")
        found = re.search(r"ready on 127\.0\.0\.1:(\d+)", self.log)
        assert found, self.log
        self.port = int(found[1])

    def ask(
        self,
        path: str,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> tuple[int, bytes]:
        """The status and the body of the admin listener's answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.admin_port, timeout=WAIT_S)
        connection.request(method, path, body, dict(headers or {}))
        answer = connection.getresponse()
        with answer:
            return answer.status, answer.read()

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WAIT_S)


class Start(Protocol):
    """Starts a broker with these settings, and waits until it is ready; `under` goes before the command."""

    def __call__(
        self,
        settings: str = "",
        *,
        port: int = 0,
        admin: bool = False,
        ready: bool = True,
        umask: int = -1,
        under: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
    ) -> Serving: ...


def start(
    folder: Path,
    settings: str,
    port: int,
    admin_port: int,
    umask: int,
    under: tuple[str, ...],
    environment: Mapping[str, str] | None,
) -> Serving:
    number = len(list(folder.glob("*.log")))
    log, config = folder / f"{number}.log", folder / f"{number}.toml"
    config.write_text(
        f'host = "127.0.0.1"\nport = {port}\nadmin_port = {admin_port}\nreactors = 1\n{settings}'
    )
    config.chmod(0o644)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*under, *COMMAND, "--config", str(config)],
            stdout=output,
            stderr=subprocess.STDOUT,
            umask=umask,
            cwd=folder,
            env=os.environ | dict(environment or {}),
        )
    return Serving(process, log, admin_port)
