"""Nobody who is away holds up a message of a shared group: it goes to a member on whatever reactor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from conformance.kit import connected, kept
from conformance.packets import PUBACK, PUBLISH, publish

if TYPE_CHECKING:
    from durable.conftest import Servers

FILTER = "$share/g/t"


@pytest.mark.parametrize("kind", ["none", "rocksdb"])
@pytest.mark.parametrize("there", [0, 1], ids=["same reactor", "another reactor"])
def test_what_waited_for_a_member_goes_to_one_that_comes(servers: Servers, kind: str, there: int) -> None:
    server = servers(kind, 2)
    away = server.connected_on(0, **kept(5), receive_max=3)
    away.subscribe(FILTER, 1)
    publisher = connected(server)
    for number in range(8):
        publisher.publish("t", b"%d" % number, 1)
    assert [away.expect(PUBLISH).payload for _ in range(3)] == [b"0", b"1", b"2"]
    away.drop()  # it held three, five waited for it
    other = server.connected_on(there, **kept(5))
    other.subscribe(FILTER, 1)
    for number in range(8):
        other.expect_message("t", b"%d" % number, 1)
    publisher.publish("t", b"next", 1)
    other.expect_message("t", b"next", 1)
    back = server.back(away.client_id)
    back.expect_nothing()


@pytest.mark.parametrize("there", [0, 1], ids=["same reactor", "another reactor"])
def test_very_many_held_go_back_whole_and_in_order(servers: Servers, there: int) -> None:
    """More than one turn hands back; what was not handed back when the session ended is not lost either."""
    count = 6000
    server = servers("none", 2, inflight_max=count)
    away = server.connected_on(0, **kept(5))
    away.subscribe(FILTER, 1)
    publisher = connected(server)
    for first in range(0, count, 500):
        part = range(first, first + 500)
        publisher.send(*(publish("t", b"%d" % number, 1, number - first + 1) for number in part))
        for _ in part:
            publisher.expect(PUBACK)
        for _ in part:
            away.expect(PUBLISH)
    away.drop()
    other = server.connected_on(there, **kept(5), receive_max=100)
    other.subscribe(FILTER, 1)
    ended = connected(server, client_id=away.client_id, clean=True)
    for number in range(count):
        other.expect_message("t", b"%d" % number, 1)
    other.expect_nothing()
    ended.expect_nothing()
