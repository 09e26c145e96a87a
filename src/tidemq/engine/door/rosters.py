"""Questions about clients on their way down, and what became of them as Python objects. Needs the GIL."""

from __future__ import annotations

import cython
from cython.cimports.libcpp.memory import make_unique, unique_ptr
from cython.cimports.tidemq.engine.base.roster import ROSTER_DONE, Roster

from tidemq.engine.door import figures


def new_roster(number, question):
    """Of a `figures.Question`."""
    owner: unique_ptr[Roster] = make_unique[Roster]()
    roster: cython.pointer[Roster] = owner.get()
    roster.number = number  # `phase` is ROSTER_CONNECTED, unless the question goes on
    if question.place is not None:
        roster.phase = question.place[0]
        roster.at = question.place[1]
        roster.buckets = question.place[2]
    roster.rows_max = question.rows_max
    roster.survey = question.survey
    roster.oldest_ms = -1
    roster.one = question.one
    roster.client_id = question.client_id.encode()
    roster.address = question.address.encode()
    roster.listener = question.listener.encode()
    roster.by_username = question.username is not None
    roster.username = (question.username or "").encode()
    roster.wanted = question.connected | question.away << 1
    return owner.release()


def _client_of(row):
    return figures.ClientFigures(
        client_id=row.client_id.decode(),
        username=row.username.decode() if row.has_username else None,
        connected=bool(row.connected),
        peer=row.peer.decode(),
        listener=row.listener.decode(),
        protocol_version=row.version,
        keep_alive_s=row.keep_alive_s,
        since_ms=row.since_ms,
        session_expiry_s=row.expiry_s,
        ends_ms=row.ends_ms,
        subscriptions=row.subscriptions,
        inflight=row.inflight,
        inflight_max=row.send_max,
        queued_messages=row.queued_messages,
        queued_bytes=row.queued_bytes,
        oldest_ms=row.oldest_ms,
        output_bytes=row.output_bytes,
        paused=bool(row.paused),
        slow=bool(row.slow),
        has_will=bool(row.has_will),
        left_ms=row.left_ms,
        left_reason=row.left_reason,
        left_fault=row.left_fault,
        left_by_itself=bool(row.left_by_itself),
        reactor=row.reactor,
    )


def _place_of(roster):
    return (roster.phase, roster.at, roster.buckets)


def roster_of(roster):
    """The `figures.Roster` that an answered question becomes."""
    index: cython.size_t
    clients = []
    filters = []
    for index in range(roster.rows.size()):
        clients.append(_client_of(cython.address(roster.rows[index])))
    for index in range(roster.filters.size()):
        filters.append(
            (
                roster.filters[index].topic_filter.decode(),
                roster.filters[index].options,
                roster.filters[index].subscription_id,
            )
        )
    return figures.Roster(
        roster.number,
        clients,
        filters,
        bool(roster.more_filters),
        None if roster.phase == ROSTER_DONE else _place_of(roster),
        (roster.oldest_ms, roster.oldest_client.decode()),
    )
