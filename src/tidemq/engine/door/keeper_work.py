"""The store's side of the journal: sections become batches of writes, and what was read becomes rows.

Runs on the thread that works for the store, with the GIL; a Python object is made for each write, but only
for what could not be taken back before the store had time for it.
"""

from __future__ import annotations

import struct

import cython
from cython.cimports.libc.stdint import int64_t, uint64_t
from cython.cimports.libcpp.string import string
from cython.cimports.tidemq.engine.base.asserting import holds
from cython.cimports.tidemq.engine.base.locks import lock, unlock
from cython.cimports.tidemq.engine.base.message import (
    Message,
    hold_message,
    message_bytes,
    release_message,
    topic_of,
)
from cython.cimports.tidemq.engine.base.system import (
    CLOCK_MONOTONIC,
    RELAXED,
    SEQ_CST,
    clock_gettime,
    load_int,
    pthread_cond_init,
    pthread_cond_signal,
    pthread_cond_timedwait,
    pthread_condattr_init,
    pthread_condattr_setclock,
    pthread_condattr_t,
    pthread_mutex_init,
    store_int,
    timespec,
)
from cython.cimports.tidemq.engine.index.retained_index import find_retained
from cython.cimports.tidemq.engine.index.retained_index import lock_shared as lock_retained
from cython.cimports.tidemq.engine.index.retained_index import unlock_shared as unlock_retained
from cython.cimports.tidemq.engine.journal.journal import UNCOPIED, is_batch
from cython.cimports.tidemq.engine.journal.rows import (
    append_id,
    append_message,
    append_queue_key,
    append_queue_value,
    append_u64,
    wall_ms,
)
from cython.cimports.tidemq.engine.link.mail import new_mail, post_directly, wake
from cython.cimports.tidemq.engine.state.mail import MAIL_COMMITTED, MAIL_FAILED, Mail
from cython.cimports.tidemq.engine.state.queue import ROW_IDLE, ROW_INFLIGHT
from cython.cimports.tidemq.engine.state.reactor import Common
from cython.cimports.tidemq.engine.state.section import (
    FAMILY_RECEIVED,
    RECORD_ADD,
    RECORD_ARRIVED,
    RECORD_DELETE,
    RECORD_ELSEWHERE,
    RECORD_EXPIRE,
    RECORD_GIVEN,
    RECORD_LEFT,
    RECORD_LET_GO,
    RECORD_PURGE,
    RECORD_PUT,
    RECORD_READ,
    RECORD_RELEASE,
    RECORD_REMOVE,
    RECORD_RETAIN,
    RECORD_RETURN,
    RECORD_SEND,
    RECORD_TRIM,
    Record,
    Section,
)
from cython.cimports.tidemq.wire.protocol import bytes_of

_CHANGES = {
    RECORD_SEND: "send",
    RECORD_RETURN: "return",
    RECORD_RELEASE: "release",
    RECORD_REMOVE: "remove",
}
_FAMILIES = ("session", "subscription", "received", "shared")  # in the order of FAMILY_*


def init_journal(common):
    """Makes the journal's lock and condition."""
    attributes: pthread_condattr_t
    pthread_mutex_init(cython.address(common.journal_lock), cython.NULL)
    pthread_condattr_init(cython.address(attributes))
    pthread_condattr_setclock(cython.address(attributes), CLOCK_MONOTONIC)
    pthread_cond_init(cython.address(common.journal_ready), cython.address(attributes))


@cython.cclass
class StoreWork:
    """What the reactors want of the store, in order: first ``writes``, as one batch, then the rest.

    ``writes``: family, key, value or None. ``references``: message id and by how much the count of its
    references changes, for payloads that have such a count. ``reads``: who asks, queue, id after which,
    how many rows.
    ``trims``: the same, for rows that go. ``expired``: keys of rows that go if they are still there.
    ``purges``: how the keys of a queue's rows begin that go, all or those of a status.
    ``described``: None, or instead of ``writes`` and ``references`` what was done, for who must know what it
    meant (the functions `_describe_…` have the forms), but for the family `meta`.
    ``elsewhere``: clients of other nodes that new rows are for, which are only described: they stand there
    in place of a queue.
    ``adds``: there are new messages of clients in it. ``outdated``: some may be of publishers whose earlier
    messages were in a batch that failed, which their reactor did not know yet. ``more``: was handed over
    already, and is not in it. ``streams``: a bit mask of
    those that it has messages for, which ``StoreAccess.captured_rows`` gives.

    ``left``: sessions that have left, all of whose rows are in this work or were in one before: client id,
    the next place of the outbox, and whether there was one. ``arrived``: sessions that ``StoreAccess.adopt``
    has brought: client id, and whether it is here, or was refused because one of that name or queue is here
    or is just being removed; so it is whether or not the work fails.

    ``given``: of messages that ``StoreAccess.give`` took, the token, and 0 or the reason code why none of the
    group takes it. ``let_go``: numbers of queues of shared groups that the engine has no more, as it has
    no member of them.
    """

    def __cinit__(self) -> None:
        self.adds = False
        self.outdated = False
        self.more = False
        self.streams = 0
        self.described = None
        self.writes = []
        self.references = []
        self.reads = []
        self.trims = []
        self.expired = []
        self.purges = []
        self.left = []
        self.arrived = []
        self.given = []
        self.elsewhere = set()
        self.let_go = []


def _wait(common, timeout_ns):
    """Waits until a section is handed over, the journal is closed or poked, or time is over. Says that the
    store is idle, and reminds the reactors that have something.
    """
    until: timespec
    index: cython.size_t
    clock_gettime(CLOCK_MONOTONIC, cython.address(until))
    nanoseconds: int64_t = until.tv_nsec + timeout_ns
    until.tv_sec += nanoseconds // 1000000000
    until.tv_nsec = nanoseconds % 1000000000
    lock(cython.address(common.journal_lock))
    idle: cython.bint = not (common.journal.size() or common.journal_closed or common.journal_poked)
    if idle:
        store_int(cython.address(common.journal_idle), 1, SEQ_CST)
    unlock(cython.address(common.journal_lock))
    if not idle:
        return
    for index in range(common.reactors.size()):
        if load_int(cython.address(common.reactors[index].unhanded), SEQ_CST):
            wake(common.reactors[index])
    lock(cython.address(common.journal_lock))
    while not (common.journal.size() or common.journal_closed or common.journal_poked):
        if pthread_cond_timedwait(
            cython.address(common.journal_ready),
            cython.address(common.journal_lock),
            cython.address(until),
        ):
            break
    store_int(cython.address(common.journal_idle), 0, RELAXED)
    unlock(cython.address(common.journal_lock))


def _take_sections(common, taken):
    """The oldest that were handed over, as many as are a batch."""
    records: cython.size_t = 0
    size: uint64_t = 0
    count: cython.size_t = 0
    while count < common.journal.size() and not is_batch(records, size):
        records += common.journal[count].records.size()
        size += common.journal[count].bytes
        count += 1
    taken.assign(common.journal.begin(), common.journal.begin() + count)
    common.journal.erase(common.journal.begin(), common.journal.begin() + count)


def wait_for_work(common, timeout_s, described):
    """The sections handed over since the last time, as many as are a batch, after at most ``timeout_s``; it
    may be none.
    ``described``: as what was done, not as writes.

    None: the journal is closed and all of it was taken.
    """
    work = StoreWork()
    if described:
        work.described = []
    index: cython.size_t
    closed: cython.bint
    timeout_ns: int64_t = cython.cast(int64_t, timeout_s * 1e9)
    work.common = common
    with cython.nogil:
        _wait(common, timeout_ns)
        lock(cython.address(common.journal_lock))
        _take_sections(common, cython.address(work.sections))
        work.more = not common.journal.empty()
        closed = common.journal_closed
        common.journal_poked = False
        unlock(cython.address(common.journal_lock))
    if work.sections.empty() and closed:
        return None
    before: uint64_t = common.highest_clock
    for index in range(work.sections.size()):
        common.highest_clock = max(common.highest_clock, _convert_section(work, work.sections[index]))
    if common.highest_clock != before:
        work.writes.append(("meta", b"clock", struct.pack(">Q", common.highest_clock)))
    return work


def _purged(record):
    """How the keys of the rows that go begin."""
    text: string
    append_u64(cython.address(text), record.queue)
    if record.status:
        text.push_back(record.status)
    return text


def _queue_key(record, status):
    key: string
    append_queue_key(record.queue, status, cython.address(record.id), cython.address(key))
    return key


def _queue_value(common, record, released):
    value: string
    append_queue_value(common, record, released, cython.address(value))
    return value


def _expiry_key(common, record):
    key: string
    append_u64(cython.address(key), wall_ms(common, record.message.expires_ms))
    append_u64(cython.address(key), record.queue)
    append_id(cython.address(key), cython.address(record.id))
    return key


def _id_bytes(id):
    text: string
    append_id(cython.address(text), id)
    return text


def _message_value(common, message):
    value: string
    append_message(common, message, cython.address(value))
    return value


def _convert_section(work, section):
    """Appends a section's records; returns the highest clock of the new ids in it."""
    index: cython.size_t
    highest: uint64_t = 0
    before: cython.pointer[Message] = cython.NULL
    late: cython.bint = section.failures < work.common.failures
    work.streams |= section.captured_streams
    if section.captured_waits:
        work.adds = True
        work.outdated = work.outdated or late
    for index in range(section.records.size()):
        record: cython.pointer[Record] = cython.address(section.records[index])
        if record.kind == RECORD_ADD:
            if work.described is not None:
                work.described.append(_describe_added(work.common, record, record.message == before))
            else:
                _convert_added(work, record, record.message == before)
            before = record.message
            highest = max(highest, record.id.clock)
            holds(
                record.moved
                or record.id.origin != work.common.incarnation
                or (record.id.clock & 63) < work.common.reactors.size(),
                b"keeper work: a reactor has given a new message its id",
            )
            if not record.moved and record.message.feeder:
                work.adds = True
                work.outdated = work.outdated or late
        elif record.kind == RECORD_ELSEWHERE:
            if work.described is not None:
                work.elsewhere.add(_text(record.key))
                work.described.append(_describe_added(work.common, record, record.message == before))
                before = record.message
            highest = max(highest, record.id.clock)
            work.adds = work.adds or record.message.feeder != 0
            work.outdated = work.outdated or (late and record.message.feeder)
        elif record.kind == RECORD_PURGE:
            work.purges.append(_purged(record))
        elif record.kind == RECORD_READ:
            work.reads.append(
                (section.reactor, record.queue, _id_bytes(cython.address(record.id)), record.sequence)
            )
        elif record.kind == RECORD_TRIM:
            work.trims.append((record.queue, _id_bytes(cython.address(record.id)), record.sequence))
        elif record.kind == RECORD_EXPIRE:
            work.expired.append(_queue_key(record, ROW_IDLE))
        elif record.kind == RECORD_LEFT:
            work.left.append(_left(record))
        elif record.kind == RECORD_ARRIVED:
            work.arrived.append((_text(record.key), record.status != 0))
        elif record.kind == RECORD_GIVEN:
            work.given.append((record.sequence, record.status))
        elif record.kind == RECORD_LET_GO:
            work.let_go.append(record.queue)
        elif work.described is not None:
            _describe_record(work.common, record, work.described)
        else:
            _convert_change(work.common, record, work.writes, work.references)
    return highest


def _convert_added(work, record, again):
    """A new row; the payload comes with the first of several rows of one message."""
    common: cython.pointer[Common] = work.common
    holds(record.id.clock == record.message.id.clock, b"keeper work: a row has the id of its message")
    if not again:
        work.writes.append(
            ("payload", _id_bytes(cython.address(record.id)), _message_value(common, record.message))
        )
    if record.message.counted:
        work.references.append((_id_bytes(cython.address(record.id)), 1))
    work.writes.append(("queue", _queue_key(record, record.status), _queue_value(common, record, False)))
    if record.message.expires_ms:
        work.writes.append(("expiry", _expiry_key(common, record), b""))


def _text(text):
    kept: string = text[0]
    return kept


def _left(record):
    return (_text(record.key), record.sequence, record.status != 0)


def _convert_change(common, record, writes, references):
    if record.kind == RECORD_SEND:
        writes.append(("queue", _queue_key(record, ROW_IDLE), None))
        writes.append(("queue", _queue_key(record, ROW_INFLIGHT), _queue_value(common, record, False)))
    elif record.kind == RECORD_RETURN:
        writes.append(("queue", _queue_key(record, ROW_INFLIGHT), None))
        writes.append(("queue", _queue_key(record, ROW_IDLE), _queue_value(common, record, False)))
    elif record.kind == RECORD_RELEASE:
        writes.append(("queue", _queue_key(record, ROW_INFLIGHT), _queue_value(common, record, True)))
    elif record.kind == RECORD_REMOVE:
        _convert_removed(common, record, writes, references)
    elif record.kind == RECORD_RETAIN:
        writes.append(_retained_write(common, record.message))
    elif record.kind == RECORD_PUT:
        writes.append((_FAMILIES[record.status], _text(record.key), _text(record.value)))
    elif record.kind == RECORD_DELETE:
        writes.append((_FAMILIES[record.status], _text(record.key), None))


def _convert_removed(common, record, writes, references):
    writes.append(("queue", _queue_key(record, record.status), None))
    if record.message.counted:
        references.append((_id_bytes(cython.address(record.id)), -1))
    else:
        writes.append(("payload", _id_bytes(cython.address(record.id)), None))
    if record.message.expires_ms:
        writes.append(("expiry", _expiry_key(common, record), None))


def _retained_write(common, changed):
    """What is retained for the topic of ``changed`` at this moment."""
    lock_retained(common.retained)
    message: cython.pointer[Message] = cython.cast(
        cython.pointer[Message], find_retained(common.retained, topic_of(changed))
    )
    if message != cython.NULL:
        hold_message(message)
    unlock_retained(common.retained)
    topic = bytes_of(topic_of(changed))
    if message == cython.NULL:
        return ("retained", topic, None)
    value = _id_bytes(cython.address(message.id)) + _message_value(common, message)
    release_message(message, common.tally)
    return ("retained", topic, value)


def _describe_added(common, record, again):
    """A new row: "add", queue or the client id of a session elsewhere, message id, QoS, whether it goes out
    with RETAIN, bytes of the message, when it expires, subscription identifiers, place where it is in flight
    at once or None, whether it comes from another queue, and the message, unless the row before was of the
    same one.
    """
    index: uint32_t
    ids: tuple = ()
    if record.subscription_ids != cython.NULL:
        ids = tuple([record.subscription_ids[index + 1] for index in range(record.subscription_ids[0])])
    return (
        "add",
        _text(record.key) if record.kind == RECORD_ELSEWHERE else record.queue,
        _id_bytes(cython.address(record.id)),
        record.qos,
        record.retain,
        message_bytes(record.message),
        wall_ms(common, record.message.expires_ms),
        ids,
        record.sequence if record.status == ROW_INFLIGHT else None,
        record.moved,
        None if again else _message_value(common, record.message),
    )


def _describe_record(common, record, described):
    """Any other: "send", "return", "release" or "remove" with queue, message id and place; "retain" with
    topic, value, message id alone and whether it is a client's that wants nothing retained any more, which
    else has gone by itself where there is no value; "serve" with key and value of a subscription; "put" with
    family, key and value. A value is None where the row goes.
    """
    if record.kind == RECORD_RETAIN:
        _, topic, value = _retained_write(common, record.message)
        asked: cython.bint = record.message.payload_size == 0
        described.append(("retain", topic, value, _id_bytes(cython.address(record.id)), bool(asked)))
    elif record.kind == RECORD_PUT and record.served:
        described.append(("serve", _text(record.key), _text(record.value)))
    elif record.kind == RECORD_PUT:
        described.append(("put", _FAMILIES[record.status], _text(record.key), _text(record.value)))
    elif record.kind == RECORD_DELETE:
        described.append(("put", _FAMILIES[record.status], _text(record.key), None))
    elif record.kind in _CHANGES:
        row = (_CHANGES[record.kind], record.queue, _id_bytes(cython.address(record.id)), record.sequence)
        described.append(row)


def rest_of_work(work):
    """Of a batch that failed, what has to be tried again, before anything later: all but the new messages,
    which are undone. What may have been written of them all the same is deleted. Who has left in it has left
    when the rest is in the store.
    """
    index: cython.size_t
    each: cython.size_t
    rest = StoreWork()
    rest.common = work.common
    for each in range(work.sections.size()):
        section: cython.pointer[Section] = work.sections[each]
        for index in range(section.records.size()):
            record: cython.pointer[Record] = cython.address(section.records[index])
            if record.kind == RECORD_ADD and record.moved:
                _convert_added(rest, record, False)
            elif record.kind == RECORD_ADD:
                _convert_removed(work.common, record, rest.writes, [])
            elif record.kind == RECORD_PUT and record.status == FAMILY_RECEIVED:
                rest.writes.append(("received", _text(record.key), None))  # it belongs to a new message
            elif record.kind == RECORD_LEFT:
                rest.left.append(_left(record))
            else:
                _convert_change(work.common, record, rest.writes, rest.references)
    return rest


def answer_work(work, reason):
    """Tells the reactors that their sections are committed, or with ``reason``, other than `UNCOPIED`, that
    they are not.
    """
    index: cython.size_t
    mail: Mail
    for index in range(work.sections.size()):
        mail = new_mail(MAIL_COMMITTED)
        mail.pointer = work.sections[index]
        mail.reason = reason
        post_directly(work.common.reactors[work.sections[index].reactor], cython.address(mail))
    work.sections.clear()
    if reason and reason != UNCOPIED:
        work.common.failures += 1
        mail = new_mail(MAIL_FAILED)
        mail.number = work.common.failures
        for index in range(work.common.reactors.size()):
            post_directly(work.common.reactors[index], cython.address(mail))


def poke_journal(common):
    """Ends the wait of the store's thread."""
    lock(cython.address(common.journal_lock))
    common.journal_poked = True
    pthread_cond_signal(cython.address(common.journal_ready))
    unlock(cython.address(common.journal_lock))


def close_journal(common):
    """The reactors have ended: what they had not handed over is taken now, and nothing more comes."""
    lock(cython.address(common.journal_lock))
    common.journal_closed = True
    pthread_cond_signal(cython.address(common.journal_ready))
    unlock(cython.address(common.journal_lock))
