"""Ports of 127.0.0.1 for servers that must be told theirs, or that give it up for a while."""

from __future__ import annotations

import socket
from collections import deque

# Newer ones push the oldest out: descriptors are few, and a server of long ago has its port or needs none.
_reserved: deque[socket.socket] = deque(maxlen=50)


def reserve_port() -> socket.socket:
    """A socket bound to a free port of 127.0.0.1. Until it is closed, the port is refused to clients, the
    system gives it to nobody who asks for any port, and a server that names it can listen on it.

    For that the server sets SO_REUSEADDR as well, as nearly all do; ip(7), socket(7).
    """
    reservation = socket.socket()
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reservation.bind(("127.0.0.1", 0))
    return reservation


def free_port() -> int:
    """A port that nobody listens on, reserved for this process's servers."""
    _reserved.append(reserve_port())
    port: int = _reserved[-1].getsockname()[1]
    return port
