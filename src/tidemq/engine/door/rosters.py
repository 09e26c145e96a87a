"""Questions of somebody who looks after the broker on their way down, and what became of them as Python
objects. Needs the GIL.
"""

from __future__ import annotations

import cython
from cython.cimports.libcpp.memory import make_unique, unique_ptr
from cython.cimports.tidemq.engine.base.inquiry import Inquiry
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
        bytes_received=row.bytes_received,
        bytes_sent=row.bytes_sent,
        messages_received=row.messages_received,
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


def new_inquiry(number, inquiry):
    """Of a `figures.Inquiry`."""
    owner: unique_ptr[Inquiry] = make_unique[Inquiry]()
    made: cython.pointer[Inquiry] = owner.get()
    made.number = number
    made.kind = inquiry.kind
    made.text = inquiry.text.encode()
    made.place = inquiry.place
    made.skip = inquiry.skip
    made.rows_max = inquiry.rows_max
    made.payload_bytes_max = inquiry.payload_bytes_max
    made.clears = inquiry.clears
    return owner.release()


def _message_of(row):
    return figures.MessageFigures(
        topic=row.topic.decode(),
        payload=bytes(row.payload),
        payload_bytes=row.payload_size,
        qos=row.qos,
        retain=bool(row.retain),
        in_flight=bool(row.in_flight),
        came_ms=row.came_ms,
        expires_ms=row.expires_ms,
    )


def _subscriber_of(row):
    return figures.SubscriberFigures(
        client_id=row.client_id.decode(),
        topic_filter=row.topic_filter.decode(),
        group=row.group.decode(),
        options=row.options,
        subscription_id=row.subscription_id,
        connected=bool(row.connected),
        stream=bool(row.stream),
    )


def finding_of(inquiry):
    """The `figures.Finding` that an answered inquiry becomes."""
    index: cython.size_t
    messages = []
    subscribers = []
    for index in range(inquiry.messages.size()):
        messages.append(_message_of(cython.address(inquiry.messages[index])))
    for index in range(inquiry.subscribers.size()):
        subscribers.append(_subscriber_of(cython.address(inquiry.subscribers[index])))
    return figures.Finding(
        number=inquiry.number,
        found=bool(inquiry.found),
        more=bool(inquiry.more),
        place=bytes(inquiry.place),
        skip=inquiry.skip,
        count=inquiry.count,
        count_bytes=inquiry.count_bytes,
        queue=inquiry.queue,
        stored=inquiry.stored,
        edge=int(inquiry.edge_clock).to_bytes(8) + int(inquiry.edge_origin).to_bytes(8),
        messages=messages,
        subscribers=subscribers,
    )
