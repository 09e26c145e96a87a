"""A receiver that stops reading makes its publishers wait; only after that is anything dropped, and it is
counted.
"""

from __future__ import annotations

import collections
import contextlib
import select
import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest
from conformance.kit import Client, connected
from conformance.packets import PUBACK, PUBLISH, acknowledge, publish, whole
from waiting import LATE_S, WAIT_S

if TYPE_CHECKING:
    from adversity.conftest import StartEngine

HIGH = 100_000  # bytes of output above which publishers wait
COUNT = 20_000
PAYLOAD = bytes(500)  # COUNT of them are more than the system's socket buffers hold


def send_all(client: Client, topic: str, count: int = COUNT) -> threading.Thread:
    """Publishes numbered QoS 0 messages from a thread, as fast as the broker takes them."""

    def send() -> None:
        client.socket.settimeout(WAIT_S)
        for start in range(0, count, 100):
            numbers = range(start, start + 100)
            client.send(*(publish(topic, b"%d " % n + PAYLOAD, version=client.version) for n in numbers))

    thread = threading.Thread(target=send)
    thread.start()
    return thread


def receive_numbers(client: Client, count: int, qos: int = 0) -> list[int]:
    """The numbers of so many messages."""
    numbers = []
    for _ in range(count):
        message = client.expect(PUBLISH)
        numbers.append(int(message.payload.split()[0]))
        if qos:
            client.send(acknowledge(PUBACK, message.packet_id))
    return numbers


def reactors_and_places() -> pytest.MarkDecorator:
    """The receiver lives on the publisher's reactor, or on another."""
    return pytest.mark.parametrize(("reactors", "place"), [(1, 0), (2, 0), (2, 1)])


@reactors_and_places()
def test_nothing_is_lost_while_the_receiver_comes_back_in_time(
    start_engine: StartEngine, reactors: int, place: int
) -> None:
    engine = start_engine(reactors, output_high_bytes=HIGH, backpressure_s=100)
    receiver = engine.connected_on(place)
    receiver.subscribe("t")
    publisher = engine.connected_on(0)
    sending = send_all(publisher, "t")
    engine.wait_for("publishers_paused")
    assert sending.is_alive()
    assert receive_numbers(receiver, COUNT) == list(range(COUNT))
    sending.join()
    assert engine.count("dropped_slow_consumer") == 0


@reactors_and_places()
def test_others_do_not_notice(start_engine: StartEngine, reactors: int, place: int) -> None:
    engine = start_engine(reactors, output_high_bytes=HIGH, backpressure_s=100)
    slow = engine.connected_on(place)
    slow.subscribe("t")
    sending = send_all(engine.connected_on(0), "t")
    engine.wait_for("publishers_paused")
    good, other = connected(engine), connected(engine)
    good.subscribe("good", 1)
    start = time.monotonic()
    for number in range(50):
        other.publish("good", b"%d" % number, 1)
        good.expect_message("good", b"%d" % number, 1)
    assert time.monotonic() - start < LATE_S  # they would wait for 100
    assert sending.is_alive()
    slow.drop()  # it goes, and with it the reason to wait
    sending.join()


@reactors_and_places()
def test_after_the_pause_qos_0_is_dropped_and_counted(
    start_engine: StartEngine, reactors: int, place: int
) -> None:
    engine = start_engine(reactors, output_high_bytes=HIGH, backpressure_s=1)
    slow, good = engine.connected_on(place), connected(engine)
    slow.subscribe("t")
    good.subscribe("t")
    received: list[int] = []
    reading = threading.Thread(target=lambda: received.extend(receive_numbers(good, COUNT)))
    reading.start()
    send_all(engine.connected_on(0), "t").join()
    reading.join()
    assert received == list(range(COUNT)), "the other receiver lost messages"
    dropped = engine.wait_for("dropped_slow_consumer")
    rest = receive_numbers(slow, COUNT - dropped)
    assert rest == sorted(set(rest))
    slow.expect_nothing()


@reactors_and_places()
def test_who_stalls_again_is_not_waited_for_again(
    start_engine: StartEngine, reactors: int, place: int
) -> None:
    """Patience with a receiver runs out, and does not begin anew each time that it has read a little."""
    engine = start_engine(reactors, output_high_bytes=HIGH, backpressure_s=4)
    slow = engine.connected_on(place)
    # it would grow by what is read, until all that is sent fits into the system's buffers
    slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    slow.subscribe("t")
    publisher = engine.connected_on(0)
    send_all(publisher, "t").join()
    engine.wait_for("dropped_slow_consumer")
    waits_s = []
    for turn in range(2):
        receive_until_quiet(slow)
        dropped = engine.count("dropped_slow_consumer")
        start = time.monotonic()
        send_all(publisher, "t").join()
        waits_s.append(time.monotonic() - start)
        engine.wait_for("messages_received", (turn + 2) * COUNT)
        engine.wait_for("dropped_slow_consumer", dropped + 1)
    assert min(waits_s) < 3.5, "the publisher had to wait as long as the first time"


def receive_until_quiet(client: Client) -> None:
    """Takes whatever is there, whole or not."""
    client.socket.settimeout(0.3)
    with contextlib.suppress(TimeoutError):
        while client.socket.recv(1 << 20):
            pass


def test_qos_1_waits_in_the_queue_however_long_it_takes(start_engine: StartEngine) -> None:
    engine = start_engine(2, output_high_bytes=HIGH, backpressure_s=1)
    slow = engine.connected_on(1)
    slow.subscribe("t", 1)
    publisher = engine.connected_on(0)
    publisher.socket.settimeout(WAIT_S)
    count = 8000
    for number in range(count):
        publisher.send(publish("t", b"%d " % number + PAYLOAD, 1, number + 1))
    for number in range(count):
        publisher.expect(PUBACK, packet_id=number + 1, reason=0)
    assert receive_numbers(slow, count, 1) == list(range(count))
    assert engine.count("dropped_slow_consumer") == engine.count("dropped_queue_full") == 0


def test_acknowledgements_alone_let_publishers_go_on(start_engine: StartEngine) -> None:
    """Everything is in flight, nothing waits: nothing but a PUBACK tells that there is room again."""
    engine = start_engine(1, output_high_bytes=HIGH, backpressure_s=100)
    receiver, publisher = connected(engine), connected(engine)
    receiver.subscribe("t", 1)
    for number in range(400):
        publisher.send(publish("t", b"%d " % number + PAYLOAD, 1, number + 1))
    engine.wait_for("publishers_paused")
    start = time.monotonic()
    assert receive_numbers(receiver, 400, 1) == list(range(400))
    assert time.monotonic() - start < LATE_S  # the pause would last for 100


@pytest.mark.parametrize("reactors", [1, 2])
def test_clients_that_feed_each_other_do_not_wait_for_each_other(
    start_engine: StartEngine, reactors: int
) -> None:
    """Both are paused because of the other: their acknowledgements must still be read."""
    engine = start_engine(reactors, output_high_bytes=HIGH, backpressure_s=200)
    pair = [connected(engine), connected(engine)]
    for index, client in enumerate(pair):
        client.subscribe(f"to/{index}", 1)
    start = time.monotonic()
    threads = [
        threading.Thread(target=feed, args=(client, f"to/{1 - index}")) for index, client in enumerate(pair)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() - start < WAIT_S  # a pause would last for 200


def feed(client: Client, topic: str) -> None:
    """Sends 2000 messages at QoS 1 and takes as many; reads when something comes, as a good client does."""
    unsent = b"".join(publish(topic, b"%d " % number + PAYLOAD, 1, number + 1) for number in range(2000))
    kinds: collections.Counter[int] = collections.Counter()
    while kinds[PUBLISH] < 2000 or kinds[PUBACK] < 2000 or unsent:
        readable, writable, _ = select.select([client.socket], [client.socket] if unsent else [], [], 20)
        assert readable or writable, f"stuck after {kinds}"
        if readable:
            client.buffer += client.socket.recv(65536)
            while whole(client.buffer):
                packet = client.receive()
                kinds[packet.kind] += 1
                if packet.kind == PUBLISH:
                    unsent += acknowledge(PUBACK, packet.packet_id)
        if writable:
            unsent = unsent[client.socket.send(unsent[:65536], socket.MSG_DONTWAIT) :]
