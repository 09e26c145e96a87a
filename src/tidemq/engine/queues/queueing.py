"""A queue that the store holds: of it only a window is in memory, in the session's outbox, while the client
is connected; all else are rows in the store.

Invariants. Rows that are only in the store have ids above ``StoredQueue.edge``, and whatever waits in the
outbox has an id up to it; so the next window is one scan from the edge on, and a publisher's messages stay in
order. Messages come in the order of their ids but for those of other reactors, which may be some milliseconds
late: one below the edge goes into the outbox, however full, or, where nothing waits there, lowers the edge.
While a window is being read, ``late`` is the smallest id that changed meanwhile: what was read from there on
is read again.
"""

import cython
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import free
from cython.cimports.libcpp.memory import make_unique, unique_ptr
from cython.cimports.tidemq.engine.base.allocation import allocate
from cython.cimports.tidemq.engine.base.asserting import ASSERTS, holds
from cython.cimports.tidemq.engine.base.counters import (
    C_DROPPED_EXPIRED,
    C_DROPPED_PURGED,
    C_DROPPED_QUEUE_FULL,
)
from cython.cimports.tidemq.engine.base.engine_limits import FULL_DROP_OLDEST
from cython.cimports.tidemq.engine.base.locks import lock, unlock
from cython.cimports.tidemq.engine.base.message import MessageId, hold_message, message_bytes, release_message
from cython.cimports.tidemq.engine.base.steps import allow_steps, count_steps
from cython.cimports.tidemq.engine.journal.journal import (
    NO_RECORD,
    add_row,
    ask_store,
    precedes,
    record_sent,
    remove_row,
    remove_stored,
)
from cython.cimports.tidemq.engine.link.backpressure import (
    may_overfill,
    queued_bytes,
    queued_messages,
    relieve,
)
from cython.cimports.tidemq.engine.link.drops import note_drop
from cython.cimports.tidemq.engine.queues.offers import is_offered
from cython.cimports.tidemq.engine.queues.outbox import append_entry, entry_at, forget_entry
from cython.cimports.tidemq.engine.queues.queueing import MARK_MS
from cython.cimports.tidemq.engine.state.client import Session
from cython.cimports.tidemq.engine.state.queue import (
    ROW_IDLE,
    ROW_NONE,
    SENT,
    WAITING,
    Entry,
    Outbox,
    StoredQueue,
)
from cython.cimports.tidemq.engine.state.section import (
    RECORD_EXPIRE,
    RECORD_READ,
    RECORD_TRIM,
    Record,
    StoredRow,
    StoredRows,
    Unmarked,
)
from cython.cimports.tidemq.engine.state.wall_clock import wall_offset
from cython.cimports.tidemq.wire.protocol import RC_QUOTA_EXCEEDED

_ALL = cython.declare(uint64_t, 0xFFFFFFFF)  # rows that a queue can have
_AGE_MS_MAX = cython.declare(int64_t, 0x7FFFFFFF)  # that an entry may have
_MARKED_MAX = cython.declare(cython.int, 4096)  # in one turn
_READ_BYTES_MAX = cython.declare(uint64_t, 4194304)  # waiting in the outbox beyond which no window is read


def new_rows():
    """No rows."""
    owner: unique_ptr[StoredRows] = make_unique[StoredRows]()
    return owner.release()


def free_rows(r, rows):
    """Lets go of what was read and not taken."""
    index: cython.size_t
    for index in range(rows.rows.size()):
        if rows.rows[index].message != cython.NULL:
            release_message(rows.rows[index].message, r.tally)
        free(rows.rows[index].subscription_ids)
    del rows


def make_stored(r, s):
    """From now on, and for all its life, the session is one that the store holds."""
    s.stored = cython.cast(cython.pointer[StoredQueue], allocate(cython.sizeof(StoredQueue)))
    r.sessions[s.number] = s
    lock(cython.address(r.common.registry_lock))
    r.common.queue_owners[s.number] = r.index
    unlock(cython.address(r.common.registry_lock))


def _before(id):
    """The id right before this one, in the order of ids of all nodes."""
    result: MessageId = id[0]
    if result.origin == 0:
        result.clock -= 1
    result.origin -= 1
    return result


def note_changed(q, id):
    """Rows from here on are not as the read under way finds them."""
    if q.reading and (q.late.clock == 0 or precedes(id, cython.address(q.late))):
        q.late = id[0]


# --- limits ----------------------------------------------------------------------------------------


def _drop_unsent(r, s):
    """Drops the oldest message in memory that was never sent; false when there is none."""
    box: cython.pointer[Outbox] = cython.address(s.outbox)
    sequence: uint64_t = box.next
    if s.group == 0:  # what comes back to a shard is older than all that it has
        sequence = max(sequence, box.unsent)
    while sequence < box.tail:
        count_steps(1)
        entry: cython.pointer[Entry] = entry_at(box, sequence)
        sendable: cython.bint = entry.state == WAITING and not entry.was_sent and entry.replay == 0
        if sendable and (entry.row == ROW_IDLE or entry.row == ROW_NONE):
            box.unsent = sequence
            remove_row(r, s, entry)
            forget_entry(box, entry, r.tally)
            return True
        sequence += 1
    box.unsent = sequence
    return False


def _drop_stored(r, s, count):
    """So many of those that are only in the store go, the oldest first; returns how many there are to go.

    A window that is being read is on its way to the client: what comes after it goes, once it is there.
    """
    q: cython.pointer[StoredQueue] = s.stored
    if q == cython.NULL or q.waiting <= q.trims:
        return 0
    count = min(count, q.waiting - q.trims)
    if q.reading:
        q.trims += cython.cast(uint32_t, count)
    else:
        _trim_oldest(r, s, count)
    return count


def _drop_oldest(r, s):
    """Drops the oldest message that was never sent; false when there is none."""
    return _drop_unsent(r, s) or _drop_stored(r, s, 1) > 0


def purge_queue(r, s, messages_max):
    """What was never sent goes: up to so many of those in memory, and, when none is left there, all that are
    in the store. Returns how many went; fewer than `messages_max` in memory: there are no more.
    """
    count: uint64_t = 0
    while count < messages_max:
        if not _drop_unsent(r, s):
            count += _drop_stored(r, s, _ALL)
            break
        count += 1
    note_drop(r, s, C_DROPPED_PURGED, count)
    relieve(r, s)
    return count


def _trim_oldest(r, s, count):
    """So many of the oldest that are only in the store go."""
    q: cython.pointer[StoredQueue] = s.stored
    count = min(count, q.waiting)
    if count == 0:
        return
    record: cython.pointer[Record] = ask_store(r, RECORD_TRIM, s.number)
    record.id = q.edge
    record.sequence = count
    q.bytes -= q.bytes // q.waiting * count  # the rows' own sizes are not known here
    q.waiting -= count
    if q.waiting == 0:
        q.bytes = 0


def has_room(r, s, p):
    """Whether the queue takes one message more; where it is full the policy applies, and the passage says
    what the publisher is told.
    """
    count: uint64_t = queued_messages(s)
    size: uint64_t = queued_bytes(s)
    if count < r.common.limits.queued_messages_max and size < r.common.limits.queued_bytes_max:
        return True
    return may_overfill(r, s, p.feeder, p.attended) or _make_room(r, s, p)


def _make_room(r, s, p):
    note_drop(r, s, C_DROPPED_QUEUE_FULL, 1)
    if r.common.queue_full == FULL_DROP_OLDEST and _drop_oldest(r, s):
        return True
    if p.refused < 0x80:  # that somebody does not keep it for another reason weighs more
        p.refused = RC_QUOTA_EXCEEDED
    return False


# --- what was sent ---------------------------------------------------------------------------------


def _mark_entry(r, s, sequence):
    entry: cython.pointer[Entry] = entry_at(cython.address(s.outbox), sequence)
    if entry.state == SENT and entry.row == ROW_IDLE:
        record_sent(r, s, entry, sequence)


def _mark_session(r, s):
    """Whatever was sent is in flight in the store too: nothing of it is read again as if it waited."""
    sequence: uint64_t = s.outbox.head
    while sequence < s.outbox.next:
        count_steps(1)
        _mark_entry(r, s, sequence)
        sequence += 1


def mark_sent(r):
    """What was sent some time ago and is not acknowledged is in flight in the store too."""
    left: cython.int = _MARKED_MAX
    while left and not r.unmarked.empty():
        left -= 1
        count_steps(1)
        oldest: Unmarked = r.unmarked.front()
        if r.now_ms - oldest.sent_ms < MARK_MS and not r.stopping:
            return
        r.unmarked.pop_front()
        if r.sessions.count(oldest.queue):
            s: cython.pointer[Session] = r.sessions[oldest.queue]
            if s.outbox.head <= oldest.place < s.outbox.next:
                _mark_entry(r, s, oldest.place)
            if s.stored != cython.NULL and s.stored.unmarked == oldest.place + 1:
                s.stored.unmarked = 0  # it was the last


# --- out of memory, into the store -----------------------------------------------------------------


def goes_to_store(r, s, id):
    """Whether a new message is left to the store alone; if not it is about to be put into the outbox."""
    q: cython.pointer[StoredQueue] = s.stored
    window: cython.bint = (
        s.connection != cython.NULL
        and not s.connection.doomed
        and not q.older_may_come
        and q.waiting == 0
        and s.outbox.waiting < r.common.limits.queue_window_messages
        and s.outbox.bytes <= r.common.limits.output_high_bytes
    )
    above: cython.bint = precedes(cython.address(q.edge), id)
    if not window and above:
        return True
    if not window and s.outbox.waiting == 0:
        _mark_session(r, s)
        q.edge = _before(id)
        return True
    if above:
        q.edge = id[0]
    return False


def spill(r, s, message, qos, retain, ids, ids_count):
    """A new message that is in the store alone."""
    record: uint32_t = add_row(r, s.number, message, 0, ROW_IDLE, qos, retain, ids, ids_count)
    r.section.records[record].spilled = True
    note_spilled(s, message)


def note_spilled(s, message):
    """A message that `goes_to_store` is there, or on its way there."""
    q: cython.pointer[StoredQueue] = s.stored
    if ASSERTS:
        above: cython.bint = precedes(cython.address(q.edge), cython.address(message.id))
        holds(above, b"queueing: rows that are only in the store are above the edge")
    note_stored(q, message.id.clock)
    q.bytes += message_bytes(message)
    q.leaving = 0
    note_changed(q, cython.address(message.id))


def lower_edge(s, id):
    """A row of this id comes back to those that are only in the store."""
    lowest: MessageId = _before(id)
    if precedes(cython.address(lowest), cython.address(s.stored.edge)):
        s.stored.edge = lowest


def evict_waiting(r, s):
    """The client is gone: what was never sent to it leaves memory. Its rows stay."""
    box: cython.pointer[Outbox] = cython.address(s.outbox)
    sequence: uint64_t = box.next
    end: uint64_t = box.tail
    _mark_session(r, s)
    while sequence < end:
        count_steps(1)
        entry: cython.pointer[Entry] = entry_at(box, sequence)
        sequence += 1
        if entry.state != WAITING or entry.row != ROW_IDLE or entry.queue:
            continue  # what is a shared group's goes back to its queue
        if entry.section == r.section.number and entry.record != NO_RECORD:
            r.section.records[entry.record].spilled = True
        lower_edge(s, cython.address(entry.message.id))
        note_spilled(s, entry.message)
        entry.row = ROW_NONE
        forget_entry(box, entry, r.tally)


# --- back into memory ------------------------------------------------------------------------------


def append_committed(r, s, message, qos, retain):
    """A new entry whose row is committed and idle."""
    entry: cython.pointer[Entry] = append_entry(cython.address(s.outbox), r.now_ms, r.tally)
    entry.message = message
    hold_message(message)
    entry.qos = qos
    entry.retain = retain
    entry.row = ROW_IDLE
    entry.section = 0
    entry.record = NO_RECORD
    s.outbox.bytes += message_bytes(message)
    return entry


def request_rows(r, s):
    """Asks for the next window when less than half of one is left and the client is there to take it."""
    q: cython.pointer[StoredQueue] = s.stored
    window: uint32_t = r.common.limits.queue_window_messages
    if q == cython.NULL or q.waiting == 0 or q.reading or q.older_may_come or r.stopping:
        return
    if s.connection == cython.NULL and s.group == 0:
        return
    if s.outbox.waiting > window // 2 or s.outbox.bytes > _READ_BYTES_MAX:
        return
    q.reading = True
    q.late.clock = 0
    record: cython.pointer[Record] = ask_store(r, RECORD_READ, s.number)
    record.id = q.edge
    record.sequence = window


def forget_stored(r, s, row):
    """A row that was in the store alone is there no more."""
    q: cython.pointer[StoredQueue] = s.stored
    if q.waiting:
        q.waiting -= 1
    q.bytes -= min(q.bytes, row.bytes)
    if q.waiting == 0:
        q.bytes = 0


def age_ms(r, clock):
    """How long ago a message came, by its id; of one that came weeks ago, some weeks."""
    ms: int64_t = (r.now_ns + wall_offset(r.common) - cython.cast(int64_t, clock)) // 1000000
    return min(max(ms, cython.cast(int64_t, 0)), _AGE_MS_MAX)


def accept_rows(r, s, rows):
    """A window has come: it waits in the outbox, in the order of the store. Takes the rows over.

    It ends before a row of an offer that is not settled here: that one comes when it is, and those of its
    publisher before it may have been written after the window was read.
    """
    q: cython.pointer[StoredQueue] = s.stored
    index: cython.size_t
    again: cython.bint = False
    offered: cython.bint = False
    holds(q.reading, b"queueing: a window that comes was asked for")
    q.reading = False
    allow_steps(rows.rows.size())
    for index in range(rows.rows.size()):
        count_steps(1)
        row: cython.pointer[StoredRow] = cython.address(rows.rows[index])
        if q.late.clock and not precedes(cython.address(row.id), cython.address(q.late)):
            again = True
            break
        if is_offered(r, s, cython.address(row.id)):
            offered = True
            break
        if ASSERTS:
            above: cython.bint = precedes(cython.address(q.edge), cython.address(row.id))
            holds(above, b"queueing: the rows of a window are above the edge, in order")
        q.edge = row.id
        forget_stored(r, s, row)
        if row.message.expires_ms and row.message.expires_ms <= r.now_ms:
            r.tally[C_DROPPED_EXPIRED] += 1
            remove_stored(r, s.number, row.message)
            continue
        entry: cython.pointer[Entry] = append_committed(r, s, row.message, row.qos, row.retain)
        entry.since_ms = cython.cast(uint32_t, r.now_ms - age_ms(r, row.id.clock))
        entry.subscription_ids = row.subscription_ids
        row.subscription_ids = cython.NULL
        if q.doubtful:
            q.doubtful -= 1
            entry.was_sent = row.qos == 1
    if not again and not rows.more and q.late.clock == 0:
        q.waiting = q.bytes = 0  # whatever was counted, the store has no more
    elif rows.more and q.waiting == 0 and not offered:
        q.waiting = 1  # whatever was counted, it has more
    q.late.clock = 0
    q.oldest = max(q.oldest, q.edge.clock)
    free_rows(r, rows)
    if s.connection == cython.NULL and s.group == 0:
        evict_waiting(r, s)
    _trim_oldest(r, s, q.trims)
    q.trims = 0


def expire_rows(r, s, rows):
    """The time of these idle rows is over: what waits only in the store goes. What is in the outbox is found
    there when its turn comes, what is in flight is completed.

    A row may be gone by now, dropped in the outbox before the client went and the edge was lowered, or the
    oldest of a full queue. So the store looks, and `forget_rows` counts what it has removed.
    """
    index: cython.size_t
    for index in range(rows.rows.size()):
        row: cython.pointer[StoredRow] = cython.address(rows.rows[index])
        if not precedes(cython.address(s.stored.edge), cython.address(row.id)) or s.stored.waiting == 0:
            continue
        if row.id.origin == r.common.incarnation and r.offers.count(row.id.clock):
            continue  # in no queue yet
        note_changed(s.stored, cython.address(row.id))
        record: cython.pointer[Record] = ask_store(r, RECORD_EXPIRE, s.number)
        record.id = row.id
    free_rows(r, rows)


def forget_rows(r, s, rows):
    """The store has removed these rows, for their time is over."""
    index: cython.size_t
    for index in range(rows.rows.size()):
        forget_stored(r, s, cython.address(rows.rows[index]))
        r.tally[C_DROPPED_EXPIRED] += 1
    free_rows(r, rows)
