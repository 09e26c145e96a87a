"""A reserved port is its server's, however many others ask the system for one meanwhile."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys

import pytest
from waiting import WAIT_S

from tidemq.testing.ports import reserve_port

# In a network of its own, with 20 ports to be had of which 5 are reserved.
FEW_PORTS = """
import fcntl, socket, struct
from contextlib import suppress
from pathlib import Path
from tidemq.testing.ports import reserve_port
with socket.socket() as s:  # the loopback interface is brought up
    fcntl.ioctl(s, 0x8914, struct.pack("16sh14x", b"lo", 0x1 | 0x40))
Path("/proc/sys/net/ipv4/ip_local_port_range").write_text("40001 40020")
reservations = [reserve_port() for _ in range(5)]
sockets = [socket.create_server(("127.0.0.1", 1883))]
with suppress(OSError):  # none is left
    while True:
        sockets.append(socket.socket())
        sockets[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sockets[-1].bind(("127.0.0.1", 0))
sockets[2].close()
with suppress(OSError):
    while True:
        sockets.append(socket.create_connection(("127.0.0.1", 1883)))
print(len({each.getsockname()[1] for each in reservations}))
print(sum(each.fileno() >= 0 and each.getsockname()[1] > 40000 for each in sockets))
"""


def test_nobody_is_given_it_by_chance() -> None:
    own_network = ["unshare", "--user", "--map-root-user", "--net"]
    if not shutil.which("unshare") or subprocess.run([*own_network, "true"], capture_output=True).returncode:
        pytest.skip("a network of its own may not be made here")
    command = [*own_network, sys.executable, "-c", FEW_PORTS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    assert (done.returncode, done.stdout) == (0, "5\n15\n"), done.stderr


def test_clients_are_refused_until_a_server_listens_on_it() -> None:
    with reserve_port() as reservation:
        place = reservation.getsockname()
        for _ in range(2):  # also when the first server has gone
            with socket.socket() as client:
                assert client.connect_ex(place)
            with socket.create_server(place) as server, socket.create_connection(place) as client:
                server.accept()[0].close()
                assert client.recv(1) == b""
