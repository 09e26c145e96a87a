"""A Debian of its own below a folder, by mmdebstrap, in which commands run as root."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from guard import MARK
from waiting import wait_until

PATH = "/usr/sbin:/usr/bin:/sbin:/bin"

# a network of its own, so that its ports are free: with nothing but the loopback address
WITHOUT_NETWORK = """
import fcntl, os, socket, struct, sys
with socket.socket() as any_socket:
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 0x41))  # SIOCSIFFLAGS: IFF_UP, IFF_RUNNING
os.execvp(sys.argv[1], sys.argv[1:])
"""


def codename() -> str:
    """This machine's Debian: packages that are built here are for it."""
    lines = Path("/etc/os-release").read_text().splitlines()
    names = dict(line.split("=", 1) for line in lines if "=" in line)
    assert names["ID"] == "debian", "Debian packages are tested on Debian"
    return names["VERSION_CODENAME"]


def make_archive(path: Path, suite: str, *packages: str) -> None:
    """A tar of a small Debian with these packages beside apt and the essential ones; if there is none yet."""
    if path.exists():
        return
    unfinished = path.with_suffix(".unfinished.tar")
    path.parent.mkdir(parents=True, exist_ok=True)
    options = ["--variant=minbase", "--quiet", *(f"--include={each}" for each in packages)]
    options.append('--aptopt=Acquire::Check-Valid-Until "false"')  # of mirrors that stand still
    subprocess.run(["mmdebstrap", *options, suite, unfinished], check=True)
    unfinished.rename(path)


# before the command runs: $0 is the root
MOUNTS = 'mount -t proc proc "$0/proc"'
READ_ONLY = """set -e
mount --bind "$0" "$0"
cd "$0"
mount --bind {volume} ./{place}
mount -t tmpfs tmpfs ./tmp
mount -t proc proc ./proc
mount -o remount,bind,ro "$0"
"""


class Container:
    """A Debian below `root`; `mounts` is what a shell does before a command runs in it."""

    def __init__(self, root: Path, mounts: str = MOUNTS) -> None:
        self.root = root
        self._mounts = mounts

    def command(self, *words: str | Path) -> list[str]:
        """What runs this in there."""
        script = f'{self._mounts}\nexec chroot "$0" "$@"'
        return ["unshare", "--mount", "sh", "-c", script, str(self.root), *map(str, words)]

    def run(
        self,
        *words: str | Path,
        network_of: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> str:
        """Runs it as root, in the network of a process where one is named; gives what it wrote."""
        before = [] if network_of is None else ["nsenter", f"--net=/proc/{network_of}/ns/net"]
        given = {"PATH": PATH, "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
        done = subprocess.run(
            [*before, *self.command(*words)],
            env=given | dict(environment or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert done.returncode == 0, f"{words}: {done.stdout[-4000:]}"
        return done.stdout

    def start(self, *words: str, environment: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
        """Starts it in a network of its own."""
        marked = {name: os.environ[name] for name in (MARK,) if name in os.environ}
        command = self.command("python3", "-c", WITHOUT_NETWORK, *words)
        return subprocess.Popen(
            ["unshare", "--net", *command],
            env={"PATH": PATH, **marked, **environment},
            stdout=log.open("wb"),
            stderr=subprocess.STDOUT,
        )

    @contextmanager
    def serving(self, *words: str, environment: Mapping[str, str], log: Path) -> Iterator[int]:
        """A broker, from when it is ready; gives its process id. It must end well."""
        process = self.start(*words, environment=environment, log=log)

        def is_ready() -> bool:
            assert process.poll() is None, log.read_text()
            return "is ready on" in log.read_text()

        wait_until(is_ready, "the broker is ready")
        yield process.pid
        process.terminate()
        assert process.wait() == 0, log.read_text()
        assert "ERROR" not in log.read_text()
