"""The load generator over TLS, WebSocket and both: nothing lost, repeated or disordered; clear faults."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme
from bench.conftest import Bench, Done
from bench.fake_broker import FakeBroker, Server, listening, running
from conftest import RunningBroker, wait_until_open
from websockets.asyncio.server import ServerConnection, serve
from websockets.typing import Subprotocol

from tidemq.bench.load.generator import Generator
from tidemq.bench.peer.target import Security, parse_url
from tidemq.bench.workload import Workload
from tidemq.testing.ports import free_port

SCHEMES = ["mqtts", "ws", "wss"]


@dataclass(frozen=True)
class Certificates:
    """Files of one authority, and of another."""

    folder: Path
    server: ssl.SSLContext

    @property
    def ca(self) -> Path:
        return self.folder / "ca.pem"

    @property
    def client(self) -> Path:
        return self.folder / "client.pem"

    @property
    def stranger(self) -> Path:
        return self.folder / "stranger.pem"


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    folder, authority = tmp_path_factory.mktemp("certificates"), trustme.CA()
    server = authority.issue_cert("localhost", "127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.configure_cert(context)
    certificates = Certificates(folder, context)
    authority.cert_pem.write_to_path(certificates.ca)
    trustme.CA().cert_pem.write_to_path(certificates.stranger)
    server.private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
    authority.issue_cert("ann@example.org").private_key_and_cert_chain_pem.write_to_path(certificates.client)
    return certificates


@pytest.fixture(scope="session")
def tls_mosquitto(
    certificates: Certificates, install: Callable[[str, str], None], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[int, int]]:
    """Mosquitto's own TLS: the port where anybody is let in, and the one that wants a certificate."""
    install("mosquitto", "mosquitto")
    folder = tmp_path_factory.mktemp("mosquitto-tls")
    ports = free_port(), free_port()
    files = f"cafile {certificates.ca}\ncertfile {certificates.folder}/server.pem\n"
    files += f"keyfile {certificates.folder}/server.pem\n"
    lines = "user root\nallow_anonymous true\nmax_queued_messages 0\nmax_inflight_messages 0\n"
    lines += f"listener {ports[0]} 127.0.0.1\n{files}"
    lines += f"listener {ports[1]} 127.0.0.1\n{files}require_certificate true\n"
    (folder / "mosquitto.conf").write_text(lines)
    log = folder / "log"
    process = subprocess.Popen(
        ["mosquitto", "-c", str(folder / "mosquitto.conf")], stdout=log.open("wb"), stderr=subprocess.STDOUT
    )
    broker = wait_until_open(RunningBroker(ports[1], process, log, "mosquitto"))
    yield ports
    broker.stop()


class WebSocketProxy:
    """Puts a real WebSocket server before a broker; it cuts what it sends into fragments, and pings."""

    def __init__(self, broker_port: int) -> None:
        self.broker_port = broker_port

    async def serve(self, client: ServerConnection) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.broker_port)
        with suppress(OSError):
            await asyncio.gather(self.up(client, writer), self.down(reader, client))

    async def up(self, client: ServerConnection, writer: asyncio.StreamWriter) -> None:
        async for data in client:
            assert isinstance(data, bytes)
            writer.write(data)
        writer.close()

    async def down(self, reader: asyncio.StreamReader, client: ServerConnection) -> None:
        number = 0
        while data := await reader.read(65_536):
            number += 1
            await client.send([data[:1], b"", data[1:500], data[500:]] if number % 3 else data)
            if number % 10 == 1:
                await client.ping()
        await client.close()


@pytest.fixture(scope="module")
def urls(
    certificates: Certificates,
    tls_mosquitto: tuple[int, int],
    tidemq: RunningBroker,
    mosquitto: RunningBroker,
) -> Iterator[dict[str, str]]:
    """Of a broker behind each transport."""

    def websocket(broker: RunningBroker, tls: ssl.SSLContext | None) -> AbstractContextManager[int]:
        async def start() -> Server:
            handler, mqtt = WebSocketProxy(broker.port).serve, [Subprotocol("mqtt")]
            return await serve(handler, "127.0.0.1", 0, ssl=tls, subprotocols=mqtt, max_size=None)

        return running(start)

    with websocket(tidemq, None) as ws, websocket(mosquitto, certificates.server) as wss:
        yield {
            "mqtts": f"mqtts://localhost:{tls_mosquitto[0]}",
            "ws": f"ws://localhost:{ws}",
            "wss": f"wss://127.0.0.1:{wss}/mqtt",
        }


def trusting(scheme: str, certificates: Certificates) -> list[object]:
    return [] if scheme == "ws" else ["--cafile", certificates.ca]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
    "arguments",
    [["--qos", 0, "--size", 2000], ["--qos", 1, "--threads", 2], ["--qos", 2, "--mqtt", "5.0"]],
    ids=["large", "threads", "qos 2"],
)
def test_everything_arrives(
    bench: Bench, urls: dict[str, str], certificates: Certificates, scheme: str, arguments: list[object]
) -> None:
    """Some fan-in and fan-out, of messages of several TLS records together."""
    clients = ["--senders", 3, "--receivers", 2, "--messages", 1000]
    url, trust = urls[scheme], trusting(scheme, certificates)
    done = bench("fan", "--url", url, *trust, *clients, *arguments, "--json")
    assert (done.code, done.error) == (0, "")
    summary = done.summary
    assert summary["intact"]
    assert (summary["sent"], summary["received"]) == (3000, 6000)
    assert (summary["lost"], summary["duplicates"], summary["disordered"]) == (0, 0, 0)
    assert done.result["run"]["url"] == url


@pytest.mark.parametrize("scheme", SCHEMES)
def test_many_connections(
    bench: Bench, urls: dict[str, str], certificates: Certificates, scheme: str
) -> None:
    trust = trusting(scheme, certificates)
    options = ["--connections", 70, "--rate", 500, "--seconds", 0.3]
    done = bench("many", "--url", urls[scheme], *trust, *options, "--json")
    assert done.code == 0, done
    assert done.summary["intact"]
    assert done.summary["received"] == 150


def test_a_client_certificate(
    bench: Bench, certificates: Certificates, tls_mosquitto: tuple[int, int]
) -> None:
    url = f"mqtts://localhost:{tls_mosquitto[1]}"
    trust = ["--cafile", certificates.ca]
    done = bench("fan", "--url", url, *trust, "--cert", certificates.client, "--messages", 10, "--json")
    assert done.code == 0, done
    refused(bench("fan", "--url", url, *trust), "certificate")


def refused(done: Done, said: str) -> None:
    """The command ended with 2, and one line that says it."""
    assert (done.code, done.out) == (2, "")
    (line,) = done.error.splitlines()
    assert said in line


@pytest.mark.parametrize("scheme", ["mqtts", "wss"])
def test_a_certificate_of_somebody_unknown(
    bench: Bench, urls: dict[str, str], certificates: Certificates, scheme: str
) -> None:
    for trust in ([], ["--cafile", certificates.stranger]):
        done = bench("fan", "--url", urls[scheme], *trust)
        refused(done, f"{urls[scheme]}: the server's certificate is not accepted: ")
    assert bench("fan", "--url", urls[scheme], "--insecure", "--messages", 10).code == 0


def test_a_certificate_of_another_host(
    bench: Bench, urls: dict[str, str], certificates: Certificates
) -> None:
    """All of 127.0.0.0/8 is this machine."""
    with listening(FakeBroker().serve, certificates.server, "127.0.0.2") as port:
        url = f"mqtts://127.0.0.2:{port}"
        refused(bench("fan", "--url", url, "--cafile", certificates.ca), "IP address mismatch")


def test_tls_and_websocket_where_there_is_none(bench: Bench, tidemq: RunningBroker) -> None:
    for scheme, step in (("mqtts", "the TLS handshake"), ("ws", "the WebSocket upgrade")):
        url = f"{scheme}://127.0.0.1:{tidemq.port}"
        refused(
            bench("fan", "--url", url, "--timeout", 2),
            f"{url}: the server closed the connection during {step}",
        )


def test_another_path(bench: Bench) -> None:
    async def not_found(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

    with listening(not_found) as port:
        refused(
            bench("fan", "--url", f"ws://127.0.0.1:{port}/other"),
            "no WebSocket is there: HTTP status 404 (not found)",
        )


def connect(url: str, timeout_s: float) -> None:
    generator = Generator(Workload(name="one", messages=10), parse_url(url, Security(insecure=True)))
    try:
        generator.connect(timeout_s)
    finally:
        generator.close()


@pytest.mark.parametrize("heard", [0, 1])
def test_a_server_that_closes_in_the_middle_of_the_handshake(bench: Bench, heard: int) -> None:
    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(heard)
        writer.close()

    with listening(close) as port:
        url, said = f"mqtts://127.0.0.1:{port}", "the server closed the connection during the TLS handshake"
        refused(bench("fan", "--url", url, "--insecure"), said)
        with pytest.raises(ConnectionError, match=said):  # where the first connection found nothing wrong
            connect(url, 5.0)


def test_a_server_that_never_answers(bench: Bench) -> None:
    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    with listening(wait) as port:
        for scheme, step in (("mqtts", "the TLS handshake"), ("ws", "the WebSocket upgrade")):
            done = bench("fan", "--url", f"{scheme}://127.0.0.1:{port}", "--timeout", 0.3)
            refused(done, f"no answer to {step} within 0.3 s")
        with pytest.raises(ConnectionError, match="only 0 of 2 connections are ready"):
            connect(f"mqtts://127.0.0.1:{port}", 0.3)


def test_a_broker_that_dies_in_a_tls_run(certificates: Certificates) -> None:
    broker = FakeBroker()
    broker.die_at = 500
    with listening(broker.serve, certificates.server) as port:
        target = parse_url(f"mqtts://localhost:{port}", Security(cafile=str(certificates.ca)))
        generator = Generator(Workload(name="one", messages=1000), target)
        generator.connect(10.0)
        try:
            outcome = generator.run(1.0)
        finally:
            generator.close()
    assert outcome.end == "disconnected"
    assert outcome.received < 1000
