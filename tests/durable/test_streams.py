"""Streams: what is acknowledged is in them, in order and once, across crashes and failures of the disk."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from conformance.kit import QUIET_S, Client, Silence, connected, kept
from conformance.packets import (
    PING,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    acknowledge,
    publish,
    unsubscribe,
)
from waiting import WAIT_S, wait_until

from tidemq.broker.durability import keeper
from tidemq.config import StreamConfig
from tidemq.errors import StoreError, UsageError
from tidemq.stream import log
from tidemq.stream.ranges import open_all
from tidemq.stream.schema import END, HEAD

if TYPE_CHECKING:
    from pathlib import Path

    from durable.conftest import Servers
    from durable.server import Server

ALL = StreamConfig(name="all", filters=("#",))
SMALL = StreamConfig(name="small", filters=("s/#",), retention_bytes=1 << 20, retention_s=0)

Row = dict[str, Any]


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "RETRY_S", 0.005)


@pytest.fixture
def server(mode: tuple[str, int, bool], servers: Servers) -> Server:
    """A server with a stream of everything."""
    kind, reactors, _ = mode
    return servers(kind, reactors, streams=[ALL])


def rows(server: Server, name: str = "all", start: int = 0) -> list[Row]:
    """The messages that readers may have, from the files."""
    log = server.streams.all[name].log
    data = bytearray(HEAD)
    with ExitStack() as stack:
        for file, run in open_all(log, stack):
            data += os.pread(file.fileno(), sum(each.length for each in run), run[0].position)
    table = pa.ipc.open_stream(bytes(data) + END).read_all()
    table.validate(full=True)
    return [row for row in table.to_pylist() if row["offset"] >= start]


def wait_for_offset(server: Server, offset: int, name: str = "all") -> None:
    log = server.streams.all[name].log
    wait_until(lambda: log.next_offset >= offset, f"{offset} messages in {name}, and not {log.next_offset}")


def numbers(found: Sequence[Row], topic: str) -> list[int]:
    return [int(row["payload"]) for row in found if row["topic"] == topic]


def test_what_was_acknowledged_is_there_in_order_after_a_restart(
    servers: Servers, server: Server, crash: bool
) -> None:
    publishers = [connected(server, session_expiry=100, clean=False) for _ in range(4)]
    for number in range(30):
        for publisher in publishers:
            publisher.publish(f"t/{publisher.client_id}", b"%d" % number, number % 3)
    for publisher in publishers:
        publisher.ping()
    wait_for_offset(server, 120)  # those of QoS 0 are acknowledged by nothing
    server = servers.restart(server, crash)
    last = connected(server)
    last.publish("last", b"0", 1)
    found = rows(server)
    assert [row["offset"] for row in found] == list(range(121))
    for publisher in publishers:
        assert numbers(found, f"t/{publisher.client_id}") == list(range(30))
        own = [row for row in found if row["client_id"] == publisher.client_id]
        assert [row["qos"] for row in own] == [0, 1, 2] * 10
        assert all((row["packet_id"] is None) == (row["qos"] == 0) for row in own)
    assert len({row["message_id"] for row in found}) == 121
    assert abs(found[-1]["received"].timestamp() - time.time()) < 60


def test_every_property_has_its_column(server: Server) -> None:
    publisher = connected(server)
    rich_message = publish(
        "p",
        b"x",
        retain=True,
        content_type="text/plain",
        response_topic="answer",
        correlation_data=b"\x00\x01",
        user=[("a", "1"), ("b", "ü"), ("a", "2")],
        payload_format=1,
        message_expiry=100,
    )
    publisher.send(rich_message)
    publisher.publish("p", b"y", 1)
    rich, plain = rows(server)
    assert (rich["content_type"], rich["response_topic"]) == ("text/plain", "answer")
    assert rich["correlation_data"] == b"\x00\x01"
    assert [(each["name"], each["value"]) for each in rich["user_properties"]] == [
        ("a", "1"),
        ("b", "ü"),
        ("a", "2"),
    ]
    assert (rich["retain"], plain["retain"]) == (True, False)
    assert plain["content_type"] is None
    assert plain["correlation_data"] is None
    assert plain["user_properties"] == []


def test_an_acknowledgement_waits_until_the_message_is_safe(servers: Servers) -> None:
    server = servers("rocksdb", 1, streams=[ALL])
    publisher = connected(server)
    server.store.hold()
    publisher.send(publish("t", b"1", 1, 1))
    assert server.store.at_gate.wait(WAIT_S)
    with pytest.raises(Silence):
        publisher.receive(QUIET_S)
    assert server.streams.all["all"].log.next_offset == 0  # and nobody reads what may be lost
    server.store.let_go()
    assert publisher.expect(PUBACK).reason == 0
    assert len(rows(server)) == 1


def test_a_repeated_message_of_qos_2_comes_once(servers: Servers, server: Server, crash: bool) -> None:
    """Also where other reactors' queues take part, and across a crash."""
    watchers = [connected(server, session_expiry=100, clean=False) for _ in range(4)]
    for watcher in watchers:
        watcher.subscribe("two", 2)
    publisher = connected(server, session_expiry=100, clean=False)
    publisher.send(publish("two", b"0", 2, 7))
    assert publisher.expect(PUBREC).reason == 0
    publisher.send(publish("two", b"0", 2, 7, dup=True))
    assert publisher.expect(PUBREC).reason == 0
    server = servers.restart(server, crash)
    publisher = server.back(publisher.client_id)
    publisher.send(publish("two", b"0", 2, 7, dup=True))
    assert publisher.expect(PUBREC).reason == 0
    publisher.send(acknowledge(PUBREL, 7))
    publisher.expect(PUBCOMP)
    assert numbers(rows(server), "two") == [0]


def test_a_publisher_that_moves_between_reactors_keeps_its_order(servers: Servers) -> None:
    server = servers("rocksdb", 2, streams=[ALL])
    receiver = server.connected_on(1)
    receiver.subscribe("moving", 0)
    publisher = server.connected_on(0)
    for at in range(0, 3000, 50):
        publisher.send(*(publish("moving", b"%d" % number) for number in range(at, at + 50)))
        publisher.ping()
    assert server.wait_for("publishers_moved") >= 1
    wait_for_offset(server, 3000)
    assert numbers(rows(server), "moving") == list(range(3000))


def test_a_full_disk_refuses_what_would_be_acknowledged(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = servers("rocksdb", 2, streams=[ALL])
    publisher, old = connected(server), connected(server, version=4)
    publisher.publish("t", b"0", 1)
    full = OSError(errno.ENOSPC, "No space left on device")
    really = os.fdatasync

    def fail(_: int) -> None:
        raise full

    monkeypatch.setattr(os, "fdatasync", fail)
    publisher.send(publish("t", b"1", 1, 9))
    assert publisher.expect(PUBACK).reason == 0x83
    old.send(publish("t", b"2", 1, 9))
    old.expect_closed()
    publisher.send(publish("t", b"3"))
    publisher.ping()
    server.wait_for("stream_messages_dropped", 2)
    monkeypatch.setattr(os, "fdatasync", really)
    wait_until(lambda: accepted(publisher, b"4"), "messages are taken again")
    found = rows(server)
    assert numbers(found, "t") == [0, 4]
    assert [row["offset"] for row in found] == [0, 1]


def accepted(publisher: Client, payload: bytes) -> bool:
    publisher.send(publish("t", payload, 1, 11))
    return publisher.expect(PUBACK).reason == 0


@pytest.mark.parametrize("applied", [False, True], ids=["not written", "written all the same"])
def test_what_the_store_failed_to_take_is_no_message(servers: Servers, applied: bool) -> None:
    """Nor does it become one by a crash later on, though the store may have it."""
    server = servers("sqlite", 1, streams=[ALL])
    publisher = connected(server)
    publisher.publish("t", b"0", 1)
    server.store.applied = applied
    server.store.failure = StoreError("the store cannot be written: Input/output error")
    for number in (1, 2, 3):
        publisher.send(publish("t", b"%d" % number, 1, 9))
        assert publisher.expect(PUBACK).reason == 0x83
    assert server.count("refused_store") >= 1  # without asking the store
    server.store.failure = None
    wait_until(lambda: accepted(publisher, b"4"), "messages are taken again")
    server = servers.restart(server, True)
    assert server.damage == []
    assert numbers(rows(server), "t") == [0, 4]


def test_retention_gives_up_whole_segments_and_never_an_offset(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "SWEEP_S", 0.01)
    server = servers("rocksdb", 1, streams=[SMALL])
    log = server.streams.all["small"].log
    publisher = connected(server)
    for _ in range(40):
        publisher.publish("s/x", os.urandom(100_000), 1)
    wait_until(lambda: log.first_offset > 0, "the oldest are given up")
    wait_until(lambda: log.size_bytes <= 3 << 20, "no more than the bound and a segment or two")
    assert rows(server, "small", log.first_offset)[-1]["offset"] == 39
    wait_until(
        lambda: len(list(log.folder.iterdir())) == len({each.segment for each in log.extents}),
        "the others' files are gone",
    )
    # by age, which leaves nothing; the next message has the next offset all the same
    aged = SMALL.model_copy(update={"retention_s": 0.01})
    server.keeper.ask(lambda: server.streams.declare(aged)).result(WAIT_S)
    time.sleep(0.05)
    publisher.publish("s/x", b"next", 1)  # ends the segment before it
    wait_until(lambda: log.first_offset == 40, "all that is old is given up")
    server = servers.restart(server, True, streams=[])
    connected(server).publish("s/x", b"41", 1)
    assert [row["offset"] for row in rows(server, "small", 40)][-1] == 41


@pytest.mark.parametrize("harm", ["shorter", "changed", "gone"])
def test_damaged_files_are_reported_and_their_offsets_never_used_again(servers: Servers, harm: str) -> None:
    server = servers("rocksdb", 1, streams=[ALL])
    publisher = connected(server)
    for number in range(5):
        publisher.publish("t", b"%d" % number, 1)
    [stream] = server.streams.all.values()
    last = stream.log.extents[-1]
    path = stream.log.segment_path(last.segment)
    server = servers.restart(server, False, meanwhile=lambda: damage(path, last.position, harm))
    lost = 5 if harm == "gone" else 1
    assert len(server.damage) == 1
    assert f"has lost {lost} messages" in server.damage[0]
    assert server.count("stream_messages_damaged") == lost
    connected(server).publish("t", b"5", 1)
    server = servers.restart(server, True)
    assert server.damage == []
    assert [row["offset"] for row in rows(server)] == [*range(5 - lost), 5]


def test_damage_found_later_gives_no_offset_again_either(servers: Servers) -> None:
    """The first start finds the last message damaged, the next one another."""
    server = servers("sqlite", 1, streams=[ALL])
    publisher = connected(server)
    for number in range(5):
        publisher.publish("t", b"%d" % number, 1)
    for left in (4, 3):
        kept = server.streams.all["all"].log
        last = kept.extents[-1]
        server = servers.restart(
            server,
            False,
            meanwhile=partial(damage, kept.segment_path(last.segment), last.position, "changed"),
        )
        assert len(server.damage) == 1
        assert len(server.streams.all["all"].log.extents) == left
    assert server.streams.all["all"].log.next_offset == 5
    connected(server).publish("t", b"5", 1)
    assert [row["offset"] for row in rows(server)] == [0, 1, 2, 5]


def damage(path: Path, position: int, harm: str) -> None:
    if harm == "gone":
        path.unlink()
        return
    with path.open("r+b") as file:
        file.seek(position + 100)
        if harm == "shorter":
            file.truncate()
        else:
            file.write(b"\xff")


def test_retention_by_age_does_not_wait_for_a_segment_to_be_full(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "SWEEP_S", 0.01)
    server = servers("rocksdb", 1, streams=[ALL.model_copy(update={"retention_s": 0.4})])
    extents = server.streams.all["all"].log
    publisher = connected(server)
    sent_s: list[float] = []
    while extents.first_offset < 10:  # one comes every now and then
        sent_s.append(time.monotonic())
        publisher.publish("t", b"x", 1)
        time.sleep(0.02)
        gone = extents.first_offset
        assert gone == 0 or time.monotonic() - sent_s[gone - 1] > 0.39, "it went too early"
        assert not sent_s[gone:] or time.monotonic() - sent_s[gone] < 10, "it does not go"


def test_small_batches_of_a_closed_segment_are_merged(
    servers: Servers, monkeypatch: pytest.MonkeyPatch, crash: bool
) -> None:
    monkeypatch.setattr(keeper, "SWEEP_S", 0.01)
    monkeypatch.setattr(log, "SEGMENT_EXTENTS", 50)
    server = servers("rocksdb", 1, streams=[ALL])
    publisher = connected(server)
    for number in range(120):
        publisher.publish("t", b"%d" % number, 1)
    extents = server.streams.all["all"].log
    wait_until(lambda: len(extents.extents) <= 2 + 20, "two closed segments are a batch each")
    before = rows(server)
    assert numbers(before, "t") == list(range(120))
    assert [len(rows(server, start=start)) for start in (0, 30, 60, 119)] == [120, 90, 60, 1]
    assert extents.size_bytes == sum(each.length for each in extents.extents)
    (extents.folder / "00000000000000000007.arrow").write_bytes(b"left over")
    server = servers.restart(server, crash)
    assert server.damage == []
    extents = server.streams.all["all"].log
    assert rows(server) == before
    assert len(list(extents.folder.iterdir())) == 3
    connected(server).publish("t", b"120", 1)
    assert numbers(rows(server), "t") == list(range(121))


def test_a_stream_that_the_store_does_not_take_is_none(servers: Servers) -> None:
    server = servers("sqlite", 1, streams=[ALL])
    server.store.failure = StoreError("the store cannot be written: Input/output error")
    some = StreamConfig(name="some", filters=("a",))
    with pytest.raises(StoreError, match="some cannot be made"):
        server.keeper.ask(lambda: server.streams.declare(some)).result(WAIT_S)
    none = ALL.model_copy(update={"filters": ("none",)})
    with pytest.raises(StoreError, match="Input/output"):
        server.keeper.ask(lambda: server.streams.declare(none)).result(WAIT_S)
    with pytest.raises(StoreError, match="Input/output"):
        server.keeper.ask(lambda: server.streams.delete("all")).result(WAIT_S)
    server.store.failure = None
    assert list(server.streams.all) == ["all"]
    wait_until(lambda: accepted(connected(server), b"0"), "messages are taken")
    assert len(rows(server)) == 1


def test_streams_come_change_and_go_while_messages_pass(servers: Servers) -> None:
    server = servers("rocksdb", 2, streams=[ALL])
    publisher = connected(server)

    def declare(*filters: str) -> None:
        config = StreamConfig(name="some", filters=filters)
        server.keeper.ask(lambda: server.streams.declare(config)).result(WAIT_S)

    declare("a/+")
    epoch = server.streams.all["some"].epoch
    for topic in ("a/1", "b/1"):
        publisher.publish(topic, b"0", 1)
    declare("b/+", "$SYS/#")
    for topic in ("a/1", "b/1"):
        publisher.publish(topic, b"1", 1)
    assert [row["topic"] for row in rows(server, "some")] == ["a/1", "b/1"]
    assert server.streams.all["some"].epoch == epoch
    with pytest.raises(UsageError, match="malformed"):
        declare("a/#/b")
    folder = server.keeper.ask(lambda: server.streams.delete("some")).result(WAIT_S)
    server.streams.remove_files(folder)
    publisher.publish("b/1", b"2", 1)
    declare("#")
    assert server.streams.all["some"].epoch != epoch
    publisher.publish("b/1", b"3", 1)
    assert [(row["offset"], row["payload"]) for row in rows(server, "some")] == [(0, b"3")]
    assert [row["topic"] for row in rows(server)] == ["a/1", "b/1", "a/1", "b/1", "b/1", "b/1"]
    folder = server.streams.all["some"].log.folder
    assert [each.name for each in folder.parent.glob("some.*")] == [folder.name]


def test_what_is_left_of_deleted_streams_goes_at_the_start_and_nothing_else(
    servers: Servers, crash: bool
) -> None:
    server = servers("sqlite", 1, streams=[ALL, SMALL])
    connected(server).publish("s/1", b"0", 1)
    folder = server.streams.all["all"].log.folder.parent
    (folder / "lost.0123456789abcdef").mkdir()  # of a stream that the store has lost
    (folder / "lost.0123456789abcdef" / "0.arrow").write_bytes(b"messages")
    server.keeper.ask(lambda: server.streams.delete("small")).result(WAIT_S)
    server.store.failure = StoreError("the store cannot be written: Input/output error")
    with pytest.raises(StoreError):
        server.keeper.ask(lambda: server.streams.declare(SMALL)).result(WAIT_S)
    server.store.failure = None
    (folder / "empty.0123456789abcdef").mkdir()
    server = servers.restart(server, crash, streams=[ALL])
    left = server.streams.all["all"].log.folder
    assert sorted(each.name for each in left.parent.iterdir()) == [left.name, "lost.0123456789abcdef"]
    assert len(rows(server)) == 1


def test_qos_2_stays_in_order_when_the_last_receiver_elsewhere_goes(servers: Servers) -> None:
    """A message that waits for another reactor's answer comes before one that need not ask any more (4.6)."""
    server = servers("rocksdb", 2, streams=[ALL])
    here, there = server.connected_on(0, **kept(5)), server.connected_on(1, **kept(5))
    here.subscribe("t", 2)
    there.subscribe("t", 1)
    publisher = server.connected_on(0, **kept(5))
    server.store.hold()
    publisher.send(publish("t", b"1", 2, 1))
    assert server.store.at_gate.wait(WAIT_S)  # with the row of who is elsewhere, which the answer waits for
    there.expect_message("t", b"1", 1)
    there.send(unsubscribe(9, "t"), PING)
    there.expect(PINGRESP)
    publisher.send(publish("t", b"2", 2, 2), publish("stream", b"3", 2, 3), PING)
    publisher.expect(PINGRESP)
    server.store.let_go()
    here.expect_message("t", b"1", 2)
    here.expect_message("t", b"2", 2)
    for packet_id in (1, 2, 3):
        publisher.expect(PUBREC, packet_id=packet_id)
    assert [row["payload"] for row in rows(server)] == [b"1", b"2", b"3"]


def test_qos_2_for_a_group_that_the_store_does_not_hold_is_there(servers: Servers) -> None:
    server = servers("rocksdb", 1, streams=[ALL])
    member = connected(server)
    member.subscribe("$share/g/t", 2)
    publisher = connected(server, **kept(5))
    publisher.publish("t", b"1", 2)
    member.expect_message("t", b"1", 2)
    assert [row["payload"] for row in rows(server)] == [b"1"]
