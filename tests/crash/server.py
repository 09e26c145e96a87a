"""The broker under test as a process that is killed and started again on the same directory."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from crash.disk import Disk
from crash.history import KILLED, STOPPED, Fault, History
from waiting import WAIT_S, happens

POLL_S = 0.01
READY = re.compile(r"ready on 127\.0\.0\.1:(\d+)")


class BrokerError(Exception):
    """The broker did not start, or did not stop: the run ends with this."""


class Server:
    """One broker on one data directory; `port` is where it listened last.

    `settings` go into its configuration as they are, `streams` is a list of them, in JSON. `disk`, where
    given, lies between it and its files. `name`, as the history has it, begins with "broker".
    """

    def __init__(
        self,
        folder: Path,
        data: Path,
        settings: dict[str, object],
        history: History,
        disk: Disk | None = None,
        streams: str = "[]",
        name: str = "broker",
    ) -> None:
        self.name = name
        self.environment: dict[str, str] = disk.environment if disk else {}
        self.folder, self.data, self.history, self.disk = folder, data, history, disk
        self.settings = {"host": "127.0.0.1", "port": 0, "data": str(data), **settings}
        self.streams = streams  # JSON
        self.before = ""  # code that the process runs before it serves
        self.port = 1  # nobody listens there
        self.starts = 0
        self.serves = False  # it listens, as far as is known
        self.serves_since_s = 0.0
        self._down: Fault | None = None  # the last time
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        """What the process started last has written."""
        return self.folder / f"{self.name.replace(' ', '-')}-{self.starts}.log"

    def place(self) -> tuple[str, int]:
        """As a client's `Setting` has it."""
        return self.name, self.port

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def command(self) -> list[str]:
        config = self.folder / f"{self.name.replace(' ', '-')}.toml"
        config.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in self.settings.items()))
        start = f"{self.before}from tidemq.cli import main; main()"
        return [sys.executable, "-c", start, "serve", "--config", str(config)]

    def spawn(self) -> None:
        """Starts the process; it is not ready yet."""
        assert not self.running
        if self.disk and (unseen := self.disk.reconcile()):
            raise BrokerError(f"the disk layer did not see how these files came to be: {unseen}")
        self.starts += 1
        environment = os.environ | self.environment
        environment["TIDEMQ_STREAMS"] = self.streams
        with self.log.open("wb") as log:
            command = self.command()
            self._process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
        self.history.note(self.name, "starts")

    async def ready(self) -> bool:
        """Waits until it listens; false where the process has ended before."""
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            ended = not self.running
            if found := READY.search(self.log.read_text(errors="replace")):
                self.port, self.serves = int(found[1]), True
                self.serves_since_s = time.monotonic()
                at = self.history.note(self.name, f"is ready on port {self.port}")
                if self._down is not None:
                    self._down.ended_at = at
                return True
            if ended:
                return False
            await asyncio.sleep(POLL_S)
        raise BrokerError(f"not ready after {WAIT_S} s")

    async def start(self) -> None:
        """Starts it and waits until it is ready, which it must become."""
        self.spawn()
        if not await self.ready():
            raise BrokerError(f"ended at its start with status {self.wait()}")

    def kill(self) -> None:
        """`kill -9`; nothing where it has ended already."""
        self.serves = False
        if self._process is not None:
            self._process.kill()
            status = self._process.wait()
            if status != -signal.SIGKILL:
                self.history.note(self.name, f"has ended by itself ({status})")
            self._down = self.history.begin_fault(KILLED, self.name)
            self._process = None

    async def stop(self) -> None:
        """SIGTERM, which it must follow well."""
        assert self._process is not None
        self.serves = False
        self._down = self.history.begin_fault(STOPPED, self.name)
        self._process.terminate()
        if not await happens(lambda: not self.running, WAIT_S):
            raise BrokerError(f"still runs {WAIT_S} s after SIGTERM")
        if status := self.wait():
            raise BrokerError(f"ended with status {status} after SIGTERM")
        self._process = None

    def wait(self) -> int:
        assert self._process is not None
        return self._process.wait()

    def logged(self) -> str:
        """The end of the last process's log."""
        return self.log.read_text(errors="replace")[-3000:] if self.starts else ""
