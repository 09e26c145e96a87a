"""Two receivers that publishers may have to wait for, and what becomes of their messages and of others'.

    python benchmarks/full_queues.py reading    # a queue of 5,000, a publisher that is faster than its reader
    python benchmarks/full_queues.py stalling   # a subscriber to `#` that reads once in six seconds

`--root` names the source tree whose broker is measured, so that two can be compared.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from flood import connected

from tidemq.bench.load.frames import encode_packet, encode_string
from tidemq.testing.ports import free_port

SECONDS = 6.0  # of flooding a reader
STALLING_SECONDS = 42.0
STALL_S = 6.0
READ_BYTES = 2 << 20  # of a stalling subscriber at a time
PROBE_PAUSE_S = 0.005
LOAD_BYTES_PER_S = 4 << 20  # that the stalling subscriber gets
PAYLOAD = bytes(1000)
PIECE = 500  # messages at QoS 1 that a publisher sends before it takes their acknowledgements


@contextmanager
def broker(root: Path, reactors: int, **limits: int) -> Iterator[int]:
    """A broker of a source tree in a process of its own; its port."""
    port = free_port()
    settings = {f"TIDEMQ_LIMITS__{name.upper()}": str(value) for name, value in limits.items()}
    command = [sys.executable, "-c", "from tidemq.cli import app; app()", "serve", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--reactors", str(reactors), "--store", "memory"]
    environment = os.environ | settings | {"PYTHONPATH": str(root / "src")}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            while True:
                with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    break
                time.sleep(0.05)
            yield port
        finally:
            process.terminate()
            lines = process.communicate()[1].splitlines()
            print("\n".join(line for line in lines if "dropped" in line))


def subscribe(client: socket.socket, packets: socket.SocketIO, topic_filter: bytes, qos: int) -> None:
    client.sendall(encode_packet(0x82, b"\x00\x01" + encode_string(topic_filter) + bytes([qos])))
    packets.read(5)


def measure_reading(port: int) -> None:
    """How many acknowledged messages never come to a subscriber that reads all the time."""
    count = [0, 0]  # published, received
    body = encode_string(b"t") + b"\x00\x01" + bytes(64)
    frame = len(encode_packet(0x32, body))

    def read(client: socket.socket) -> None:
        rest = b""
        client.settimeout(2)
        with suppress(TimeoutError):
            while True:
                data = rest + client.recv(1 << 16)
                whole = len(data) // frame
                ids = (data[at + 5 : at + 7] for at in range(0, whole * frame, frame))
                client.sendall(b"".join(b"\x40\x02" + packet_id for packet_id in ids))
                count[1] += whole
                rest = data[whole * frame :]

    with connected(port, b"reader") as (reader, its), connected(port, b"writer") as (writer, acks):
        subscribe(reader, its, b"t", 1)
        reading = threading.Thread(target=read, args=(reader,))
        reading.start()
        ids = (encode_string(b"t") + (n + 1).to_bytes(2) + bytes(64) for n in range(PIECE))
        piece = b"".join(encode_packet(0x32, body) for body in ids)
        until = time.monotonic() + SECONDS
        unanswered = 0
        while time.monotonic() < until or unanswered:
            if time.monotonic() < until and unanswered < 20 * PIECE * 4:
                writer.sendall(piece)
                unanswered += 4 * PIECE
                count[0] += PIECE
                continue
            unanswered -= len(acks.read(1 << 16))
        reading.join()
    print(f"published {count[0]:,}, received {count[1]:,}, lost {count[0] - count[1]:,}")


def measure_stalling(port: int) -> None:
    """How long single messages between two others take meanwhile, by the six seconds."""
    done = threading.Event()

    def stall(client: socket.socket) -> None:
        while not done.wait(STALL_S):
            left = READ_BYTES
            client.settimeout(0.2)
            with suppress(TimeoutError):
                while left > 0:
                    left -= len(client.recv(left))

    def load(client: socket.socket) -> None:
        piece = encode_packet(0x30, encode_string(b"load") + PAYLOAD) * (LOAD_BYTES_PER_S // 100 // 1000)
        while not done.wait(0.01):
            client.sendall(piece)

    with (
        connected(port, b"stalling") as (stalling, its),
        connected(port, b"loading") as (loading, _),
        connected(port, b"from") as (source, _),
        connected(port, b"to") as (target, answers),
    ):
        subscribe(stalling, its, b"#", 0)
        subscribe(target, answers, b"probe", 0)
        packet = encode_packet(0x30, encode_string(b"probe") + bytes(16))
        threads = [
            threading.Thread(target=stall, args=(stalling,)),
            threading.Thread(target=load, args=(loading,)),
        ]
        for thread in threads:
            thread.start()
        end = time.monotonic() + STALLING_SECONDS
        while (now := time.monotonic()) < end:
            waits: list[float] = []
            while time.monotonic() < now + STALL_S:
                began = time.perf_counter()
                source.sendall(packet)
                target.recv(len(packet), socket.MSG_WAITALL)
                waits.append(time.perf_counter() - began)
                time.sleep(PROBE_PAUSE_S)
            waits.sort()
            p99 = waits[int(len(waits) * 0.99)]
            print(f"{len(waits)} messages, p99 {p99 * 1e3:.1f} ms, longest {waits[-1] * 1e3:.0f} ms")
        done.set()
        stalling.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("reading", "stalling"))
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--reactors", type=int, default=1)
    options = parser.parse_args()
    limits = {"queued_messages_max": 5000, "inflight_max": 50} if options.what == "reading" else {}
    with broker(options.root, options.reactors, **limits) as port:
        {"reading": measure_reading, "stalling": measure_stalling}[options.what](port)


if __name__ == "__main__":
    main()
