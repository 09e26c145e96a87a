"""What a change of the rules costs while clients are connected, each with a subscription.

    python benchmarks/new_rules.py [--clients 10000] [--rules 1000] [--about all|users|clients] [--rounds 5]

The CPU time that the one reactor takes for it, less what it takes in a time as long without a change; and the
longest that a client which sends a PINGREQ each millisecond waits meanwhile, and without a change.
`--about`: whom the rules are about: all clients, a user each, or client identifiers of a pattern each.
The last of them, which allows the subscriptions, has `%c` in it. Needs more open files than clients.
"""

from __future__ import annotations

import argparse
import re
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidemq.bench.process import resident_bytes

START_S = 30.0
WATCH_S = 2.5  # the file is looked at each second
ABOUT = {"all": "", "users": "user u{} ", "clients": "client x{}* "}


def text(value: str) -> bytes:
    """A UTF-8 string as MQTT has it (5.0 section 1.5.4)."""
    return struct.pack(">H", len(value.encode())) + value.encode()


def packet(first: int, body: bytes) -> bytes:
    """A control packet with less than 128 bytes in it."""
    return bytes([first, len(body)]) + body


def subscriber(port: int, number: int) -> socket.socket:
    """Has sent CONNECT, with a user name, and SUBSCRIBE."""
    client = socket.create_connection(("127.0.0.1", port), START_S)
    name = f"c{number}"
    client.sendall(
        packet(0x10, text("MQTT") + b"\x04\x82\0\0" + text(name) + text(f"u{number}"))
        + packet(0x82, b"\0\1" + text(f"device/{name}/#") + b"\0")
    )
    return client


def received(client: socket.socket, size: int) -> bytes:
    """So many bytes; ConnectionError where the connection ends before."""
    got = b""
    while len(got) < size:
        more = client.recv(size - len(got))
        if not more:
            raise ConnectionError("the broker has closed a connection")
        got += more
    return got


def rules_of(about: str, count: int, last: str) -> str:
    """So many rules and two more."""
    lines = [f"allow {ABOUT[about].format(number)}all elsewhere/{number}/#" for number in range(count)]
    return "\n".join([*lines, "allow all device/%c/#", f"deny all {last}"])


def busiest_s(pid: int) -> float:
    """The CPU seconds that the thread has run which ran longest: the reactor."""
    accounts = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return max(int(account.read_text().split()[0]) for account in accounts) / 1e9


@contextmanager
def broker(folder: Path, settings: str) -> Iterator[tuple[int, int]]:
    """One reactor, with these lines of configuration; its process and its port."""
    config, log = folder / "config.toml", folder / "log"
    config.write_text(f"sys_interval_s = 0\n{settings}\n")
    command = [sys.executable, "-c", "from tidemq.cli import main; main()", "serve", "--store", "memory"]
    command += ["--host", "127.0.0.1", "--port", "0", "--reactors", "1", "--config", str(config)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        until = time.monotonic() + START_S
        while not (found := re.search(r"ready on [^ ]*:(\d+)", log.read_text())):
            if process.poll() is not None or time.monotonic() > until:
                raise TimeoutError(f"the broker does not listen: {log.read_text()}")
            time.sleep(0.02)
        yield process.pid, int(found[1])
    finally:
        process.terminate()
        process.wait(START_S)


def watch(client: socket.socket, pid: int) -> tuple[float, float]:
    """The longest wait for a PINGRESP, and the reactor's CPU seconds meanwhile."""
    before, until, longest = busiest_s(pid), time.monotonic() + WATCH_S, 0.0
    while (began := time.monotonic()) < until:
        client.sendall(b"\xc0\0")
        received(client, 2)
        longest = max(longest, time.monotonic() - began)
        time.sleep(0.001)
    return longest, busiest_s(pid) - before


def main() -> None:
    """Prints a line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--rules", type=int, default=1_000)
    parser.add_argument("--about", choices=ABOUT, default="all")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        acl = Path(name) / "rules.acl"
        acl.write_text(rules_of(given.about, given.rules, "first"))
        with broker(Path(name), f'acl_file = "{acl}"') as (pid, port):
            empty = resident_bytes(pid)
            clients = [subscriber(port, number) for number in range(given.clients)]
            for client in clients:
                if received(client, 9)[-1]:
                    raise ConnectionError("the rules refuse a subscription")
            each = (resident_bytes(pid) - empty) / given.clients
            waits: dict[bool, list[float]] = {False: [], True: []}
            costs: list[float] = []
            for number in range(given.rounds):
                quiet_wait, quiet_s = watch(clients[0], pid)
                acl.write_text(rules_of(given.about, given.rules, f"{number}"))
                wait, busy_s = watch(clients[0], pid)
                waits[False].append(quiet_wait)
                waits[True].append(wait)
                costs.append(busy_s - quiet_s)
            print(
                f"{given.clients:,} clients, {given.rules:,} rules about {given.about}: a change takes "
                f"{1e3 * statistics.median(costs):.0f} ms of CPU, the longest wait meanwhile "
                f"{1e3 * statistics.median(waits[True]):.1f} ms ({1e3 * max(waits[True]):.1f} at most), "
                f"without {1e3 * statistics.median(waits[False]):.1f} ms; {each:,.0f} bytes a client"
            )


if __name__ == "__main__":
    main()
