"""The server's TLS against Python's, in memory: versions, names, protocols, certificates, tickets."""

from __future__ import annotations

import datetime
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from tidemq.errors import UsageError
from tidemq.net.server_tls import ServerTls
from tidemq.net.server_upgrade import WebSocketTerms
from tidemq.net.tls import TlsContext
from tidemq.net.transport import Scheme, ServerScheme, Stream

AUTHORITY = trustme.CA()
CLIENTS = trustme.CA(organization_name="Clients")
NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ca.pem, clients.pem, localhost.pem, example.pem, wild.pem: certificates with their keys."""
    folder = tmp_path_factory.mktemp("tls")
    AUTHORITY.cert_pem.write_to_path(folder / "ca.pem")
    CLIENTS.cert_pem.write_to_path(folder / "clients.pem")
    for name, hosts in {
        "localhost": ["localhost"],
        "example": ["example.org"],
        "wild": ["*.example.org", "b\u00fccher.example"],
    }.items():
        issued = AUTHORITY.issue_cert(*hosts)
        issued.private_key_and_cert_chain_pem.write_to_path(folder / f"{name}.pem")
    return folder


def serving(files: Path, **options: object) -> ServerScheme:
    return ServerScheme(tls=ServerTls(str(files / "localhost.pem"), **options))  # type: ignore[arg-type]


def client_context(files: Path, version: ssl.TLSVersion | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(files / "ca.pem"))
    if version is not None:
        context.minimum_version = context.maximum_version = version
    return context


class Client:
    """Python's TLS over memory, the client's side."""

    def __init__(
        self, context: ssl.SSLContext, host: str | None = "localhost", session: ssl.SSLSession | None = None
    ) -> None:
        self._from, self._to = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._from, self._to, server_hostname=host, session=session)
        self.heard = b""
        self.ended = False

    def take(self, data: bytes) -> None:
        self._from.write(data)
        if self.ended:
            return
        try:
            self.tls.do_handshake()
            while data := self.tls.read(65_536):
                self.heard += data
            self.ended = True
        except ssl.SSLWantReadError:
            pass

    def give(self) -> bytes:
        return self._to.read()


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


def talk(stream: Stream, client: Client, size: int = 1 << 20) -> bytes:
    """Pass bytes to and fro, cut into pieces, until neither has more; what the server received."""
    heard = b""
    client.take(b"")
    while True:
        out = client.give()
        for piece in pieces(out, size):
            heard += stream.receive(piece)
        back = stream.take_output()
        if not out and not back:
            return heard
        for piece in pieces(back, size):
            client.take(piece)


VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_tls_however_it_is_cut(files: Path, version: ssl.TLSVersion, size: int) -> None:
    stream, client = Stream(serving(files)), Client(client_context(files, version))
    assert (stream.step, stream.take_output()) == ("the TLS handshake", b"")
    talk(stream, client, size)
    assert (stream.open, client.tls.version()) == (True, version.name.replace("v1_", "v1."))
    message = bytes(range(256)) * 300  # several records
    client.tls.write(message)
    assert talk(stream, client, size) == message
    stream.send(message)
    talk(stream, client, size)
    assert client.heard == message
    stream.finish()
    talk(stream, client, size)
    assert client.ended
    client.tls.unwrap()
    talk(stream, client, size)
    assert (stream.over, stream.faulty, stream.text) == (True, False, "")


def test_bytes_of_mqtt_right_after_the_handshake(files: Path) -> None:
    """With the client's Finished, in one piece."""
    stream, client = Stream(serving(files)), Client(client_context(files, ssl.TLSVersion.TLSv1_3))
    client.take(b"")
    stream.receive(client.give())
    client.take(stream.take_output())
    client.tls.write(b"CONNECT")
    assert stream.receive(client.give()) == b"CONNECT"
    assert stream.open


def test_our_own_client(files: Path) -> None:
    near = Stream(Scheme(tls=TlsContext(cafile=str(files / "ca.pem")), server_name="localhost"))
    far = Stream(serving(files))
    near.connected()
    for _ in range(4):
        far.receive(near.take_output())
        near.receive(far.take_output())
    assert (near.open, far.open) == (True, True)
    near.send(b"to you")
    far.send(b"and back")
    assert far.receive(near.take_output()) == b"to you"
    assert near.receive(far.take_output()) == b"and back"


@pytest.mark.parametrize(
    ("least", "spoken"), [("1.2", ssl.TLSVersion.TLSv1_1), ("1.3", ssl.TLSVersion.TLSv1_2)]
)
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated")
def test_versions_that_are_too_old(files: Path, least: str, spoken: ssl.TLSVersion) -> None:
    context = client_context(files)
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    context.maximum_version = spoken
    context.set_ciphers("ALL:@SECLEVEL=0")
    stream = Stream(serving(files, version_min=least))
    with pytest.raises(ssl.SSLError, match="ALERT_PROTOCOL_VERSION"):
        talk(stream, Client(context))
    assert stream.text == "TLS failed: unsupported protocol"


def test_a_key_that_is_stolen_later_reads_nothing(files: Path) -> None:
    """No cipher without forward secrecy."""
    context = client_context(files, ssl.TLSVersion.TLSv1_2)
    context.set_ciphers("kRSA")
    with pytest.raises(ssl.SSLError, match="HANDSHAKE_FAILURE"):
        talk(Stream(serving(files)), Client(context))


@pytest.mark.parametrize("garbage", [b"\x10\x20\x00\x04MQTT\x05\x02", b"GET / HTTP/1.1\r\n\r\n", bytes(40)])
def test_what_is_no_tls(files: Path, garbage: bytes) -> None:
    stream = Stream(serving(files))
    assert stream.receive(garbage) == b""
    assert stream.faulty
    assert stream.text.startswith("TLS failed: ")
    assert stream.receive(b"more") == b""


@pytest.mark.parametrize(
    ("version", "key", "said"), [("-tls1_2", "R", "RENEGOTIATING"), ("-tls1_3", "K", "KEYUPDATE")]
)
def test_renegotiation_and_new_keys(
    files: Path, install: Callable[[str, str], None], version: str, key: str, said: str
) -> None:
    """Python's TLS cannot ask for them; OpenSSL's own client does, at an R or a K. The first is not done."""
    install("openssl", "openssl")
    heard, stream = b"", Stream(serving(files))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        command = ["openssl", "s_client", version, "-connect", address]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        with subprocess.Popen(command, text=True, **pipes) as client:  # type: ignore[call-overload]
            assert client.stdin
            assert client.stdout
            asked = False
            with listener.accept()[0] as connection:
                while data := connection.recv(65_536):
                    heard += stream.receive(data)
                    connection.sendall(stream.take_output())
                    if stream.open and not asked:
                        asked = True
                        client.stdin.write(key + "\n")
                        client.stdin.flush()
                        assert any(said in line for line in client.stdout)  # it reads a line at a time then
                        with suppress(BrokenPipeError):
                            client.stdin.write("hello\n")
                            client.stdin.close()
            output = client.stdout.read()
    if key == "K":
        assert (heard, stream.over, stream.faulty) == (b"hello\n", True, False)
    else:
        assert (heard, stream.faulty, "no renegotiation" in output) == (b"", True, True)


# -------------------------------------------------------------------- server names


def naming(files: Path) -> ServerScheme:
    names = {"wild": ["*.example.org", "b\u00fccher.example"], "example": ["Example.org", "www.example.org"]}
    return serving(files, others=[(hosts, str(files / f"{name}.pem"), "") for name, hosts in names.items()])


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("asked", "shown"),
    [
        ("example.org", "example.org"),
        ("EXAMPLE.org", "example.org"),
        ("www.example.org", "example.org"),  # an exact name before a wildcard
        ("a.example.org", "*.example.org"),
        ("a.b.example.org", "localhost"),
        ("xn--bcher-kva.example", "*.example.org"),
        ("other.org", "localhost"),
        (None, "localhost"),
    ],
)
def test_the_certificate_of_the_name_that_is_asked_for(
    files: Path, version: ssl.TLSVersion, asked: str | None, shown: str
) -> None:
    context = client_context(files, version)
    context.check_hostname = False
    client = Client(context, asked)
    stream = Stream(naming(files))
    talk(stream, client)
    assert stream.open
    found = client.tls.getpeercert()
    assert found is not None
    assert found["subjectAltName"][0][1] == shown


def test_the_certificate_s_rules_are_the_same_for_all_names(files: Path) -> None:
    """A client is asked for its certificate, and ALPN holds, whatever it is shown."""
    others = [(["example.org"], str(files / "example.pem"), "")]
    scheme = serving(
        files, others=others, client_ca=str(files / "clients.pem"), client_cert="required", version_min="1.3"
    )
    stream, context = Stream(scheme), client_context(files)
    talk_until_refused(stream, Client(context, "example.org"))
    assert stream.text == "TLS failed: peer did not return a certificate"
    context.set_alpn_protocols(["h2"])
    stream = Stream(scheme)
    talk_until_refused(stream, Client(context, "example.org"))
    assert stream.text == "TLS failed: no application protocol"
    context = client_context(files)
    CLIENTS.issue_cert("device").configure_cert(context)
    stream = Stream(scheme)
    talk(stream, Client(context, "example.org"))
    assert stream.open


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["a..b"], "cannot be a server's name"),
        (["*.*.org"], "cannot be a server's name"),
        (["a b"], "cannot be a server's name"),
        (["*"], "cannot be a server's name"),
        ([""], "cannot be a server's name"),
        (["a.org", "A.org"], "the server name A.org has two certificates"),
    ],
)
def test_names_that_cannot_be(files: Path, names: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        serving(files, others=[(names, str(files / "example.pem"), "")])


# -------------------------------------------------------------------- ALPN


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("websocket", "offered", "chosen"),
    [
        (False, ["mqtt"], "mqtt"),
        (False, ["x-amzn-mqtt-ca", "mqtt"], "mqtt"),
        (False, [], None),
        (False, ["http/1.1"], "refused"),
        (False, ["mqttx", "mqt"], "refused"),
        (True, ["h2", "http/1.1"], "http/1.1"),
        (True, ["mqtt"], "refused"),
    ],
)
def test_protocols(
    files: Path, version: ssl.TLSVersion, websocket: bool, offered: list[str], chosen: str | None
) -> None:
    tls = ServerTls(str(files / "localhost.pem"), "")
    stream = Stream(ServerScheme(tls=tls, websocket=WebSocketTerms() if websocket else None))
    context = client_context(files, version)
    if offered:
        context.set_alpn_protocols(offered)
    client = Client(context)
    if chosen == "refused":
        with pytest.raises(ssl.SSLError, match="alert no application protocol"):
            talk(stream, client)
        assert stream.text == "TLS failed: no application protocol"
    else:
        talk(stream, client)
        assert client.tls.selected_alpn_protocol() == chosen


# -------------------------------------------------------------------- clients' certificates


def talk_until_refused(stream: Stream, client: Client) -> None:
    """A refusal may reach the client as an alert, which it raises."""
    with suppress(ssl.SSLError):
        talk(stream, client)
    assert stream.faulty


def der_of(certificate: trustme.LeafCert) -> bytes:
    return ssl.PEM_cert_to_DER_cert(certificate.cert_chain_pems[0].bytes().decode())


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("wanted", ["optional", "required"])
def test_a_client_s_certificate(files: Path, version: ssl.TLSVersion, wanted: str) -> None:
    mine = CLIENTS.issue_cert("device-7", common_name="device-7")
    context = client_context(files, version)
    mine.configure_cert(context)
    stream = Stream(serving(files, client_ca=str(files / "clients.pem"), client_cert=wanted))
    assert stream.certificate is None
    talk(stream, Client(context))
    assert (stream.open, stream.certificate) == (True, der_of(mine))  # type: ignore[comparison-overlap]


def test_a_client_s_certificate_through_an_authority_between(files: Path) -> None:
    mine = CLIENTS.create_child_ca().issue_cert("device-8")
    context = client_context(files)
    mine.configure_cert(context)
    stream = Stream(serving(files, client_ca=str(files / "clients.pem"), client_cert="required"))
    talk(stream, Client(context))
    assert stream.certificate == der_of(mine)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_client_without_a_certificate(files: Path, version: ssl.TLSVersion) -> None:
    clients = str(files / "clients.pem")
    stream = Stream(serving(files, client_ca=clients, client_cert="optional"))
    talk(stream, Client(client_context(files, version)))
    assert (stream.open, stream.certificate) == (True, None)
    stream = Stream(serving(files, client_ca=clients, client_cert="required"))
    talk_until_refused(stream, Client(client_context(files, version)))
    assert stream.text == "TLS failed: peer did not return a certificate"


def test_a_certificate_that_is_not_asked_for(files: Path) -> None:
    context = client_context(files)
    CLIENTS.issue_cert("device").configure_cert(context)
    stream = Stream(serving(files))
    talk(stream, Client(context))
    assert (stream.open, stream.certificate) == (True, None)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("wanted", ["optional", "required"])
@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: trustme.CA().issue_cert("device"), "unable to get local issuer certificate"),
        (lambda: CLIENTS.issue_cert("device", not_after=NOW - DAY), "certificate has expired"),
        (lambda: CLIENTS.issue_cert("device", not_before=NOW + DAY), "certificate is not yet valid"),
    ],
)
def test_a_client_s_certificate_that_is_not_accepted(
    files: Path, version: ssl.TLSVersion, wanted: str, made: Callable[[], trustme.LeafCert], said: str
) -> None:
    context = client_context(files, version)
    made().configure_cert(context)
    stream = Stream(serving(files, client_ca=str(files / "clients.pem"), client_cert=wanted))
    talk_until_refused(stream, Client(context))
    assert stream.text == f"the client's certificate is not accepted: {said}"
    assert stream.certificate is None


# -------------------------------------------------------------------- revocation


def key_of(authority: trustme.CA) -> object:
    return serialization.load_pem_private_key(authority.private_key_pem.bytes(), None)


def revocations(
    authority: trustme.CA, *revoked: trustme.LeafCert, until: datetime.datetime = NOW + DAY
) -> bytes:
    certificate = x509.load_pem_x509_certificate(authority.cert_pem.bytes())
    builder = x509.CertificateRevocationListBuilder(issuer_name=certificate.subject)
    builder = builder.last_update(NOW - 2 * DAY).next_update(until)
    for each in revoked:
        serial = x509.load_der_x509_certificate(der_of(each)).serial_number
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(NOW - DAY)
        builder = builder.add_revoked_certificate(entry.build())
    signed = builder.sign(key_of(authority), hashes.SHA256())  # type: ignore[arg-type]
    return signed.public_bytes(serialization.Encoding.PEM)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("host", ["localhost", "example.org"])
def test_revoked_certificates(files: Path, tmp_path: Path, version: ssl.TLSVersion, host: str) -> None:
    between = CLIENTS.create_child_ca()
    good, bad, missing = CLIENTS.issue_cert("good"), CLIENTS.issue_cert("bad"), between.issue_cert("a")
    crl, old = tmp_path / "crl.pem", tmp_path / "old.pem"
    crl.write_bytes(revocations(CLIENTS, bad))
    old.write_bytes(revocations(CLIENTS, until=NOW - DAY))
    both = tmp_path / "both.pem"
    both.write_bytes(crl.read_bytes() + revocations(between))
    cases = [
        (good, crl, ""),
        (bad, crl, "certificate revoked"),
        (good, old, "CRL has expired"),
        (missing, crl, "unable to get certificate CRL"),
        (missing, both, ""),
    ]
    for certificate, lists, said in cases:
        context = client_context(files, version)
        certificate.configure_cert(context)
        rules = {"client_ca": str(files / "clients.pem"), "client_cert": "required", "crl": str(lists)}
        others = [(["example.org"], str(files / "example.pem"), "")]
        stream = Stream(serving(files, others=others, **rules))
        client = Client(context, host)
        if said:
            talk_until_refused(stream, client)
            assert stream.text == f"the client's certificate is not accepted: {said}"
        else:
            talk(stream, client)
            assert stream.open, stream.text


# -------------------------------------------------------------------- tickets


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("wanted", ["none", "required"])
def test_a_session_is_resumed_but_not_at_another(files: Path, version: ssl.TLSVersion, wanted: str) -> None:
    client_ca = "" if wanted == "none" else str(files / "clients.pem")
    mine = CLIENTS.issue_cert("device")
    context = client_context(files, version)
    mine.configure_cert(context)
    first, second = (serving(files, client_ca=client_ca, client_cert=wanted) for _ in range(2))

    def session(scheme: ServerScheme, before: ssl.SSLSession | None) -> tuple[bool | None, ssl.SSLSession]:
        stream, client = Stream(scheme), Client(context, session=before)
        talk(stream, client)
        assert stream.open
        assert stream.certificate == (None if wanted == "none" else der_of(mine))
        assert client.tls.session is not None
        return client.tls.session_reused, client.tls.session

    reused, ticket = session(first, None)
    assert reused is False
    reused, ticket = session(first, ticket)
    assert reused is True
    # keys of another object, and of the same files made anew: who was revoked does not come back
    assert session(second, ticket)[0] is False


def test_a_connection_outlives_what_it_was_made_by(files: Path) -> None:
    scheme: ServerScheme | None = naming(files)
    context = client_context(files, ssl.TLSVersion.TLSv1_3)
    assert scheme is not None
    stream, client = Stream(scheme), Client(context, "example.org")
    talk(stream, client)
    scheme = None  # and what the callbacks of the handshake look at
    naming(files)
    client.tls.write(b"still there")
    assert talk(stream, client) == b"still there"


def test_handshakes_at_the_same_time(files: Path) -> None:
    """Of one listener, in several threads; some of them resume a session."""
    scheme, opened = naming(files), []

    def shake() -> None:
        context, session = client_context(files), None
        for number in range(20):
            host = ("localhost", "example.org")[number % 2]
            stream, client = Stream(scheme), Client(context, host, session if number % 3 else None)
            talk(stream, client)
            opened.append(stream.open)
            session = client.tls.session

    threads = [threading.Thread(target=shake) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert opened == [True] * 80


# -------------------------------------------------------------------- files


def test_files_that_cannot_be_used(files: Path, tmp_path: Path) -> None:
    mine = AUTHORITY.issue_cert("localhost")
    other = AUTHORITY.issue_cert("localhost", key_type=trustme.KeyType.RSA)  # ours is of another kind
    cert, key, foreign, locked = (tmp_path / name for name in ("cert", "key", "foreign", "locked"))
    mine.cert_chain_pems[0].write_to_path(cert)
    mine.private_key_pem.write_to_path(key)
    other.private_key_pem.write_to_path(foreign)
    loaded = serialization.load_pem_private_key(mine.private_key_pem.bytes(), None)
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
    locked.write_bytes(loaded.private_bytes(*form, serialization.BestAvailableEncryption(b"secret")))
    ServerTls(str(cert), str(key))
    clients = str(files / "clients.pem")
    wrong: dict[str, dict[str, object]] = {
        "nothing cannot be read: no such file": {"cert": str(tmp_path / "nothing")},
        "cannot be read: is a directory": {"key": str(tmp_path)},
        "key holds no certificate:": {"cert": str(key)},
        "cert holds no private key": {"key": ""},
        "foreign holds no private key for the certificate in": {"key": str(foreign)},
        "locked is encrypted: it must be without a password": {"key": str(locked)},
        "holds no certificates of authorities": {"client_ca": str(key), "client_cert": "required"},
        "holds no certificate revocation list": {
            "client_ca": clients,
            "client_cert": "required",
            "crl": clients,
        },
        "client_cert and client_ca need each other": {"client_cert": "required"},
        "crl needs client_ca": {"crl": clients},
        "client_cert is none, optional or required, not 'some'": {"client_cert": "some"},
        "TLS begins with 1.2 or 1.3, not '1.1'": {"version_min": "1.1"},
    }
    for said, options in wrong.items():
        with pytest.raises(UsageError, match=said):
            ServerTls(**{"cert": str(cert), "key": str(key), **options})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="client_cert and client_ca need each other"):
        ServerTls(str(cert), str(key), client_ca=clients)
