"""Clients in TLS and WebSocket that end what their bytes are wrapped in while the broker still has something
to do for them, or break it at an awkward moment.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import time
from typing import TYPE_CHECKING, Any

import pytest
import trustme
from conformance.kit import Client, unique
from conformance.packets import CONNACK, PING, connect, disconnect, publish, subscribe
from waiting import LATE_S, WAIT_S

from tidemq.engine import ConnectRequest, SubscribeRequest
from tidemq.engine.door.events import HeldMessage
from tidemq.engine.door.plugin_access import PluginAccess
from tidemq.net.server_tls import ServerTls
from tidemq.net.server_upgrade import WebSocketTerms
from tidemq.net.tls import TlsContext
from tidemq.net.transport import Scheme, ServerScheme, Stream

if TYPE_CHECKING:
    from adversity.conftest import EngineUnderTest, StartEngine

UPGRADE = (
    b"GET /before HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: mqtt\r\n\r\n"
)
# of TLS, that nobody has encrypted
FALSE_RECORD = b"\x17\x03\x03\x00\x20" + bytes(32)


class Wrapped(Client):
    """A client whose bytes are wrapped. `send` takes MQTT; what `raw` takes is wrapped in nothing more."""

    def __init__(self, port: int, scheme: Scheme) -> None:
        super().__init__(port)
        self.stream = Stream(scheme)
        self.stream.connected()
        while not self.stream.open:
            self.socket.sendall(self.stream.take_output())
            self.take(self.socket.recv(65536))

    def take(self, data: bytes) -> None:
        assert data, f"the broker has ended the connection: {self.stream.text}"
        self.buffer += self.stream.receive(data)

    def wrapped(self, *packets: bytes) -> bytes:
        self.stream.send(b"".join(packets))
        return self.stream.take_output()

    def goodbye(self) -> bytes:
        """Close, or close_notify."""
        self.stream.finish()
        return self.stream.take_output()

    def send(self, *packets: bytes) -> None:
        self.raw(self.wrapped(*packets))

    def raw(self, *data: bytes) -> None:
        self.socket.sendall(b"".join(data))

    def receive_packet(self, kind: int) -> None:
        """The next packet is of this kind."""
        while len(self.buffer) < 2 or len(self.buffer) < 2 + self.buffer[1]:
            self.take(self.socket.recv(65536))
        assert self.buffer[0] >> 4 == kind
        self.buffer = self.buffer[2 + self.buffer[1] :]

    def wait_for_end(self) -> None:
        """The broker closes the connection, while we keep our side of it open."""
        deadline = time.monotonic() + WAIT_S
        self.socket.settimeout(WAIT_S)
        while self.socket.recv(65536):
            self.socket.settimeout(max(deadline - time.monotonic(), 0.001))


class Kind:
    """TLS or WebSocket: both ends of it."""

    def __init__(self, server: ServerScheme, client: Scheme) -> None:
        self.server, self.client = server, client


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Kind:
    path = tmp_path_factory.mktemp("certificates") / "localhost.pem"
    trustme.CA().issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(path)
    return Kind(
        ServerScheme(tls=ServerTls(str(path), str(path))),
        Scheme(tls=TlsContext(insecure=True), server_name="localhost"),
    )


@pytest.fixture(scope="module")
def framed() -> Kind:
    return Kind(ServerScheme(websocket=WebSocketTerms()), Scheme(host="localhost", resource="/mqtt"))


@pytest.fixture(params=["secure", "framed"])
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.getfixturevalue(request.param)
    return found


def assert_it_rests(engine: EngineUnderTest) -> None:
    """The reactors wait for something to happen."""
    before = engine.count("turns")
    time.sleep(0.5)
    assert engine.count("turns") - before < 100


def test_who_ends_while_it_is_throttled_is_ended_after_it(start_engine: StartEngine, kind: Kind) -> None:
    engine = start_engine(1, scheme=kind.server, client_messages_per_s=2)
    client = Wrapped(engine.port, kind.client)
    client.send(connect(unique("c"), keep_alive_s=0))
    client.receive_packet(CONNACK)
    client.raw(client.wrapped(PING * 4), client.goodbye())
    assert_it_rests(engine)
    client.wait_for_end()


def test_who_ends_while_it_reads_nothing_is_ended(start_engine: StartEngine, kind: Kind) -> None:
    engine = start_engine(1, scheme=kind.server, output_high_bytes=1000)
    client = Wrapped(engine.port, kind.client)
    client.send(connect(unique("c"), keep_alive_s=0))
    client.receive_packet(CONNACK)
    client.raw(client.wrapped(PING * 2000), client.goodbye())
    client.wait_for_end()
    assert_it_rests(engine)


def test_who_ends_while_its_connect_is_decided_is_ended(start_engine: StartEngine, kind: Kind) -> None:
    engine = start_engine(1, scheme=kind.server)
    engine.engine.ask_connect = True
    client = Wrapped(engine.port, kind.client)
    client.raw(client.wrapped(connect(unique("c"), keep_alive_s=0)), client.goodbye())
    [asked] = wait_for_events(engine, ConnectRequest)
    engine.engine.answer_connect(asked.connection, 0)
    client.wait_for_end()
    assert_it_rests(engine)


@pytest.mark.parametrize("properly", [True, False])
def test_who_ends_while_plugins_decide_on_its_messages_loses_none(
    start_engine: StartEngine, kind: Kind, properly: bool
) -> None:
    engine = start_engine(1, scheme=kind.server)
    access = PluginAccess(engine.engine)
    access.set_filters(["up"], [])
    client = Wrapped(engine.port, kind.client)
    client.send(connect(unique("c"), keep_alive_s=0))
    client.receive_packet(CONNACK)
    client.raw(
        client.wrapped(publish("up", b"1"), publish("up", b"2")), client.goodbye() if properly else b""
    )
    client.socket.shutdown(socket.SHUT_WR)
    messages: list[HeldMessage] = []
    while len(messages) < 2:
        messages += wait_for_events(engine, HeldMessage)
    assert_it_rests(engine)
    access.answer([(each.connection, each.number, 0, None) for each in messages])
    engine.wait_for("messages_received", 2)
    client.wait_for_end()
    assert engine.count("dropped_held") == 0


def wait_for_events(engine: EngineUnderTest, kind: type) -> list[Any]:
    deadline = time.monotonic() + WAIT_S
    while not (found := [each for each in engine.engine.events() if isinstance(each, kind)]):
        assert time.monotonic() < deadline, f"no {kind.__name__} comes"
        time.sleep(0.01)
    return found


def test_a_fault_on_the_way_to_another_reactor_ends_the_connection(
    start_engine: StartEngine, secure: Kind
) -> None:
    engine = start_engine(2, scheme=secure.server)
    hello = connect("travels", clean=False, session_expiry=100)
    for _ in range(20):
        client = Wrapped(engine.port, secure.client)
        client.raw(client.wrapped(hello), FALSE_RECORD)
        client.wait_for_end()
    assert engine.count("connections_moved") > 0


def test_all_that_was_sent_before_the_end_counts_on_another_reactor(
    start_engine: StartEngine, kind: Kind
) -> None:
    engine = start_engine(2, scheme=kind.server)
    receiver = Wrapped(engine.port, kind.client)
    receiver.send(connect(unique("r"), keep_alive_s=0), subscribe(1, ("t", 0)))
    receiver.receive_packet(CONNACK)
    receiver.receive_packet(9)
    hello = connect("travels", clean=False, session_expiry=100)
    for number in range(20):
        client = Wrapped(engine.port, kind.client)
        client.raw(client.wrapped(hello, publish("t", b"%d" % number), disconnect()), client.goodbye())
        client.wait_for_end()
        receiver.receive_packet(3)
    assert engine.count("connections_moved") > 0


def test_a_packet_that_is_too_large_behind_a_pause_is_refused(
    start_engine: StartEngine, secure: Kind
) -> None:
    """Its beginning fills what there is for a read, with a record that had begun before."""
    engine = start_engine(1, scheme=secure.server, output_high_bytes=1)
    engine.engine.ask_subscribe = True
    client = Wrapped(engine.port, secure.client)
    client.send(connect(unique("c"), keep_alive_s=0))
    client.receive_packet(CONNACK)
    for _ in range(100):  # the kernel takes more at a time from who sends much
        client.send(publish("nobody", bytes(300_000)))
    wish = client.wrapped(subscribe(1, ("t", 0)))
    data = PING + b"\x30\xff\xff\xff\x7f" + bytes(600_000)
    # the first record begins before the read, and the last in it ends with it: 245,760 bytes, and what comes
    # out of them is more
    cuts = [*range(0, 15 * 16384, 16384), *range(15 * 16384, len(data), 16048)]
    records = b"".join(client.wrapped(data[at:end]) for at, end in itertools.pairwise(cuts))
    client.raw(wish, records[:16_400])
    [asked] = wait_for_events(engine, SubscribeRequest)
    client.socket.settimeout(1)
    with contextlib.suppress(TimeoutError):
        client.raw(records[16_400:])
    engine.engine.answer_subscribe(asked.connection, [0])
    client.wait_for_end()
    time.sleep(0.1)
    other = Wrapped(engine.port, secure.client)
    other.send(connect(unique("c")))
    other.receive_packet(CONNACK)


def test_an_upgrade_that_has_begun_goes_on_as_it_began(start_engine: StartEngine) -> None:
    """Certificates that are read again make a new scheme; nobody holds the one before."""
    engine = start_engine(1, scheme=ServerScheme(websocket=WebSocketTerms("/before")))
    client = Client(engine.port)
    client.socket.sendall(UPGRADE[:60])
    engine.wait_for("memory_buffers")
    engine.engine.replace_scheme(0, ServerScheme(websocket=WebSocketTerms("/after")))
    others = [WebSocketTerms(f"/other{number}") for number in range(100)]  # where it was, if it were freed
    client.socket.sendall(UPGRADE[60:])
    assert client.socket.recv(65536).startswith(b"HTTP/1.1 101 ")
    assert others
    later = Client(engine.port)
    later.socket.sendall(UPGRADE)
    assert later.socket.recv(65536).startswith(b"HTTP/1.1 404 ")


def test_a_bucket_makes_the_time_for_connect_no_longer_than_twice(
    start_engine: StartEngine, framed: Kind
) -> None:
    engine = start_engine(1, scheme=framed.server, connect_timeout_s=1, client_bytes_per_s=100_000)
    client = Wrapped(engine.port, framed.client)
    client.socket.settimeout(0.05)
    began = time.monotonic()
    with contextlib.suppress(ConnectionError):
        while time.monotonic() < began + WAIT_S:  # pongs, which nobody answers, faster than they are read
            with contextlib.suppress(TimeoutError):
                client.raw(b"\x8a\x80\0\0\0\0" * 10_000)
    assert 1.5 < time.monotonic() - began < LATE_S
    assert engine.count("clients_throttled") > 1


def test_who_ends_tls_before_its_upgrade_has_shaken_no_hands(start_engine: StartEngine, secure: Kind) -> None:
    both = ServerScheme(tls=secure.server.tls, websocket=WebSocketTerms())
    engine = start_engine(1, scheme=both)
    client = Wrapped(engine.port, secure.client)
    client.raw(client.goodbye())
    client.wait_for_end()
    assert engine.wait_for("handshakes_failed") == 1
    assert engine.count("handshakes") == 0


def test_what_waits_for_a_decision_counts_as_memory(start_engine: StartEngine) -> None:
    engine = start_engine(1)
    engine.engine.ask_connect = True
    before = engine.count("memory_buffers")
    client = Client(engine.port)
    client.send(connect(unique("c"), username="u" * 60_000, password=b"p" * 60_000))
    [asked] = wait_for_events(engine, ConnectRequest)
    engine.wait_for("memory_buffers", before + 240_000)
    engine.engine.answer_connect(asked.connection, 0)
    client.expect(CONNACK, reason=0)
    client.ping()
    assert engine.count("memory_buffers") < before + 100_000


def test_remembered_topics_count_as_memory_and_are_forgotten_above_the_ceiling(
    start_engine: StartEngine,
) -> None:
    engine = start_engine(1, memory_bytes_max=10_000_000)
    client = Client(engine.port)
    client.connect()
    first, deadline = 0, time.monotonic() + WAIT_S
    while not engine.count("publishers_paused"):  # it is looked at now and then, and only who publishes waits
        assert time.monotonic() < deadline
        client.send(*(publish(f"{number}".zfill(1000), b"") for number in range(first, first + 1000)))
        client.ping()
        first += 1000
    client.ping()
    while engine.count("memory_caches") > 10_000_000:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert engine.count("dropped_memory") == 0
