"""What a reactor wants to have in the store: records, gathered in one open section, handed over as a whole.

The section is the reactor's own until it is handed over, when the reactor has nothing more to read and the
store waits for something to do. So sections grow while there is work (group commit), nothing waits when there
is none, and what is done and undone meanwhile never reaches the disk: an entry that was acknowledged while
its row was still in the open section takes the row back, and a section with nothing left in it needs no
store. A reactor that has always something to read hands over after some milliseconds all the same; and a
section that is large enough for a batch goes behind those that wait for the store.

A section's number rises by one. Sections of one reactor are committed in their order, each as a whole, and
``Reactor.committed`` is the last one that the store has, with all before it.
"""

import cython
from cython.cimports.libc.stdint import int64_t, uint8_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import free
from cython.cimports.libc.string import memset
from cython.cimports.libcpp.memory import make_unique, unique_ptr
from cython.cimports.libcpp.string import string
from cython.cimports.tidemq.engine.base.asserting import ASSERTS, holds, may_touch
from cython.cimports.tidemq.engine.base.counters import MEMORY_BUFFERS
from cython.cimports.tidemq.engine.base.locks import lock, unlock
from cython.cimports.tidemq.engine.base.message import (
    MessageId,
    copy_identifiers,
    hold_message,
    payload_bytes,
    release_message,
)
from cython.cimports.tidemq.engine.base.steps import count_steps
from cython.cimports.tidemq.engine.base.system import (
    RELAXED,
    SEQ_CST,
    load_int,
    pthread_cond_signal,
    store_int,
)
from cython.cimports.tidemq.engine.journal.journal import NO_RECORD, is_batch
from cython.cimports.tidemq.engine.state.captured import CAPTURED_BYTES_MAX
from cython.cimports.tidemq.engine.state.queue import ROW_IDLE, ROW_INFLIGHT, ROW_NONE
from cython.cimports.tidemq.engine.state.section import (
    RECORD_ADD,
    RECORD_DELETE,
    RECORD_ELSEWHERE,
    RECORD_PUT,
    RECORD_RELEASE,
    RECORD_REMOVE,
    RECORD_RETAIN,
    RECORD_RETURN,
    RECORD_SEND,
    RECORD_VOID,
    Record,
    Section,
    Unmarked,
)
from cython.cimports.tidemq.engine.state.wall_clock import id_offset

_LATE_MS = cython.declare(int64_t, 3)
_FREED_A_TURN = cython.declare(cython.size_t, 4096)  # records
_CLOCK_STEP = cython.declare(uint64_t, 64)  # ns between two ids of one reactor: the low bits name the reactor


def open_journal(r):
    """Opens the next section."""
    owner: unique_ptr[Section] = make_unique[Section]()
    section: cython.pointer[Section] = owner.release()
    section.number = r.section.number + 1 if r.section != cython.NULL else 1
    section.reactor = r.index
    section.captured.swap(r.spare_captured)
    if r.section != cython.NULL and section.captured.capacity() < r.section.captured.size():
        section.captured.reserve(r.section.captured.size())  # to grow there would be to copy it all, twice
    r.section = section


def _clear_record(r, record):
    if record.message != cython.NULL:
        release_message(record.message, r.tally)
        record.message = cython.NULL
    if record.subscription_ids != cython.NULL:
        free(record.subscription_ids)
        record.subscription_ids = cython.NULL
    del record.key
    del record.value
    record.key = cython.NULL
    record.value = cython.NULL


def _free_records(r, section, count):
    while count and not section.records.empty():
        _clear_record(r, cython.address(section.records.back()))
        section.records.pop_back()
        count -= 1


def free_section(r, section):
    """Frees a section that nobody reads any more, whole."""
    _free_records(r, section, section.records.size())
    r.captured_bytes -= section.captured.size()
    r.tally[MEMORY_BUFFERS] -= section.captured.size()
    del section


def spend_section(r, section):
    """A section that the store has: it is freed over this turn and the next."""
    r.captured_bytes -= section.captured.size()
    r.tally[MEMORY_BUFFERS] -= section.captured.size()
    section.captured.clear()
    if section.captured.capacity() > r.spare_captured.capacity():
        r.spare_captured.swap(section.captured)
    r.spent.push_back(section)


def free_spent(r):
    """Frees a part of what is spent; true: there is more."""
    left: cython.size_t = _FREED_A_TURN
    while left and not r.spent.empty():
        section: cython.pointer[Section] = r.spent.front()
        part: cython.size_t = min(left, section.records.size())
        count_steps(part)
        _free_records(r, section, part)
        left -= part
        if section.records.empty():
            r.spent.pop_front()
            free_section(r, section)
    return not r.spent.empty()


def next_id(r):
    """An id that is larger than every one before it on this reactor, and than those that a publisher which
    has moved here was given elsewhere: each message takes longer than a step of the clock.
    """
    now: uint64_t = cython.cast(uint64_t, r.now_ns + id_offset(r.common))
    now -= now % _CLOCK_STEP
    if now <= r.clock:
        now = r.clock + _CLOCK_STEP
    holds(now > r.clock, b"journal: ids of a reactor rise")
    holds(now % _CLOCK_STEP == 0 and r.index < _CLOCK_STEP, b"journal: an id's low bits are its reactor")
    r.clock = now
    result: MessageId
    result.clock = now | r.index
    result.origin = r.common.incarnation
    return result


def precedes(a, b):
    """Whether ``a`` comes before ``b``."""
    return a.clock < b.clock or (a.clock == b.clock and a.origin < b.origin)


def _weigh(section, record):
    """Counts the bytes of a new record's message, if that is written. Of rows of one message that follow each
    other the first counts, and goes on to do so when it is taken back: the others may stay.
    """
    if record.message == cython.NULL or record.kind not in (RECORD_ADD, RECORD_ELSEWHERE, RECORD_RETAIN):
        return
    record.weighs = record.kind != RECORD_RETAIN
    if record.weighs and not section.records.empty():
        last: cython.pointer[Record] = cython.address(section.records.back())
        if last.message == record.message and last.kind in (RECORD_ADD, RECORD_ELSEWHERE):
            last.weighs = record.weighs = False
            return
    section.bytes += payload_bytes(record.message)


def _append_record(r, kind, message):
    record: Record
    if ASSERTS:
        holds(may_touch(r.index), b"journal: a reactor alone records in its section")
    holds(r.committed < r.section.number, b"journal: the open section is not committed")
    memset(cython.address(record), 0, cython.sizeof(Record))
    record.kind = kind
    if message != cython.NULL:
        hold_message(message)
        record.message = message
        record.id = message.id
    if r.section.records.empty():
        r.section.began_ms = r.now_ms
        r.section.failures = r.failures
    _weigh(r.section, cython.address(record))
    r.section.records.push_back(record)
    r.section.live += 1
    holds(r.section.live <= r.section.records.size(), b"journal: no more records are live than there are")
    return cython.address(r.section.records.back())


def add_row(r, queue, message, place, status, qos, retain, ids, ids_count):
    """A new row, with the payload; ``place`` in the outbox is kept where it is in flight. Returns which
    record of the section it is.
    """
    record: cython.pointer[Record] = _append_record(r, RECORD_ADD, message)
    record.queue = queue
    record.sequence = place
    record.status = status
    record.qos = qos
    record.retain = retain
    record.subscription_ids = copy_identifiers(ids, ids_count)
    return cython.cast(uint32_t, r.section.records.size() - 1)


def add_elsewhere(r, client_id, message, qos, retain, ids, ids_count):
    """A new row of a session's queue on another node, with the payload; it is idle."""
    record: cython.pointer[Record] = _append_record(r, RECORD_ELSEWHERE, message)
    owner: unique_ptr[string] = make_unique[string]()
    record.key = owner.release()
    record.key.assign(cython.cast(cython.p_char, client_id.data), client_id.size)
    record.status = ROW_IDLE
    record.qos = qos
    record.retain = retain
    record.subscription_ids = copy_identifiers(ids, ids_count)


def is_committed(r, entry):
    """Whether the store has the entry's row as it is now, or is not to have one."""
    return entry.row == ROW_NONE or entry.section <= r.committed


def _open_record(r, entry):
    """The record that last changed the entry's row, if it can still be changed; else NULL."""
    if entry.section != r.section.number or entry.record == NO_RECORD:
        return cython.NULL
    holds(entry.record < r.section.records.size(), b"journal: an entry names its record in the open section")
    return cython.address(r.section.records[entry.record])


def _change_row(r, queue, entry, kind, place):
    record: cython.pointer[Record] = _append_record(r, kind, entry.message)
    record.queue = queue
    record.sequence = place
    record.status = ROW_INFLIGHT
    record.qos = entry.qos
    record.retain = entry.retain
    if entry.subscription_ids != cython.NULL:
        record.subscription_ids = copy_identifiers(entry.subscription_ids + 1, entry.subscription_ids[0])
    entry.row = ROW_INFLIGHT
    entry.section = r.section.number
    entry.record = cython.cast(uint32_t, r.section.records.size() - 1)


def _row_queue(s, entry):
    """The queue that an entry's row is under."""
    return entry.queue if entry.queue else s.number


def note_sent(r, s, entry, place):
    """The entry goes in flight at this place; a row that is idle is moved.

    At QoS 1 this waits for some milliseconds (``queueing.mark_sent``), for most are acknowledged by then;
    after a crash the first messages of a queue are sent with DUP for that (``StoredQueue.doubtful``). None is
    marked before one that was sent earlier: what is in flight comes first after a crash.
    """
    unmarked: Unmarked
    if entry.row != ROW_IDLE:
        return
    record: cython.pointer[Record] = _open_record(r, entry)
    waits: cython.bint = entry.qos == 1 and entry.queue == 0 and s.outbox.head < s.stored.unmarked
    if record != cython.NULL and record.kind == RECORD_ADD and not waits:
        record.status = ROW_INFLIGHT
        record.sequence = place
        entry.row = ROW_INFLIGHT
    elif entry.qos == 1 and entry.queue == 0:
        unmarked.queue, unmarked.place, unmarked.sent_ms = s.number, place, r.now_ms
        r.unmarked.push_back(unmarked)
        s.stored.unmarked = place + 1
    else:
        record_sent(r, s, entry, place)


def record_sent(r, s, entry, place):
    """The idle row of an entry that was sent is moved now."""
    _change_row(r, _row_queue(s, entry), entry, RECORD_SEND, place)


def note_returned(r, entry):
    """The entry goes back to its shard: its row is idle again, and in the store alone."""
    if entry.row == ROW_NONE:
        return
    record: cython.pointer[Record] = _open_record(r, entry)
    if record != cython.NULL and record.kind == RECORD_ADD:
        record.status = ROW_IDLE
        record.spilled = True
    elif record != cython.NULL and record.kind == RECORD_SEND:
        void_change(r, entry)
    elif entry.row == ROW_INFLIGHT:
        _change_row(r, entry.queue, entry, RECORD_RETURN, 0)
        r.section.records.back().status = ROW_IDLE
    entry.row = ROW_NONE


def note_released(r, s, entry, place):
    """PUBREC has come: from now on PUBREL is what is sent again."""
    if entry.row != ROW_NONE:
        _change_row(r, _row_queue(s, entry), entry, RECORD_RELEASE, place)


def void_change(r, entry):
    """Voids the last change of the entry's row, if that is in the open section; its kind, or RECORD_VOID."""
    record: cython.pointer[Record] = _open_record(r, entry)
    if record == cython.NULL:
        return RECORD_VOID
    kind: uint8_t = record.kind
    if record.weighs:
        r.section.bytes -= payload_bytes(record.message)
        record.weighs = False
    _clear_record(r, record)
    record.kind = RECORD_VOID
    r.section.live -= 1
    entry.record = NO_RECORD
    return kind


def remove_row(r, s, entry):
    """The entry is done: its row goes, or is taken back where the store has never heard of it."""
    if entry.row != ROW_NONE:
        _remove_row(r, s, entry)


def _may_be_added_elsewhere(s, entry):
    """Whether another node may add the same row: it has to hear that the message is done."""
    return (
        s != cython.NULL and entry.queue == 0 and s.stored != cython.NULL and s.stored.doubles != cython.NULL
    )


def _remove_row(r, s, entry):
    status: uint8_t = entry.row
    entry.row = ROW_NONE
    kind: uint8_t = RECORD_VOID
    if not _may_be_added_elsewhere(s, entry):
        kind = void_change(r, entry)
    if kind == RECORD_ADD:
        return
    if kind == RECORD_SEND:
        status = ROW_IDLE
    record: cython.pointer[Record] = _append_record(r, RECORD_REMOVE, entry.message)
    record.queue = _row_queue(s, entry)
    record.status = status


def remove_stored(r, queue, message):
    """An idle row that has no entry goes."""
    record: cython.pointer[Record] = _append_record(r, RECORD_REMOVE, message)
    record.queue = queue
    record.status = ROW_IDLE


def note_retained(r, message):
    """What is retained for the message's topic has changed; the store takes what it is by then, so that two
    reactors cannot leave the older of two messages behind.
    """
    _append_record(r, RECORD_RETAIN, message)


def _copy_of(text):
    owner: unique_ptr[string] = make_unique[string](text[0])
    return owner.release()


def put_value(r, family, key, value):
    """A key of a family gets a value; both are copied."""
    record: cython.pointer[Record] = _append_record(r, RECORD_PUT, cython.NULL)
    record.status = family
    record.key = _copy_of(key)
    record.value = _copy_of(value)
    r.section.bytes += key.size() + value.size()
    return record


def change_value(r, section, record, value):
    """Changes what `put_value` recorded, where that is still in the open section; whether it was."""
    if section != r.section.number:
        return False
    r.section.records[record].value[0] = value[0]
    return True


def delete_value(r, family, key):
    """A key of a family goes."""
    record: cython.pointer[Record] = _append_record(r, RECORD_DELETE, cython.NULL)
    record.status = family
    record.key = _copy_of(key)


def ask_store(r, kind, queue):
    """Something that the store does for a queue after all that was recorded before: the caller fills in the
    rest.
    """
    record: cython.pointer[Record] = _append_record(r, kind, cython.NULL)
    record.queue = queue
    return record


def tell_store(r, kind, name):
    """Something that the store's thread is to know once all that was recorded before is in its hands: the
    caller fills in the rest. The name is copied.
    """
    record: cython.pointer[Record] = _append_record(r, kind, cython.NULL)
    record.key = _copy_of(name)
    return record


def last_section(r):
    """The section that has to be committed for everything recorded so far to be; an empty one never is."""
    return r.section.number - 1 if r.section.records.empty() else r.section.number


def is_late(r):
    """Whether the open section has waited so long, or is so large, that it goes even in the midst of work."""
    if r.section == cython.NULL or r.section.records.empty():
        return False
    return (
        r.now_ms - r.section.began_ms >= _LATE_MS
        or is_batch(r.section.live, r.section.bytes)
        or r.section.captured.size() >= CAPTURED_BYTES_MAX // 4
    )


def hand_over(r):
    """Gives the open section to the store if that is idle, or if it is large enough for a batch.

    True: nothing of the section is left to be stored and nothing before it is under way, so it counts as
    committed at once.
    """
    if r.section == cython.NULL or r.section.records.empty():
        return False
    if r.section.live == 0 and r.committed + 1 == r.section.number:
        r.section.records.clear()
        r.section.bytes = 0
        r.committed = r.section.number
        r.section.number += 1
        store_int(cython.address(r.unhanded), 0, RELAXED)
        return True
    store_int(cython.address(r.unhanded), 1, SEQ_CST)
    idle: cython.bint = load_int(cython.address(r.common.journal_idle), SEQ_CST)
    if not idle and not is_batch(r.section.live, r.section.bytes):
        return False
    give_section(r)
    return False


def give_section(r):
    """Gives the open section to the store, idle or not, and opens the next."""
    section: cython.pointer[Section] = r.section
    open_journal(r)
    lock(cython.address(r.common.journal_lock))
    r.common.journal.push_back(section)
    store_int(cython.address(r.common.journal_idle), 0, RELAXED)
    pthread_cond_signal(cython.address(r.common.journal_ready))
    unlock(cython.address(r.common.journal_lock))
    store_int(cython.address(r.unhanded), 0, RELAXED)
