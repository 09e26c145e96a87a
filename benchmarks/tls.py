"""What TLS costs, beside Mosquitto's: QoS 0 one to one at 64 bytes and 16 KiB, and handshakes, in turns.

    python benchmarks/tls.py [--rounds 5] [--seconds 2] [--handshakes 500]

Both brokers run beside each other with the same certificate (ECDSA, P-256) and one thread each, TideMQ with
one reactor; TLS 1.3, as the load generator and Python's ssl choose it. Rates are deliveries per second, and
per second of the broker's CPU; handshakes are full ones, or resumed by a ticket.
"""

from __future__ import annotations

import argparse
import json
import re
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from socket import create_connection

import trustme
from measurement import bare
from peers.mosquitto import Mosquitto
from peers.peer import Running

from tidemq.bench.load.generator import Generator
from tidemq.bench.peer.target import Security, parse_url
from tidemq.bench.process import cpu_s
from tidemq.bench.report.numbers import spread
from tidemq.bench.workload import Workload
from tidemq.testing.ports import free_port
from tidemq.wire import Connect, encode

WORKLOADS = (
    Workload(name="1:1, 64 bytes", messages=20_000, payload_bytes=64),
    Workload(name="1:1, 16 KiB", messages=2_000, payload_bytes=16_384),
)
START_S = 20.0
THREADS = 8  # that shake hands
HELLO = encode(Connect(version=4, client_id="", clean_start=True), 4)
MOSQUITTO = """\
listener {port} 127.0.0.1
certfile {folder}/server.pem
keyfile {folder}/server.key
tls_version tlsv1.2
allow_anonymous true
persistence false
log_type error
set_tcp_nodelay false
max_queued_messages 0
max_inflight_messages 0
user root
"""
TIDEMQ = """\
plain = false
sys_interval_s = 0
store = "memory"
reactors = 1

[[listeners]]
host = "127.0.0.1"
port = {port}
tls = {{ cert = "{folder}/server.pem", key = "{folder}/server.key" }}
"""


def write_certificates(folder: Path) -> None:
    """An authority's and a server's for 127.0.0.1 and localhost."""
    authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    server = authority.issue_cert("127.0.0.1", "localhost", key_type=trustme.KeyType.ECDSA)
    server.private_key_pem.write_to_path(str(folder / "server.key"))
    (folder / "server.pem").write_bytes(b"".join(each.bytes() for each in server.cert_chain_pems))


@contextmanager
def broker(kind: str, folder: Path) -> Iterator[Running]:
    """One that serves TLS; folder and files must be readable by it."""
    port = free_port()
    config = folder / f"{kind}.conf"
    config.write_text((TIDEMQ if kind == "tidemq" else MOSQUITTO).format(port=port, folder=folder))
    command = ["mosquitto", "-c", str(config)]
    if kind == "tidemq":
        command = [
            sys.executable,
            "-c",
            "from tidemq.cli import main; main()",
            "serve",
            "--config",
            str(config),
        ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + START_S
        while True:
            try:
                create_connection(("127.0.0.1", port)).close()
                break
            except ConnectionRefusedError:
                if process.poll() is not None or time.monotonic() > until:
                    raise
                time.sleep(0.02)
        yield Running(pid=process.pid, port=port)
    finally:
        process.terminate()
        process.wait(START_S)


def throughput(workload: Workload, running: Running, folder: Path) -> tuple[float, float]:
    """Deliveries per second, and per second of the broker's CPU."""
    security = Security(cafile=str(folder / "ca.pem"))
    generator = Generator(workload, parse_url(f"mqtts://localhost:{running.port}", security))
    try:
        generator.connect(timeout_s=60)
        before = cpu_s(running.pid)
        outcome = bare(generator.run(5.0))
        return outcome.messages_per_s, outcome.received / (cpu_s(running.pid) - before)
    finally:
        generator.close()


def handshakes(running: Running, folder: Path, count: int, resumed: bool) -> tuple[float, float]:
    """Handshakes per second, and per second of the broker's CPU."""
    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))

    def shake(session: ssl.SSLSession | None) -> ssl.SSLSession | None:
        with (
            create_connection(("127.0.0.1", running.port)) as plain,
            context.wrap_socket(plain, server_hostname="localhost", session=session) as secure,
        ):
            if session is not None and not secure.session_reused:
                raise ConnectionError("the session was not resumed")
            if resumed and session is None:
                secure.sendall(HELLO)
                secure.recv(4)  # the ticket of TLS 1.3 comes before CONNACK
            return secure.session

    ticket = shake(None) if resumed else None
    with ThreadPoolExecutor(THREADS) as threads:
        before, begun = cpu_s(running.pid), time.monotonic()
        list(threads.map(shake, [ticket] * count))
        seconds, used = time.monotonic() - begun, cpu_s(running.pid) - before
    return count / seconds, count / used


def main() -> None:
    """Prints a line for each workload and unit, and the whole as JSON where --json names a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each run")
    parser.add_argument("--handshakes", type=int, default=500, help="of each run")
    parser.add_argument("--json", type=Path, help="file for all runs")
    given = parser.parse_args()
    Mosquitto().install()
    version = re.sub(r"\s+", " ", ssl.OPENSSL_VERSION)
    print(f"{version}; {given.rounds} rounds, medians (least to most)")
    runs: dict[str, dict[str, list[tuple[float, float]]]] = {}
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        folder.chmod(0o755)
        write_certificates(folder)
        brokers = {kind: stack.enter_context(broker(kind, folder)) for kind in ("tidemq", "mosquitto")}
        for workload in WORKLOADS:
            found = runs[workload.name] = {kind: [] for kind in brokers}
            sized = {}
            for kind, running in brokers.items():
                rate, _ = throughput(workload, running, folder)
                sized[kind] = replace(workload, messages=max(int(rate * given.seconds), 1_000))
            for _ in range(given.rounds):
                for kind, running in brokers.items():
                    found[kind].append(throughput(sized[kind], running, folder))
            report(workload.name, found)
        for resumed in (False, True):
            title = "resumed handshakes" if resumed else "full handshakes"
            found = runs[title] = {kind: [] for kind in brokers}
            for _ in range(given.rounds):
                for kind, running in brokers.items():
                    found[kind].append(handshakes(running, folder, given.handshakes, resumed))
            report(title, found)
    if given.json is not None:
        given.json.write_text(json.dumps(runs, indent=1))


def report(title: str, found: dict[str, list[tuple[float, float]]]) -> None:
    """Two lines: a second, and a second of the broker's CPU."""
    for place, unit in enumerate(("a second", "a second of the broker's CPU")):
        ours, theirs = ([run[place] for run in found[kind]] for kind in ("tidemq", "mosquitto"))
        ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
        print(
            f"{title}, {unit}: TideMQ {spread(ours)}, Mosquitto {spread(theirs)}; {spread(ratios)} times",
            flush=True,
        )


if __name__ == "__main__":
    main()
