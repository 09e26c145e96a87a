"""Rows that came or went without this engine, for another node has written them: idle rows of a queue, which
it has added or delivered, and subscriptions.

A row of a queue that comes has any id, so also one below the edge (``queueing``): that of a message which
is older than what has been read already. Then what waits in the outbox and was never sent goes back to
being in the store alone, the edge goes below the row, and windows are read anew from there. So what goes
out from then on is in the order of ids, and only what was sent before stays before. What is in flight is in
flight in the store as well by then, and no window finds it.
"""

import cython
from cython.cimports.libc.stdint import uint64_t
from cython.cimports.libcpp.unordered_map import unordered_map
from cython.cimports.tidemq.engine.base.asserting import ASSERTS, holds
from cython.cimports.tidemq.engine.base.message import MessageId
from cython.cimports.tidemq.engine.base.steps import allow_steps, count_steps
from cython.cimports.tidemq.engine.journal.journal import precedes
from cython.cimports.tidemq.engine.queues.doubles import is_here
from cython.cimports.tidemq.engine.queues.outbox import entry_at, forget_entry
from cython.cimports.tidemq.engine.queues.queueing import (
    evict_waiting,
    forget_stored,
    free_rows,
    lower_edge,
    note_changed,
    note_stored,
)
from cython.cimports.tidemq.engine.queues.sessions import add_subscription, drop_subscription
from cython.cimports.tidemq.engine.state.queue import ROW_IDLE, ROW_NONE, WAITING, Entry, Outbox, StoredQueue
from cython.cimports.tidemq.engine.state.section import StoredRow


def note_added(r, s, rows):
    """Rows are in the store that this engine has not written. Takes what is known of them over."""
    q: cython.pointer[StoredQueue] = s.stored
    index: cython.size_t
    count: cython.size_t = 0
    lowest: MessageId
    lowest.clock = lowest.origin = 0
    allow_steps(rows.rows.size())
    for index in range(rows.rows.size()):
        count_steps(1)
        row: cython.pointer[StoredRow] = cython.address(rows.rows[index])
        if is_here(r, s, cython.address(row.id)):
            continue
        rows.rows[count] = row[0]
        count += 1
        if lowest.clock == 0 or precedes(cython.address(row.id), cython.address(lowest)):
            lowest = row.id
    rows.rows.resize(count)
    if lowest.clock and not precedes(cython.address(q.edge), cython.address(lowest)):
        evict_waiting(r, s)
        lower_edge(s, cython.address(lowest))
    if ASSERTS:
        above: cython.bint = lowest.clock == 0 or precedes(cython.address(q.edge), cython.address(lowest))
        holds(above, b"outside rows: what has come is above the edge")
    for index in range(rows.rows.size()):
        note_stored(q, rows.rows[index].id.clock)
        q.bytes += rows.rows[index].bytes
    if lowest.clock:
        note_changed(q, cython.address(lowest))
        q.leaving = 0
    free_rows(r, rows)


def note_taken(r, s, rows):
    """Rows that waited are gone from the store: nobody gets them here. What is in flight stays so until its
    client has it. Takes what is known of them over.
    """
    q: cython.pointer[StoredQueue] = s.stored
    box: cython.pointer[Outbox] = cython.address(s.outbox)
    index: cython.size_t
    gone: unordered_map[uint64_t, uint64_t]
    allow_steps(rows.rows.size())
    for index in range(rows.rows.size()):
        count_steps(1)
        row: cython.pointer[StoredRow] = cython.address(rows.rows[index])
        if precedes(cython.address(q.edge), cython.address(row.id)):
            note_changed(q, cython.address(row.id))
            forget_stored(r, s, row)
        else:
            gone[row.id.clock] = row.id.origin
    sequence: uint64_t = box.next
    end: uint64_t = box.tail
    while sequence < end and not gone.empty():
        count_steps(1)
        entry: cython.pointer[Entry] = entry_at(box, sequence)
        sequence += 1
        if entry.state != WAITING or entry.row != ROW_IDLE or entry.queue:
            continue
        id: MessageId = entry.message.id
        if gone.count(id.clock) and gone[id.clock] == id.origin:
            entry.row = ROW_NONE
            forget_entry(box, entry, r.tally)
    free_rows(r, rows)


def note_subscription(r, s, filter, there, options, subscription_id):
    """The store has a subscription of the session's, as it is given, or has it not. What is retained its
    client gets, or has had, where it subscribed.
    """
    wants_retained: cython.bint = False
    r.follows = True
    if there:
        add_subscription(r, s, filter, options, subscription_id, cython.address(wants_retained))
    else:
        drop_subscription(r, s, filter)
    r.follows = False
