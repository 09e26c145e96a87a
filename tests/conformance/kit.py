"""A raw MQTT client for the conformance tests: sends any bytes, expects exact bytes or parsed packets."""

from __future__ import annotations

import functools
import itertools
import os
import socket
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from conformance.packets import (
    CONNACK,
    DISCONNECT,
    NAMES,
    PING,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    UNSUBACK,
    Packet,
    acknowledge,
    connect,
    disconnect,
    parse,
    publish,
    subscribe,
    unsubscribe,
    whole,
)
from waiting import WAIT_S

QUIET_S = 0.05  # for what must not come


class Listening(Protocol):
    """A running broker, as far as a client must know it."""

    @property
    def port(self) -> int: ...


_numbers = itertools.count(1)


def unique(name: str) -> str:
    """A client identifier or topic level that no other test uses."""
    return f"{name}{os.getpid()}x{next(_numbers)}"


class ConnectionEnded(Exception):  # noqa: N818
    """The broker closed the connection; tests expect or meet it."""


class Silence(Exception):  # noqa: N818
    """Nothing came in time; tests expect or meet it."""


class Client:
    """One connection to the broker under test. Its methods fail the test when the broker does something
    else."""

    def __init__(self, port: int, version: int = 5) -> None:
        self.port = port
        self.version = version
        self.client_id = ""
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = b""
        self.set_aside: list[Packet] = []  # received while a PUBREL was waited for
        self.packet_ids = itertools.count(1)

    def __del__(self) -> None:
        if hasattr(self, "socket"):
            self.socket.close()

    def connect(self, client_id: str | None = None, **settings: Any) -> Packet:
        """CONNECT and the accepting CONNACK."""
        self.client_id = unique("c") if client_id is None else client_id
        self.send(connect(self.client_id, self.version, **settings))
        connack = self.expect(CONNACK, reason=0)
        self.client_id = str(connack.get("assigned_client_id", self.client_id))
        return connack

    def send(self, *packets: bytes) -> None:
        """All packets in one piece."""
        self.socket.sendall(b"".join(packets))

    def next_id(self) -> int:
        return next(self.packet_ids)

    def receive(self, wait_s: float = WAIT_S) -> Packet:
        """The next packet. Raises `Silence` or `ConnectionEnded`."""
        if self.set_aside:
            return self.set_aside.pop(0)
        deadline = time.monotonic() + wait_s
        while (size := whole(self.buffer)) is None:
            self.socket.settimeout(max(deadline - time.monotonic(), 0.001))
            try:
                piece = self.socket.recv(1 << 18)
            except TimeoutError:
                raise Silence(
                    f"nothing came within {wait_s} s; half a packet: {self.buffer[:60].hex(' ')!r}"
                ) from None
            except OSError:
                piece = b""  # a reset says the same as an end of file
            if not piece:
                raise ConnectionEnded(
                    f"connection of {self.client_id!r} closed, rest {self.buffer[:60].hex(' ')!r}"
                )
            self.buffer += piece
        head, total = size
        raw, self.buffer = self.buffer[:total], self.buffer[total:]
        return parse(raw, raw[head:], self.version)

    def expect(self, kind: int, **fields: object) -> Packet:
        """The next packet, which must be of this kind with these fields."""
        packet = self.receive()
        assert packet.kind == kind, f"expected {NAMES[kind]} {fields}, got {packet}"
        for name, value in fields.items():
            assert getattr(packet, name) == value, f"expected {name}={value!r} in {packet}"
        return packet

    def expect_bytes(self, expected: bytes) -> None:
        """The next packet, which must be made of exactly these bytes."""
        packet = self.receive()
        assert packet.raw == expected, (
            f"expected {expected.hex(' ')}\n     got {packet.raw.hex(' ')}\n{packet}"
        )

    def expect_closed(self, *reasons: int, wait_s: float = WAIT_S) -> None:
        """The end of the connection, in 5.0 after a DISCONNECT with one of the reasons if any is given."""
        if reasons and self.version >= 5:
            packet = self.receive(wait_s)
            assert packet.kind == DISCONNECT, (
                f"expected DISCONNECT {[hex(code) for code in reasons]}, got {packet}"
            )
            assert packet.reason in reasons, f"expected {[hex(code) for code in reasons]}, got {packet}"
        try:
            packet = self.receive(wait_s)
        except ConnectionEnded:
            return
        raise AssertionError(f"expected the end of the connection, got {packet}")

    def expect_nothing(self, wait_s: float = QUIET_S) -> None:
        """Silence, on a connection that still answers."""
        try:
            packet = self.receive(wait_s)
        except Silence:
            self.ping()
            return
        raise AssertionError(f"expected nothing, got {packet}")

    def rest(self) -> list[Packet]:
        """All packets that the broker has for this client. Messages are acknowledged, and what that lets come
        belongs to them; the end is the answer to a PINGREQ that nothing comes before."""
        found: list[Packet] = []
        before = -1
        while before != len(found):
            before = len(found)
            self.send(PING)
            while (packet := self.receive()).raw != b"\xd0\x00":
                found.append(packet)
                if packet.kind == PUBLISH:
                    self.acknowledge(packet)
        return found

    def ping(self) -> None:
        self.send(PING)
        self.expect_bytes(b"\xd0\x00")

    def subscribe(self, name: str, qos: int = 0, opts: int = 0, **named: Any) -> Packet:
        """SUBSCRIBE to one filter and the SUBACK that grants the QoS asked for."""
        packet_id = self.next_id()
        self.send(subscribe(packet_id, (name, qos | opts), version=self.version, **named))
        return self.expect(SUBACK, packet_id=packet_id, reasons=[(qos | opts) & 3])

    def replay(self, name: str, qos: int = 1, **named: Any) -> None:
        """The same of what a stream keeps, whose messages may come before SUBACK; they wait for `receive`."""
        packet_id = self.next_id()
        self.send(subscribe(packet_id, (name, qos), version=self.version, **named))
        before = []
        while (packet := self.receive()).kind == PUBLISH:
            before.append(packet)
        assert packet.kind == SUBACK, f"expected SUBACK, got {packet}"
        assert (packet.packet_id, packet.reasons) == (packet_id, [qos]), str(packet)
        self.set_aside = before + self.set_aside

    def unsubscribe(self, *names: str) -> Packet:
        packet_id = self.next_id()
        self.send(unsubscribe(packet_id, *names, version=self.version))
        return self.expect(UNSUBACK, packet_id=packet_id)

    def publish(
        self, topic: str, payload: bytes = b"", qos: int = 0, *, refused: bool = False, **settings: Any
    ) -> None:
        """PUBLISH and its whole handshake; QoS 0 is followed by a ping, so that the broker has handled it.

        `refused`: because a queue is full, of which a client of 3.x hears nothing.
        """
        packet_id = self.next_id() if qos else 0
        self.send(publish(topic, payload, qos, packet_id, self.version, **settings))
        if qos == 0:
            self.ping()
        elif qos == 1:
            reasons = (0x97,) if refused and self.version == 5 else (0, 0x10)
            assert self.expect(PUBACK, packet_id=packet_id).reason in reasons
        else:
            assert self.expect(PUBREC, packet_id=packet_id).reason in (0, 0x10)
            self.send(acknowledge(PUBREL, packet_id))
            self.expect(PUBCOMP, packet_id=packet_id, reason=0)

    def expect_message(self, topic: str, payload: bytes = b"", qos: int = 0, **fields: object) -> Packet:
        """The next packet, a PUBLISH; its handshake is finished here."""
        message = self.expect(PUBLISH, topic=topic, payload=payload, qos=qos, **fields)
        self.acknowledge(message)
        return message

    def acknowledge(self, message: Packet) -> None:
        """Our side of the handshake of a received message; messages that come meanwhile wait for
        `receive`."""
        if message.qos == 1:
            self.send(acknowledge(PUBACK, message.packet_id))
        elif message.qos == 2:
            self.send(acknowledge(PUBREC, message.packet_id))
            others = []
            while (packet := self.receive()).kind == PUBLISH:
                others.append(packet)
            assert packet.raw == acknowledge(PUBREL, message.packet_id), f"no PUBREL for {message}: {packet}"
            self.set_aside = others + self.set_aside
            self.send(acknowledge(PUBCOMP, message.packet_id))

    def disconnect(self, reason: int = 0, **named: Any) -> None:
        """DISCONNECT; the broker closes."""
        self.send(disconnect(reason, **named))
        self.expect_closed()
        self.socket.close()

    def drop(self) -> None:
        """Close without DISCONNECT, as a network failure does."""
        self.socket.close()


class SideBySide:
    """Decorator for tests that mostly wait: the tests of one module start together, each in a thread.

    Each test takes the fixture `broker` only, and still has its own result.
    """

    def __init__(self) -> None:
        self.tests: list[Callable[[object], None]] = []
        self.results: dict[str, Future[None]] = {}

    def __call__(self, test: Callable[..., None]) -> Callable[..., None]:
        self.tests.append(test)

        @functools.wraps(test)
        def wait(broker: object) -> None:
            if not self.results:
                pool = ThreadPoolExecutor(len(self.tests))
                self.results = {each.__name__: pool.submit(each, broker) for each in self.tests}
                pool.shutdown(wait=False)
            self.results[test.__name__].result()

        return wait


def connected(broker: Listening, version: int = 5, client_id: str | None = None, **settings: Any) -> Client:
    """A client that has connected; settings as for `connect`."""
    client = Client(broker.port, version)
    client.connect(client_id, **settings)
    return client


def kept(version: int) -> dict[str, Any]:
    """CONNECT settings that resume a session and keep it after the connection."""
    return {"clean": False, "session_expiry": 3600} if version >= 5 else {"clean": False}


def refused(client: Client, *reasons: int) -> None:
    """The broker refuses a CONNECT: CONNACK with one of the reasons, session present 0, then the end."""
    connack = client.receive()
    assert connack.kind == CONNACK, f"expected a refusing CONNACK, got {connack}"
    assert connack.reason in reasons, f"expected {[hex(code) for code in reasons]}, got {connack}"
    assert not connack.session_present
    client.expect_closed()
