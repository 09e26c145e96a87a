"""What look-ups in the subscription index cost while others subscribe, and under filters that make them hard.

    python benchmarks/lookups.py changes [--subscribes 1000] [--filter 'other/{n}'] [--rounds 5]
    python benchmarks/lookups.py hard [--clients 1] [--messages 200]

*changes*: 10,000 topics, one subscriber to all of them, QoS 0, 64 bytes, one reactor. Deliveries per second
of the reactor's CPU in a calm second, in which another client sends PINGREQs, and in one in which it sends as
many SUBSCRIBEs, in turn; medians, and the median of the rounds' ratios.

*hard*: each client subscribes to as many filters of 60 levels of `+` and `a` as it is let (10,000 by
default), then to as many of the forms that `wildcard_ways_max` allows. Then another publishes empty messages
to new topics of 60 levels of `a`; the reactor's CPU for each, and the longest that a client which sends a
PINGREQ each millisecond waits meanwhile.
"""

from __future__ import annotations

import argparse
import random
import re
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from new_rules import received

from tidemq.bench.load.frames import encode_packet, encode_string

START_S = 30.0
TOPICS = 10_000
ROUND_S = 1.0
LEVELS = 60
FILTERS = 10_000


def connected(port: int, name: str) -> socket.socket:
    """A client of 3.1.1 with a clean session."""
    client = socket.create_connection(("127.0.0.1", port), START_S)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    client.sendall(
        encode_packet(0x10, encode_string(b"MQTT") + b"\x04\x02\0\0" + encode_string(name.encode()))
    )
    received(client, 4)
    return client


def subscribe(client: socket.socket, filters: list[bytes]) -> int:
    """One SUBSCRIBE; how many filters were granted."""
    client.sendall(
        encode_packet(0x82, b"\0\1" + b"".join(encode_string(filter) + b"\0" for filter in filters))
    )
    head = received(client, 2)
    while head[-1] & 0x80:
        head += received(client, 1)
    size = sum((byte & 127) << 7 * place for place, byte in enumerate(head[1:]))
    return sum(reason < 0x80 for reason in received(client, size)[2:])


def run_by(pid: int) -> dict[str, float]:
    """The CPU seconds that each thread has run."""
    accounts = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return {account.parent.name: int(account.read_text().split()[0]) / 1e9 for account in accounts}


def busiest_s(pid: int, before: dict[str, float]) -> float:
    """The CPU seconds that the thread has run since which ran longest: the reactor."""
    return max(ran_s - before.get(thread, 0.0) for thread, ran_s in run_by(pid).items())


@contextmanager
def broker() -> Iterator[tuple[int, int]]:
    """One reactor; its process and its port."""
    with TemporaryDirectory() as name:
        log = Path(name) / "log"
        command = [sys.executable, "-c", "from tidemq.cli import main; main()", "serve", "--store", "memory"]
        command += ["--host", "127.0.0.1", "--port", "0", "--reactors", "1"]
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


class Flow:
    """A publisher to all topics, over and over, and a subscriber to them, each in a thread of its own."""

    def __init__(self, port: int) -> None:
        self.received_bytes = 0
        self.over = False
        self.subscriber = connected(port, "subscriber")
        subscribe(self.subscriber, [b"t/+/v"])
        self.publisher = connected(port, "publisher")
        messages = [
            encode_packet(0x30, encode_string(b"t/%d/v" % number).ljust(62, b"x")) for number in range(TOPICS)
        ]
        random.Random(1).shuffle(messages)
        self.round = b"".join(messages)
        self.message_bytes = len(self.round) / TOPICS
        self.threads = [threading.Thread(target=each) for each in (self.publish, self.receive)]
        for thread in self.threads:
            thread.start()

    def publish(self) -> None:
        with suppress(OSError):  # the end
            while not self.over:
                self.publisher.sendall(self.round)

    def receive(self) -> None:
        buffer = bytearray(1 << 20)
        while (got := self.subscriber.recv_into(buffer)) and not self.over:
            self.received_bytes += got

    def end(self) -> None:
        self.over = True
        for client in (self.publisher, self.subscriber):
            client.shutdown(socket.SHUT_RDWR)
        for thread in self.threads:
            thread.join()


def rate(flow: Flow, pid: int, client: socket.socket, filters: Iterator[bytes] | None, asked: int) -> float:
    """Deliveries per CPU-second while a client sends so many SUBSCRIBEs a second, or PINGREQs."""
    began, ran, received_bytes = time.monotonic(), run_by(pid), flow.received_bytes
    done = 0
    while (passed := time.monotonic() - began) < ROUND_S:
        while done < passed * asked:
            if filters:
                subscribe(client, [next(filters)])
            else:
                client.sendall(b"\xc0\0")
                received(client, 2)
            done += 1
        time.sleep(0.0005)
    delivered = (flow.received_bytes - received_bytes) / flow.message_bytes
    return delivered / busiest_s(pid, ran)


def measure_changes(subscribes: int, form: str, rounds: int) -> None:
    """Prints a line."""
    with broker() as (pid, port):
        flow = Flow(port)
        calm, changed = [], []
        numbers = iter(range(1 << 30))
        filters = (form.format(n=number).encode() for number in numbers)
        quiet = connected(port, "quiet")
        rate(flow, pid, quiet, None, subscribes)
        for number in range(rounds):
            calm.append(rate(flow, pid, quiet, None, subscribes))
            changer = connected(port, f"changer{number}")  # each may hold so many
            changed.append(rate(flow, pid, changer, filters, subscribes))
        flow.end()
    ratio = statistics.median(after / before for before, after in zip(calm, changed, strict=True))
    print(
        f"{TOPICS:,} topics: {statistics.median(calm) / 1e6:.2f} M deliveries per CPU-second, with "
        f"{subscribes:,} SUBSCRIBEs a second to {form!r} "
        f"{statistics.median(changed) / 1e6:.2f} M, ratio {ratio:.2f}"
    )


def hard_filters(seed: int, plus_max: int) -> list[bytes]:
    """Filters that match what begins with 60 levels of `a`, with at most so many `+` in each."""
    drawn = random.Random(seed)
    filters: set[bytes] = set()
    while len(filters) < FILTERS:
        count = plus_max if plus_max < 20 else drawn.randrange(20, 40)
        levels = [b"a"] * LEVELS
        for place in drawn.sample(range(LEVELS), count):
            levels[place] = b"+"
        # short ones too, that end with `#`: they match whatever comes behind
        filters.add(
            b"/".join(levels) if plus_max >= 20 else b"/".join(levels[: drawn.randrange(1, LEVELS)]) + b"/#"
        )
    return sorted(filters)


def measure_hard(clients: int, messages: int) -> None:
    """Prints a line."""
    with broker() as (pid, port):
        held, granted = [], 0
        for number in range(clients):
            client = connected(port, f"stranger{number}")
            held.append(client)
            for plus_max in (40, 6, 4, 2):
                filters = hard_filters(number * 10 + plus_max, plus_max)
                for first in range(0, len(filters), 1000):
                    granted += subscribe(client, filters[first : first + 1000])
        probe, publisher = connected(port, "probe"), connected(port, "publisher")
        topics = [b"/".join([b"a"] * (LEVELS - 1) + [b"%d" % number]) for number in range(messages)]
        ran, longest, over = run_by(pid), 0.0, threading.Event()

        def ping() -> None:
            nonlocal longest
            while not over.is_set():
                began = time.monotonic()
                probe.sendall(b"\xc0\0")
                received(probe, 2)
                longest = max(longest, time.monotonic() - began)
                time.sleep(0.001)

        pinger = threading.Thread(target=ping)
        pinger.start()
        publisher.sendall(b"".join(encode_packet(0x30, encode_string(topic)) for topic in topics) + b"\xc0\0")
        publisher.settimeout(600)
        received(publisher, 2)
        over.set()
        pinger.join()
        each_ms = 1e3 * busiest_s(pid, ran) / messages
    print(
        f"{clients} clients hold {granted:,} filters: {each_ms:.2f} ms of CPU a message, "
        f"the longest wait of another client meanwhile {1e3 * longest:.0f} ms"
    )


def main() -> None:
    """Measures one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=("changes", "hard"))
    parser.add_argument("--subscribes", type=int, default=1_000)
    parser.add_argument("--filter", default="other/{n}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--messages", type=int, default=200)
    given = parser.parse_args()
    if given.what == "changes":
        measure_changes(given.subscribes, given.filter, given.rounds)
    else:
        measure_hard(given.clients, given.messages)


if __name__ == "__main__":
    main()
