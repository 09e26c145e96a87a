"""What `tidemq pub` and `tidemq sub` share: mosquitto_pub's names of options, errors and exit codes."""

from __future__ import annotations

import os
import ssl
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemq.cli.connection import Connection, ServerRefusedError
from tidemq.cli.properties import parse_properties
from tidemq.errors import TideMQError, UsageError
from tidemq.wire import Connect, Packet, Properties, Will, encode

if TYPE_CHECKING:
    from tidemq.client import Authentication

EXIT_FAILED = 1
VERSIONS = {"mqttv31": 3, "31": 3, "mqttv311": 4, "311": 4, "mqttv5": 5, "5": 5}
NEVER_EXPIRES_S = 0xFFFFFFFF

Host = Annotated[str, typer.Option("-h", "--host", help="Server to connect to.")]
Port = Annotated[int, typer.Option("-p", "--port", help="Its port.")]
ClientId = Annotated[str, typer.Option("-i", "--id", help="Client identifier; empty: the server chooses.")]
Username = Annotated[str | None, typer.Option("-u", "--username", help="User name.")]
Password = Annotated[str | None, typer.Option("-P", "--pw", help="Password.")]
CaFile = Annotated[
    Path | None,
    typer.Option("--cafile", metavar="FILE", help="TLS: authorities that may sign the server's certificate."),
]
OsCerts = Annotated[
    bool, typer.Option("--tls-use-os-certs", help="TLS: the system's authorities are trusted.")
]
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

    host: str
    port: int
    connect: Connect
    properties: Mapping[str, Properties]  # by command
    debug: bool
    auth: Authentication | None = None
    tls: ssl.SSLContext | None = None

    def open(self) -> Connection:
        """Connects."""
        return Connection(self.host, self.port, self.connect, debug=self.debug, auth=self.auth, tls=self.tls)

    def check(self, packet: Packet) -> None:
        """UsageError when the packet could not be sent; cheaper to know before the server does."""
        encode(packet, self.connect.version)


def make_client(given: Mapping[str, Any], commands: Sequence[str]) -> Client:
    """The client that a command's options describe; UsageError when they contradict each other."""
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
    return Client(given["host"], given["port"], connect, properties, given["debug"], auth, _make_tls(given))


def _make_tls(given: Mapping[str, Any]) -> ssl.SSLContext | None:
    cafile, cert, key = given["cafile"], given["cert"], given["key"]
    if cafile is None and not given["os_certs"]:
        if cert or key or given["insecure"]:
            raise UsageError("TLS needs --cafile FILE or --tls-use-os-certs")
        return None
    if key and not cert:
        raise UsageError("a key needs its certificate: --cert FILE")
    try:
        context = ssl.create_default_context(cafile=cafile)
        if cert:
            context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        named = ", ".join(str(each) for each in (cafile, cert, key) if each)
        raise UsageError(f"{named}: no certificates and key that fit, in PEM: {error}") from error
    context.check_hostname = not given["insecure"]
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


def run(command: Callable[[], int], *, quiet: bool) -> int:
    """Gives the command's exit code; an error becomes one line on stderr and mosquitto's code for it."""
    try:
        return command()
    except KeyboardInterrupt:
        return 0
    except ServerRefusedError as error:
        text, code = str(error), error.code
    except TideMQError as error:
        text, code = f"Error: {error}", EXIT_FAILED
    except OSError as error:
        text, code = f"Error: {error.strerror or error}", EXIT_FAILED
    if not quiet:
        print(text, file=sys.stderr)
    return code
