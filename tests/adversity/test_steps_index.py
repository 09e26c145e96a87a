"""A hundred thousand of a thing: what comes of it is done in parts, between which others are served.

That no turn takes too many steps is what the build for it finds.
"""

from __future__ import annotations

import time

from adversity.conftest import StartEngine
from conformance.kit import Client
from conformance.packets import PUBLISH, SUBACK, connect, publish, subscribe
from waiting import WAIT_S

COUNT = 100_000
BATCH = 500


def subscribe_all(client: Client) -> None:
    """To as many filters."""
    for first in range(0, COUNT, BATCH):
        client.send(subscribe(1, *((f"s/{number}", 0) for number in range(first, first + BATCH))))
        client.expect(SUBACK)


def test_a_client_with_as_many_subscriptions_ends(start_engine: StartEngine) -> None:
    engine = start_engine(1, subscriptions_max=COUNT)
    client, other, publisher = (Client(engine.port) for _ in range(3))
    client.connect("many")
    other.connect()
    other.subscribe("s/5")
    publisher.connect()
    publisher.publish("s/5", b"0")
    subscribe_all(client)
    publisher.publish("s/5", b"1")
    client.expect_message("s/5", b"1")
    # it comes back with a new session while the old one is taken apart
    client = Client(engine.port)
    client.send(connect("many"), subscribe(1, ("s/5", 0), ("s/99999", 0)))
    client.receive()
    client.expect(SUBACK)
    publisher.publish("s/5", b"2")
    publisher.publish("s/99999", b"3")
    client.expect_message("s/5", b"2")
    client.expect_message("s/99999", b"3")
    client.expect_nothing()
    for number in range(3):
        other.expect_message("s/5", b"%d" % number)
    deadline = time.monotonic() + WAIT_S
    while engine.engine.live_objects()["subscriptions"] != 3:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_as_many_retained_messages_under_the_filters_of_clients_that_do_not_read(
    start_engine: StartEngine,
) -> None:
    engine = start_engine(1)
    publisher = Client(engine.port)
    publisher.connect()
    for first in range(0, COUNT, BATCH):
        publisher.send(*(publish(f"r/{number}", b"x", retain=True) for number in range(first, first + BATCH)))
    publisher.ping()
    crowd = [Client(engine.port) for _ in range(40)]
    for client in crowd:
        client.connect()
        client.send(subscribe(1, *((name, 0) for name in ("#", "r/#", "+/+", "r/+", "+/none"))))
    publisher.send(*(publish(f"r/{number}", b"", retain=True) for number in range(0, COUNT, 100)))
    publisher.ping()
    for client in crowd:
        client.expect(SUBACK)
        client.expect(PUBLISH, retain=True)
