"""The listeners that the load comes in at: what its bytes are wrapped in, on blocking sockets."""

from __future__ import annotations

import functools
import random
import socket
import ssl
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from conformance.kit import Client, ConnectionEnded
from waiting import WAIT_S

SERVER_NAMES = ("localhost", "other", "unknown")
UPGRADE = (
    b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    b"Sec-WebSocket-Protocol: mqtt\r\n\r\n"
)


@dataclass(frozen=True, kw_only=True)
class Door:
    """One listener; with TLS where it has a file of its authority and of a client's certificate."""

    name: str
    port: int = 0
    authority: str = ""
    certificate: str = ""
    websocket: bool = False
    proxied: bool = False

    def __post_init__(self) -> None:
        if self.authority:  # now, where no other thread does: tickets are of one context
            client_tls(self.authority, "")
            client_tls(self.authority, self.certificate)

    def greeting(self, dice: random.Random) -> bytes:
        """The PROXY header, of one of few addresses, where there is one."""
        return b"PROXY TCP4 192.0.2.%d 203.0.113.1 5 1883\r\n" % dice.randrange(4) if self.proxied else b""


@functools.cache
def client_tls(authority: str, certificate: str) -> ssl.SSLContext:
    """`certificate`: the client's, or empty."""
    context = ssl.create_default_context(cafile=authority)
    context.check_hostname = False
    if certificate:
        context.load_cert_chain(certificate)
    return context


class WebSocket:
    """A socket whose bytes are in WebSocket frames. Their mask is 0, so they stay as they are."""

    def __init__(self, below: socket.socket) -> None:
        self.below = below
        self.buffer = b""
        self.left = 0  # bytes of the frame that has begun
        below.sendall(UPGRADE)
        while b"\r\n\r\n" not in self.buffer:
            self._fill()
        answer, _, self.buffer = self.buffer.partition(b"\r\n\r\n")
        if not answer.startswith(b"HTTP/1.1 101"):
            raise ConnectionEnded(str(answer))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.below, name)

    def _fill(self) -> None:
        piece = self.below.recv(1 << 18)
        if not piece:
            raise ConnectionEnded("closed below WebSocket")
        self.buffer += piece

    def sendall(self, data: bytes) -> None:
        size = (
            bytes([0xFE]) + len(data).to_bytes(2) if len(data) < 1 << 16 else b"\xff" + len(data).to_bytes(8)
        )
        if len(data) < 126:
            size = bytes([0x80 | len(data)])
        self.below.sendall(b"\x82" + size + bytes(4) + data)

    def recv(self, size: int) -> bytes:
        while not self.left:
            while len(self.buffer) < 2 or len(self.buffer) < (
                head := {126: 4, 127: 10}.get(self.buffer[1], 2)
            ):
                self._fill()
            if self.buffer[0] != 0x82:
                return b""  # Close
            self.left = int.from_bytes(self.buffer[2:head]) if head > 2 else self.buffer[1]
            self.buffer = self.buffer[head:]
        if not self.buffer:
            self._fill()
        piece, self.buffer = self.buffer[: self.left], self.buffer[self.left :]
        self.left -= len(piece)
        return piece


_tickets: dict[tuple[str, str], ssl.SSLSession] = {}  # of any client, by door and certificate


class Visitor(Client):
    """A client that comes in at a door, half the time of TLS with a certificate or with an earlier ticket."""

    def __init__(self, door: Door, version: int, dice: random.Random) -> None:
        super().__init__(door.port, version)
        self.resumed = False
        self.socket.sendall(door.greeting(dice))
        if door.authority:
            self._shake_hands(door, dice)
        if door.websocket:
            self.socket = WebSocket(self.socket)  # type: ignore[assignment]

    def _shake_hands(self, door: Door, dice: random.Random) -> None:
        certificate = dice.choice(["", door.certificate])
        self.place = (door.name, certificate)
        self.socket = client_tls(door.authority, certificate).wrap_socket(
            self.socket,
            server_hostname=dice.choice(SERVER_NAMES),
            session=dice.choice([None, _tickets.get(self.place)]),
        )
        self.resumed = bool(self.socket.session_reused)

    def keep_ticket(self) -> None:
        """For the next client; of TLS 1.3 it comes after the handshake."""
        link = getattr(self.socket, "below", self.socket)
        if isinstance(link, ssl.SSLSocket) and link.session is not None:
            _tickets[self.place] = link.session


def break_in(door: Door, dice: random.Random) -> socket.socket:
    """Begins as a client does, and goes on as none may, or not at all."""
    hello = UPGRADE
    if door.authority:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        with suppress(ssl.SSLWantReadError):
            client_tls(door.authority, "").wrap_bio(incoming, outgoing).do_handshake()
        hello = outgoing.read()
    data = door.greeting(dice) + hello
    link = socket.create_connection(("127.0.0.1", door.port), timeout=WAIT_S)
    link.sendall(data[: dice.randrange(len(data))] + dice.randbytes(dice.choice([0, 0, 50])))
    return link
