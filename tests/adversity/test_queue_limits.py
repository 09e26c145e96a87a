"""What an absent client's queue does not hold is dropped and counted; what it holds arrives in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conformance.kit import Client, connected

if TYPE_CHECKING:
    from adversity.conftest import EngineUnderTest, StartEngine


def leave_session(engine: EngineUnderTest, topic: str) -> str:
    """A client that subscribes and goes; its session stays."""
    client = connected(engine, clean=False, session_expiry=1000)
    client.subscribe(topic, 1)
    client.disconnect()
    return client.client_id


def come_back(engine: EngineUnderTest, client_id: str) -> Client:
    return connected(engine, client_id=client_id, clean=False, session_expiry=1000)


def test_messages_beyond_the_limit_are_counted(start_engine: StartEngine) -> None:
    engine = start_engine(2, queued_messages_max=100)
    absent = [leave_session(engine, "t") for _ in range(4)]
    publisher = connected(engine)
    for number in range(150):
        publisher.publish("t", b"%d" % number, 1, refused=number >= 100)
    engine.wait_for("dropped_queue_full", 4 * 50)
    for client_id in absent:
        client = come_back(engine, client_id)
        for number in range(100):
            client.expect_message("t", b"%d" % number, 1)
        client.expect_nothing()
    publisher.publish("t", b"room again", 1)
    client.expect_message("t", b"room again", 1)
    assert engine.count("dropped_queue_full") == 4 * 50


def test_bytes_beyond_the_limit_are_counted(start_engine: StartEngine) -> None:
    engine = start_engine(1, queued_bytes_max=100_000)
    absent = leave_session(engine, "t")
    publisher = connected(engine, version=4)  # which is not told
    for number in range(20):
        publisher.publish("t", b"%d " % number + bytes(10_000), 1)
    dropped = engine.count("dropped_queue_full")
    assert 20 - 11 <= dropped <= 20 - 9
    client = come_back(engine, absent)
    for number in range(20 - dropped):
        client.expect_message("t", b"%d " % number + bytes(10_000), 1)
    client.expect_nothing()


def test_qos_0_is_not_queued_but_counted(start_engine: StartEngine) -> None:
    engine = start_engine(1)
    absent = leave_session(engine, "t")
    connected(engine).publish("t", b"gone", 0)
    assert engine.count("dropped_offline_qos_0") == 1
    come_back(engine, absent).expect_nothing()


def test_what_a_session_still_had_when_it_ended_is_counted(start_engine: StartEngine) -> None:
    engine = start_engine(1)
    absent = leave_session(engine, "t")
    publisher = connected(engine)
    for number in range(10):
        publisher.publish("t", b"%d" % number, 1)
    connected(engine, client_id=absent, clean=True).expect_nothing()
    assert engine.count("dropped_session_ended") == 10
