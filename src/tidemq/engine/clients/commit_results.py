"""Promises kept, or what becomes of them when the store fails.

When the store could not take a section, the messages in it are undone and their publishers told so; all else
is tried again, and its promises wait for a section after it that is committed.
"""

import cython
from cython.cimports.libc.stdint import uint32_t
from cython.cimports.tidemq.engine.base.asserting import holds
from cython.cimports.tidemq.engine.base.counters import C_DROPPED_STORE_FAILED
from cython.cimports.tidemq.engine.base.engine_limits import FULL_REJECT
from cython.cimports.tidemq.engine.base.histograms import H_CONNECT, H_PUBLISH_QOS_1, H_PUBLISH_QOS_2, observe
from cython.cimports.tidemq.engine.base.message import message_bytes
from cython.cimports.tidemq.engine.base.steps import allow_receivers, count_steps
from cython.cimports.tidemq.engine.clients.placement import go_home
from cython.cimports.tidemq.engine.clients.subscribing import subscribe_at_connect
from cython.cimports.tidemq.engine.clients.wills import settle_will
from cython.cimports.tidemq.engine.journal.journal import (
    STORE_FAILED,
    UNCOPIED,
    ask_store,
    free_spent,
    spend_section,
    void_change,
)
from cython.cimports.tidemq.engine.journal.ledger import promise_at, slot_of_token, take_promise, token_of
from cython.cimports.tidemq.engine.link.backpressure import resume_feeder
from cython.cimports.tidemq.engine.link.output import append_output, doom
from cython.cimports.tidemq.engine.link.replies import refuse_late, span_of, write_ack
from cython.cimports.tidemq.engine.link.spans import end_commit
from cython.cimports.tidemq.engine.queues.agreement import (
    accept_offer,
    add_takers,
    close_offer,
    record_offers,
)
from cython.cimports.tidemq.engine.queues.backlogs import begin_backlog
from cython.cimports.tidemq.engine.queues.delivery import send_waiting
from cython.cimports.tidemq.engine.queues.doubles import forget_double
from cython.cimports.tidemq.engine.queues.forwarding import answer_node
from cython.cimports.tidemq.engine.queues.giving import tell_given
from cython.cimports.tidemq.engine.queues.outbox import entry_at, forget_entry
from cython.cimports.tidemq.engine.queues.promises import mail_kept
from cython.cimports.tidemq.engine.queues.received_identifiers import forget_received
from cython.cimports.tidemq.engine.queues.sessions import end_removals, subscription_turn
from cython.cimports.tidemq.engine.state.client import Connection, Session
from cython.cimports.tidemq.engine.state.handles import connection_of, handle_of
from cython.cimports.tidemq.engine.state.nodes import NODES_MAX
from cython.cimports.tidemq.engine.state.promise import (
    PROMISE_ACK,
    PROMISE_BACKLOG,
    PROMISE_CONNACK,
    PROMISE_KEPT,
    PROMISE_PACKET,
    PROMISE_PUBLISHED,
    PROMISE_SEND,
    PROMISE_VOID,
    Promise,
)
from cython.cimports.tidemq.engine.state.queue import DONE, ROW_NONE, WAITING, Entry
from cython.cimports.tidemq.engine.state.section import RECORD_ADD, RECORD_VOID, Record
from cython.cimports.tidemq.wire.protocol import (
    FAULT_LIMIT,
    FAULT_STORE,
    PUBREC,
    RC_QUOTA_EXCEEDED,
    RC_SERVER_UNAVAILABLE,
    Span,
)


def _publisher_of(r, promise):
    """Its session, whether it is connected or not; NULL when that has ended."""
    c: cython.pointer[Connection] = connection_of(r, promise.connection)
    if c != cython.NULL:
        return c.session
    if r.sessions.count(promise.number):
        return r.sessions[promise.number]
    return cython.NULL


def _disconnect_publisher(r, s, refused):
    """At once, so that nothing that the publisher sent later is kept, where it cannot be told in the answer:
    3.x knows no refusal, and of a QoS 2 message that was undone it is open whether the store knows the
    identifier, which the answer would set free for another message. ``s``: its session, or NULL.
    """
    c: cython.pointer[Connection] = connection_of(r, refused.connection)
    if c == cython.NULL:
        return
    known: cython.bint = refused.packet_type == PUBREC and c.session.stored != cython.NULL
    if c.version >= 5 and not (refused.undone and known):
        return
    doom(r, c, refused.reason, FAULT_STORE)
    if s != cython.NULL and s.stored != cython.NULL:
        s.stored.severed = refused.connection


def _refuse_repeated(r, s, refused):
    """What was sent again while it was open whether it would be kept has the same fate."""
    slot: uint32_t = refused.next
    if r.ledger.again == 0:
        return  # nothing of anybody was
    while slot:
        count_steps(1)
        promise: cython.pointer[Promise] = promise_at(r, slot)
        if promise.again and promise.packet_id == refused.packet_id:
            promise.reason = refused.reason
            promise.undone = refused.undone
            if promise.undone:
                _disconnect_publisher(r, s, promise)
        slot = promise.next


def _undo_published(r, slot, reason):
    """The store has not taken the message; that it came is forgotten before it can be sent again."""
    promise: cython.pointer[Promise] = promise_at(r, slot)
    promise.section = 0
    r.ledger.ready.push_back(slot)
    if promise.undone:
        return
    promise.reason = reason
    promise.undone = True
    s: cython.pointer[Session] = _publisher_of(r, promise)
    if promise.packet_type == PUBREC:
        if s != cython.NULL:
            forget_received(r, s, promise.packet_id)
        _refuse_repeated(r, s, promise)
    _disconnect_publisher(r, s, promise)


def answer_kept(r, mail):
    """Another reactor has kept, or refused, what was mailed to it; or it says who takes what was offered."""
    slot: uint32_t = slot_of_token(mail.number)
    promise: cython.pointer[Promise] = promise_at(r, slot)  # it stays until all have answered
    s: cython.pointer[Session] = _publisher_of(r, promise)
    asked: cython.bint = promise.kind == PROMISE_PUBLISHED and promise.answers > 0
    holds(asked, b"commit results: no more answer than were asked")
    promise.answers -= 1
    if mail.reason == UNCOPIED:
        _leave_unanswered(r, promise)
    elif mail.reason and (mail.reason != RC_QUOTA_EXCEEDED or promise.reason < 0x80):
        promise.reason = mail.reason  # that a queue was full weighs less than any other refusal
    if mail.reason == STORE_FAILED:
        _disconnect_publisher(r, s, promise)
    if mail.letter != cython.NULL and promise.node:
        add_takers(promise, span_of(mail.letter.data))
    elif mail.letter != cython.NULL and promise.message != cython.NULL:
        accept_offer(r, promise, mail.letter.data, mail.hops)
    if promise.answers:
        return
    if s != cython.NULL and s.stored != cython.NULL:
        record_offers(r, s)
    r.ledger.ready.push_back(slot)


def settle_published(r, c, s, packet_type, packet_id, reason):
    """The publisher's answer. ``c``: NULL when it has gone; ``s``: its session, or NULL."""
    if reason < 0x80:
        if c != cython.NULL and not c.doomed:
            write_ack(r, c, packet_type, packet_id, reason)
    else:
        _settle_refused(r, c, s, packet_type, packet_id, reason)


def _settle_refused(r, c, s, packet_type, packet_id, reason):
    """What was refused is no QoS 2 message under way. 3.x knows no refusal: no acknowledgement and the end of
    the connection; but a message that was dropped because a queue is full is acknowledged, unless the policy
    is to reject it.
    """
    untold: cython.bint = (
        c != cython.NULL
        and c.version < 5
        and reason == RC_QUOTA_EXCEEDED
        and r.common.queue_full != FULL_REJECT
    )
    if packet_type == PUBREC and s != cython.NULL and not untold:
        forget_received(r, s, packet_id)
    if c == cython.NULL or c.doomed:
        return
    if c.version < 5 and not untold:
        doom(r, c, reason, FAULT_STORE if reason == STORE_FAILED else FAULT_LIMIT)
    else:
        write_ack(r, c, packet_type, packet_id, reason)


def _settle_debt(r, c):
    """The client is owed one thing less: it may be read from again, or go to another reactor."""
    holds(c.owed > 0, b"commit results: what is kept is owed")
    c.owed -= 1
    if c.in_debt and c.owed <= r.common.limits.receive_max // 2:
        c.in_debt = False
        holds(c.pause_count > 0, b"commit results: a client that is owed too much is paused")
        resume_feeder(r, handle_of(r, c))
    if c.homing and c.owed == 0:
        resume_feeder(r, handle_of(r, c))
        go_home(r, c)


def _keep_published(r, promise, slot):
    """``slot``: where the promise was."""
    if promise.node > NODES_MAX:
        tell_given(r, promise.asked, promise.reason)
        return
    if promise.node:
        answer_node(r, promise.node - 1, promise.asked, promise.reason, promise.takers)
        del promise.takers
        return
    c: cython.pointer[Connection] = connection_of(r, promise.connection)
    s: cython.pointer[Session] = _publisher_of(r, promise)
    if s != cython.NULL and s.stored != cython.NULL and s.stored.unrecorded == slot:
        s.stored.unrecorded = promise.next
    if promise.message != cython.NULL:
        close_offer(r, promise)
        if s != cython.NULL:
            holds(s.offers > 0, b"commit results: a publisher knows how many of its offers are open")
            s.offers -= 1
    if promise.packet_type == 0:
        settle_will(r, s, promise, token_of(r, slot))
        return
    if promise.again or promise.undone:
        s = cython.NULL  # what is known of the identifier now is another's
    elif promise.reason >= 0x80 and promise.packet_type == PUBREC:
        _refuse_repeated(r, s, promise)
    settle_published(r, c, s, promise.packet_type, promise.packet_id, promise.reason)
    which: cython.int = H_PUBLISH_QOS_2 if promise.packet_type == PUBREC else H_PUBLISH_QOS_1
    observe(cython.address(r.histograms[which]), r.now_ns - promise.since_ns, 1)
    if not r.committing.empty():
        end_commit(r, c, slot, promise.reason)
    if c != cython.NULL:
        _settle_debt(r, c)


def _keep_backlog(r, s, promise):
    """Unless the subscription has ended since, or was made anew and has a promise of its own
    [MQTT-3.10.4-2].
    """
    filter: Span = span_of(promise.packet)
    if promise.packet_id == subscription_turn(s, filter):
        begin_backlog(r, s, filter, promise.reason, cython.cast(uint32_t, promise.number))


def _keep_other(r, promise):
    if promise.kind == PROMISE_VOID:
        return
    if promise.kind == PROMISE_KEPT:
        mail_kept(r, promise.number, promise.reason, promise.packet)
        return
    c: cython.pointer[Connection] = connection_of(r, promise.connection)
    if c != cython.NULL and not c.doomed:
        if promise.kind == PROMISE_ACK:
            write_ack(r, c, promise.packet_type, promise.packet_id, promise.reason)
        elif promise.kind == PROMISE_SEND:
            send_waiting(r, c.session)
        elif promise.kind == PROMISE_BACKLOG:
            _keep_backlog(r, c.session, promise)
        else:
            append_output(r, c, promise.packet.data(), cython.cast(cython.uint, promise.packet.size()))
            if promise.kind == PROMISE_CONNACK:
                observe(cython.address(r.histograms[H_CONNECT]), r.now_ns - c.since_ns, 1)
                c.since_ns = r.now_ns
                resume_feeder(r, promise.connection)
                subscribe_at_connect(r, c)
    if c != cython.NULL:
        _settle_debt(r, c)
    del promise.packet


def _keep_from(r, slot):
    """Keeps what its publisher is owed from this slot on, in order, as far as that can be kept now."""
    promise: Promise
    while take_promise(r, slot, cython.address(promise)):
        count_steps(1)
        _keep_published(r, cython.address(promise), slot)
        slot = promise.next
        r.publishers_left -= 1
        if r.publishers_left == 0:
            r.ledger.ready.push_back(slot)
            return


def _keep_committed(r):
    """Keeps promises whose section is committed: so many in a turn that nobody waits long for it. A steady
    flood of what is owed to publishers holds up no SUBACK, for there are as many of the others in a turn.
    """
    promise: Promise
    while r.publishers_left and not r.ledger.due.empty() and r.ledger.due.front().section <= r.committed:
        slot: uint32_t = r.ledger.due.front().slot
        r.ledger.due.pop_front()
        _keep_from(r, slot)
    while r.publishers_left and not r.ledger.ready.empty():
        slot = r.ledger.ready.back()
        r.ledger.ready.pop_back()
        _keep_from(r, slot)
    while r.others_left and not r.promises.empty() and r.promises.front().section <= r.committed:
        count_steps(1)
        promise = r.promises.front()
        r.promises.pop_front()
        _keep_other(r, cython.address(promise))
        r.others_left -= 1


def keep_promises(r):
    """At the end of a turn: keeps what can be kept, and ends what that leaves behind. True: there is more."""
    _keep_committed(r)
    removing: cython.bint = end_removals(r)
    r.keeping = free_spent(r) or removing or r.publishers_left == 0 or r.others_left == 0
    r.publishers_left = r.others_left = KEPT_A_TURN
    return r.keeping


def _undo_added(r, record, number):
    """A message that the store did not take leaves its queue, unless it has gone out already."""
    if not r.sessions.count(record.queue):
        return
    s: cython.pointer[Session] = r.sessions[record.queue]
    r.tally[C_DROPPED_STORE_FAILED] += 1
    forget_double(r, s, cython.address(record.message.id))
    if record.spilled:
        if s.stored.waiting:
            s.stored.waiting -= 1
            s.stored.bytes -= min(s.stored.bytes, message_bytes(record.message))
        return
    if record.sequence < s.outbox.head or record.sequence >= s.outbox.tail:
        return
    entry: cython.pointer[Entry] = entry_at(cython.address(s.outbox), record.sequence)
    if entry.state == DONE or entry.message != record.message:
        return
    if entry.section != number:
        void_change(r, entry)  # it went in flight since
    entry.row = ROW_NONE
    if entry.state == WAITING:
        forget_entry(cython.address(s.outbox), entry, r.tally)


def _break_promise(r, promise):
    """What its section holds is tried again, and nobody knows for how long: a client that waits for SUBACK,
    UNSUBACK or CONNACK is disconnected, so that it knows that it has none. PUBREL and PUBCOMP come late,
    for there is nothing else that could be said in their place.
    """
    if promise.kind == PROMISE_KEPT:
        mail_kept(r, promise.number, STORE_FAILED, promise.packet)
        promise.packet = cython.NULL
        promise.kind = PROMISE_VOID
        return
    c: cython.pointer[Connection] = connection_of(r, promise.connection)
    if c == cython.NULL or c.doomed:
        return
    if promise.kind == PROMISE_PACKET:
        doom(r, c, STORE_FAILED, FAULT_STORE)
    elif promise.kind == PROMISE_CONNACK:
        refuse_late(r, c, RC_SERVER_UNAVAILABLE, FAULT_STORE)


def _first_due(r, section):
    """Where in ``ledger.due``, which is in the order of sections, those of this one begin."""
    low: cython.size_t = 0
    high: cython.size_t = r.ledger.due.size()
    while low < high:
        middle: cython.size_t = (low + high) // 2
        if r.ledger.due[middle].section < section:
            low = middle + 1
        else:
            high = middle
    return low


def _first_promise(r, section):
    """The same in ``promises``."""
    low: cython.size_t = 0
    high: cython.size_t = r.promises.size()
    while low < high:
        middle: cython.size_t = (low + high) // 2
        if r.promises[middle].section < section:
            low = middle + 1
        else:
            high = middle
    return low


def _fails_with(r, slot, section):
    """Whether what a slot holds now is about something in this section. It may hold something else by now."""
    if slot > r.ledger.slots.size():
        return False
    promise: cython.pointer[Promise] = promise_at(r, slot)
    if promise.kind == PROMISE_VOID or not promise.kept:
        return False
    return section in (promise.section, promise.early)


def _section_failed(r, section, reason):
    """Messages in it are undone, and whoever waits for it is told: at once, for nothing may happen to them
    meanwhile.
    """
    index: cython.size_t
    r.doubted = r.section.number
    allow_receivers(section.records.size())
    for index in range(section.records.size()):
        count_steps(1)
        record: cython.pointer[Record] = cython.address(section.records[index])
        if record.kind == RECORD_ADD and not record.offered and not record.moved:
            _undo_added(r, record, section.number)
    index = _first_due(r, section.number)
    while index < r.ledger.due.size() and r.ledger.due[index].section == section.number:
        count_steps(1)
        slot: uint32_t = r.ledger.due[index].slot
        if _fails_with(r, slot, section.number):
            _undo_published(r, slot, reason)
        index += 1
    index = _first_promise(r, section.number)
    while index < r.promises.size() and r.promises[index].section == section.number:
        count_steps(1)
        _break_promise(r, cython.address(r.promises[index]))
        index += 1
    # all else of it waits for the next section, which has to be committed even if nothing more comes
    ask_store(r, RECORD_VOID, 0)


def _leave_unanswered(r, promise):
    """A message is stored, and its publisher is not told so. It is disconnected, whatever its version, so
    that it keeps the identifier and sends the message again (docs/decisions/0011). Where it is another
    node's, that is told that the message was refused.
    """
    if promise.node:
        promise.reason = STORE_FAILED
        return
    c: cython.pointer[Connection] = connection_of(r, promise.connection)
    if c != cython.NULL and promise.packet_type and not c.doomed:
        doom(r, c, STORE_FAILED, FAULT_STORE)
    slot: uint32_t = promise.next if r.ledger.again and promise.packet_type == PUBREC else 0
    while slot:
        count_steps(1)
        repeated: cython.pointer[Promise] = promise_at(r, slot)
        c = connection_of(r, repeated.connection)
        if repeated.again and repeated.packet_id == promise.packet_id and c != cython.NULL and not c.doomed:
            doom(r, c, STORE_FAILED, FAULT_STORE)
        slot = repeated.next


def _section_uncopied(r, section):
    """Nothing in it is undone. Whoever waits for the answer to a message in it does not get one."""
    index: cython.size_t = _first_due(r, section.number)
    while index < r.ledger.due.size() and r.ledger.due[index].section == section.number:
        count_steps(1)
        slot: uint32_t = r.ledger.due[index].slot
        if _fails_with(r, slot, section.number):
            _leave_unanswered(r, promise_at(r, slot))
        index += 1
    index = _first_promise(r, section.number)
    while index < r.promises.size() and r.promises[index].section == section.number:
        count_steps(1)
        promise: cython.pointer[Promise] = cython.address(r.promises[index])
        if promise.kind == PROMISE_KEPT and promise.reason == 0:
            promise.reason = UNCOPIED
        index += 1


def section_answered(r, section, reason):
    """The store has a section, and all before it; or with ``reason``, other than `UNCOPIED`, it has not.
    Takes the section over.

    What was promised for it is kept first, as far as `KEPT_A_TURN` goes, and the rest in the next turns: so
    SUBACK comes before messages of a group that have waited for the same section.
    """
    if reason and reason != UNCOPIED:
        _keep_committed(r)  # those of sections before it
        _section_failed(r, section, reason)
    else:
        if reason:
            _section_uncopied(r, section)
        holds(section.number > r.committed, b"commit results: what is committed never goes back")
        r.committed = section.number
    spend_section(r, section)
    _keep_committed(r)
