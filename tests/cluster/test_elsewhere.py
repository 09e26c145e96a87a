"""Rows of QoS 2 messages for sessions that other nodes have, as operations."""

from __future__ import annotations

import itertools
import struct
from typing import Any

import pytest
from cluster.nodes import START_NS, WrittenRows, begun, make_message

from tidemq.cluster import operations as ops
from tidemq.cluster.conversion import Conversion
from tidemq.cluster.operations import SESSION, Operation, Owner, Stamp
from tidemq.cluster.records import read_run
from tidemq.cluster.rows import End, Retained, Session, Subscription
from tidemq.cluster.sharing import Sharing
from tidemq.cluster.stored_rows import id_bytes
from tidemq.cluster.vectors import Dot
from tidemq.store.rows import BACKLOG

FIRST, SECOND = Stamp(START_NS, 1), Stamp(START_NS + 64, 1)
ANN, BOB = Owner(SESSION, "ann"), Owner(SESSION, "böb")


def row(queue: int | bytes, message_id: Stamp, message: bytes | None = None) -> tuple[Any, ...]:
    return "add", queue, id_bytes(message_id), 2, False, 9, 0, (), None, False, message


def each_of(found: list[Operation]) -> list[Operation]:
    """Those of runs one by one."""
    return [each for one in found for each in (read_run(one.text) if isinstance(one, ops.Run) else [one])]


class Converting:
    def __init__(self) -> None:
        self.rows = WrittenRows()
        for each in ("ann", "böb"):
            self.rows.sessions.put(each, None, Session(begun(each, FIRST, 2), Dot(2, 1)))
        times = itertools.count(START_NS + 1)
        self.conversion = Conversion(
            self.rows, 1, lambda: Stamp(next(times), 1), lambda _: None, Sharing(1.0)
        )

    def convert(self, *described: tuple[Any, ...]) -> list[Operation]:
        found, plain = self.conversion.convert(list(described), {b"ann", "böb".encode()})
        assert plain == []
        return each_of(found)

    def added(self, *described: tuple[Any, ...]) -> list[tuple[Owner, Stamp]]:
        """Whose entries; each behind its message."""
        found, brought = [], set()
        for each in self.convert(*described):
            if isinstance(each, ops.Payload):
                brought.add(each.id)
            elif isinstance(each, ops.Add):
                assert each.id in brought
                found.append((each.owner, each.id))
        return found


@pytest.fixture
def converting() -> Converting:
    return Converting()


def end(converting: Converting) -> None:
    """Ann's session, on another node."""
    converting.rows.ends.put("ann", Dot(2, 2), End(FIRST, {2: 1}, (FIRST, Dot(2, 1)), {}))
    converting.rows.sessions.put("ann", None, None)


def test_they_are_for_owners_by_name(converting: Converting) -> None:
    message = make_message("a", b"x")
    described = row(b"ann", FIRST, message), row("böb".encode(), FIRST), row(b"ann", SECOND, message)
    assert converting.added(*described) == [(ANN, FIRST), (BOB, FIRST), (ANN, SECOND)]
    assert converting.conversion.came == []
    assert converting.conversion.owner(b"ann") is None, "no name is known beyond its batch"  # type: ignore[arg-type]


def test_who_has_no_session_any_more_gets_none(converting: Converting) -> None:
    """It has ended since its node named it. Where nobody remembers that, it would be the next one's."""
    message = make_message("a", b"x")
    end(converting)
    assert converting.added(row(b"ann", FIRST, message), row("böb".encode(), FIRST)) == [(BOB, FIRST)]
    assert converting.conversion.counts["cluster_rows_without_owner"] == 1
    assert converting.conversion.is_over(b"ann")
    assert not converting.conversion.is_over("böb".encode())
    for dot, _ in converting.rows.ends.of("ann"):  # all nodes know of it; not all have forgotten it yet
        converting.rows.ends.put("ann", dot, None)
    converting.conversion.ended = {"ann": None}
    assert converting.added(row(b"ann", FIRST, message), row("böb".encode(), FIRST)) == [(BOB, FIRST)]


def test_who_was_never_heard_of_gets_what_is_named(converting: Converting) -> None:
    """Its node has begun that session just now, and the record of that is on its way."""
    message = make_message("a", b"x")
    described = [row(b"new", FIRST, message), row(b"new", SECOND, message)]
    found, _ = converting.conversion.convert(described, {b"new"})
    added = [(each.owner.name, each.id) for each in each_of(found) if isinstance(each, ops.Add)]
    assert added == [("new", FIRST), ("new", SECOND)]
    assert not converting.conversion.is_over(b"new")


def test_nor_where_many_are_added_together(converting: Converting) -> None:
    """Nodes that have forgotten the end by then would have it, and others not."""
    message = make_message("a", b"x")
    end(converting)
    converting.rows.sessions.put("bob", None, Session(begun("bob", FIRST, 2), Dot(2, 1)))
    described = [row(b"ann", FIRST, message), row(b"bob", FIRST), row(b"ann", SECOND, message)]
    found, _ = converting.conversion.convert(described, {b"ann", b"bob"})
    added = [(each.owner, each.id) for each in each_of(found) if isinstance(each, ops.Add)]
    assert added == [(Owner(SESSION, "bob"), FIRST)]
    assert converting.conversion.counts["cluster_rows_without_owner"] == 2


def test_a_session_that_was_handed_over_and_has_ended_takes_none(converting: Converting) -> None:
    conversion, message = converting.conversion, make_message("a", b"x")
    for number, client in ((7, "ann"), (8, "böb")):
        converting.rows.owners.add(Owner(SESSION, client), number)
        conversion.know(number, Owner(SESSION, client), begun(client, FIRST, 1))
        conversion.shared.begin(client, until_it_goes=True)
    converting.rows.sessions.put("ann", None, None)
    found, _ = conversion.convert([row(7, FIRST, message), row(8, FIRST), row(7, SECOND, message)])
    added = [(each.owner, each.id) for each in each_of(found) if isinstance(each, ops.Add)]
    assert added == [(Owner(SESSION, "böb"), FIRST)]
    assert conversion.counts["cluster_rows_without_owner"] == 2


def test_nor_does_the_next_session_of_its_client_get_that(converting: Converting) -> None:
    """It was under way to the one that has ended. What is for the next one is named, or in its own queue."""
    conversion, message = converting.conversion, make_message("a", b"x")
    converting.rows.owners.add(ANN, 7)
    conversion.know(7, ANN, begun("ann", FIRST, 1))
    conversion.shared.begin("ann", until_it_goes=True)
    converting.rows.ends.put("ann", Dot(2, 2), End(FIRST, {2: 1}, (FIRST, Dot(2, 1)), {}))
    converting.rows.sessions.put("ann", None, Session(begun("ann", SECOND, 2), Dot(2, 3)))
    assert converting.added(row(7, FIRST, message)) == []
    assert conversion.counts["cluster_rows_without_owner"] == 1
    assert converting.added(row(b"ann", SECOND, message)) == [(ANN, SECOND)]
    assert converting.added(row(7, SECOND, message), row(b"ann", SECOND)) == [(ANN, SECOND)]  # it is both's
    assert converting.added(row(b"ann", SECOND, message), row(7, SECOND)) == [(ANN, SECOND)]


def test_nor_where_that_begins_here_in_the_same_batch(converting: Converting) -> None:
    conversion, message = converting.conversion, make_message("a", b"x")
    converting.rows.owners.add(ANN, 7)
    conversion.know(7, ANN, begun("ann", FIRST, 1))
    conversion.shared.begin("ann", until_it_goes=True)
    end(converting)
    put = "put", "session", b"ann", struct.pack(">QIqqIqI", 9, 3600, 0, 0, 0, -1, 0)
    assert converting.added(row(7, FIRST, message), put, row(9, SECOND, message)) == [(ANN, SECOND)]
    assert conversion.counts["cluster_rows_without_owner"] == 1


def test_whom_two_nodes_name_gets_one(converting: Converting) -> None:
    message = make_message("a", b"x")
    assert converting.added(row(b"ann", FIRST, message), row(b"ann", FIRST)) == [(ANN, FIRST)]


def test_who_is_here_as_well_gets_one(converting: Converting) -> None:
    converting.rows.owners.add(ANN, 7)
    converting.conversion.know(7, ANN, begun("ann", FIRST))
    message = make_message("a", b"x")
    described = row(b"ann", FIRST, message), row("böb".encode(), FIRST), row(7, FIRST)
    assert converting.added(*described) == [(BOB, FIRST), (ANN, FIRST)]
    assert converting.conversion.came == [], "the engine has put it into its queue"


def test_of_who_has_come_meanwhile_the_engine_is_told(converting: Converting) -> None:
    converting.rows.owners.add(ANN, 7)
    converting.conversion.know(7, ANN, begun("ann", FIRST))
    assert converting.added(row(b"ann", SECOND, make_message("a", b"x"))) == [(ANN, SECOND)]
    assert converting.conversion.came == [(ANN, SECOND)]


SUBSCRIBED = struct.pack(">H", 3) + b"ann" + b"a/#", struct.pack(">BI", 1, 0)


def test_that_all_is_sent_that_was_retained_is_no_subscribe(converting: Converting) -> None:
    """Else it would undo an UNSUBSCRIBE on another node, of which this one has not heard."""
    serve = "serve", *SUBSCRIBED
    assert converting.convert(serve) == [], "there is no such subscription"
    converting.rows.subscriptions.put("ann", "a/#", Subscription(SECOND, Dot(2, 2), 1 | BACKLOG, 0))
    assert converting.convert(serve) == [ops.Serve("ann", "a/#", SECOND)]
    subscribed, served = converting.convert(("put", "subscription", *SUBSCRIBED), serve)
    assert isinstance(subscribed, ops.Subscribe)
    assert subscribed.stamp != SECOND
    assert served == ops.Serve("ann", "a/#", subscribed.stamp)
    unsubscribed = converting.convert(("put", "subscription", SUBSCRIBED[0], None), serve)
    assert [type(each) for each in unsubscribed] == [ops.Unsubscribe]
    ended = Subscription(Stamp(SECOND.clock + 64, 2), Dot(2, 3), None, 0)
    converting.rows.subscriptions.put("ann", "a/#", ended)
    assert converting.convert(serve) == [], "it has ended elsewhere"


def test_what_expires_is_cleared_with_its_own_time(converting: Converting) -> None:
    """What another node has retained since then stays."""
    converting.rows.retained.put("t", None, Retained(SECOND, Dot(2, 1), b"newer"))
    assert converting.convert(("retain", b"t", None, id_bytes(FIRST), False)) == [ops.Clear("t", FIRST)]


def test_who_clears_what_is_retained_means_all_that_is_known_and_nothing_later(
    converting: Converting,
) -> None:
    """The engine may have retained something again by now; or not have heard how late it is elsewhere."""
    converting.rows.retained.put("t", None, Retained(FIRST, Dot(2, 1), b"older"))
    assert converting.convert(("retain", b"t", None, id_bytes(SECOND), True)) == [ops.Clear("t", SECOND)]
    ahead = Stamp(START_NS + 1_000, 2)
    converting.rows.retained.put("t", None, Retained(ahead, Dot(2, 2), b"from elsewhere"))
    (cleared,) = converting.convert(("retain", b"t", None, id_bytes(SECOND), True))
    assert isinstance(cleared, ops.Clear)
    assert cleared.id not in (SECOND, ahead)


def test_what_was_cleared_since_its_message_came_is_not_retained(converting: Converting) -> None:
    """A node that has forgotten the removal would have it, and others not."""
    converting.rows.retained.put("t", None, Retained(SECOND, Dot(2, 1), None))
    assert converting.convert(("retain", b"t", id_bytes(FIRST) + b"older", id_bytes(FIRST), False)) == []
    later = Stamp(SECOND.clock + 1, 1)
    retained = converting.convert(("retain", b"t", id_bytes(later) + b"newer", id_bytes(later), False))
    assert retained == [ops.Retain("t", later, b"newer")]
