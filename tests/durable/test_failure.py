"""A store that cannot be written: nobody gets an acknowledgement of what is not kept, all that needs no store
goes on, and when the cause has gone everything works again.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from conformance.kit import Client, connected, kept, unique
from conformance.packets import (
    CONNACK,
    PING,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    UNSUBACK,
    acknowledge,
    connect,
    publish,
    subscribe,
    unsubscribe,
)
from waiting import WAIT_S, wait_until

from tidemq.broker.durability import keeper
from tidemq.errors import StoreError, StoreFullError

if TYPE_CHECKING:
    from durable.conftest import Servers
    from durable.server import Server

BROKEN = StoreError("the store cannot be written: Input/output error")
FULL = StoreFullError("the store cannot be written: No space left on device")


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "RETRY_S", 0.005)


@pytest.fixture(params=[1, 2], ids=["1-reactor", "2-reactors"])
def server(request: pytest.FixtureRequest, servers: Servers) -> Server:
    """A server whose store a test can break."""
    return servers("memory", request.param)


@pytest.fixture(params=[False, True], ids=["not written", "written all the same"])
def applied(request: pytest.FixtureRequest) -> bool:
    """Whether the failing store has taken the batch."""
    value: bool = request.param
    return value


def leave_session(server: Server, topic: str, qos: int = 2) -> str:
    """A client that subscribes and goes; its session stays."""
    client = connected(server, **kept(5))
    client.subscribe(topic, qos)
    client.disconnect()
    return client.client_id


def break_store(server: Server, applied: bool = False, failure: StoreError = BROKEN) -> None:
    server.store.applied = applied
    server.store.failure = failure


def mend_store(server: Server) -> None:
    """Ends the failure, and waits until the keeper has found that out."""
    server.store.failure = None
    wait_until(lambda: not server.keeper.failure, "the store works again")


def refuse(client: Client, packet_id: int, qos: int, topic: str = "t", payload: bytes = b"refused") -> None:
    """A message that is not kept, and of which that is said."""
    client.send(publish(topic, payload, qos, packet_id, client.version))
    if client.version == 5:
        answer = client.expect(PUBACK if qos == 1 else PUBREC, packet_id=packet_id)
        assert answer.reason >= 0x80
    else:
        client.expect_closed()


@pytest.mark.parametrize("failure", [BROKEN, FULL], ids=["broken", "full"])
@pytest.mark.parametrize("qos", [1, 2])
def test_publishers_are_told(server: Server, applied: bool, qos: int, failure: StoreError) -> None:
    absent = [leave_session(server, "t") for _ in range(3)]
    publisher = connected(server)
    publisher.publish("t", b"before", qos)
    break_store(server, applied, failure)
    for packet_id in (11, 12, 13):
        refuse(publisher, packet_id, qos)
    assert server.keeper.failure == str(failure)
    assert server.count("store_failures") >= 1
    mend_store(server)
    publisher.publish("t", b"after", qos)
    for client_id in absent:
        client = server.back(client_id)
        client.expect_message("t", b"before", qos)
        client.expect_message("t", b"after", qos)
        client.ping()
    server.wait_until_empty()
    # the first was in the queues already, the others were refused before
    assert (server.count("dropped_store_failed"), server.count("refused_store")) == (3, 2)


@pytest.mark.parametrize("qos", [1, 2])
def test_publishers_on_another_reactor_are_told(servers: Servers, applied: bool, qos: int) -> None:
    """At once, whatever else waits there for the store."""
    server = servers("memory", 2)
    client = server.connected_on(0, **kept(5))
    client.subscribe("t", 2)
    publisher = server.connected_on(1)
    break_store(server, applied)
    client.send(subscribe(99, ("another", 1)), PING)
    client.expect(PINGRESP)
    refuse(publisher, 1, qos)
    refuse(publisher, 2, qos)
    assert server.keeper.failure
    mend_store(server)
    publisher.publish("t", b"after", 2)


@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize("qos", [1, 2])
def test_3_x_gets_no_acknowledgement_and_is_disconnected(
    server: Server, applied: bool, version: int, qos: int
) -> None:
    absent = leave_session(server, "t")
    publisher = connected(server, version, **kept(version))
    break_store(server, applied)
    refuse(publisher, 7, qos)
    mend_store(server)
    publisher = server.back(publisher.client_id, version)
    publisher.send(publish("t", b"again", qos, 7, version, dup=True))  # as its client does
    publisher.expect(PUBACK if qos == 1 else PUBREC, packet_id=7)
    client = server.back(absent)
    client.expect_message("t", b"again", qos)
    client.expect_nothing()
    assert not server.left().keys() - {"received"}


def test_what_is_refused_at_qos_2_is_not_waited_for(server: Server, applied: bool) -> None:
    """The packet identifier is free for another message at once, and after the store works again."""
    absent = leave_session(server, "t")
    publisher = connected(server)
    break_store(server, applied)
    refuse(publisher, 7, 2)
    refuse(publisher, 7, 2)
    mend_store(server)
    publisher.send(publish("t", b"new", 2, 7))
    publisher.expect(PUBREC, packet_id=7, reason=0)
    publisher.send(acknowledge(PUBREL, 7))
    publisher.expect(PUBCOMP, packet_id=7, reason=0)
    client = server.back(absent)
    client.expect_message("t", b"new", 2)
    server.wait_until_empty()
    client.ping()  # nothing else has come


@pytest.mark.parametrize("end", ["mended", "crash"])
def test_a_qos_2_message_whose_fate_is_open_keeps_its_identifier(
    server: Server, servers: Servers, applied: bool, end: str
) -> None:
    """Its publisher is disconnected, not refused: it repeats the message, and does not take the identifier,
    which the store may know, for another one. What was never tried is refused.
    """
    absent = leave_session(server, "t")
    publisher = connected(server, **kept(5))
    server.wait_for_rows("session", 2)
    break_store(server, applied)
    publisher.send(publish("t", b"open", 2, 7))
    publisher.expect_closed(0x83)
    publisher = server.back(publisher.client_id)
    refuse(publisher, 8, 2)
    publisher.send(publish("t", b"open", 2, 7, dup=True))
    publisher.expect_closed(0x83)
    if end == "crash":
        server = servers.restart(server, crash=True)
    else:
        mend_store(server)
    publisher = server.back(publisher.client_id)
    publisher.send(publish("t", b"open", 2, 7, dup=True))
    publisher.expect(PUBREC, packet_id=7, reason=0)
    publisher.send(acknowledge(PUBREL, 7))
    publisher.expect(PUBCOMP, packet_id=7, reason=0)
    publisher.publish("t", b"next", 2)
    client = server.back(absent)
    client.expect_message("t", b"open", 2)
    client.expect_message("t", b"next", 2)
    client.ping()  # nothing else has come
    server.wait_until_empty()


def test_a_qos_2_message_that_is_sent_again_while_it_is_tried(server: Server) -> None:
    """It is not acknowledged as one that came before."""
    absent = leave_session(server, "t")
    publisher = connected(server, **kept(5))
    server.store.hold()
    publisher.send(publish("t", b"lost", 2, 7), publish("t", b"lost", 2, 7, dup=True), PING)
    publisher.expect(PINGRESP)
    break_store(server)
    server.store.let_go()
    publisher.expect_closed(0x83)
    mend_store(server)
    server.back(absent).expect_nothing()
    server.wait_until_empty()


def test_who_never_pauses_is_accepted_again(server: Server) -> None:
    """One write fails; what was under way then is refused, and soon nothing is any more."""
    leave_session(server, "t")
    publisher = connected(server)
    publisher.send(*(publish("t", b"x", 1, packet_id) for packet_id in range(1, 101)))
    refused, accepted = False, 0
    deadline = time.monotonic() + WAIT_S
    while accepted < 1000:
        answer = publisher.expect(PUBACK)
        publisher.send(publish("t", b"x", 1, answer.packet_id))  # always a hundred under way
        if answer.reason == 0 and not refused:
            server.store.failure = BROKEN
        elif answer.reason == 0:
            accepted += 1
        else:
            server.store.failure = None
            refused, accepted = True, 0
        assert time.monotonic() < deadline, "it is refused for ever"
    assert refused


def test_what_needs_no_store_goes_on(server: Server) -> None:
    leave_session(server, "kept")
    there = connected(server)
    there.subscribe("#", 2)
    publisher = connected(server)
    publisher.publish("kept", b"before", 1)  # behind all that is still to be stored of the session
    there.expect_message("kept", b"before", 1)
    break_store(server)
    refuse(publisher, 1, 1, "kept")
    there.expect_message("kept", b"refused", 1)  # to whom it could be given
    for qos in (0, 1, 2):
        publisher.publish("t", b"%d" % qos, qos)
        there.expect_message("t", b"%d" % qos, qos)
    publisher.publish("kept", b"QoS 0", 0)
    there.expect_message("kept", b"QoS 0", 0)
    connected(server).subscribe("t", 1)
    mend_store(server)


def test_what_was_acknowledged_before_is_intact(servers: Servers, server: Server, applied: bool) -> None:
    absent = [leave_session(server, "t") for _ in range(2)]
    publisher = connected(server)
    for number in range(10):
        publisher.publish("t", b"%d" % number, 1 + number % 2)
    break_store(server, applied)
    for packet_id in range(100, 105):
        refuse(publisher, packet_id, 1 + packet_id % 2)
    mend_store(server)
    server = servers.restart(server, crash=True)
    for client_id in absent:
        client = server.back(client_id)
        for number in range(10):
            client.expect_message("t", b"%d" % number, 1 + number % 2)
        client.ping()
    server.wait_until_empty()


def test_what_was_acknowledged_before_survives_a_stop_that_cannot_write(
    servers: Servers,
) -> None:
    server = servers("memory", 2, shutdown_s=0)
    absent = leave_session(server, "t")
    publisher = connected(server)
    publisher.publish("t", b"before", 1)
    break_store(server)
    refuse(publisher, 100, 1)
    server.store.let_go()
    server = servers.restart(server, crash=False)
    client = server.back(absent)
    client.expect_message("t", b"before", 1)
    client.expect_nothing()


def test_a_client_that_is_there_gets_what_was_refused_once_at_most(server: Server, applied: bool) -> None:
    """At QoS 1 it has it already; at QoS 2 it never gets it."""
    client = connected(server, **kept(5))
    client.subscribe("t", 2)
    publisher = connected(server)
    break_store(server, applied)
    refuse(publisher, 1, 1, payload=b"QoS 1")
    refuse(publisher, 2, 2, payload=b"QoS 2")
    client.expect_message("t", b"QoS 1", 1)
    client.expect_nothing()
    mend_store(server)
    publisher.publish("t", b"after", 2)
    client.expect_message("t", b"after", 2)
    client.expect_nothing()
    client.drop()
    server.back(client.client_id).expect_nothing()
    server.wait_until_empty()


def test_what_is_undone_together_does_not_go_out_behind_what_was_undone_before(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later message goes when an earlier one went: to send it would be to send it before the earlier one,
    which its publisher sends again (4.6).
    """
    monkeypatch.setattr(keeper, "RETRY_S", 0.5)  # in which one is refused and the other not yet
    client = connected(server, **kept(5), receive_max=1)
    client.subscribe("t", 1)
    publisher = connected(server)
    publisher.publish("t", b"0", 1)
    first = client.expect(PUBLISH, payload=b"0")
    server.store.hold()
    publisher.send(publish("t", b"1", 1, 11))
    assert server.store.at_gate.wait(WAIT_S)
    publisher.send(publish("t", b"2", 1, 12), PING)
    publisher.expect(PINGRESP)
    break_store(server)
    server.store.let_go()
    assert publisher.expect(PUBACK, packet_id=11).reason >= 0x80
    client.send(acknowledge(PUBACK, first.packet_id))
    client.expect_nothing()
    assert publisher.expect(PUBACK, packet_id=12).reason >= 0x80
    client.expect_nothing()
    mend_store(server)
    for number in (1, 2):
        publisher.publish("t", b"%d" % number, 1)
        client.expect_message("t", b"%d" % number, 1)
    server.wait_until_empty()


def test_who_waits_for_suback_or_unsuback_is_told(servers: Servers, server: Server, applied: bool) -> None:
    """What the failing write held is tried again; the client, which has no acknowledgement, is
    disconnected.
    """
    client, other = connected(server, **kept(5)), connected(server, **kept(5))
    other.subscribe("other", 1)
    break_store(server, applied)
    client.send(subscribe(1, ("t", 1)))
    client.expect_closed(0x83)
    other.send(unsubscribe(2, "other"))
    assert other.expect(UNSUBACK, packet_id=2).reasons == [0x83]
    mend_store(server)
    other.unsubscribe("other")
    server = servers.restart(server, crash=True)
    client = server.back(client.client_id)
    client.subscribe("t", 1)
    connected(server).publish("t", b"hello", 1)
    client.expect_message("t", b"hello", 1)


@pytest.mark.parametrize("version", [4, 5])
def test_a_store_that_fails_refuses_at_once_what_it_would_have_to_keep(server: Server, version: int) -> None:
    """SUBSCRIBE, UNSUBSCRIBE and new sessions; what it has, and what it need not have, goes on."""
    client, absent = connected(server, version, **kept(version)), leave_session(server, "t")
    client.subscribe("old", 1)
    passing = connected(server, version)
    break_store(server)
    refuse(connected(server, 5), 1, 1)
    client.send(subscribe(3, ("new", 1), ("newer", 0), version=version))
    assert client.expect(SUBACK, packet_id=3).reasons == [0x83 if version == 5 else 0x80] * 2
    client.send(publish("nobody", b"", 2, 4, version))
    assert client.expect(PUBREC, packet_id=4).reason in (0, 0x10)
    client.send(acknowledge(PUBREL, 4))
    client.expect(PUBCOMP, packet_id=4)
    client.send(unsubscribe(5, "old", version=version))
    if version == 5:
        assert client.expect(UNSUBACK, packet_id=5).reasons == [0x83]
    else:
        client.expect_closed()
    for client_id, clean in ((None, False), (absent, True)):
        new = Client(server.port, version)
        new.send(connect(client_id or unique("new"), version, **(kept(version) | {"clean": clean})))
        assert new.expect(CONNACK).reason == (0x88 if version == 5 else 3)
        new.expect_closed()
    passing.subscribe("passing", 1)
    connected(server).publish("passing", b"goes on", 1)
    passing.expect_message("passing", b"goes on", 1)
    server.back(absent).ping()
    assert server.count("refused_store") >= 5
    mend_store(server)
    again = server.back(client.client_id, version)
    connected(server).publish("old", b"still", 1)
    again.expect_message("old", b"still", 1)
    again.subscribe("new", 1)
    server.back(unique("new"), version, present=False)


def test_pubcomp_and_pubrel_wait_for_the_store(servers: Servers, server: Server, applied: bool) -> None:
    client = connected(server, **kept(5))
    client.subscribe("t", 2)
    client.send(publish("t", b"to myself", 2, 9))
    packets = [client.receive(), client.receive()]
    assert {each.kind for each in packets} == {PUBREC, PUBLISH}
    packet_id = next(each.packet_id for each in packets if each.kind == PUBLISH)
    break_store(server, applied)
    client.send(acknowledge(PUBREL, 9), acknowledge(PUBREC, packet_id), PING)
    client.expect(PINGRESP)
    wait_until(lambda: server.store.failed > 2, "failures")
    client.expect_nothing()
    mend_store(server)
    packets = [client.receive(), client.receive()]
    assert {(each.kind, each.packet_id, each.reason) for each in packets} == {
        (PUBCOMP, 9, 0),
        (PUBREL, packet_id, 0),
    }
    server = servers.restart(server, crash=True)
    client = server.back(client.client_id)
    client.expect(PUBREL, packet_id=packet_id)
    client.send(acknowledge(PUBCOMP, packet_id))
    server.wait_until_empty()


def test_acknowledgements_of_clients_are_not_forgotten(
    servers: Servers, server: Server, applied: bool
) -> None:
    """What is acknowledged while the store fails is removed when it works again, and is not sent twice. The
    payload stays for the one who has not had it."""
    clients = [connected(server, **kept(5)) for _ in range(3)]
    for client in clients:
        client.subscribe("t", 1)
    absent = leave_session(server, "t")
    publisher = connected(server)
    for number in range(10):
        publisher.publish("t", b"%d" % number, 2)
    break_store(server, applied)
    for client in clients:
        for number in range(10):
            client.expect_message("t", b"%d" % number, 1)
        client.ping()
    wait_until(lambda: server.store.failed > 2, "failures")
    mend_store(server)
    server.wait_for_rows("queue", 10)
    server = servers.restart(server, crash=True)
    for client in clients:
        server.back(client.client_id).expect_nothing()
    client = server.back(absent)
    for number in range(10):
        client.expect_message("t", b"%d" % number, 2)
    server.wait_until_empty()


def test_retained_messages_are_what_the_store_has_in_the_end(
    servers: Servers, server: Server, applied: bool
) -> None:
    publisher = connected(server)
    publisher.publish("kept", b"1", 1, retain=True)
    publisher.publish("removed", b"1", 1, retain=True)
    break_store(server, applied)
    for topic, payload in (("kept", b"2"), ("removed", b""), ("new", b"2")):
        publisher.send(publish(topic, payload, 0, retain=True))
    publisher.ping()
    wait_until(lambda: server.store.failed > 0, "a failure")
    mend_store(server)
    wait_until(lambda: set(server.rows("retained")) == {b"kept", b"new"}, "the changes are stored")
    wait_until(lambda: server.rows("retained")[b"kept"].endswith(b"2"), "the last value is stored")
    server = servers.restart(server, crash=True)
    client = connected(server)
    client.subscribe("#", 0)
    messages = [client.expect(PUBLISH) for _ in range(2)]
    assert {each.topic: each.payload for each in messages} == {"kept": b"2", "new": b"2"}
    client.expect_nothing()


def test_a_session_that_ended_meanwhile_leaves_nothing(server: Server, applied: bool) -> None:
    ending, staying = leave_session(server, "t"), leave_session(server, "t")
    publisher = connected(server)
    for number in range(10):
        publisher.publish("t", b"%d" % number, 1)
    break_store(server, applied)
    client = Client(server.port)
    client.connect(ending, clean=False)  # with session expiry 0
    client.drop()
    server.wait_for("sessions_ended")
    wait_until(lambda: server.store.failed > 2, "failures")
    mend_store(server)
    server.wait_for_rows("session", 1)
    client = server.back(staying)
    for number in range(10):
        client.expect_message("t", b"%d" % number, 1)
    server.wait_until_empty()


def test_who_would_be_told_that_a_session_is_gone_is_refused(
    servers: Servers, server: Server, applied: bool
) -> None:
    """However often the client connects meanwhile, on whatever reactor: a crash would bring it back."""
    absent = leave_session(server, "t")
    break_store(server, applied)
    for attempt in range(12):
        client = Client(server.port)
        client.send(connect(absent, 5, clean=True, session_expiry=100 * (attempt % 2)), PING)
        assert client.expect(CONNACK).reason == 0x88
        client.expect_closed()
    mend_store(server)
    client = Client(server.port)
    client.send(connect(absent, 5, clean=True), PING)
    assert not client.expect(CONNACK, reason=0).session_present
    client.expect(PINGRESP)
    server = servers.restart(server, crash=True)
    server.back(absent, present=False)


def test_a_queue_that_cannot_be_read_is_read_later(servers: Servers) -> None:
    server = servers("memory", queue_window_messages=5)
    absent = leave_session(server, "t")
    publisher = connected(server)
    for number in range(30):
        publisher.publish("t", b"%d" % number, 1)
    server.store.read_failure = StoreError("the store cannot be read")
    client = server.back(absent)
    server.wait_for("store_failures", 3)
    client.expect_nothing()
    server.store.read_failure = None
    for number in range(30):
        client.expect_message("t", b"%d" % number, 1)
    server.wait_until_empty()


def test_what_is_dropped_for_room_goes_when_the_store_works_again(servers: Servers, applied: bool) -> None:
    server = servers("memory", queue_full="drop_oldest", queued_messages_max=5)
    absent = leave_session(server, "t")
    publisher = connected(server)
    for number in range(8):
        publisher.publish("t", b"%d" % number, 1)
    break_store(server, applied)
    refuse(publisher, 100, 1)
    mend_store(server)
    for number in range(8, 11):
        publisher.publish("t", b"%d" % number, 1)
    assert 3 <= len(server.rows("queue")) <= 5
    client = server.back(absent)
    for row in range(len(server.rows("queue")), 0, -1):
        client.expect_message("t", b"%d" % (11 - row), 1)
    server.wait_until_empty()
    client.ping()  # nothing else has come


def test_a_slow_store_only_makes_slow(servers: Servers) -> None:
    server = servers("memory", 2)
    server.store.delay_s = 0.02
    client = connected(server, **kept(5))
    client.subscribe("t", 2)
    absent = leave_session(server, "t")
    publisher = connected(server, **kept(5))
    for number in range(5):
        publisher.publish("t", b"%d" % number, 2)
        client.expect_message("t", b"%d" % number, 2)
    publisher.send(*(publish("t", b"%d" % number, 1, number) for number in range(100, 140)))
    for number in range(100, 140):
        publisher.expect(PUBACK, packet_id=number, reason=0)
        client.expect_message("t", b"%d" % number, 1)
    client = server.back(absent)
    for number in (*range(5), *range(100, 140)):
        client.expect_message("t", b"%d" % number, 2 if number < 5 else 1)
    server.wait_until_empty()


def test_a_store_that_fails_now_and_then_loses_and_repeats_nothing(servers: Servers, applied: bool) -> None:
    """Every second batch fails; the publisher sends again what was refused."""
    server = servers("memory", 2)
    absent = [leave_session(server, "t") for _ in range(3)]
    publisher = connected(server, **kept(5))
    server.store.applied = applied
    refused = 0
    for number in range(20):
        again = False
        while True:
            server.store.failure = BROKEN if (number + refused) % 2 else None
            publisher.send(publish("t", b"%d" % number, 2, number + 1, dup=again))
            answer = publisher.receive()
            server.store.failure = None
            if answer.kind == PUBREC:
                assert answer.reason == 0
                break
            again = True
            refused += 1
            publisher = server.back(publisher.client_id)
        publisher.send(acknowledge(PUBREL, number + 1))
        publisher.expect(PUBCOMP, packet_id=number + 1, reason=0)
    assert refused >= 10
    server = servers.restart(server, crash=True)
    for client_id in absent:
        client = server.back(client_id)
        for number in range(20):
            client.expect_message("t", b"%d" % number, 2)
        client.ping()
    server.wait_until_empty()
