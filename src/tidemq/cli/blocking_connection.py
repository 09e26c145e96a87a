"""A client's connection for the command line: one blocking socket, no reconnecting."""

from __future__ import annotations

import select
import socket
import ssl
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tidemq.errors import RefusedError
from tidemq.wire import (
    Auth,
    Connack,
    Connect,
    ConnectReturnCode,
    Decoder,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Properties,
    ReasonCode,
    encode,
)

if TYPE_CHECKING:
    from tidemq.client import Authentication

CONNECT_S = 30.0  # for the connection and its CONNACK
READ_BYTES = 1 << 16


class ServerRefusedError(RefusedError):
    """The server refused the client in CONNACK, or sent it away with DISCONNECT. Caught by the command.

    The command exits with `code`: a return code below 5.0, a reason code in 5.0.
    """

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True, slots=True)
class Server:
    """Where to connect to."""

    host: str
    port: int
    path: Path | None = None  # of its Unix socket, instead
    bind: str | None = None  # own address to connect from

    def connect(self) -> socket.socket:
        """A connection within `CONNECT_S`; OSError."""
        if self.path is None:
            source = None if self.bind is None else (self.bind, 0)
            try:
                made = socket.create_connection((self.host, self.port), CONNECT_S, source)
            except UnicodeError as error:  # of a name that cannot be one: a label is empty or too long
                raise OSError(f"{self.host!r} is not the name of a host") from error
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return made
        made = socket.socket(socket.AF_UNIX)
        made.settimeout(CONNECT_S)
        made.connect(str(self.path))
        return made


class Connection:
    """Connected from construction to `close`.

    Raises OSError when the network fails, ProtocolError when the server breaks MQTT, ServerRefusedError when
    it says no, FalseServerError when it does not prove what `auth` wants it to.
    """

    def __init__(
        self,
        server: Server,
        connect: Connect,
        *,
        debug: bool = False,
        auth: Authentication | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._version = connect.version
        self._keep_alive_s = connect.keep_alive_s
        self._debug = debug
        self._name = connect.client_id or "(null)"
        self._decoder = Decoder(connect.version)
        self._awaits_pingresp = False
        self._has_heard = False  # anything since the last PINGREQ
        self._last_packet_id = 0
        self._socket = server.connect()
        if tls is not None:
            self._socket = tls.wrap_socket(self._socket, server_hostname=server.host)
        self._socket.settimeout(None)
        self.connack = self._connect(connect) if auth is None else self._authenticate(connect, auth)

    def send(self, packet: Packet) -> None:
        """Sends one packet and waits until the system has taken it."""
        self._say("sending", packet)
        self._socket.sendall(encode(packet, self._version))
        self._sent_s = time.monotonic()

    def receive(self, until_s: float | None = None, stdin: int | None = None) -> Packet | None:
        """The next packet; None at the monotonic time `until_s`, or when file descriptor `stdin` is readable.

        Sends PINGREQ when the keep alive wants one. A server's DISCONNECT raises ServerRefusedError.
        """
        descriptors = [self._socket.fileno()] if stdin is None else [self._socket.fileno(), stdin]
        while True:
            ping_s = self._sent_s + self._keep_alive_s if self._keep_alive_s else None
            packet = next(self._decoder, None)
            if packet is not None:
                self._say("received", packet)
                if isinstance(packet, Disconnect):
                    text = f"The server disconnected: {reason_text(packet.reason)}."
                    raise ServerRefusedError(text, packet.reason)
                if not isinstance(packet, Pingresp):
                    if ping_s is not None and time.monotonic() >= ping_s:
                        self._ping()  # it is silent who only receives, however much that is
                    return packet
                self._awaits_pingresp = False
                continue
            wake_s = min((moment for moment in (until_s, ping_s) if moment is not None), default=None)
            timeout_s = None if wake_s is None else max(0.0, wake_s - time.monotonic())
            readable, _, _ = select.select(descriptors, [], [], timeout_s)
            if self._socket.fileno() in readable:
                self._read()
            elif readable or (until_s is not None and time.monotonic() >= until_s):
                return None
            elif ping_s is not None and time.monotonic() >= ping_s:
                self._ping()

    def next_packet_id(self) -> int:
        """Packet identifiers in turn, from 1."""
        self._last_packet_id = self._last_packet_id % 0xFFFF + 1
        return self._last_packet_id

    def close(self) -> None:
        """Says goodbye, if the server still listens, and closes the socket."""
        try:
            self.send(Disconnect())
        except OSError:
            pass
        finally:
            self._socket.close()

    def _connect(self, connect: Connect) -> Connack:
        self.send(connect)
        return self._take_connack(self._next_packet())

    def _authenticate(self, connect: Connect, auth: Authentication) -> Connack:
        """The same, with AUTH packets in between (5.0 section 4.12)."""
        from tidemq.client.authentication import Exchange

        exchange = Exchange(auth)
        properties = replace(connect.properties, auth_method=auth.method, auth_data=exchange.begin())
        self.send(replace(connect, properties=properties))
        while isinstance(packet := self._next_packet(), Auth):
            data = exchange.answer(packet.properties.auth_data)
            properties = Properties(auth_method=auth.method, auth_data=data)
            self.send(Auth(reason=ReasonCode.CONTINUE_AUTHENTICATION, properties=properties))
        connack = self._take_connack(packet)
        exchange.finish(connack.properties.auth_data)
        return connack

    def _next_packet(self) -> Packet:
        packet = self.receive(time.monotonic() + CONNECT_S)
        if packet is None:
            raise TimeoutError("no answer to CONNECT")
        return packet

    def _take_connack(self, packet: Packet) -> Connack:
        if not isinstance(packet, Connack):
            raise ConnectionAbortedError(f"{type(packet).__name__} came instead of CONNACK")
        if packet.reason:
            self._socket.close()
            raise ServerRefusedError(f"Connection error: {self._refusal(packet.reason)}.", packet.reason)
        self._name = packet.properties.assigned_client_id or self._name
        if packet.properties.server_keep_alive_s is not None:
            self._keep_alive_s = packet.properties.server_keep_alive_s
        return packet

    def _refusal(self, reason: int) -> str:
        if self._version == 5:
            return reason_text(reason)
        names = {code.value: code.name for code in ConnectReturnCode}
        return f"Connection Refused: {_words(names.get(reason, f'return code {reason}')).lower()}"

    def _read(self) -> None:
        data = self._socket.recv(READ_BYTES)
        if not data:
            raise ConnectionResetError("The connection was lost.")
        self._has_heard = True
        while isinstance(self._socket, ssl.SSLSocket) and (more := self._socket.pending()):
            data += self._socket.recv(more)  # of this the descriptor would not tell
        self._decoder.feed(data)

    def _ping(self) -> None:
        if self._awaits_pingresp and not self._has_heard:  # PINGRESP may be behind much else
            raise TimeoutError("The server does not answer.")
        self._awaits_pingresp = True
        self._has_heard = False
        self.send(Pingreq())

    def _say(self, verb: str, packet: Packet) -> None:
        if self._debug:
            print(f"Client {self._name} {verb} {packet}", file=sys.stderr, flush=True)


def reason_text(reason: int) -> str:
    """A reason code in words."""
    names = {code.value: code.name for code in ReasonCode}
    return _words(names.get(reason, f"reason code {reason:#04x}"))


def _words(name: str) -> str:
    return name.replace("_", " ").capitalize()
