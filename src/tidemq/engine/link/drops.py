"""What is dropped is counted at once, and reported with its client now and then.

The first drop after a quiet time goes up in the next tick, what follows is gathered for some seconds: so the
control plane has one event, and the log one line, for each client and kind in that time.
"""

import cython
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t
from cython.cimports.libcpp.string import string
from cython.cimports.tidemq.engine.base.asserting import holds
from cython.cimports.tidemq.engine.base.event import EVENT_DROPPED, Event
from cython.cimports.tidemq.engine.index.subscriptions import (
    SharedGroup,
    find_group,
    lock_shared,
    unlock_shared,
)
from cython.cimports.tidemq.engine.link.reports import new_event, post_report
from cython.cimports.tidemq.engine.state.strain import Drop
from cython.operator import dereference, preincrement

_GATHERED_MS = cython.declare(int64_t, 10000)  # between two reports
_DROPS_MAX = cython.declare(cython.size_t, 100)  # clients and kinds in a report; what is more is nobody's


def name_of(r, s):
    """The client's identifier; of a shared group's queue its whole filter, empty when the group is gone."""
    if s.group == 0:
        return s.client_id
    name: string
    lock_shared(r.common.subscriptions)
    found: cython.pointer[SharedGroup] = find_group(r.common.subscriptions, s.group)
    if found != cython.NULL:
        name.append(cython.cast(cython.p_char, b"$share/"))
        name.append(cython.cast(cython.p_char, found.name.data), found.name.size)
        name.push_back(0x2F)  # '/'
        name.append(cython.cast(cython.p_char, found.filter.data), found.filter.size)
    unlock_shared(r.common.subscriptions)
    return name


def _add(r, number, counter, messages):
    """Counts; returns the entry where it is new and wants a name, else NULL."""
    r.tally[counter] += messages
    key: uint64_t = number * 256 + counter
    known: cython.bint = r.drops.count(key)
    if not known and r.drops.size() >= _DROPS_MAX:
        key = counter
        number = 0
        known = r.drops.count(key)
    drop: cython.pointer[Drop] = cython.address(r.drops[key])
    if not known:
        drop.counter = counter
        drop.messages = 0
    holds(drop.counter == counter, b"drops: what is gathered together is counted together")
    drop.messages += messages
    if known or number == 0:
        return cython.NULL
    return drop


def note_drop(r, s, counter, messages):
    """So many messages were dropped, which this counter counts. ``s``: whose they were; NULL: not known."""
    if messages == 0:
        return
    drop: cython.pointer[Drop] = _add(r, s.number if s != cython.NULL else 0, counter, messages)
    if drop != cython.NULL:
        drop.client_id = name_of(r, s)


def note_drop_of(r, number, owner, counter, messages):
    """The same of a session that has ended, by its number and name."""
    if messages == 0:
        return
    drop: cython.pointer[Drop] = _add(r, number, counter, messages)
    if drop != cython.NULL:
        drop.client_id = owner[0]


def check_drops(r):
    """Once a tick."""
    if not r.drops.empty() and r.now_ms - r.drops_ms >= _GATHERED_MS:
        r.drops_ms = r.now_ms
        report_drops(r)


def report_drops(r):
    """What was gathered goes up."""
    item = r.drops.begin()
    while item != r.drops.end():
        drop: cython.pointer[Drop] = cython.address(dereference(item).second)
        holds(drop.messages > 0, b"drops: of whom is reported something was dropped")
        event: cython.pointer[Event] = new_event(EVENT_DROPPED, 0)
        event.reason = drop.counter
        event.packet_bytes_max = cython.cast(uint32_t, min(drop.messages, cython.cast(uint64_t, 0xFFFFFFFF)))
        event.client_id = drop.client_id
        post_report(r, event)
        preincrement(item)
    r.drops.clear()
