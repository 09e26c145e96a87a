"""What the members of a shared group cost: an acknowledgement beside many others, and the end of many.

    python benchmarks/shared_groups.py [--members 2,300,3000] [--workers 20] [--held 1024] [--waiting 80000]

One reactor. For each number of members: all but one hold a message and acknowledge nothing, one acknowledges
all that it gets of a queue; how many PUBACKs, with the message that follows each, the broker handles in a
CPU-second. Then so many workers that hold so many messages each go away at once, while others wait in the
queue: the longest that a client which sends a PINGREQ each millisecond waits meanwhile, and the CPU time that
it takes. Needs more open files than members.
"""

from __future__ import annotations

import argparse
import socket
import struct
import tempfile
import time
from pathlib import Path

from new_rules import START_S, broker, packet, received, text

GROUP = "$share/g/t"
MESSAGE_BYTES = 2 + 3 + 2  # a PUBLISH to "t" at QoS 1 without payload, 3.1.1


def used_s(pid: int) -> float:
    """The CPU seconds that a process has run."""
    return (
        sum(int(each.read_text().split()[0]) for each in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9
    )


def client(port: int, name: str, receive_max: int = 0) -> socket.socket:
    """Connected; with a Receive Maximum by 5.0, else by 3.1.1."""
    sock = socket.create_connection(("127.0.0.1", port), START_S)
    head = b"\x05\x02\0\0\x03\x21" + struct.pack(">H", receive_max) if receive_max else b"\x04\x02\0\0"
    sock.sendall(packet(0x10, text("MQTT") + head + text(name)))
    first = received(sock, 2)
    received(sock, first[1])
    return sock


def member(port: int, number: int, receive_max: int = 0) -> socket.socket:
    """A subscriber of the group at QoS 1."""
    sock = client(port, f"m{number}", receive_max)
    properties = b"\0" if receive_max else b""
    sock.sendall(packet(0x82, b"\0\1" + properties + text(GROUP) + b"\1"))
    received(sock, 5 + len(properties))
    return sock


def publish(port: int, count: int) -> None:
    """So many messages at QoS 1, all acknowledged."""
    with client(port, "publisher") as sock:
        for first in range(0, count, 1000):
            part = range(first, min(first + 1000, count))
            sock.sendall(b"".join(packet(0x32, text("t") + struct.pack(">H", n % 65535 + 1)) for n in part))
            received(sock, 4 * len(part))


def acknowledge(sock: socket.socket, count: int) -> None:
    """Takes so many messages and acknowledges each."""
    left = b""
    while count:
        data = left + sock.recv(1 << 16)
        whole = min(len(data) // MESSAGE_BYTES, count)
        ends = range(MESSAGE_BYTES, MESSAGE_BYTES * whole + 1, MESSAGE_BYTES)
        sock.sendall(b"".join(b"\x40\2" + data[end - 2 : end] for end in ends))
        left = data[MESSAGE_BYTES * whole :]
        count -= whole


def measure_acks(members: int, acks: int) -> float:
    """PUBACKs that the broker handles in a second of CPU time."""
    with (
        tempfile.TemporaryDirectory() as name,
        broker(Path(name), "[limits]\ninflight_max = 20") as (pid, port),
    ):
        socks = [member(port, number, 1) for number in range(members - 1)]
        socks.append(member(port, members))
        publish(port, members + 20 + 2 * acks)
        acknowledge(socks[-1], acks)
        before = used_s(pid)
        acknowledge(socks[-1], acks)
        spent = used_s(pid) - before
        for sock in socks:
            sock.close()
        return acks / spent


def measure_leaving(workers: int, held: int, waiting: int) -> tuple[float, float]:
    """The longest wait of another client, and the broker's CPU seconds."""
    settings = f"[limits]\ninflight_max = {held}"
    with tempfile.TemporaryDirectory() as name, broker(Path(name), settings) as (pid, port):
        stays, other = member(port, 0, 1), client(port, "other")
        socks = [member(port, number + 1) for number in range(workers)]
        publish(port, 1 + workers * held + waiting)
        other.settimeout(600)
        before, longest, quiet = used_s(pid), 0.0, time.monotonic()
        for sock in socks:
            sock.close()
        while time.monotonic() < quiet + 1:
            began = time.monotonic()
            other.sendall(b"\xc0\0")
            received(other, 2)
            longest = max(longest, time.monotonic() - began)
            if time.monotonic() - began > 0.1:
                quiet = time.monotonic()
            time.sleep(0.001)
        stays.close()
        return longest, used_s(pid) - before


def main() -> None:
    """Prints a line for each measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--members", default="2,300,3000")
    parser.add_argument("--acks", type=int, default=20_000)
    parser.add_argument("--workers", type=int, default=20)
    parser.add_argument("--held", type=int, default=1024)
    parser.add_argument("--waiting", type=int, default=80_000)
    given = parser.parse_args()
    for members in map(int, given.members.split(",")):
        print(f"{members:,} members: {measure_acks(members, given.acks):,.0f} PUBACKs a CPU-second")
    longest, spent = measure_leaving(given.workers, given.held, given.waiting)
    print(
        f"{given.workers} workers that hold {given.held:,} each go, {given.waiting:,} wait: another client "
        f"waits {1e3 * longest:.1f} ms at most; {1e3 * spent:.0f} ms of CPU"
    )


if __name__ == "__main__":
    main()
