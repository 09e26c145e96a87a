"""What `tidemq pub` and `tidemq sub` share: mosquitto_pub's names of options, errors and exit codes."""

from __future__ import annotations

import os
import ssl
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from tidemq.cli.blocking_connection import Connection, Server, ServerRefusedError
from tidemq.cli.exit_codes import EXIT_FAILED
from tidemq.cli.property_flags import parse_properties
from tidemq.errors import TideMQError, UsageError
from tidemq.wire import Connect, Packet, Properties, Will, encode

if TYPE_CHECKING:
    from tidemq.client import Authentication

EXIT_INTERRUPTED = 130  # by Ctrl-C, as shells have it
VERSIONS = {"mqttv31": 3, "31": 3, "mqttv311": 4, "311": 4, "mqttv5": 5, "5": 5}
TLS_VERSIONS = {"tlsv1.2": ssl.TLSVersion.TLSv1_2, "tlsv1.3": ssl.TLSVersion.TLSv1_3}
NEVER_EXPIRES_S = 0xFFFFFFFF

Host = Annotated[str | None, typer.Option("-h", "--host", help="Server to connect to. [default: localhost]")]
Port = Annotated[int | None, typer.Option("-p", "--port", help="Its port. [default: 1883, with TLS 8883]")]
Url = Annotated[
    str | None,
    typer.Option(
        "-L", "--url", help="Server, user and topic in one: mqtt[s]://[USER[:PASSWORD]@]HOST[:PORT]/TOPIC."
    ),
]
Unix = Annotated[Path | None, typer.Option("--unix", metavar="FILE", help="The server's Unix socket.")]
Bind = Annotated[str | None, typer.Option("-A", metavar="ADDRESS", help="Local address to connect from.")]
ClientId = Annotated[str, typer.Option("-i", "--id", help="Client identifier; empty: the server chooses.")]
IdPrefix = Annotated[
    str, typer.Option("-I", "--id-prefix", help="Client identifier: this and the process id.")
]
NoDelay = Annotated[bool, typer.Option("--nodelay", help="Accepted; packets always leave at once.")]
Username = Annotated[str | None, typer.Option("-u", "--username", help="User name.")]
Password = Annotated[str | None, typer.Option("-P", "--pw", help="Password.")]
CaFile = Annotated[
    Path | None,
    typer.Option("--cafile", metavar="FILE", help="TLS: authorities that may sign the server's certificate."),
]
OsCerts = Annotated[
    bool, typer.Option("--tls-use-os-certs", help="TLS: the system's authorities are trusted.")
]
CaPath = Annotated[
    Path | None, typer.Option("--capath", metavar="DIR", help="TLS: trusted certificates, hashed by OpenSSL.")
]
TlsVersion = Annotated[str | None, typer.Option("--tls-version", help="TLS: at least tlsv1.2 or tlsv1.3.")]
Ciphers = Annotated[str | None, typer.Option("--ciphers", help="TLS 1.2: ciphers, as OpenSSL names them.")]
TlsAlpn = Annotated[str | None, typer.Option("--tls-alpn", help="TLS: protocol to offer by ALPN.")]
Cert = Annotated[Path | None, typer.Option("--cert", metavar="FILE", help="TLS: certificate to show.")]
Key = Annotated[Path | None, typer.Option("--key", metavar="FILE", help="TLS: its key.")]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="TLS: the certificate may be of another host. For tests only.")
]
Scram = Annotated[
    bool, typer.Option("--scram", help="Log in by SCRAM-SHA-256 (mqttv5): the password is not sent.")
]
Version = Annotated[str, typer.Option("-V", "--protocol-version", help="mqttv5, mqttv311 or mqttv31.")]
KeepAlive = Annotated[int, typer.Option("-k", "--keepalive", min=0, max=65535, help="Keep alive in seconds.")]
KeepSession = Annotated[
    bool, typer.Option("-c", "--disable-clean-session", help="Keep the session; needs -i.")
]
SessionExpiry = Annotated[
    int | None, typer.Option("-x", help="Session expiry in seconds, -1: never (mqttv5).")
]
Debug = Annotated[bool, typer.Option("-d", "--debug", help="Print the packets to stderr.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print no errors.")]
GivenProperties = Annotated[
    list[str],
    typer.Option(
        "-D",
        "--property",
        metavar="COMMAND NAME VALUE",
        help="A property (mqttv5): -D publish content-type text/plain, -D publish user-property NAME VALUE.",
    ),
]
WillTopic = Annotated[str | None, typer.Option("--will-topic", help="Topic of the will.")]
WillPayload = Annotated[str | None, typer.Option("--will-payload", help="Payload of the will.")]
WillQos = Annotated[int, typer.Option("--will-qos", min=0, max=2, help="QoS of the will.")]
WillRetain = Annotated[bool, typer.Option("--will-retain", help="Retain the will.")]
Qos = Annotated[int, typer.Option("-q", "--qos", min=0, max=2, help="Quality of service.")]


@dataclass(frozen=True, slots=True)
class Client:
    """A client as the options describe it."""

    server: Server
    connect: Connect
    properties: Mapping[str, Properties]  # by command
    debug: bool
    auth: Authentication | None = None
    tls: ssl.SSLContext | None = None

    def open(self) -> Connection:
        """Connects."""
        return Connection(self.server, self.connect, debug=self.debug, auth=self.auth, tls=self.tls)

    def check(self, packet: Packet) -> None:
        """UsageError when the packet could not be sent; cheaper to know before the server does."""
        encode(packet, self.connect.version)


def read_url(given: Mapping[str, Any]) -> tuple[dict[str, Any], str | None]:
    """The options with what `-L` says in their places, and its topic; UsageError for one that is none."""
    url = given["url"]
    if url is None:
        return dict(given), None
    scheme, separator, rest = url.partition("://")
    server, _, topic = rest.partition("/")
    if scheme not in ("mqtt", "mqtts") or not separator or not server or not topic:
        raise UsageError(f"-L {url!r}: accepted: mqtt[s]://[USER[:PASSWORD]@]HOST[:PORT]/TOPIC")
    names, _, address = server.rpartition("@")
    user, colon, password = names.partition(":")
    try:
        parts = urlsplit(f"//{address}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError(f"-L {url!r}: {error}") from error
    said = {
        "host": host,
        "port": port,
        "username": user or None,
        "password": password if colon else None,
        "os_certs": (scheme == "mqtts" and not (given["cafile"] or given["capath"])) or None,
    }
    for name, flag in (("host", "-h"), ("port", "-p"), ("username", "-u"), ("password", "-P")):
        if given[name] is not None and said[name] is not None:
            raise UsageError(f"-L and {flag} say the same")
    return {**given, **{name: value for name, value in said.items() if value is not None}}, topic


def make_client(given: Mapping[str, Any], commands: Sequence[str]) -> Client:
    """The client that a command's options describe; UsageError when they contradict each other."""
    if given["client_id"] and given["id_prefix"]:
        raise UsageError("give -i or -I, not both")
    if given["id_prefix"]:
        given = {**given, "client_id": f"{given['id_prefix']}{os.getpid()}"}
    if given["version"] not in VERSIONS:
        raise UsageError(
            f"protocol version {given['version']!r} is unknown; accepted: mqttv5, mqttv311, mqttv31"
        )
    version = VERSIONS[given["version"]]
    if given["keep_session"] and not given["client_id"]:
        raise UsageError("-c keeps a session, which needs a client identifier: give one with -i")
    if given["password"] is not None and given["username"] is None and version < 5:
        raise UsageError("a password needs a user name")
    if (given["properties"] or given["session_expiry"] is not None) and version < 5:
        raise UsageError("properties need -V mqttv5")
    auth = None
    if given["scram"]:
        if version < 5 or given["username"] is None or given["password"] is None:
            raise UsageError("--scram needs -V mqttv5, a user name and a password")
        auth = _make_scram(given["username"], os.fsencode(given["password"]))
    properties = parse_properties(given["properties"], ("connect", "will", *commands))
    connect = Connect(
        version=version,
        # MQTT 3.1 knows no empty one
        client_id=given["client_id"] or (f"tidemq-{os.getpid()}" if version == 3 else ""),
        clean_start=not given["keep_session"],
        keep_alive_s=given["keep_alive"],
        will=_make_will(given, properties["will"]),
        username=given["username"],
        password=None if given["password"] is None or auth else os.fsencode(given["password"]),
        properties=_connect_properties(given, version, properties["connect"]),
    )
    tls = _make_tls(given)
    return Client(_make_server(given, tls), connect, properties, given["debug"], auth, tls)


def _make_server(given: Mapping[str, Any], tls: ssl.SSLContext | None) -> Server:
    if given["unix"] is not None:
        if given["host"] is not None or given["port"] is not None or given["bind"] is not None:
            raise UsageError("--unix takes the place of -h, -p and -A")
        return Server("localhost", 0, path=given["unix"])
    port = given["port"]
    if port is None:
        port = 8883 if tls else 1883
    return Server(given["host"] or "localhost", port, bind=given["bind"])


def _make_tls(given: Mapping[str, Any]) -> ssl.SSLContext | None:
    cafile, capath, cert, key = given["cafile"], given["capath"], given["cert"], given["key"]
    if cafile is None and capath is None and not given["os_certs"]:
        if any(given[name] for name in ("cert", "key", "insecure", "tls_version", "ciphers", "tls_alpn")):
            raise UsageError("TLS needs --cafile FILE, --capath DIR or --tls-use-os-certs")
        return None
    if key and not cert:
        raise UsageError("a key needs its certificate: --cert FILE")
    try:
        context = ssl.create_default_context(cafile=cafile, capath=capath)
        if cert:
            context.load_cert_chain(cert, key)
        if given["ciphers"]:
            context.set_ciphers(given["ciphers"])
    except (OSError, ssl.SSLError) as error:
        named = ", ".join(str(each) for each in (cafile, capath, cert, key, given["ciphers"]) if each)
        raise UsageError(f"{named}: no certificates, key or ciphers that fit: {error}") from error
    context.check_hostname = not given["insecure"]
    if given["tls_version"]:
        if given["tls_version"] not in TLS_VERSIONS:
            accepted = ", ".join(TLS_VERSIONS)
            raise UsageError(f"TLS version {given['tls_version']!r} is unknown; accepted: {accepted}")
        context.minimum_version = TLS_VERSIONS[given["tls_version"]]
    if given["tls_alpn"]:
        context.set_alpn_protocols([given["tls_alpn"]])
    return context


def _make_scram(username: str, password: bytes) -> Authentication:
    from tidemq.client import Scram  # late: others do without, and start sooner

    return Scram(username, password)


def _make_will(given: Mapping[str, Any], properties: Properties) -> Will | None:
    if given["will_topic"] is None:
        if given["will_payload"] is not None or given["will_qos"] or given["will_retain"]:
            raise UsageError("a will needs --will-topic")
        return None
    return Will(
        topic=given["will_topic"],
        payload=os.fsencode(given["will_payload"] or ""),
        qos=given["will_qos"],
        retain=given["will_retain"],
        properties=properties,
    )


def _connect_properties(given: Mapping[str, Any], version: int, properties: Properties) -> Properties:
    expiry_s = given["session_expiry"]
    if expiry_s is None and given["keep_session"] and properties.session_expiry_s is None:
        expiry_s = NEVER_EXPIRES_S
    if version < 5 or expiry_s is None:
        return properties
    return replace(properties, session_expiry_s=NEVER_EXPIRES_S if expiry_s == -1 else expiry_s)


def run(command: Callable[[], int], *, quiet: bool, interrupted: int = EXIT_INTERRUPTED) -> int:
    """Gives the command's exit code; an error becomes one line on stderr and mosquitto's code for it."""
    try:
        return command()
    except KeyboardInterrupt:
        return interrupted
    except ServerRefusedError as error:
        text, code = str(error), error.code
    except TideMQError as error:
        text, code = f"Error: {error}", EXIT_FAILED
    except OSError as error:
        text, code = f"Error: {error.strerror or error}", EXIT_FAILED
    if not quiet:
        print(text, file=sys.stderr)
    return code
