"""Connections come from the addresses that are asked for, and so there are more of them than ports."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from bench.conftest import Bench
from bench.fake_broker import FakeBroker, listening
from conftest import RunningBroker
from waiting import WAIT_S

from tidemq.bench.load.local_addresses import packed_sources
from tidemq.bench.peer.target import local_target, parse_url
from tidemq.errors import UsageError


class Sources(FakeBroker):
    """Notes where its clients come from."""

    def __init__(self) -> None:
        super().__init__()
        self.hosts: Counter[str] = Counter()

    async def take(self, first: int, body: bytes, writer: asyncio.StreamWriter) -> None:
        if first >> 4 == 1:
            self.hosts[writer.get_extra_info("peername")[0]] += 1
        await super().take(first, body, writer)


@pytest.mark.parametrize("threads", [1, 2])
def test_connections_take_turns(bench: Bench, threads: int) -> None:
    broker = Sources()
    with listening(broker.serve) as port:
        done = bench(
            *("fan", "--url", f"mqtt://127.0.0.1:{port}", "--receivers", 11, "--messages", 10, "--json"),
            *("--source", "127.0.0.2-127.0.0.3", "--source", "127.0.0.9", "--threads", threads),
        )
    assert (done.code, done.summary["received"]) == (0, 110)
    broker.hosts -= Counter({"127.0.0.1": 1})  # who asked for the version
    assert broker.hosts == {"127.0.0.2": 4, "127.0.0.3": 4, "127.0.0.9": 4}
    assert done.result["run"]["arguments"]["source"] == "127.0.0.2-127.0.0.3 127.0.0.9"


def test_a_range_has_both_ends() -> None:
    found = packed_sources(["127.0.0.254-127.0.1.1"], local_target(1883))
    assert [socket.inet_ntoa(each[4:8]) for each in found] == [
        "127.0.0.254",
        "127.0.0.255",
        "127.0.1.0",
        "127.0.1.1",
    ]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("nowhere", "--source must be an address or FIRST-LAST, not 'nowhere'"),
        ("127.0.0.5-", "--source must be an address or FIRST-LAST, not '127.0.0.5-'"),
        ("127.0.0.5-127.0.0.1", "no range of at most 4,096"),
        ("10.0.0.0-127.0.0.1", "no range of at most 4,096"),
        ("127.0.0.1-::1", "no range of at most 4,096"),
        ("192.0.2.1", "--source 192.0.2.1 is not an address of this machine"),
        ("::1", "cannot come from it"),
    ],
)
def test_what_is_no_address_of_this_machine_is_refused(
    bench: Bench, tidemq: RunningBroker, source: str, said: str
) -> None:
    url = f"mqtt://127.0.0.1:{tidemq.port}"
    done = bench("fan", "--url", url, "--messages", 1, "--source", source)
    assert (done.code, done.out) == (2, "")
    (line,) = done.error.splitlines()
    assert said in line


def test_a_unix_socket_has_no_source(tmp_path: Path) -> None:
    target = parse_url(f"unix://{tmp_path}/socket")
    with pytest.raises(UsageError, match=r"^--source 127\.0\.0\.1: connections to unix://"):
        packed_sources(["127.0.0.1"], target)


# In a network of its own: 20 ports for each address, a broker, and the command.
FEW_PORTS = """
import fcntl, socket, struct, subprocess, sys, time
from pathlib import Path
with socket.socket() as s:  # the loopback interface is brought up
    fcntl.ioctl(s, 0x8914, struct.pack("16sh14x", b"lo", 0x1 | 0x40))
Path("/proc/sys/net/ipv4/ip_local_port_range").write_text("40001 40020")
serve = [sys.executable, "-c", "from tidemq.cli import main; main()"]
options = ["serve", "--host", "127.0.0.1", "--port", "1883", "--store", "memory"]
broker = subprocess.Popen(serve + options, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
try:
    for _ in range(200):
        with socket.socket() as s:
            if s.connect_ex(("127.0.0.1", 1883)) == 0:
                break
        time.sleep(0.05)
    command = ["bench", "many", "--seconds", "0.1", "--connections", "50"]
    for more in ([], ["--source", "127.0.0.1-127.0.0.4"]):
        subprocess.run(serve + command + more)
finally:
    broker.kill()
"""


def test_more_addresses_have_more_ports(install: Callable[[str, str], None]) -> None:
    """What is said where ports are exhausted helps."""
    own_network = ["unshare", "--user", "--map-root-user", "--net"]
    if not shutil.which("unshare") or subprocess.run([*own_network, "true"], capture_output=True).returncode:
        pytest.skip("a network of its own may not be made here")
    command = [*own_network, sys.executable, "-c", FEW_PORTS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    (line,) = done.stderr.splitlines()
    assert "no local port is left after " in line
    assert "connect from several addresses of this machine (--source 127.0.0.1-127.0.0.8)" in line
    assert "50 connections in" in done.stdout
