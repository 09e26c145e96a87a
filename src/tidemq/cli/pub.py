"""`tidemq pub`: publishes messages in mosquitto_pub's manner."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from tidemq.cli import options
from tidemq.cli.blocking_connection import Connection, reason_text
from tidemq.errors import UsageError
from tidemq.wire import Packet, Puback, Pubcomp, Publish, Pubrec, Pubrel

INFLIGHT_MAX = 20  # messages unacknowledged at a time; a 5.0 server may want fewer
READ_BYTES = 1 << 16


class Publisher:
    """Publishes messages that differ in their payload and keeps account of acknowledgements."""

    def __init__(self, connection: Connection, message: Publish, *, inflight_max: int, quiet: bool) -> None:
        self._connection = connection
        self._message = message
        self._quiet = quiet
        self._unacknowledged: set[int] = set()
        self._inflight_max = min(inflight_max, connection.connack.properties.receive_maximum or inflight_max)

    def publish(self, payload: bytes) -> None:
        """Sends one message; waits first while too many are unacknowledged."""
        self._wait_until(self._inflight_max - 1)
        packet_id = 0
        if self._message.qos:
            packet_id = self._connection.next_packet_id()
            self._unacknowledged.add(packet_id)
        self._connection.send(replace(self._message, payload=payload, packet_id=packet_id))

    def wait(self, wait_s: float) -> None:
        """Lets the time pass; acknowledgements are taken and pings sent meanwhile."""
        until_s = time.monotonic() + wait_s
        while (packet := self._connection.receive(until_s)) is not None:
            self._take(packet)

    def publish_lines(self, stdin: int) -> None:
        """Publishes each line of the file as it comes, without its end."""
        rest = b""
        while True:
            packet = self._connection.receive(stdin=stdin)
            if packet is not None:
                self._take(packet)
                continue
            data = os.read(stdin, READ_BYTES)
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self.publish(line)
            if not data:
                break
        if rest:
            self.publish(rest)

    def finish(self) -> None:
        """Waits for every acknowledgement."""
        self._wait_until(0)

    def _wait_until(self, unacknowledged_max: int) -> None:
        while len(self._unacknowledged) > unacknowledged_max:
            packet = self._connection.receive()
            assert packet is not None
            self._take(packet)

    def _take(self, packet: Packet) -> None:
        if isinstance(packet, Puback | Pubrec) and packet.reason >= 0x80:
            self._unacknowledged.discard(packet.packet_id)
            if not self._quiet:
                text = reason_text(packet.reason)
                print(f"Warning: Publish {packet.packet_id} failed: {text}.", file=sys.stderr)
        elif isinstance(packet, Puback | Pubcomp):
            self._unacknowledged.discard(packet.packet_id)
        elif isinstance(packet, Pubrec):
            self._connection.send(Pubrel(packet_id=packet.packet_id))


def pub(
    context: typer.Context,
    topic: Annotated[str | None, typer.Option("-t", "--topic", help="Topic to publish to.")] = None,
    message: Annotated[str | None, typer.Option("-m", "--message", help="The payload.")] = None,
    file: Annotated[Path | None, typer.Option("-f", "--file", help="Send this file as the payload.")] = None,
    lines: Annotated[
        bool, typer.Option("-l", "--stdin-line", help="Send each line of standard input.")
    ] = False,
    whole: Annotated[bool, typer.Option("-s", "--stdin-file", help="Send all of standard input.")] = False,
    null: Annotated[bool, typer.Option("-n", "--null-message", help="Send an empty payload.")] = False,
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="Number of times to send it.")] = 1,
    repeat_delay: Annotated[float, typer.Option(min=0, help="Seconds between them.")] = 0.0,
    max_inflight: Annotated[
        int, typer.Option("-M", "--max-inflight", min=1, max=65535, help="Unacknowledged messages at most.")
    ] = INFLIGHT_MAX,
    qos: options.Qos = 0,
    retain: Annotated[bool, typer.Option("-r", "--retain", help="Retain the message.")] = False,
    host: options.Host = None,
    port: options.Port = None,
    url: options.Url = None,
    unix: options.Unix = None,
    bind: options.Bind = None,
    nodelay: options.NoDelay = False,
    client_id: options.ClientId = "",
    id_prefix: options.IdPrefix = "",
    username: options.Username = None,
    password: options.Password = None,
    scram: options.Scram = False,
    cafile: options.CaFile = None,
    capath: options.CaPath = None,
    tls_version: options.TlsVersion = None,
    ciphers: options.Ciphers = None,
    tls_alpn: options.TlsAlpn = None,
    os_certs: options.OsCerts = False,
    cert: options.Cert = None,
    key: options.Key = None,
    insecure: options.Insecure = False,
    version: options.Version = "mqttv311",
    keep_alive: options.KeepAlive = 60,
    keep_session: options.KeepSession = False,
    session_expiry: options.SessionExpiry = None,
    will_topic: options.WillTopic = None,
    will_payload: options.WillPayload = None,
    will_qos: options.WillQos = 0,
    will_retain: options.WillRetain = False,
    properties: options.GivenProperties = [],  # noqa: B006 - typer copies it
    debug: options.Debug = False,
    quiet: options.Quiet = False,
) -> None:
    """Publish a message, or each line of standard input."""
    raise typer.Exit(options.run(partial(_publish, context.params), quiet=quiet))


def _publish(params: Mapping[str, Any]) -> int:
    """The command's work; gives its exit code."""
    given, named = options.read_url(params)
    message, file, lines, whole = given["message"], given["file"], given["lines"], given["whole"]
    if sum((message is not None, file is not None, lines, whole, given["null"])) != 1:
        raise UsageError("give one of -m, -f, -l, -s, -n")
    topic = given["topic"]
    if (topic is None) == (named is None):
        raise UsageError("give a topic, with -t or in -L")
    client = options.make_client(given, ("publish",))
    qos, properties = given["qos"], client.properties["publish"]
    first = Publish(topic=topic or named or "", qos=qos, retain=given["retain"], properties=properties)
    client.check(replace(first, packet_id=1 if qos else 0))
    payload = _read_payload(message, file, whole)
    connection = client.open()
    publisher = Publisher(connection, first, inflight_max=given["max_inflight"], quiet=given["quiet"])
    if lines:
        publisher.publish_lines(sys.stdin.fileno())
    else:
        publisher.publish(payload)
        for _ in range(1, given["repeat"]):
            publisher.wait(given["repeat_delay"])
            publisher.publish(payload)
    publisher.finish()
    connection.close()
    return 0


def _read_payload(message: str | None, file: Path | None, whole: bool) -> bytes:
    if message is not None:
        return os.fsencode(message)
    if file is not None:
        return file.read_bytes()
    return sys.stdin.buffer.read() if whole else b""
