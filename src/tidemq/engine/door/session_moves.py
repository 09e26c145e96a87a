"""A stored session on its way into an engine that runs: its rows become one struct, which a reactor installs.

All of it is read before any of it is posted, so that nothing of a session is installed in part. Needs the
GIL.
"""

from __future__ import annotations

import cython
from cython.cimports.libc.stdint import uint64_t
from cython.cimports.libcpp.memory import make_unique, unique_ptr
from cython.cimports.tidemq.engine.door.restoring import (
    _bytes_at,
    is_queue_value,
    mark_of,
    parse_entry,
    parse_session,
    parse_subscription,
)
from cython.cimports.tidemq.engine.journal.rows import QUEUE_KEY_BYTES, read_id
from cython.cimports.tidemq.engine.queues.arrivals import free_arrival
from cython.cimports.tidemq.engine.state.arrival import Arrival, StoredEntry, StoredSubscription, Taken
from cython.cimports.tidemq.engine.state.queue import ROW_INFLIGHT

_PLACES_MAX = cython.declare(uint64_t, 131070)  # from the oldest in flight to the next that is given


def _add_subscriptions(common, arrival, client_id, rows, unreadable):
    subscription: StoredSubscription
    filters: set = set()
    for key, value in rows:
        owner = parse_subscription(common, key, value, cython.address(subscription))
        if owner != client_id or key in filters:
            unreadable.append(("subscription", key))
            continue
        filters.add(key)
        arrival.subscriptions.push_back(subscription)


def _add_received(arrival, queue, keys, unreadable):
    for key in keys:
        if len(key) in (10, 16) and key[:8] == queue and key[8:10] != b"\0\0":
            arrival.received.push_back(mark_of(key))
        else:
            unreadable.append(("received", key))


def _add_entries(common, arrival, queue, rows, unreadable):
    entry: StoredEntry
    first: uint64_t = 0
    last: uint64_t = 0
    wanted: bytes = queue + bytes([ROW_INFLIGHT])
    for key, value, payload in rows:
        readable: cython.bint = (
            len(key) == QUEUE_KEY_BYTES
            and key[:9] == wanted
            and payload is not None
            and is_queue_value(value)
        )
        if not readable or not parse_entry(common, key, value, payload, cython.address(entry)):
            unreadable.append(("queue", key))
            continue
        arrival.entries.push_back(entry)  # whatever its place, it is freed with the arrival
        if arrival.entries.size() == 1:
            first = entry.place
        elif entry.place <= last or entry.place - first >= 65535:
            unreadable.append(("queue", key))
        last = entry.place
    if not arrival.entries.empty() and arrival.next_place > first + _PLACES_MAX:
        unreadable.append(("queue", wanted))


def expect_doubles(arrival, doubles_ms, taken, recent):
    """For so long messages may come twice; see ``KeeperAccess.adopt``."""
    mark: Taken
    arrival.doubles_ms = doubles_ms
    for mark.origin, mark.reactor, mark.clock in taken:
        arrival.taken.push_back(mark)
    for each in recent:
        arrival.recent.push_back(read_id(_bytes_at(each, 0)))


def make_arrival(common, client_id, value, subscriptions, received, inflight, next_place, unreadable):
    """A session of its rows; NULL where some cannot be read: ``unreadable`` gets their families and keys."""
    owner: unique_ptr[Arrival] = make_unique[Arrival]()
    arrival: cython.pointer[Arrival] = owner.release()
    arrival.next_place = next_place
    try:
        if parse_session(common, client_id, value, cython.address(arrival.row)):
            queue: bytes = value[:8]
            _add_subscriptions(common, arrival, client_id, subscriptions, unreadable)
            _add_received(arrival, queue, received, unreadable)
            _add_entries(common, arrival, queue, inflight, unreadable)
        else:
            unreadable.append(("session", client_id))
    except BaseException:
        free_arrival(arrival, common.tally)
        raise
    if unreadable:
        free_arrival(arrival, common.tally)
        return cython.NULL
    return arrival
