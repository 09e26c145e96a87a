"""Sessions of clients: what CONNECT does to one, and where they are at home."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tidemq.cluster.operations import SESSION, Flight, Owner, PutSession
from tidemq.cluster.rows import Rows

# Places of an outbox: the golden section of all packet identifiers. After several takeovers, too, each begins
# far from where any other did; with half of them the second would begin beside the first.
FURTHER = 40_503
IDENTIFIERS = 65_535  # of packets: a place has that of the place so many behind it


def connect(rows: Rows, wish: PutSession, *, clean: bool, asked: bool) -> PutSession:
    """The client's session as it goes on here, or a new one, as `wish` says under its new epoch.

    `asked`: the node that had it has closed it and handed it over. Otherwise it may have sent messages that
    are unknown here, so that the places in the outbox begin far beyond those that it may have used.
    """
    before = rows.sessions.get(wish.client, None)
    if before is None or clean:
        return replace(wish, begins=True, next_sequence=0, replaces=before is not None)
    known = asked or before.row.home == wish.home
    flights = flights_of(rows, wish.client)
    return replace(
        wish,
        begins=False,
        next_sequence=_beside(flights, before.row.next_sequence + (0 if known else FURTHER)),
        received=before.row.received,
        flights=flights,
        unasked=before.row.unasked or not known,
    )


def _beside(flights: Sequence[Flight], place: int) -> int:
    """A place with the same packet identifier in the first round of these behind what is in flight: an outbox
    has all places from there on, however often a session is taken while its client answers nothing.
    """
    last = max((each.sequence for each in flights), default=None)
    return place if last is None else place - max(place - last - 1, 0) // IDENTIFIERS * IDENTIFIERS


def flights_of(rows: Rows, client: str) -> tuple[Flight, ...]:
    """What is in flight to a client."""
    return tuple(
        Flight(message_id, entry.sequence, entry.released)
        for message_id, entry in rows.in_flight(client)
        if rows.shown(Owner(SESSION, client), entry)
    )


def sessions_of(rows: Rows, home: int) -> Iterator[str]:
    """Clients whose sessions are at home there. Looks at all sessions."""
    return (client for client, its in rows.homes() if its == home)
