"""Copies of a node's log at another one's server: whole, in order, and again where that server lost them."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import pytest
from cluster.transport.kit import Node, await_copied, connect, copies_at, record
from waiting import wait_until

from tidemq.cluster.transport import copying
from tidemq.cluster.transport.frames import pack_copies, unpack_copies
from tidemq.cluster.transport.server import MAX_PAYLOAD_BYTES
from tidemq.cluster.transport.settings import Bounds
from tidemq.errors import ClusterError, UsageError

NO_RESOURCES = 10023  # of JetStream


def records(numbers: range, size: int = 100) -> list[bytes]:
    return [record(number, size) for number in numbers]


def test_copies_are_there_when_it_is_said(tmp_path: Path) -> None:
    with Node(tmp_path, 1) as one, Node(tmp_path, 2) as two:
        connect(one, two)
        for first in range(1, 5001, 100):
            one.append(2, range(first, first + 100))
        await_copied(one, two, 5000)
        assert copies_at(two, one) == records(range(1, 5001))
        assert two.transport.copied_of(1).result(10) == (1, 5000)
        assert two.transport.copied_of(9).result(10) == (0, 0)
        one.heard.records.clear()
        one.transport.fetch(2, 1, 17, 19)  # its own, from where they are
        one.transport.fetch(2, 9, 1, 5)
        one.transport.fetch(7, 1, 1, 5)
        wait_until(lambda: len(one.heard.records) == 3, "three answers")
        assert (2, 1, records(range(17, 20)), "") in one.heard.records
        assert {(holder, what) for holder, what, found, _ in one.heard.records if not found} == {
            (2, 9),
            (7, 1),
        }
        assert all(problem for *_, found, problem in one.heard.records if not found)


def test_records_of_every_size_come_whole(tmp_path: Path) -> None:
    sizes = [16, 300_000, MAX_PAYLOAD_BYTES, 17, 3 * MAX_PAYLOAD_BYTES + 5, 18]
    with Node(tmp_path, 1) as one, Node(tmp_path, 2) as two:
        connect(one, two)
        for number, size in enumerate(sizes, 1):
            one.append(2, range(number, number + 1), size)
        await_copied(one, two, len(sizes))
        assert copies_at(two, one) == [record(number, size) for number, size in enumerate(sizes, 1)]
        with pytest.raises(UsageError, match="accepted: up to"):
            one.transport.copy(2, [(7, bytes(one.transport.bounds.record_bytes_max + 1))])


def test_a_restarted_node_goes_on_where_its_copies_end(tmp_path: Path) -> None:
    with Node(tmp_path, 1) as one, Node(tmp_path, 2) as two:
        connect(one, two)
        one.append(2, range(1, 11))
        await_copied(one, two, 10)
        one.transport.close()
        one.heard.copied.clear()
        with one.heard.lock:  # written while no one was there to take them
            one.heard.log.update((number, record(number)) for number in range(11, 21))
        one.open()
        one.transport.copy(2, [])
        one.transport.set_peers({2: two.address})
        await_copied(one, two, 20)
        assert (2, 11) in one.heard.lost
        assert copies_at(two, one) == records(range(1, 21))


def test_what_is_trimmed_is_removed_and_not_asked_for(tmp_path: Path) -> None:
    with Node(tmp_path, 1) as one, Node(tmp_path, 2) as two:
        connect(one, two)
        for number in range(1, 101):
            one.append(2, range(number, number + 1), 100_000)
        await_copied(one, two, 100)
        one.transport.trim(100)
        wait_until(lambda: two.transport.copied_of(1).result(10)[0] > 95, "most are removed")
        assert two.transport.copied_of(1).result(10)[1] == 100  # the last stays, as a mark
        one.append(2, range(101, 111))
        await_copied(one, two, 110)
        shutil.rmtree(two.folder / "jetstream")
        wait_until(lambda: (2, 101) in one.heard.lost, "those that are needed are asked for, and no more")
        await_copied(one, two, 110)
        wait_until(lambda: two.transport.copied_of(1).result(10) == (101, 110), "those that are needed")


def test_more_than_may_wait_is_asked_for_again(tmp_path: Path) -> None:
    bounds = Bounds(copies_bytes_max=100_000)
    with Node(tmp_path, 1, bounds=bounds) as one, Node(tmp_path, 2) as two:
        for first in range(1, 2001, 10):  # nobody takes them yet
            one.append(2, range(first, first + 10), 1000)
        assert one.transport.counts["cluster_copies_put_off"] >= 1
        assert one.transport.status()["peers"] == []
        connect(one, two)
        await_copied(one, two, 2000)
        assert copies_at(two, one) == [record(number, 1000) for number in range(1, 2001)]


def test_a_server_without_room_is_said_and_has_no_part_of_it(tmp_path: Path) -> None:
    with Node(tmp_path, 1) as one, Node(tmp_path, 2, store_bytes_max=1 << 20) as two:
        connect(one, two)
        one.append(2, range(1, 41), 100_000)
        wait_until(lambda: one.heard.has_problem("copies are refused", "resources"), "it is said")
        kept = one.heard.copied[2]
        assert 0 < kept < 40
        assert one.transport.send(2, "mail", b"messages go on")
        wait_until(lambda: two.bodies(one), "the message")
        one.transport.trim(kept)
        await_copied(one, two, kept + 1)


def test_the_pieces_of_a_record_stay_until_it_is_trimmed_itself(tmp_path: Path) -> None:
    with Node(tmp_path, 1) as one, Node(tmp_path, 2) as two:
        connect(one, two)
        one.append(2, range(1, 2))
        one.append(2, range(2, 3), 3 * MAX_PAYLOAD_BYTES)
        await_copied(one, two, 2)
        one.transport.trim(1)
        wait_until(lambda: two.transport.copied_of(1).result(10) == (2, 2), "the first is trimmed")
        assert copies_of(two, one, 2) == [record(2, 3 * MAX_PAYLOAD_BYTES)]


def test_a_record_in_pieces_that_did_not_fit_comes_with_the_next_answer(tmp_path: Path) -> None:
    size = 5 * MAX_PAYLOAD_BYTES // 2
    with Node(tmp_path, 1) as one, Node(tmp_path, 2, bounds=Bounds(fetched_bytes_max=4 << 20)) as two:
        connect(one, two)
        one.append(2, range(1, 3), size)
        await_copied(one, two, 2)
        assert copies_of(two, one, 1) == [record(1, size)]
        assert copies_of(two, one, 2) == [record(2, size)]
        assert copies_of(two, one, 2) == [record(2, size)]


def test_who_gives_copies_that_are_there_hears_of_it(tmp_path: Path) -> None:
    """As where the node was the replica before, over the same connection."""
    with Node(tmp_path, 1) as one, Node(tmp_path, 2) as two:
        connect(one, two)
        one.append(2, range(1, 11))
        await_copied(one, two, 10)
        one.heard.copied.clear()
        one.append(2, range(1, 6))
        await_copied(one, two, 10)


def test_copies_go_on_behind_what_was_trimmed_meanwhile(tmp_path: Path) -> None:
    """As where another node was the replica meanwhile."""
    with Node(tmp_path, 1) as one, Node(tmp_path, 2) as two:
        connect(one, two)
        one.append(2, range(1, 11))
        await_copied(one, two, 10)
        with one.heard.lock:
            one.heard.log.clear()
        one.transport.trim(20)
        one.append(2, range(21, 31))
        await_copied(one, two, 30)
        assert copies_of(two, one, 21) == records(range(21, 31))


def test_copies_of_a_node_that_is_no_more_go(tmp_path: Path) -> None:
    with Node(tmp_path, 1) as one, Node(tmp_path, 2) as two:
        connect(one, two)
        one.append(2, range(1, 11))
        await_copied(one, two, 10)
        one.stop()
        two.transport.forget_copies(1, 9)
        assert two.transport.copied_of(1).result(10) == (1, 10)  # one that is not known yet
        two.transport.forget_copies(1, 10)
        wait_until(lambda: two.transport.copied_of(1).result(10) == (0, 0), "they go")


def copies_of(holder: Node, origin: Node, first: int) -> list[bytes]:
    """One answer, from this record on."""
    holder.heard.records.clear()
    holder.transport.fetch(holder.incarnation, origin.incarnation, first, 1 << 40)
    wait_until(lambda: holder.heard.records, "an answer")
    *_, found, problem = holder.heard.records[0]
    assert not problem, problem
    return found


@pytest.mark.parametrize("how", ["killed", "deleted", "deleted while down", "one stream deleted"])
def test_a_server_that_loses_something_has_all_again(tmp_path: Path, how: str) -> None:
    with Node(tmp_path, 1) as one, Node(tmp_path, 2) as two:
        connect(one, two)
        for first in range(1, 301, 10):
            one.append(2, range(first, first + 10), 60_000)  # more than the file that it had open
            if first == 101:
                await_copied(one, two, 20)
                break_server(two, how)
        await_copied(one, two, 300)
        wait_until(
            lambda: how == "one stream deleted" or two.server.counts["cluster_server_restarts"], "a restart"
        )
        # what is acknowledged by a server that is then found to have lost it comes again
        wait_until(lambda: len(copies_now(two, one)) == 300, "all copies")
        assert copies_at(two, one) == records(range(1, 301), 60_000)
        assert one.transport.counts["cluster_calls_failed"] == 0


def test_a_stream_is_made_anew_when_it_has_taken_nothing_for_long_and_not_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long nothing was sent. A server without room stands for one whose disk is full: that one says
    what it says of a stream that has lost its files.
    """
    monkeypatch.setattr(copying, "WRONG_SEQUENCE", NO_RESOURCES)
    with Node(tmp_path, 1) as one, Node(tmp_path, 2, store_bytes_max=1 << 20) as two:
        connect(one, two)
        one.append(2, range(1, 13), 100_000)
        await_copied(one, two, 12)
        time.sleep(1.5 * one.transport.patience.stuck_s)
        began = time.monotonic()
        one.append(2, range(13, 15), 100_000)
        wait_until(lambda: one.transport.counts["cluster_copies_damaged"], "it is made anew")
        assert time.monotonic() - began > one.transport.patience.stuck_s


def break_server(node: Node, how: str) -> None:
    kept = node.folder / "jetstream"
    if how == "deleted":
        shutil.rmtree(kept)
    elif how == "one stream deleted":
        shutil.rmtree(kept / "$G/streams/C_0000000000000001")
    else:
        assert node.server.pid is not None
        os.kill(node.server.pid, signal.SIGKILL)
        if how == "deleted while down":
            shutil.rmtree(kept)


def copies_now(holder: Node, origin: Node) -> list[bytes]:
    try:
        return copies_at(holder, origin)
    except AssertionError:
        return []


def test_packed_records_are_read_only_whole() -> None:
    several = [b"", b"a", bytes(1000)]
    [frame] = pack_copies(7, several, 2000)
    assert unpack_copies(frame).records == tuple(several)
    assert unpack_copies(frame).last_whole == 9
    pieces = [unpack_copies(each) for each in pack_copies(7, [bytes(range(250))], 100)]
    assert [each.last_whole for each in pieces] == [6, 6, 7]
    assert b"".join(each.records[0] for each in pieces) == bytes(range(250))
    for end in range(len(frame)):
        with pytest.raises(ClusterError):
            unpack_copies(frame[:end])
    with pytest.raises(ClusterError):
        unpack_copies(frame + b"x")
    with pytest.raises(ClusterError, match="format 9"):
        unpack_copies(b"\x09" + frame[1:])
