"""What a CONNECT, or a takeover, makes of a session's rows."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from cluster.nodes import begun, make_node

from tidemq.cluster import operations as ops
from tidemq.cluster.operations import SESSION, Owner, PutSession, Stamp
from tidemq.cluster.sessions import FURTHER, connect


def test_a_session_goes_on_with_what_it_has_and_far_beyond_where_its_node_was_not_asked() -> None:
    node = make_node(0, 2)
    owner, message_id = Owner(SESSION, "ann"), Stamp(7, 1)
    wish = PutSession("ann", Stamp(1, 2), 2, False, 0, 60, 0, 0, 0, -1, connected=Stamp(1, 2))
    begun = connect(node.rows, wish, clean=False, asked=False)
    assert (begun.begins, begun.next_sequence, begun.flights) == (True, 0, ())
    node.write([begun, ops.Receive("ann", wish.epoch, 3)])
    node.write([ops.Payload(message_id, b"m"), ops.Add(owner, message_id, 0, 2, 1, 0)])
    node.write([ops.Send(owner, wish.epoch, message_id, 4), ops.Release(owner, wish.epoch, message_id)])
    again = replace(wish, epoch=Stamp(9, 1), home=1)
    for asked, next_sequence in ((True, 5), (False, 5 + FURTHER)):
        went_on = connect(node.rows, again, clean=False, asked=asked)
        assert (went_on.begins, went_on.received) == (False, (3,))
        assert went_on.flights == (ops.Flight(message_id, 4, True),)
        assert (went_on.next_sequence, went_on.unasked) == (next_sequence, not asked)
    assert connect(node.rows, replace(again, home=2), clean=False, asked=False).next_sequence == 5
    assert connect(node.rows, again, clean=True, asked=True).begins


def test_that_a_home_was_not_asked_is_known_as_long_as_the_session_lives() -> None:
    """Whatever its engine says of it under that epoch, and where it goes on."""
    node = make_node(0, 2)
    wish = PutSession("ann", Stamp(1, 1), 1, False, 0, 60, 0, 0, 0, -1, connected=Stamp(1, 1))
    node.write([connect(node.rows, wish, clean=False, asked=True)])
    taken = replace(wish, epoch=Stamp(2, 2), home=2)
    node.write([connect(node.rows, taken, clean=False, asked=False)])
    node.write([taken])
    again = replace(wish, epoch=Stamp(3, 1))
    assert connect(node.rows, again, clean=False, asked=True).unasked
    assert not connect(node.rows, again, clean=True, asked=True).unasked


def test_each_of_several_takeovers_begins_far_from_all_others() -> None:
    """As where one split follows another: packet identifiers are places, modulo 65,535."""
    node, begins = make_node(0, 2), []
    wish = PutSession("ann", Stamp(1, 2), 2, False, 0, 60, 0, 0, 0, -1, connected=Stamp(1, 2))
    node.write([connect(node.rows, wish, clean=False, asked=False)])
    for takeover in range(8):
        home = 1 + takeover % 2
        wish = replace(wish, epoch=Stamp(2 + takeover, home), home=home)
        went_on = connect(node.rows, wish, clean=False, asked=False)
        node.write([went_on])
        begins.append(went_on.next_sequence % 65_535)
    for count, apart in ((3, 15_000), (8, 5_000)):
        assert all(
            apart < (one - other) % 65_535 < 65_535 - apart
            for one, other in itertools.combinations(begins[:count], 2)
        )


@pytest.mark.parametrize("in_flight", [(), (0,), (0, 7), (65_000, 65_534, 130_533)])
def test_a_session_that_is_taken_again_and_again_keeps_its_places_together(
    in_flight: tuple[int, ...],
) -> None:
    """While its client is away, and what is in flight to it stays there. An engine refuses a session whose
    next place is two rounds of packet identifiers beyond the first.
    """
    node, owner = make_node(0, 2), Owner(SESSION, "ann")
    wish = begun("ann", Stamp(1, 2), 2)
    node.write([wish])
    for number, place in enumerate(in_flight):
        message_id = Stamp(7 + number, 2)
        node.write([ops.Payload(message_id, b"m"), ops.Add(owner, message_id, 0, 1, 1, 0)])
        node.write([ops.Send(owner, wish.epoch, message_id, place)])
    unbounded = place = max((0, *in_flight)) + bool(in_flight)
    for takeover in range(20):
        home = 1 + takeover % 2
        taken = replace(wish, epoch=Stamp(100 + takeover, home), home=home)
        taken = connect(node.rows, taken, clean=False, asked=False)
        node.write([taken])
        unbounded, place = unbounded + FURTHER, taken.next_sequence
        assert [each.sequence for each in taken.flights] == list(in_flight)
        assert place % 65_535 == unbounded % 65_535, "each identifier is where it would have been"
        assert not in_flight or in_flight[-1] < place <= min(in_flight[-1] + 65_535, in_flight[0] + 131_070)
