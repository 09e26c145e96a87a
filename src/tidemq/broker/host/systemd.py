"""What systemd and a broker tell each other: sockets that it has bound for us, and how we are.

Written out, not a library: `systemd-python` has to be compiled against libsystemd, and `sdnotify`, which has
no release since 2017, is no longer than `Notifier`; neither checks the sockets. See sd_listen_fds(3) and
sd_notify(3).
"""

from __future__ import annotations

import logging
import os
import socket
import stat
import time
from collections.abc import MutableMapping

from tidemq.config import refused

FIRST_FD = 3
NAME_UNKNOWN = "unknown"  # as sd_listen_fds_with_names(3) calls what has no name
_FAMILIES = (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX)

_log = logging.getLogger("tidemq.host")


def inherited_sockets(environment: MutableMapping[str, str] | None = None) -> dict[str, list[socket.socket]]:
    """The listening sockets that systemd has handed to this process, by FileDescriptorName; empty where none
    were. They do not block, and no child inherits them; the variables that named them are gone afterwards.

    ConfigError for one that is no listening stream socket.
    """
    environment = os.environ if environment is None else environment
    pid, count, names = (environment.pop(f"LISTEN_{key}", "") for key in ("PID", "FDS", "FDNAMES"))
    if pid != str(os.getpid()):
        return {}  # they were for a parent of ours
    if not count.isascii() or not count.isdigit():
        raise refused("environment", "LISTEN_FDS", f"{count!r} is no number", ["how many sockets there are"])
    given = names.split(":") if names else [NAME_UNKNOWN] * int(count)
    if len(given) != int(count):
        problem = f"{len(given)} names for {count} sockets"
        raise refused("environment", "LISTEN_FDNAMES", problem, ["a name for each"])
    found: dict[str, list[socket.socket]] = {}
    for descriptor, name in enumerate(given, FIRST_FD):
        found.setdefault(name, []).append(_listening(descriptor, name))
    return found


def _listening(descriptor: int, name: str) -> socket.socket:
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            raise OSError("it is no socket")
        os.set_inheritable(descriptor, False)
        made = socket.socket(fileno=descriptor)
        if made.family not in _FAMILIES or made.type != socket.SOCK_STREAM:
            made.detach()
            raise OSError("it is of another family or type")
        if not made.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            made.detach()
            raise OSError("it does not listen")
    except OSError as error:
        problem = f"descriptor {descriptor}, {name!r}: {error.strerror or error}"
        accepted = ["listening stream sockets (ListenStream=, Accept=no)"]
        raise refused("environment", "LISTEN_FDS", problem, accepted) from error
    made.setblocking(False)
    return made


class Notifier:
    """Tells systemd how the service is; does nothing where nobody wants to know."""

    def __init__(self, environment: MutableMapping[str, str] | None = None) -> None:
        environment = os.environ if environment is None else environment
        address = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address

    def ready(self, status: str) -> None:
        """Clients can connect; or: a reload is over."""
        self._tell(READY=1, STATUS=status)

    def reloading(self) -> None:
        """From now on until `ready`."""
        self._tell(RELOADING=1, MONOTONIC_USEC=time.monotonic_ns() // 1000)

    def stopping(self, status: str) -> None:
        """The end has begun."""
        self._tell(STOPPING=1, STATUS=status)

    def _tell(self, **state: str | int) -> None:
        if not self._address:
            return
        text = "\n".join(f"{name}={value}" for name, value in state.items())
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.setblocking(False)
                sender.sendto(text.encode(), self._address)
        except OSError as error:
            _log.warning("cannot tell systemd %s: %s", text.partition("=")[0], error)
