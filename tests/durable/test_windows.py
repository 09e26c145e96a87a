"""A queue of which only a window is in memory: everything comes, each publisher's messages in order, once,
however they came: while the client was away, slow, or draining what was there.
"""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest
from conformance.kit import QUIET_S, Client, Silence, connected, kept
from conformance.packets import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, Packet, acknowledge, publish
from waiting import WAIT_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from durable.conftest import Servers
    from durable.server import Server

WINDOW = 10  # messages in memory
COUNT = 200  # of each publisher
PIECE = 20  # that it sends before it waits for acknowledgements


class Publisher:
    """Sends messages of its own topic with its own numbers, and waits for the acknowledgements."""

    def __init__(self, client: Client, name: str, qos: int) -> None:
        self.client = client
        self.topic = f"t/{name}"
        self.qos = qos
        self.sent = 0

    def send(self, count: int) -> None:
        """So many more, all acknowledged when this returns."""
        numbers = range(self.sent + 1, self.sent + count + 1)
        self.sent += count
        self.client.send(
            *(
                publish(self.topic, b"%d" % number, self.qos, number, self.client.version)
                for number in numbers
            )
        )
        for number in numbers:
            if self.qos == 1:
                assert self.client.expect(PUBACK, packet_id=number).reason == 0
            else:
                assert self.client.expect(PUBREC, packet_id=number).reason == 0
        if self.qos == 2:
            self.client.send(*(acknowledge(PUBREL, number) for number in numbers))
            for number in numbers:
                self.client.expect(PUBCOMP, packet_id=number, reason=0)


class Receiver:
    """What a client has got over all its connections: each publisher's messages in order and once."""

    def __init__(self) -> None:
        self.last: dict[str, int] = defaultdict(int)
        self.count = 0
        self.held: set[int] = set()  # QoS 2, PUBREL has not come yet

    def take(self, client: Client, count: int) -> None:
        """So many new messages, and acknowledges them."""
        goal = self.count + count
        while self.count < goal:
            self.handle(client, client.receive())

    def finish(self, client: Client) -> None:
        """All that is left to be said about what has come; no message that has not. At QoS 1 some may come
        again: an acknowledgement that was sent just before the connection was cut may not have arrived.
        """
        count = self.count
        while self.held:
            self.handle(client, client.receive())
        with contextlib.suppress(Silence):
            while True:
                self.handle(client, client.receive(QUIET_S))
        client.ping()
        assert self.count == count

    def handle(self, client: Client, packet: Packet) -> None:
        if packet.kind == PUBREL:
            self.held.discard(packet.packet_id)
            client.send(acknowledge(PUBCOMP, packet.packet_id))
            return
        assert packet.kind == PUBLISH, packet
        number = int(packet.payload)
        known = packet.packet_id in self.held if packet.qos == 2 else number <= self.last[packet.topic]
        if known:
            assert packet.dup, f"once more: {packet}"
        else:
            assert number == self.last[packet.topic] + 1, f"after {self.last[packet.topic]} came {packet}"
            self.last[packet.topic] = number
            self.count += 1
        if packet.qos == 2:
            self.held.add(packet.packet_id)
        client.send(acknowledge(PUBACK if packet.qos == 1 else PUBREC, packet.packet_id))


@pytest.fixture(params=[("memory", 1), ("rocksdb", 2)], ids=lambda pair: f"{pair[0]}-{pair[1]}")
def server(request: pytest.FixtureRequest, servers: Servers) -> Server:
    """A server that keeps little in memory."""
    kind, reactors = request.param
    return servers(kind, reactors, queue_window_messages=WINDOW)


@pytest.fixture(params=[1, 2], ids=["qos1", "qos2"])
def qos(request: pytest.FixtureRequest) -> int:
    """Of publishers and subscribers."""
    value: int = request.param
    return value


def publishers_on_each(server: Server, qos: int, session: bool = True) -> list[Publisher]:
    """Two publishers for each reactor, one with a session that is kept and one without."""
    made = []
    for reactor in range(server.reactors):
        for name, settings in (("kept", kept(5)), ("clean", {})):
            client = server.connected_on(reactor, **settings)
            made.append(Publisher(client, f"{name}{reactor}", qos))
    return made


def at_once(*acts: Callable[[], None]) -> Callable[[], None]:
    """Starts each in a thread of its own; the call waits for all, and fails where one has failed."""
    errors: list[BaseException] = []

    def run(act: Callable[[], None]) -> None:
        try:
            act()
        except BaseException as error:  # noqa: BLE001 (raised by who joins the thread)
            errors.append(error)

    threads = [threading.Thread(target=run, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()

    def wait() -> None:
        for thread in threads:
            thread.join(WAIT_S)
        if errors:
            raise errors[0]

    return wait


def send_all(publishers: list[Publisher], count: int) -> Callable[[], None]:
    """All publish at the same time, in pieces."""

    def act(publisher: Publisher) -> Callable[[], None]:
        def run() -> None:
            for _ in range(count // PIECE):
                publisher.send(PIECE)

        return run

    return at_once(*(act(publisher) for publisher in publishers))


@pytest.mark.parametrize("crash", [False, True], ids=["stop", "crash"])
def test_what_came_while_the_client_was_away(servers: Servers, server: Server, qos: int, crash: bool) -> None:
    client = connected(server, **kept(5))
    client.subscribe("t/#", qos)
    client.disconnect()
    publishers = publishers_on_each(server, qos)
    send_all(publishers, COUNT)()
    wait_until(lambda: server.count("live_messages") <= WINDOW, "a window in memory at most")
    server = servers.restart(server, crash)
    client = server.back(client.client_id)
    receiver = Receiver()
    receiver.take(client, COUNT * len(publishers))
    receiver.finish(client)
    server.wait_until_empty()


def test_memory_is_bounded_while_the_client_is_slow(server: Server, qos: int) -> None:
    """It has its Receive Maximum in flight, two windows waiting, and what was on its way from publishers
    when the window was full; the rest is in the store, however much comes."""
    client = connected(server, receive_max=5, **kept(5))
    client.subscribe("t/#", qos)
    publishers = publishers_on_each(server, qos)
    most = 5 + 2 * WINDOW + PIECE * len(publishers)
    for _ in range(4):
        send_all(publishers, 40)()
        wait_until(lambda: server.count("live_messages") <= most, f"{most} messages in memory at most")
    receiver = Receiver()
    receiver.take(client, 160 * len(publishers))
    receiver.finish(client)
    server.wait_until_empty()


def test_what_comes_while_the_client_drains_its_queue(server: Server, qos: int) -> None:
    client = connected(server, **kept(5))
    client.subscribe("t/#", qos)
    client.disconnect()
    publishers = publishers_on_each(server, qos)
    send_all(publishers, COUNT // 2)()
    client = server.back(client.client_id, receive_max=20)
    wait = send_all(publishers, COUNT // 2)
    receiver = Receiver()
    receiver.take(client, COUNT // 2 * 2 * len(publishers))
    wait()
    receiver.finish(client)
    server.wait_until_empty()


def test_a_client_that_comes_and_goes_meanwhile(server: Server, qos: int) -> None:
    client = connected(server, receive_max=7, **kept(5))
    client.subscribe("t/#", qos)
    publishers = publishers_on_each(server, qos)
    wait = send_all(publishers, COUNT)
    receiver = Receiver()
    left = COUNT * len(publishers)
    while left:
        receiver.take(client, min(37, left))
        left -= min(37, left)
        client.drop()
        client = server.back(client.client_id, receive_max=7)
    wait()
    receiver.finish(client)
    server.wait_until_empty()


def test_qos_2_comes_once_from_a_reactor_that_is_busy(servers: Servers) -> None:
    """What it has stored for others, but not told them yet, is read from the store by them meanwhile."""
    server = servers("memory", 2, queue_window_messages=20)
    receivers = [server.connected_on(1) for _ in range(20)]
    for each in receivers:
        each.subscribe("noise", 0)
    noisy = server.connected_on(1)
    noise = publish("noise", bytes(10)) * 1000
    client = server.connected_on(0, receive_max=50, **kept(5))
    client.subscribe("t/#", 2)
    publishers = [Publisher(server.connected_on(1, **kept(5)), str(number), 2) for number in range(4)]
    wait = send_all(publishers, 400)
    quiet = threading.Event()

    def make_noise() -> None:
        while not quiet.is_set():
            noisy.send(noise)
            for each in receivers:
                each.socket.recv(1 << 20)

    wait_for_noise = at_once(make_noise)
    receiver = Receiver()
    try:
        receiver.take(client, 1600)
        wait()
    finally:
        quiet.set()
        wait_for_noise()
    receiver.finish(client)
    server.wait_until_empty()


def test_sessions_that_share_messages_drain_at_their_own_pace(server: Server, qos: int) -> None:
    clients = [connected(server, **kept(5)) for _ in range(2)]
    for client in clients:
        client.subscribe("t/#", qos)
        client.disconnect()
    publishers = publishers_on_each(server, qos)
    send_all(publishers, COUNT // 2)()
    wait = send_all(publishers, COUNT // 2)
    for client in clients:
        again = server.back(client.client_id)
        receiver = Receiver()
        receiver.take(again, COUNT // 2 * 2 * len(publishers))
        receiver.finish(again)
    wait()
    server.wait_until_empty()


def test_a_shared_group_drains_what_was_queued_for_its_member(server: Server, qos: int) -> None:
    client = connected(server, **kept(5))
    client.subscribe("$share/g/t/#", qos)
    client.disconnect()
    publishers = publishers_on_each(server, qos)
    send_all(publishers, COUNT // 2)()
    wait_until(lambda: server.count("live_messages") <= WINDOW, "a window in memory at most")
    client = server.back(client.client_id)
    receiver = Receiver()
    receiver.take(client, COUNT // 2 * len(publishers))
    receiver.finish(client)
    server.wait_until_empty()


def test_large_messages_are_read_a_few_at_a_time(servers: Servers) -> None:
    server = servers("rocksdb", queue_window_messages=1000)
    client = connected(server, **kept(5))
    client.subscribe("t/#", 1)
    client.disconnect()
    publisher = connected(server)
    payload = bytes(200_000)
    for _ in range(60):  # 12 MB
        publisher.publish("t/1", payload, 1)
    client = server.back(client.client_id, receive_max=1)
    message = client.expect(PUBLISH, payload=payload)
    assert server.count("memory_messages") < 12_000_000
    client.acknowledge(message)
    for _ in range(59):
        client.expect_message("t/1", payload, 1)
    server.wait_until_empty()
    client.ping()  # nothing else has come
