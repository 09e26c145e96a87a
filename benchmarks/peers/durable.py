"""Brokers over a directory of data, which are stopped, killed and started again on what they kept.

Mosquitto runs with `persistence true` and its defaults: it writes its sessions, queues and retained messages
to a file every half hour and when it is stopped, and never waits for the disk before it acknowledges.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from getpass import getuser
from pathlib import Path
from tempfile import TemporaryDirectory

from peers.peer import Running
from tidemq.bench.load.frames import encode_packet, encode_string
from tidemq.testing.ports import free_port

START_LIMIT_S = 600.0
STOP_LIMIT_S = 120.0
CONNECT = encode_packet(0x10, b"\x00\x04MQTT\x04\x02\x00\x00" + encode_string(b"probe"))
ACCEPTED = b"\x20\x02\x00\x00"
LIMITS = """\
[limits]
queued_messages_max = 100_000_000
queued_bytes_max = 1_000_000_000_000
retained_messages_max = 100_000_000
"""
MOSQUITTO_SETTINGS = """\
listener {port} 127.0.0.1
allow_anonymous true
log_type error
max_queued_messages 0
max_inflight_messages 0
persistence true
persistence_location {folder}/
user {user}
"""


@dataclass(frozen=True, slots=True)
class Variant:
    """A broker with its way of keeping things."""

    name: str
    store: str = ""  # TideMQ's; empty: this is Mosquitto
    durability: str = ""

    def command(self, port: int, folder: Path, reactors: int) -> list[str]:
        """What starts it, with its settings written to `folder`; `reactors` 0: its default."""
        settings = folder / "settings"
        if not self.store:
            # started by root it would become a user who may not write here
            settings.write_text(MOSQUITTO_SETTINGS.format(port=port, folder=folder, user=getuser()))
            return ["mosquitto", "-c", str(settings)]
        settings.write_text(LIMITS)
        command = [str(Path(sys.executable).parent / "tidemq"), "serve", "--config", str(settings)]
        command += ["--host", "127.0.0.1", "--port", str(port), "--log-level", "warning"]
        command += ["--store", self.store, "--data", str(folder / "data")]
        command += ["--durability", self.durability] if self.durability else []
        return command + (["--reactors", str(reactors)] if reactors else [])


MEMORY = Variant("memory", "memory")
SYNC = Variant("rocksdb sync", "rocksdb", "sync")
INTERVAL = Variant("rocksdb interval", "rocksdb", "interval")
OS = Variant("rocksdb os", "rocksdb", "os")
SQLITE = Variant("sqlite sync", "sqlite", "sync")
MOSQUITTO = Variant("mosquitto")
VARIANTS = (MEMORY, SYNC, INTERVAL, OS, SQLITE, MOSQUITTO)


class Broker:
    """One broker and its directory: `start`, then `stop` or `kill`, then `start` again."""

    def __init__(self, command: Sequence[str], port: int, data: Path) -> None:
        self.command = command
        self.port = port
        self.data = data  # the directory of TideMQ's store
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> Running:
        assert self.process is not None
        return Running(self.port, self.process.pid)

    def start(self) -> float:
        """Seconds from the start of its process to its first CONNACK; RuntimeError when none comes."""
        started_s = time.monotonic()
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL)
        while not accepts(self.port):
            if self.process.poll() is not None:
                raise RuntimeError(f"it ended with status {self.process.returncode} before it accepted")
            if time.monotonic() - started_s > START_LIMIT_S:
                raise RuntimeError(f"it accepted nobody within {START_LIMIT_S:g} s")
            time.sleep(0.005)
        return time.monotonic() - started_s

    def stop(self) -> float:
        """SIGTERM; seconds until its process has ended; RuntimeError when it must be killed."""
        started_s = time.monotonic()
        if not self._end(signal.SIGTERM):
            self.kill()
            raise RuntimeError(f"it did not stop within {STOP_LIMIT_S:g} s")
        return time.monotonic() - started_s

    def kill(self) -> None:
        """SIGKILL: what it had not handed to the kernel is gone."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> bool:
        if self.process is None:
            return True
        self.process.send_signal(how)
        try:
            self.process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            return False
        self.process = None
        return True


def accepts(port: int) -> bool:
    """A broker on `port` takes a CONNECT now."""
    with socket.socket() as probe:
        probe.settimeout(START_LIMIT_S)
        if probe.connect_ex(("127.0.0.1", port)) != 0:
            return False
        try:
            probe.sendall(CONNECT)
            return probe.recv(4) == ACCEPTED
        except ConnectionError:
            return False


@contextmanager
def prepared(variant: Variant, parent: Path, *, reactors: int = 0) -> Iterator[Broker]:
    """A broker that is not started yet, with an empty directory, which is removed in the end."""
    port = free_port()
    with TemporaryDirectory(dir=parent, prefix=f"{variant.name.replace(' ', '-')}-") as name:
        folder = Path(name)
        broker = Broker(variant.command(port, folder, reactors), port, folder / "data")
        try:
            yield broker
        finally:
            broker.kill()


@contextmanager
def started(variant: Variant, parent: Path, *, reactors: int = 0) -> Iterator[Running]:
    """A broker that runs while the block does."""
    with prepared(variant, parent, reactors=reactors) as broker:
        broker.start()
        yield broker.running
