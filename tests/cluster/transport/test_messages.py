"""Messages between nodes: their order, their sizes, and what becomes of them where nobody takes them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cluster.transport.kit import Node, connect
from waiting import wait_until

from tidemq.cluster.transport.frames import Assembly, pack_message
from tidemq.cluster.transport.inbox import SENDERS_MAX, Inbox
from tidemq.cluster.transport.server import MAX_PAYLOAD_BYTES
from tidemq.cluster.transport.settings import Bounds
from tidemq.errors import ClusterError, UsageError


def test_messages_come_in_their_order_and_to_whom_they_are_for(tmp_path: Path) -> None:
    with Node(tmp_path, 1) as one, Node(tmp_path, 2) as two, Node(tmp_path, 3) as three:
        connect(one, two, three)
        for number in range(2000):
            assert one.transport.send(2, "mail", b"to two %d" % number)
            assert three.transport.send(2, "other", b"from three %d" % number)
        one.transport.broadcast("beat", b"all")
        wait_until(lambda: len(two.bodies(one)) == 2001, "all of one's")
        wait_until(lambda: len(two.bodies(three)) == 2000, "all of three's")
        wait_until(lambda: three.bodies(one), "the heartbeat")
        assert two.bodies(one) == [*(b"to two %d" % number for number in range(2000)), b"all"]
        assert two.bodies(three) == [b"from three %d" % number for number in range(2000)]
        assert three.heard.messages == {1: [("beat", b"all")]}
        assert one.transport.counts["cluster_messages_dropped"] == 0


def test_a_message_larger_than_the_server_takes_comes_whole(tmp_path: Path) -> None:
    sizes = [0, 1, MAX_PAYLOAD_BYTES - 1, MAX_PAYLOAD_BYTES, MAX_PAYLOAD_BYTES + 1, 5 * MAX_PAYLOAD_BYTES + 7]
    with Node(tmp_path, 1) as one, Node(tmp_path, 2) as two:
        connect(one, two)
        for size in sizes:
            assert one.transport.send(2, "mail", bytes([size % 251]) * size)
        wait_until(lambda: len(two.bodies(one)) == len(sizes), "all")
        assert two.bodies(one) == [bytes([size % 251]) * size for size in sizes]
        with pytest.raises(UsageError, match="accepted: up to"):
            one.transport.send(2, "mail", bytes(one.transport.bounds.message_bytes_max + 1))
        with pytest.raises(UsageError, match="no kind"):
            one.transport.send(2, "a.b", b"")


def test_what_nobody_takes_now_is_dropped_and_counted(tmp_path: Path) -> None:
    with Node(tmp_path, 1) as one:
        assert not one.transport.send(2, "mail", b"nobody")
        assert one.transport.counts["cluster_messages_dropped"] == 1


def test_a_node_hears_more_senders_in_its_life_than_it_keeps(tmp_path: Path) -> None:
    """Each node that leaves and comes back is another one."""
    heard: list[int] = []
    home: Any = SimpleNamespace(
        bounds=Bounds(), count=lambda *_: None, message=lambda kind, sender, body: heard.append(sender)
    )
    inbox = Inbox("127.0.0.1:1", home)
    senders = [*range(1, 2 * SENDERS_MAX), 1, 2 * SENDERS_MAX - 1]
    for sender in senders:
        [frame] = pack_message(7, 0, b"mail", 100)
        msg: Any = SimpleNamespace(subject=f"tidemq.x.1.mail.{sender:x}", data=frame)
        asyncio.run(inbox._receive(msg))
    assert heard == senders


def test_pieces_that_do_not_fit_make_no_message() -> None:
    assembly = Assembly(100)
    frames = [list(pack_message(7, number, bytes([number]) * 25, 10)) for number in range(5)]
    assert [assembly.add(frame) for frame in frames[0]] == [None, None, bytes(25)]
    assert assembly.add(frames[1][0]) is None
    assert assembly.add(frames[1][2]) is None  # its second is missing
    assert [assembly.add(frame) for frame in frames[3]][-1] == bytes([3]) * 25
    assert assembly.missed == 2
    [late] = pack_message(7, 4, b"late", 10)
    [other] = pack_message(8, 0, b"next", 10)
    assert assembly.add(other) == b"next"
    assert assembly.add(late) is None  # of a connection that had ended
    assert assembly.missed == 3
    *most, last = pack_message(8, 1, bytes(101), 10)
    assert {assembly.add(frame) for frame in most} == {None}
    with pytest.raises(ClusterError, match="more than 100 bytes"):
        assembly.add(last)
    with pytest.raises(ClusterError, match="expected: 16 or more"):
        assembly.add(b"short")
