"""What a message costs a broker in instructions, beside another build: these do not depend on what else the
machine does.

    .venv/bin/python tools/instructions.py --before ../other-clone/src

Needs valgrind (Debian package). Each broker, one reactor, runs under callgrind. A publisher sends messages in
chunks, each when the one before has arrived everywhere, so that turns are alike. Counted are the instructions
in user space of the threads that the engine's work is done on, the reactor's and the keeper's, less those of
as long a time without messages, for each message that is published. Medians of rounds.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tidemq.testing.ports import free_port

OWN = Path(__file__).resolve().parent.parent / "src"
CHUNK = 100  # messages
PAYLOAD = b"x" * 64
START_S = 300.0
ANSWER_S = 60.0
MAIN_THREAD = "-01"  # whose event loop has its own rhythm


class Client:
    """An MQTT 3.1.1 client that knows how long the packets are that it waits for."""

    def __init__(self, port: int, name: str, *, clean: bool = True) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S)
        body = (
            b"\0\4MQTT\4"
            + bytes([2 if clean else 0])
            + b"\0\0"
            + struct.pack(">H", len(name))
            + name.encode()
        )
        self.send(bytes([0x10, len(body)]) + body)
        self.read(4)

    def subscribe(self, topic_filter: bytes, qos: int) -> None:
        body = b"\0\1" + struct.pack(">H", len(topic_filter)) + topic_filter + bytes([qos])
        self.send(bytes([0x82, len(body)]) + body)
        self.read(5)

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            more = self._socket.recv(size - len(data))
            if not more:
                raise SystemExit("the broker has closed a connection")
            data += more
        return bytes(data)

    def close(self) -> None:
        self.send(b"\xe0\0")
        self._socket.close()


def publish(qos: int) -> bytes:
    """A chunk of messages on `a/b`."""
    chunk = bytearray()
    for number in range(1, CHUNK + 1):
        body = b"\0\3a/b" + (struct.pack(">H", number) if qos else b"") + PAYLOAD
        chunk += bytes([0x30 | qos << 1, len(body)]) + body
    return bytes(chunk)


def fan_out(port: int) -> Callable[[], None]:
    """QoS 0 to 20 subscribers."""
    receivers = [Client(port, f"r{number}") for number in range(20)]
    for each in receivers:
        each.subscribe(b"a/+", 0)
    publisher, chunk = Client(port, "p"), publish(0)

    def step() -> None:
        publisher.send(chunk)
        for each in receivers:
            each.read(len(chunk))

    return step


def one_to_one(port: int) -> Callable[[], None]:
    """QoS 1 to one subscriber."""
    receiver, publisher, chunk = Client(port, "r"), Client(port, "p"), publish(1)
    receiver.subscribe(b"a/+", 1)

    def step() -> None:
        publisher.send(chunk)
        came = receiver.read(len(chunk))
        size = len(chunk) // CHUNK
        receiver.send(b"".join(b"\x40\2" + came[at + 7 : at + 9] for at in range(0, len(came), size)))
        publisher.read(4 * CHUNK)

    return step


def stored(port: int) -> Callable[[], None]:
    """QoS 1 for a stored session whose client is away."""
    receiver = Client(port, "r", clean=False)
    receiver.subscribe(b"a/+", 1)
    receiver.close()
    publisher, chunk = Client(port, "p"), publish(1)

    def step() -> None:
        publisher.send(chunk)
        publisher.read(4 * CHUNK)

    return step


SCENARIOS: dict[str, tuple[Callable[[int], Callable[[], None]], list[str]]] = {
    "QoS 0, 1:20": (fan_out, ["--store", "memory"]),
    "QoS 1, 1:1, in memory": (one_to_one, ["--store", "memory"]),
    "QoS 1, 1:1, with a store": (one_to_one, []),
    "QoS 1, for a stored session": (stored, []),
}


class Broker:
    """A broker under callgrind, and what it has executed."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path) -> None:
        self._process, self._folder = process, folder

    def _control(self, word: str) -> None:
        command = ["callgrind_control", word, str(self._process.pid)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def executed(self, act: Callable[[], None]) -> int:
        """Instructions of the engine's threads while something is done."""
        self._control("--zero")
        act()
        before = set(self._folder.glob("out*"))
        self._control("--dump")
        total, deadline = 0, time.monotonic() + ANSWER_S
        while not total and time.monotonic() < deadline:
            time.sleep(0.5)
            for each in set(self._folder.glob("out*")) - before:
                text = each.read_text()
                found = re.search(r"^totals: (\d+)", text, re.MULTILINE)
                if found and "/tidemq/engine/" in text and not each.name.endswith(MAIN_THREAD):
                    total += int(found[1])
        return total


@contextmanager
def started(sources: Path, options: list[str]) -> Iterator[tuple[Broker, int]]:
    """A broker of these sources, and its port."""
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_port()
        log = folder / "log"
        command = [
            *("valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/out", "--quiet"),
            "--separate-threads=yes",
            *(sys.executable, "-c", "from tidemq.cli import main; main()", "serve", "--reactors", "1"),
            *("--host", "127.0.0.1", "--port", str(port), "--data", str(folder / "data"), *options),
        ]
        with log.open("wb") as file:
            environment = os.environ | {"PYTHONPATH": str(sources), "TIDEMQ_SYS_INTERVAL_S": "0"}
            process = subprocess.Popen(command, stdout=file, stderr=file, env=environment)
        try:
            deadline = time.monotonic() + START_S
            while b" is ready on " not in log.read_bytes():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"the broker has not started:\n{log.read_text()}")
                time.sleep(0.2)
            yield Broker(process, folder), port
        finally:
            process.kill()
            process.wait()


def measured(sources: Path, scenario: str, rounds: int, chunks: int) -> list[float]:
    """Instructions for each message, of each round."""
    begin, options = SCENARIOS[scenario]
    with started(sources, options) as (broker, port):
        return _rounds(broker, begin(port), rounds, chunks)


def _rounds(broker: Broker, step: Callable[[], None], rounds: int, chunks: int) -> list[float]:
    for _ in range(5):
        step()

    def work() -> None:
        for _ in range(chunks):
            step()

    found = []
    for _ in range(rounds):
        begun = time.monotonic()
        with_messages = broker.executed(work)
        idle = broker.executed(partial(time.sleep, time.monotonic() - begun))
        found.append((with_messages - idle) / (chunks * CHUNK))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Instructions that a message costs, beside another build.")
    parser.add_argument("--before", type=Path, help="sources (src) of another build, compiled")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--chunks", type=int, default=100, help="of 100 messages, in each round")
    parser.add_argument("--only", choices=SCENARIOS, action="append", help="this scenario")
    options = parser.parse_args()
    print(f"{'':30}{'instructions':>14}{'before':>10}{'ratio':>8}   range of the rounds")
    for scenario in options.only or SCENARIOS:
        now = measured(OWN, scenario, options.rounds, options.chunks)
        line = f"{scenario:30}{statistics.median(now):14.0f}"
        spread = f"{min(now):.0f} to {max(now):.0f}"
        if options.before:
            before = measured(options.before.resolve(), scenario, options.rounds, options.chunks)
            ratio = statistics.median(now) / statistics.median(before)
            line += f"{statistics.median(before):10.0f}{ratio:8.3f}"
            spread += f", before {min(before):.0f} to {max(before):.0f}"
        else:
            line += f"{'':18}"
        print(f"{line}   {spread}", flush=True)


if __name__ == "__main__":
    main()
