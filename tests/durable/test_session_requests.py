"""Where the control plane wants to bring sessions here first, each CONNECT waits for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from conformance.kit import Client, connected, kept, refused, unique
from conformance.packets import CONNACK, connect, publish
from durable.nodes import asking
from waiting import wait_until

from tidemq.errors import UsageError

if TYPE_CHECKING:
    from durable.conftest import Servers

UNAVAILABLE = 0x88
TAKEN_OVER = 0x8E


@pytest.mark.parametrize("reactors", [1, 2])
@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_client_waits_until_it_may_have_its_session(servers: Servers, reactors: int, version: int) -> None:
    node = servers.node(reactors, asks=True)
    client, request = asking(node, unique("c")[:20], version)
    assert (request.client_id, request.protocol_version) == (client.client_id, version)
    assert not request.clean_start
    assert request.expiry_s == (3600 if version == 5 else 0xFFFFFFFF)
    client.send(publish("t", b"early", version=version))  # it is not read meanwhile
    assert node.count("sessions_created") == node.count("messages_received") == 0
    node.access.session_ready(request.connection)
    client.expect(CONNACK, reason=0)
    node.wait_for("messages_received")
    assert node.count("sessions_created") == 1


def test_what_is_asked_says_what_the_client_wants(servers: Servers) -> None:
    node = servers.node(asks=True)
    client, request = asking(node, "c", clean=True, session_expiry=7)
    assert request.clean_start
    assert request.expiry_s == 7
    node.access.session_ready(request.connection)
    client.expect(CONNACK, reason=0)


def test_a_name_that_the_broker_gives_is_asked_for_and_told(servers: Servers) -> None:
    node = servers.node(asks=True)
    client, request = asking(node, "", clean=True)
    assert request.client_id.startswith("tidemq-")
    node.access.session_ready(request.connection)
    assert client.expect(CONNACK, reason=0).get("assigned_client_id") == request.client_id


def test_a_client_can_be_refused(servers: Servers) -> None:
    node = servers.node(asks=True)
    client, request = asking(node, "c")
    node.access.session_ready(request.connection, UNAVAILABLE)
    refused(client, UNAVAILABLE)
    assert node.count("connections_refused") == 1
    assert node.count("sessions_created") == 0


def test_who_is_refused_anyway_is_not_asked_for(servers: Servers) -> None:
    node = servers.node(asks=True, client_id_bytes_max=30)
    client = Client(node.port)
    client.send(connect("c" * 31))
    refused(client, 0x85)
    _, request = asking(node, "c")
    assert request.client_id == "c"


def test_of_two_that_wait_with_one_name_the_later_answered_has_the_session(servers: Servers) -> None:
    for first, second in ((0, 1), (1, 0)):
        node = servers.node(2, asks=True)
        both = [asking(node, "c") for _ in range(2)]
        for turn in (first, second):
            client, request = both[turn]
            node.access.session_ready(request.connection)
            assert client.expect(CONNACK, reason=0).session_present == (turn == second)
        both[first][0].expect_closed(TAKEN_OVER)
        both[second][0].ping()
        assert node.count("sessions_taken_over") == 1


def test_a_client_that_is_here_is_taken_over_only_after_the_answer(servers: Servers) -> None:
    node = servers.node(2, asks=True)
    earlier, request = asking(node, "c")
    node.access.session_ready(request.connection)
    earlier.expect(CONNACK, reason=0)
    later, request = asking(node, "c")
    earlier.ping()
    node.access.session_ready(request.connection)
    assert later.expect(CONNACK, reason=0).session_present
    earlier.expect_closed(TAKEN_OVER)


def test_an_answer_to_a_client_that_has_gone_is_ignored(servers: Servers) -> None:
    node = servers.node(asks=True)
    client, request = asking(node, "c")
    client.drop()
    node.access.session_ready(request.connection)
    wait_until(lambda: node.count("connections_closed") == 1, "the connection has ended")
    node.access.session_ready(request.connection)
    other, request = asking(node, "d")  # in the same slot, by another number
    node.access.session_ready(request.connection)
    other.expect(CONNACK, reason=0)


def test_a_second_answer_is_ignored(servers: Servers) -> None:
    node = servers.node(asks=True)
    client, request = asking(node, "c")
    for reason in (0, UNAVAILABLE, 0):
        node.access.session_ready(request.connection, reason)
    client.expect(CONNACK, reason=0)
    client.ping()
    with pytest.raises(UsageError, match="not the number of a connection"):
        node.access.session_ready(1 << 63)


@pytest.mark.parametrize("reactors", [1, 2])
def test_a_broker_that_closes_leaves_nobody_waiting(servers: Servers, reactors: int) -> None:
    node = servers.node(reactors, asks=True)
    client, request = asking(node, "c")
    node.stop()
    client.expect_closed()
    with pytest.raises(UsageError, match="closed"):
        node.access.session_ready(request.connection)


def test_an_answer_while_the_broker_ends_changes_nothing(servers: Servers) -> None:
    node = servers.node(asks=True)
    client, request = asking(node, "c")
    node.engine.stop()
    node.access.session_ready(request.connection)
    client.expect_closed()
    assert node.count("sessions_created") == 0


def test_an_authenticated_client_waits_with_the_name_that_it_was_given(servers: Servers) -> None:
    """And with the data for its CONNACK; what it sends meanwhile, AUTH too, is not read."""
    node = servers.node(asks=True)
    node.engine.ask_connect = True
    client = Client(node.port)
    client.send(connect("mine", auth_method="m", **kept(5)))
    wait_until(lambda: node.engine.fileno() and _asked(node), "an authenticator is asked")
    [event] = node.others
    node.others.clear()
    node.engine.answer_connect(event.connection, 0, client_id="given", auth_data=b"proof")
    [request] = node.requests()
    assert request.client_id == "given"
    node.engine.answer_connect(event.connection, 0, client_id="other")
    node.engine.answer_auth(event.connection, 0)
    node.access.session_ready(request.connection)
    connack = client.expect(CONNACK, reason=0)
    assert connack.get("auth_data") == b"proof"
    assert list(node.wait_for_rows("session", 1)) == [b"given"]


def _asked(node: object) -> bool:
    node.others += node.engine.events()  # type: ignore[attr-defined]
    return bool(node.others)  # type: ignore[attr-defined]


def test_without_the_wish_nobody_is_asked(servers: Servers) -> None:
    node = servers.node()
    client = connected(node)
    client.ping()
    assert [type(event).__name__ for event in node.engine.events()] == ["Connected"]
    with pytest.raises(UsageError, match="before the engine starts"):
        node.access.ask_for_sessions()
