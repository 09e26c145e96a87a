"""A message that comes twice to a session which has just moved, from its publisher's node and as a row of its
old home, is delivered once; one message has one id on all nodes.
"""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING

import pytest
from conformance.kit import connected, kept
from durable.nodes import taken
from waiting import WAIT_S, wait_until

from tidemq.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from durable.conftest import Servers
    from durable.nodes import Node

    from tidemq.store import Write

ELSEWHERE = 0x1122334455667788  # the incarnation of another node
RECORD = struct.Struct("=BBBBHHIIQq")
LINKED = 512 * 1024


def message_id(clock: int) -> bytes:
    return struct.pack(">QQ", clock, ELSEWHERE)


def now(reactor: int = 0) -> int:
    return time.time_ns() // 64 * 64 + reactor


class Session:
    """Of the client `c`, which has moved to `node`."""

    def __init__(self, servers: Servers, reactors: int, *, keep: int = 0, **more: object) -> None:
        first, self.node = servers.node(reactors), servers.node(reactors, linked=LINKED)
        client = connected(first, client_id="c", **kept(5))
        client.subscribe("t", 1)
        client.disconnect()
        sender = connected(first)
        for number in range(keep):
            sender.publish("t", b"kept %d" % number, 1)
        self.queue = first.hand_over("c", self.node, **more).queue

    def come(self, *clocks: int) -> None:
        """Messages come from their publisher's node; the payload of each is its clock."""
        batch = struct.pack("=IIQ", 0x424E4D54, 1, ELSEWHERE)
        for clock in clocks:
            payload = b"%d" % clock
            batch += RECORD.pack(1, 1, 2, 0, 1, 0, 0, len(payload), clock, 0) + b"t" + payload
        before = self.node.count("messages_from_nodes")
        assert self.node.nodes.give(0, batch)
        self.node.wait_for("messages_from_nodes", before + len(clocks))

    def add(self, *clocks: int) -> None:
        """The same come as rows, as the old home has added them."""
        for clock in clocks:
            text = b"%d" % clock
            message = struct.pack(">BBqIII", 1, 0, 0, 1, 0, len(text)) + b"t" + text
            row = struct.pack(">QB", self.queue, 1) + message_id(clock)
            value = struct.pack(">BBIqQ", 0, 1, 100, 0, 0)
            self.node.write([("queue", row, value), ("payload", message_id(clock), message)])
        self.node.access.note_added(self.queue, [message_id(clock) for clock in clocks], [100] * len(clocks))


BOTH = pytest.mark.parametrize("reactors", [1, 2])


@BOTH
@pytest.mark.parametrize("row_first", [True, False])
@pytest.mark.parametrize("there", [True, False])
def test_a_message_that_comes_twice_is_delivered_once(
    servers: Servers, reactors: int, row_first: bool, there: bool
) -> None:
    session = Session(servers, reactors, doubles_s=30)
    clocks = [now() + 64 * number for number in range(20)]
    client = session.node.back("c") if there else None
    for step in (session.add, session.come) if row_first else (session.come, session.add):
        step(*clocks)
    session.node.wait_for("messages_come_twice", len(clocks))
    last = clocks[-1] + 6400
    session.come(last)
    client = client or session.node.back("c")
    assert taken(client, len(clocks) + 1) == [b"%d" % clock for clock in (*clocks, last)]


@BOTH
@pytest.mark.parametrize("row_first", [True, False])
def test_a_session_that_another_node_turns_out_to_have_had_may_get_messages_twice(
    servers: Servers, reactors: int, row_first: bool
) -> None:
    session = Session(servers, reactors, doubles_s=0)
    session.node.access.expect_doubles(session.queue, 30)
    client = session.node.back("c")
    clocks = [now() + 64 * number for number in range(20)]
    for step in (session.add, session.come) if row_first else (session.come, session.add):
        step(*clocks)
    session.node.wait_for("messages_come_twice", len(clocks))
    assert taken(client, len(clocks)) == [b"%d" % clock for clock in clocks]
    session.node.access.expect_doubles(session.queue + 1000, 30)
    client.ping()


@BOTH
@pytest.mark.parametrize("there", [True, False])
def test_nothing_overtakes_what_the_old_home_adds(servers: Servers, reactors: int, there: bool) -> None:
    """Until it is said that all has come, what waits is not sent; QoS 0 and what is in flight are."""
    session = Session(servers, reactors, keep=2, doubles_s=30, older_may_come=True)
    node = session.node
    client = node.back("c") if there else None
    clocks = [now() + 64 * number for number in range(6)]
    session.come(*clocks[3:])
    client = client or node.back("c")
    connected(node).publish("t", b"at once", 0)
    client.expect_message("t", b"at once", 0)
    session.add(*clocks[:3])
    client.ping()
    assert node.count("messages_sent") == 1
    node.access.all_came(session.queue)
    expected = [b"kept 0", b"kept 1", *(b"%d" % clock for clock in clocks)]
    assert taken(client, len(expected)) == expected
    session.come(clocks[-1] + 64)
    assert taken(client, 1) == [b"%d" % (clocks[-1] + 64)]
    client.ping()
    node.wait_until_empty()


def test_all_may_have_come_for_a_session_that_has_gone(servers: Servers) -> None:
    session = Session(servers, 1, doubles_s=30, older_may_come=True)
    session.node.release("c")
    session.node.access.all_came(session.queue)
    connected(session.node).ping()


@BOTH
@pytest.mark.parametrize("there", [True, False])
def test_what_the_store_did_not_take_and_the_old_home_did_is_delivered(
    servers: Servers, reactors: int, there: bool
) -> None:
    session = Session(servers, reactors, doubles_s=30)
    node, clock = session.node, now()
    node.store.failure = StoreError("no space left on device")
    session.come(clock)
    node.wait_for("dropped_store_failed", 1)
    node.store.failure = None
    wait_until(lambda: not node.keeper.failure, "what was not taken is undone")
    client = node.back("c") if there else None
    session.add(clock)
    client = client or node.back("c")
    assert taken(client, 1) == [b"%d" % clock]
    assert node.count("messages_come_twice") == 0


@BOTH
def test_what_the_old_home_has_taken_comes_as_rows_alone(servers: Servers, reactors: int) -> None:
    first, other = now(), now(reactor=1) + 640
    marks = [(ELSEWHERE, 0, first + 64), (ELSEWHERE, 1, other)]
    session = Session(servers, reactors, doubles_s=30, taken=marks)
    client = session.node.back("c")
    session.come(first, first + 64, other)  # it was delivered there, and is gone
    session.node.wait_for("messages_come_twice", 3)
    session.come(first + 128, other + 64)
    assert taken(client, 2) == [b"%d" % (first + 128), b"%d" % (other + 64)]
    session.add(first + 64)
    assert taken(client, 1) == [b"%d" % (first + 64)]


@BOTH
def test_rows_that_were_there_may_come_once_more(servers: Servers, reactors: int) -> None:
    clock = now()
    session = Session(servers, reactors, doubles_s=30, recent=[message_id(clock)])
    client = session.node.back("c")
    session.come(clock, clock + 64)
    assert taken(client, 1) == [b"%d" % (clock + 64)]
    assert session.node.count("messages_come_twice") == 1


@pytest.mark.parametrize("doubles_s", [30, 0.0])
def test_what_is_done_before_it_is_stored_is_told_all_the_same(
    servers: Servers, monkeypatch: pytest.MonkeyPatch, doubles_s: float
) -> None:
    """Else its row, as the old home has added it, would be nobody's to remove, and come again one day."""
    session = Session(servers, 1, doubles_s=doubles_s)
    node, store, clock = session.node, session.node.store, now()
    client = node.back("c")
    time.sleep(0.05)  # until, with `doubles_s` 0, nothing is remembered any more
    session.come(clock - 64)
    assert taken(client, 1) == [b"%d" % (clock - 64)]
    changes: list[tuple[str, bool]] = []
    write = store.write

    def watched(batch: Sequence[Write], *, sync: bool) -> None:
        changes.extend((family, value is None) for family, key, value in batch if message_id(clock) in key)
        write(batch, sync=sync)

    monkeypatch.setattr(store, "write", watched)
    store.hold()
    connected(node, client_id="other", **kept(5))  # a write that waits
    assert store.at_gate.wait(WAIT_S)
    session.come(clock)
    assert taken(client, 1) == [b"%d" % clock]
    client.ping()
    store.let_go()
    connected(node, client_id="last", **kept(5))
    wait_until(lambda: b"last" in node.rows("session"), "all before the last is stored")
    queue = [gone for family, gone in changes if family == "queue"]
    assert queue == ([False, True] if doubles_s else [])


@BOTH
def test_after_a_while_nothing_comes_twice_any_more(servers: Servers, reactors: int) -> None:
    clock = now()
    session = Session(servers, reactors, doubles_s=0.001, recent=[message_id(clock)])
    client = session.node.back("c")
    time.sleep(0.05)
    session.come(clock)  # only a node that does not keep to the rules sends it
    assert taken(client, 1) == [b"%d" % clock]


def remembered(node: Node) -> int:
    """About how many messages sessions remember."""
    return node.count("memory_sessions") // 64


def test_what_a_session_remembers_counts(servers: Servers) -> None:
    """As memory; and it goes with the session."""
    session = Session(servers, 1, doubles_s=3600, recent=[message_id(each) for each in range(64, 64_064, 64)])
    node, ids = session.node, [message_id(now() + 64 * each) for each in range(1000)]
    assert 1000 <= remembered(node) < 1500
    node.access.note_added(session.queue, ids, [10] * len(ids))
    wait_until(lambda: remembered(node) >= 2000, "the messages are remembered")
    connected(node, client_id="c", clean=True).ping()
    assert remembered(node) < 500


def test_what_a_session_remembers_is_forgotten_by_itself(servers: Servers) -> None:
    """Also where nothing comes for it any more, or only by another node's log."""
    recent = [message_id(each) for each in range(64, 640_064, 64)]
    session = Session(servers, 1, doubles_s=0.1, recent=recent)
    wait_until(lambda: remembered(session.node) < 500, "they are forgotten")
    ids = [message_id(now() + 64 * each) for each in range(1000)]
    session.node.access.note_added(session.queue, ids, [10] * len(ids))
    connected(session.node).ping()  # after that, for there is one reactor
    assert remembered(session.node) < 500


def test_what_is_remembered_for_longer_is_forgotten_later(servers: Servers) -> None:
    session = Session(servers, 1, doubles_s=0.1, recent=[message_id(each) for each in range(64, 64_064, 64)])
    node = session.node
    wait_until(lambda: remembered(node) < 500, "they are forgotten")
    node.access.expect_doubles(session.queue, 0.1)
    node.access.expect_doubles(session.queue, 3600)
    time.sleep(0.3)
    clock = now()
    session.come(clock, clock)
    wait_until(lambda: node.count("messages_come_twice") == 1, "the second is known")


@BOTH
def test_a_message_keeps_its_id_and_raises_those_that_follow(servers: Servers, reactors: int) -> None:
    """A publisher that moves here, from a node whose clock is a minute ahead, does not overtake itself."""
    session = Session(servers, reactors, doubles_s=30)
    clock = now() + 60 * 10**9 // 64 * 64
    session.come(clock)
    sender = connected(session.node)
    sender.publish("t", b"after", 1)
    keys = sorted(key[9:25] for key in session.node.rows("queue"))
    assert keys[0] == message_id(clock)
    assert len(keys) == 2
    assert taken(session.node.back("c"), 2) == [b"%d" % clock, b"after"]


def test_an_id_far_ahead_raises_no_others(servers: Servers) -> None:
    """Clocks of nodes are never hours apart (`cluster_skew_s_max`): such an id is a defect of its node."""
    session = Session(servers, 1, doubles_s=30)
    far = now() + 2 * 3600 * 10**9
    session.come(far)
    connected(session.node).publish("t", b"after", 1)
    keys = sorted(key[9:25] for key in session.node.rows("queue"))
    assert keys[1] == message_id(far)
    assert int.from_bytes(keys[0][:8]) < now()


def test_ids_are_raised_by_what_a_node_has_heard(servers: Servers) -> None:
    session = Session(servers, 1)
    ahead = now() + 60 * 10**9
    session.node.access.raise_ids(ahead)
    connected(session.node).publish("t", b"after", 1)
    [key] = session.node.rows("queue")
    assert int.from_bytes(key[9:17]) >= ahead
