"""TLS and WebSocket as bytes: against Python's own TLS and another WebSocket, however the bytes are cut."""

from __future__ import annotations

import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme
from websockets.frames import Frame
from websockets.http11 import Request
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from tidemq.errors import UsageError
from tidemq.net import buffer
from tidemq.net.tls import TlsContext
from tidemq.net.transport import Scheme, Stream

AUTHORITY = trustme.CA()
MINE = AUTHORITY.issue_cert("localhost", "127.0.0.1")


@pytest.fixture(scope="module")
def cafile(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("net") / "ca.pem"
    AUTHORITY.cert_pem.write_to_path(path)
    return str(path)


def server_context(version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    MINE.configure_cert(context)
    context.minimum_version = context.maximum_version = version
    return context


class TlsServer:
    """Python's TLS over memory: sends back what it is sent, or what `reply` makes of it."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._from, self._to = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._from, self._to, server_side=True)

    def take(self, data: bytes, reply: Callable[[bytes], bytes] = bytes) -> bytes:
        """The answer to bytes of the client."""
        self._from.write(data)
        try:
            self.tls.do_handshake()
            while data := self.tls.read(65_536):
                self.tls.write(reply(data))
            self.tls.unwrap()  # the client has ended it
        except ssl.SSLWantReadError:
            pass
        return self._to.read()


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


def talk(stream: Stream, server: TlsServer | WebSocketServer | Layers, size: int = 1 << 20) -> bytes:
    """Pass bytes to and fro, cut into pieces, until neither has more; what the stream received."""
    heard = b""
    while out := stream.take_output():
        for piece in pieces(out, size):
            for answer in pieces(server.take(piece), size):
                heard += stream.receive(answer)
    return heard


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_tls_however_it_is_cut(cafile: str, version: ssl.TLSVersion, size: int) -> None:
    server = TlsServer(server_context(version))
    stream = Stream(Scheme(tls=TlsContext(cafile=cafile), server_name="localhost"))
    stream.connected()
    assert not stream.open
    talk(stream, server, size)
    assert (stream.open, server.tls.version()) == (True, version.name.replace("v1_", "v1."))
    message = bytes(range(256)) * 300  # several records
    stream.send(message)
    assert talk(stream, server, size) == message
    stream.finish()
    talk(stream, server, size)
    assert stream.over
    assert not stream.faulty


class WebSocketServer:
    """Another WebSocket over memory: sends back what it is sent, each message in fragments, after a ping."""

    def __init__(self) -> None:
        self.protocol = ServerProtocol(subprotocols=[Subprotocol("mqtt")])

    def take(self, data: bytes) -> bytes:
        protocol = self.protocol
        protocol.receive_data(data)
        for event in protocol.events_received():
            if isinstance(event, Request):
                protocol.send_response(protocol.accept(event))
            elif isinstance(event, Frame) and event.opcode == event.opcode.BINARY:
                protocol.send_ping(b"there?")
                protocol.send_binary(event.data[:5], fin=False)
                protocol.send_ping(b"")
                protocol.send_continuation(event.data[5:], fin=True)
        return b"".join(protocol.data_to_send())


class Layers:
    """WebSocket over TLS."""

    def __init__(self) -> None:
        self.inner = WebSocketServer()
        self.outer = TlsServer(server_context())

    def take(self, data: bytes) -> bytes:
        return self.outer.take(data, self.inner.take)


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
@pytest.mark.parametrize("secure", [False, True])
def test_websocket_however_it_is_cut(cafile: str, secure: bool, size: int) -> None:
    server: WebSocketServer | Layers = Layers() if secure else WebSocketServer()
    tls = TlsContext(cafile=cafile) if secure else None
    stream = Stream(Scheme(tls=tls, server_name="localhost", host="localhost", resource="/mqtt"))
    stream.connected()
    talk(stream, server, size)
    assert stream.open
    message = bytes(range(256)) * (10 if size == 1 else 300)
    for part in (message[:1000], message[1000:]):  # two messages in one piece
        stream.send(part)
    assert talk(stream, server, size) == message
    stream.finish()
    talk(stream, server, size)
    assert stream.over
    assert not stream.faulty
    assert "code 1000" in stream.text


# -------------------------------------------------------------------- what is refused


def connecting(**options: object) -> Stream:
    stream = Stream(Scheme(**{"server_name": "localhost", **options}))  # type: ignore[arg-type]
    stream.connected()
    return stream


@pytest.mark.parametrize(
    ("server_name", "said"),
    [
        ("localhost", ""),
        ("127.0.0.1", ""),
        ("otherhost", "certificate is not accepted: hostname mismatch"),
        ("127.0.0.2", "certificate is not accepted: IP address mismatch"),
    ],
)
def test_the_name_in_the_certificate(cafile: str, server_name: str, said: str) -> None:
    stream = connecting(tls=TlsContext(cafile=cafile), server_name=server_name)
    talk_to_its_end(stream)
    assert stream.open is not bool(said)
    assert said in stream.text


@pytest.mark.parametrize("name", ["", "x" * 300])
def test_what_is_no_name_of_a_server(name: str) -> None:
    with pytest.raises(UsageError, match="cannot be a server's name"):
        Stream(Scheme(tls=TlsContext(), server_name=name))


def talk_to_its_end(stream: Stream) -> None:
    try:
        talk(stream, TlsServer(server_context()))
    except ssl.SSLError:  # of the server, which is refused
        assert stream.faulty


def test_a_certificate_of_nobody_known() -> None:
    stream = connecting(tls=TlsContext())
    talk_to_its_end(stream)
    assert "certificate is not accepted: unable to get local issuer certificate" in stream.text
    stream = connecting(tls=TlsContext(insecure=True), server_name="otherhost")
    talk(stream, TlsServer(server_context()))
    assert stream.open


def test_less_than_tls_1_2_is_not_spoken(cafile: str) -> None:
    with pytest.warns(DeprecationWarning, match="TLSv1_1 is deprecated"):
        context = server_context(ssl.TLSVersion.TLSv1_1)
    context.set_ciphers("ALL:@SECLEVEL=0")
    stream = connecting(tls=TlsContext(cafile=cafile))
    with pytest.raises(ssl.SSLError, match="UNSUPPORTED_PROTOCOL"):
        talk(stream, TlsServer(context))


def test_what_is_no_tls(cafile: str) -> None:
    stream = connecting(tls=TlsContext(cafile=cafile))
    assert stream.step == "the TLS handshake"
    assert "closed the connection during the TLS handshake" in stream.text  # if it did now
    assert stream.receive(b"HTTP/1.1 400 Bad Request\r\n\r\n") == b""
    assert stream.faulty
    assert stream.text == "TLS failed: wrong version number"
    assert stream.receive(b"more") == b""


def test_a_record_that_was_changed(cafile: str) -> None:
    stream, server = connecting(tls=TlsContext(cafile=cafile)), TlsServer(server_context())
    talk(stream, server)
    stream.send(b"x" * 100)
    answer = bytearray(server.take(stream.take_output()))
    answer[-1] ^= 1
    assert stream.receive(bytes(answer)) == b""
    assert stream.faulty
    assert "TLS failed: decryption failed or bad record mac" in stream.text


ACCEPTED = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: WebSocket\r\nCONNECTION:  upgrade\t\r\n"


@pytest.mark.parametrize(
    ("response", "said"),
    [
        (b"\x20\x02\x00\x05 MQTT", "does not speak HTTP"),
        (b"HTTP/1.1 1x1 \r\n\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 404 Not Found\r\n\r\n", "no WebSocket is there: HTTP status 404 (not found)"),
        (b"HTTP/1.1 999 \r\nA: b\r\n\r\n", "no WebSocket is there: HTTP status 999"),
        (b"HTTP/1.1 101 \r\n\r\n", "Sec-WebSocket-Accept"),
        (ACCEPTED + b"Sec-WebSocket-Accept: " + b"x" * 28 + b"\r\n\r\n", "Sec-WebSocket-Accept"),
        (b"HTTP/1.1 101 " + b"x" * 9000, "does not speak HTTP"),
    ],
)
@pytest.mark.parametrize("size", [1, 1 << 20])
def test_answers_that_make_no_websocket(response: bytes, said: str, size: int) -> None:
    stream = connecting(host="h", resource="/")
    for piece in pieces(response, size):
        stream.receive(piece)
    assert stream.faulty
    assert said in stream.text


def test_a_websocket_of_something_else() -> None:
    stream = connecting(host="h:80", resource="/there")
    lines = stream.take_output().decode().split("\r\n")
    assert lines[:2] == ["GET /there HTTP/1.1", "Host: h:80"]
    assert "Sec-WebSocket-Protocol: mqtt" in lines
    server = ServerProtocol()  # agrees to no subprotocol
    server.receive_data("\r\n".join(lines).encode())
    (request,) = server.events_received()
    assert isinstance(request, Request)
    server.send_response(server.accept(request))
    stream.receive(b"".join(server.data_to_send()))
    assert "does not speak MQTT (no subprotocol mqtt)" in stream.text


@pytest.mark.parametrize(("connection", "taken"), [("keep-alive, Upgrade", True), ("keep-alive", False)])
def test_upgrade_may_stand_among_other_options(connection: str, taken: bool) -> None:
    """RFC 6455 section 4.1: Connection has the token, whatever else it lists."""
    stream = connecting(host="h", resource="/")
    server = ServerProtocol(subprotocols=[Subprotocol("mqtt")])
    server.receive_data(stream.take_output())
    (request,) = server.events_received()
    assert isinstance(request, Request)
    server.send_response(server.accept(request))
    answer = b"".join(server.data_to_send())
    assert b"Connection: Upgrade\r\n" in answer
    stream.receive(answer.replace(b"Connection: Upgrade", f"Connection: {connection}".encode()))
    assert (stream.open, stream.faulty) == (taken, not taken)


def test_text_ends_it_with_a_close() -> None:
    stream = connecting(host="h", resource="/")
    server = WebSocketServer()
    talk(stream, server)
    stream.receive(b"\x81\x01x")
    assert stream.text == ("the server breaks the WebSocket protocol: text, where MQTT has binary messages")
    server.take(stream.take_output())
    assert server.protocol.close_rcvd is not None
    assert server.protocol.close_rcvd.code == 1003


# -------------------------------------------------------------------- files


def test_files_that_cannot_be_used(tmp_path: Path, cafile: str) -> None:
    key, other = tmp_path / "key.pem", tmp_path / "other.pem"
    MINE.private_key_pem.write_to_path(key)
    trustme.CA().issue_cert("a").private_key_and_cert_chain_pem.write_to_path(other)
    nothing = str(tmp_path / "nothing")
    cases = {
        "cannot be read: no such file": {"cafile": nothing},
        "cannot be read: is a directory": {"cert": str(tmp_path)},
        "holds no certificates of authorities": {"cafile": str(key)},
        "holds no certificate:": {"cert": str(key)},
        "holds no private key": {"cert": cafile},
        "holds no private key for the certificate in .*: key values mismatch": {
            "cert": str(other),
            "key": str(key),
        },
        "a key needs its certificate": {"key": str(key)},
    }
    for said, files in cases.items():
        with pytest.raises(UsageError, match=said):
            TlsContext(**files)  # type: ignore[arg-type]


def test_an_encrypted_key_is_not_asked_about(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    loaded = serialization.load_pem_private_key(MINE.private_key_pem.bytes(), None)
    encryption = serialization.BestAvailableEncryption(b"secret")
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
    path = tmp_path / "client.pem"
    path.write_bytes(loaded.private_bytes(*form, encryption) + MINE.cert_chain_pems[0].bytes())
    with pytest.raises(UsageError, match="is encrypted: it must be without a password"):
        TlsContext(cert=str(path))


NOWHERE = ["/no/such/library", str(buffer.__file__)]


@pytest.mark.parametrize(
    ("names", "call", "said"),
    [
        (["libssl.so.3"], "TlsContext()", "made"),  # where Python's own is no library
        (["libssl.so.3"], "WebSocketTerms()", "made"),
        (NOWHERE, "TlsContext()", "TLS needs OpenSSL 3, and there is no libssl.so.3"),
        (NOWHERE, "ServerTls('cert.pem')", "TLS needs OpenSSL 3, and there is no libssl.so.3"),
        (NOWHERE, "WebSocketTerms()", "WebSocket needs OpenSSL 3, and there is no libssl.so.3"),
    ],
)
def test_where_openssl_is_looked_for(names: list[str], call: str, said: str) -> None:
    """In a process of its own: it is found once a process."""
    program = f"""
from tidemq.errors import UsageError
from tidemq.net import tls
from tidemq.net.server_tls import ServerTls
from tidemq.net.server_upgrade import WebSocketTerms
from tidemq.net.tls import TlsContext
tls.library_names = lambda: {names!r}
try:
    {call}
    print("made")
except UsageError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said in done.stdout
