"""A `nats-server` of this node's own: configured, started, watched, started again, stopped.

It is alone: no `cluster{}` block, no monitoring, one user. It ends with this process, also by `kill -9`.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from tidemq.broker.host.watched_files import FileVersion
from tidemq.cluster.transport.settings import EXTRA, USER, Security, format_address, parse_address
from tidemq.errors import ClusterError

MAX_PAYLOAD_BYTES = 1 << 20  # NATS's own default, so that an operator's server does as well as ours
CONNECTIONS_MAX = 64  # 16 nodes, some of which the server still takes for connected
START_S = 30.0  # until a server is ready; it reads what it has kept first
STOP_S = 5.0  # for it to end by itself
WATCH_S = 0.5  # between two looks whether its directory is still there
RESTART_S = 0.1  # before it is started again; doubles
RESTART_S_MAX = 5.0
STEADY_S = 10.0  # after so long the pause is the first again
LOG_BYTES_MAX = 4 << 20  # of each of two files
TAIL_BYTES = 2000  # of its last words in our log
SYNC_S = 1.0
STORE_BYTES_MAX = 64 << 30

_log = logging.getLogger("tidemq.cluster")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """How a server is run.

    `folder`: of its own, for its configuration, log and copies; what is in it may be lost. `listen`:
    `host:port`, port 0 for any. `sync_s`: how much a power failure may take of what was acknowledged; 0:
    nothing. A second costs nothing, and what a replica has lost its origin sends again: only an origin that
    is lost for good at the same time makes a difference.
    """

    folder: Path
    listen: str
    security: Security
    sync_s: float = SYNC_S
    store_bytes_max: int = STORE_BYTES_MAX


def find_program() -> Path:
    """`nats-server`: of the extra, or else on the path. ClusterError where there is none."""
    ours = Path(sysconfig.get_path("scripts"), "nats-server")
    if os.access(ours, os.X_OK):
        return ours
    found = shutil.which("nats-server")
    if found is None:
        raise ClusterError(f"there is no nats-server; {EXTRA}, or the URL of one that runs")
    return Path(found)


def configuration(settings: ServerSettings, listen: str, password: str) -> str:
    """The server's configuration file: JSON, which NATS reads as well as its own language."""
    security = settings.security
    jetstream = {
        "store_dir": str(settings.folder),
        "max_memory_store": 0,
        "max_file_store": settings.store_bytes_max,
        "sync_interval": f"{settings.sync_s:g}s" if settings.sync_s else "always",
    }
    fields: dict[str, object] = {
        "listen": listen,
        "server_name": "tidemq",
        "max_payload": MAX_PAYLOAD_BYTES,
        "max_connections": CONNECTIONS_MAX,
        "write_deadline": "5s",  # a node that does not read for so long is disconnected, not waited for
        "ports_file_dir": str(settings.folder),
        "log_file": str(settings.folder / "server.log"),
        "logfile_size_limit": LOG_BYTES_MAX,
        "logfile_max_num": 2,
        "authorization": {"user": USER, "password": password, "timeout": 5},
        "jetstream": jetstream,
    }
    if security.ca and security.certificate and security.key:
        fields["tls"] = {  # it runs in another directory
            "ca_file": str(security.ca.absolute()),
            "cert_file": str(security.certificate.absolute()),
            "key_file": str(security.key.absolute()),
            "verify": True,
            "handshake_first": True,  # says nothing, not even its version, to who has no certificate
            "timeout": 3,  # less than a node waits, so that it hears of the end
        }
    return json.dumps(fields, indent=1)


class NatsServer:
    """From `start` to `stop`, once. Its methods are for any thread but an event loop's: they wait."""

    def __init__(
        self, settings: ServerSettings, on_problem: Callable[[str], None] = lambda text: None
    ) -> None:
        """`on_problem` is told, on a thread of this server's, when it has died, and why it does not start."""
        host, port = parse_address(settings.listen)
        settings.security.check_address(host)
        self.settings = settings
        self.counts: Counter[str] = Counter()  # cluster_server_restarts
        self._on_problem = on_problem
        self._host, self._port = host, port
        self._process: subprocess.Popen[bytes] | None = None
        self._versions: list[FileVersion] = []  # of the files that it has read
        self._ready = threading.Event()
        self._stops = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="tidemq-nats-server", daemon=True)

    @property
    def address(self) -> str:
        """Where it listens; stays the same when it is started again."""
        return format_address(self._host, self._port)

    @property
    def pid(self) -> int | None:
        """Of the process that runs now."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def start(self) -> None:
        """Returns when it takes connections. ClusterError where it does not: with its own last words."""
        find_program()
        self.settings.security.read_password()
        self._thread.start()
        if not self._ready.wait(START_S):
            self._failure = ClusterError(f"nats-server is not ready after {START_S:g} s")
        if self._failure is not None:
            self.stop()
            raise self._failure

    def stop(self) -> None:
        """Ends it, and waits for that. Any number of times."""
        self._stops.set()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        """The process is this thread's: the kernel ends it with the thread."""
        pause_s, began = RESTART_S, 0.0
        while not self._stops.is_set():
            began = time.monotonic()
            try:
                self._live()
            except (ClusterError, OSError) as error:
                text = str(error)
                if not self._ready.is_set():
                    self._failure = error if isinstance(error, ClusterError) else ClusterError(text)
                    self._ready.set()
                    return
                self.counts["cluster_server_restarts"] += 1
                self._report(f"{text}; it is started again")
            finally:
                self._end()
            pause_s = RESTART_S if time.monotonic() - began > STEADY_S else min(pause_s * 2, RESTART_S_MAX)
            self._stops.wait(pause_s)

    def _report(self, text: str) -> None:
        _log.warning("the cluster's nats-server: %s", text)
        try:
            self._on_problem(text)
        except Exception:  # noqa: BLE001 - the server is watched all the same
            _log.exception("what was to be told of the cluster's nats-server failed")

    def _live(self) -> None:
        """Starts it and watches it, until `stop`. ClusterError says why it has ended."""
        folder = self.settings.folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for old in folder.glob("*.ports"):
            old.unlink(missing_ok=True)
        listen = format_address(self._host, self._port or -1)
        self._versions = self.settings.security.versions()  # before: what changes meanwhile is seen next time
        self._configure(listen)
        with _open_private(folder / "start.log") as words:
            command = [sys.executable, "-I", "-S", str(Path(__file__).with_name("launching.py"))]
            command += [str(os.getpid()), str(find_program()), "-c", str(folder / "nats-server.conf")]
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=words, stderr=words, cwd="/"
            )
        self._await_port()
        if self._stops.is_set():
            return
        self._watch(folder / "jetstream", listen)

    def _configure(self, listen: str) -> None:
        text = configuration(self.settings, listen, self.settings.security.read_password())
        with _open_private(self.settings.folder / "nats-server.conf") as file:
            file.write(text.encode())

    def _read_again(self, listen: str) -> None:
        """Has the server take the password and certificates as they are now, where they can be used."""
        assert self._process is not None
        try:
            self.settings.security.client_context()
            self._configure(listen)
        except (ClusterError, OSError) as error:
            self._report(f"{error}; it goes on with what it has")
        else:
            self._process.send_signal(signal.SIGHUP)

    def _watch(self, kept: Path, listen: str) -> None:
        try:
            opened = os.open(kept, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError as error:
            raise ClusterError(f"{kept} was deleted") from error
        try:
            self._ready.set()
            before = self._versions
            while not self._stops.wait(WATCH_S):
                self._check_alive()
                seen = self.settings.security.versions()
                if seen == before != self._versions:  # else it is perhaps half written
                    self._versions = seen
                    self._read_again(listen)
                before = seen
                # what is deleted under a running server it goes on writing to, and acknowledging
                if not _is_at(opened, kept):
                    raise ClusterError(f"{kept} was deleted")
        finally:
            os.close(opened)

    def _check_alive(self) -> None:
        process = self._process
        assert process is not None
        if process.poll() is not None:
            raise ClusterError(f"ended with {process.returncode}{self._last_words()}")

    def _await_port(self) -> None:
        """Until it has written where it listens, which it does when it is ready."""
        deadline = time.monotonic() + START_S
        while not self._stops.wait(0.01):
            self._check_alive()
            if not (self.settings.folder / "nats-server.conf").exists():
                raise ClusterError(f"{self.settings.folder} was deleted")
            for file in self.settings.folder.glob("*.ports"):
                with suppress(ValueError, KeyError, IndexError, FileNotFoundError):  # half written, or gone
                    url = str(json.loads(file.read_text())["nats"][0])
                    self._port = parse_address(url.partition("://")[2])[1]
                    return
            if time.monotonic() > deadline:
                raise ClusterError(f"not ready after {START_S:g} s{self._last_words()}")

    def _last_words(self) -> str:
        words = b""
        for name in ("start.log", "server.log"):
            with suppress(OSError):
                tail = (self.settings.folder / name).read_bytes()[-TAIL_BYTES:]
                words += tail if len(tail) < TAIL_BYTES else tail.partition(b"\n")[2]
        lines = [
            line
            for line in words.decode(errors="replace").splitlines()
            if "[INF]" not in line and "Plaintext" not in line
        ]
        return ": " + "; ".join(lines[-3:]) if lines else ""

    def _end(self) -> None:
        process = self._process
        if process is None:
            return
        if self._stops.is_set():  # one that has lost its directory would write pieces of it again
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_S)
        process.kill()
        process.wait()


def _is_at(folder: int, path: Path) -> bool:
    """Whether the open folder is still the one of this name."""
    try:
        return os.path.samestat(os.fstat(folder), path.stat())
    except FileNotFoundError:
        return False


def _open_private(path: Path) -> BinaryIO:
    """A new file, which only its owner can read, from the first byte on."""
    path.unlink(missing_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
