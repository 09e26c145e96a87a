"""Every limit of which one request, or one write, can ask for many: 10,000 get what there is, and no more."""

from __future__ import annotations

import socket
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from adversity.conftest import StartEngine
from conformance.kit import Client, connected
from conformance.packets import (
    PUBACK,
    PUBLISH,
    PUBREC,
    SUBACK,
    acknowledge,
    connect,
    publish,
    subscribe,
)

MANY = 10_000


def granted(client: Client, *filters: str) -> Counter[int]:
    """How often each reason is in the answer to one SUBSCRIBE to all of them."""
    client.send(subscribe(1, *((each, 1) for each in filters)))
    return Counter(client.expect(SUBACK).reasons)


def test_subscriptions_of_a_client(start_engine: StartEngine) -> None:
    engine = start_engine(subscriptions_max=7)
    client = connected(engine)
    assert granted(client, *(f"t/{each}" for each in range(MANY))) == {1: 7, 0x97: MANY - 7}
    assert granted(client, *["t/0"] * MANY) == {1: MANY}
    assert engine.count("subscriptions") == 7


def test_subscriptions_of_all(start_engine: StartEngine) -> None:
    engine = start_engine(2, subscriptions_total_max=100)
    clients = [connected(engine) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        answers = pool.map(lambda each: granted(each, *(f"t/{n}" for n in range(MANY))), clients)
    total = sum(each[1] for each in answers)
    assert 100 <= total <= 101, "as many as there are; one more where two reactors take the last at once"
    assert engine.count("subscriptions") == total


def test_levels_and_bytes_of_filters(start_engine: StartEngine) -> None:
    engine = start_engine(topic_bytes_max=10)
    assert granted(connected(engine), *["x" * 11] * MANY, "ok") == {1: 1, 0x8F: MANY}


def test_retained_messages(start_engine: StartEngine) -> None:
    engine = start_engine(2, retained_messages_max=7)
    client = connected(engine)
    client.send(*(publish(f"t/{each}", b"x", retain=True) for each in range(MANY)))
    client.ping()
    assert engine.count("retained") == 7
    assert engine.count("dropped_retained_full") == MANY - 7


def test_queued_messages_and_bytes(start_engine: StartEngine) -> None:
    """Also where one message meets several subscriptions of the session."""
    engine = start_engine(queued_messages_max=100, queued_bytes_max=1 << 20)
    client = connected(engine, clean=False, session_expiry=1000)
    assert granted(client, "t/#", "t/+", "#") == {1: 3}
    client.disconnect()
    sender = connected(engine)
    for payload in (b"x", b"x" * 4096):
        for start in range(0, MANY // 2, 500):
            sender.send(*(publish("t/1", payload, 1, start + each + 1) for each in range(500)))
            for _ in range(500):
                sender.expect(PUBACK)
    client = connected(engine, 5, client.client_id, clean=False, session_expiry=1000)
    engine.wait_for("dropped_queue_full", MANY - 100)
    for _ in range(100):
        client.acknowledge(client.expect(PUBLISH))
    client.expect_nothing()


def test_messages_under_way_from_a_client(start_engine: StartEngine) -> None:
    engine = start_engine(receive_max=7)
    client = connected(engine)
    client.send(*(publish("t", b"x", 2, each + 1) for each in range(MANY)))
    for _ in range(7):
        client.expect(PUBREC)
    client.expect_closed(0x93)
    assert engine.count("messages_received") == 7


def test_messages_under_way_to_a_client(start_engine: StartEngine) -> None:
    """Ten thousand are retained below one filter, and the client takes as many as there may be."""
    engine = start_engine(inflight_max=7)
    sender, client = connected(engine), connected(engine)
    for start in range(0, MANY, 500):
        packets = (publish(f"t/{start + each}", b"x", 1, each + 1, retain=True) for each in range(500))
        sender.send(*packets)
        for _ in range(500):
            sender.expect(PUBACK)
    assert granted(client, "t/#") == {1: 1}
    under_way = [client.expect(PUBLISH) for _ in range(7)]
    client.expect_nothing()
    # all acknowledgements in one write let as many through
    client.send(*(acknowledge(PUBACK, each.packet_id) for each in under_way))
    assert len([client.expect(PUBLISH) for _ in range(7)]) == 7
    client.expect_nothing()


def test_topic_aliases(start_engine: StartEngine) -> None:
    engine = start_engine(topic_alias_max=7)
    client = connected(engine)
    client.send(*(publish(f"t/{each}", b"x", topic_alias=each + 1) for each in range(MANY)))
    client.expect_closed(0x94)
    assert engine.count("messages_received") == 7


def test_connections_and_sessions(start_engine: StartEngine) -> None:
    """Two hundred that come in one moment, with their CONNECT."""
    for limit in ("connections_max", "connections_per_address_max", "sessions_max"):
        engine = start_engine(2, **{limit: 7})
        sockets = [socket.create_connection(("127.0.0.1", engine.port)) for _ in range(200)]
        accepted = []
        for number, each in enumerate(sockets):
            each.settimeout(20)
            try:
                each.sendall(connect(f"c{number}"))
                accepted.append(each.recv(4)[3:4] == b"\0")
            except ConnectionError:
                accepted.append(False)
        assert sum(accepted) == 7, limit
        for each in sockets:
            each.close()


def test_messages_of_a_second(start_engine: StartEngine) -> None:
    """A second's worth at once, and then at that rate; a SUBSCRIBE is one message, whatever is in it."""
    engine = start_engine(client_messages_per_s=1000)
    client = connected(engine)
    granted(client, *(f"t/{each}" for each in range(5000)))
    client.send(*(publish("nobody", b"x") for _ in range(MANY)))
    engine.wait_for("messages_received", 900)
    assert engine.count("messages_received") < MANY // 2


def test_connects_of_a_client(start_engine: StartEngine) -> None:
    engine = start_engine(2, flapping_connects_max=7)
    codes: Counter[int] = Counter()
    for _ in range(100):
        with socket.create_connection(("127.0.0.1", engine.port)) as each:
            each.settimeout(20)
            each.sendall(connect("flaps"))
            codes[each.recv(4)[3]] += 1
    assert codes[0] == 7, codes
