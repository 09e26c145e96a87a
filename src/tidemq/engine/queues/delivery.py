"""A message's last steps on this reactor: to one session, and from a session to its connection.

QoS 0 goes straight to the output or is dropped; QoS 1 and 2 always take a place in the session's outbox and
leave from there in order, as many as the client takes.
"""

import cython
from cython.cimports.libc.stdint import int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from cython.cimports.libc.string import memcpy
from cython.cimports.libcpp.memory import make_unique, unique_ptr
from cython.cimports.libcpp.string import string
from cython.cimports.tidemq.engine.base.asserting import ASSERTS, holds, may_touch
from cython.cimports.tidemq.engine.base.counters import (
    C_DROPPED_EXPIRED,
    C_DROPPED_OFFLINE_QOS_0,
    C_DROPPED_PACKET_TOO_LARGE,
    C_DROPPED_SLOW_CONSUMER,
    C_MESSAGES_RESENT,
    C_MESSAGES_SENT,
)
from cython.cimports.tidemq.engine.base.histograms import H_QUEUED, observe
from cython.cimports.tidemq.engine.base.locks import under_no_lock
from cython.cimports.tidemq.engine.base.message import (
    Message,
    Passage,
    copy_identifiers,
    hold_message,
    message_bytes,
    open_passage,
    passage_message,
    release_message,
)
from cython.cimports.tidemq.engine.base.system import RELAXED, load_int
from cython.cimports.tidemq.engine.journal.journal import (
    add_row,
    is_committed,
    note_sent,
    remove_row,
)
from cython.cimports.tidemq.engine.link.backpressure import queue_is_high, wait_for, wait_for_queue
from cython.cimports.tidemq.engine.link.drops import note_drop
from cython.cimports.tidemq.engine.link.output import append_large, pending_output, reserve_output
from cython.cimports.tidemq.engine.link.reports import count_watched, report_received
from cython.cimports.tidemq.engine.link.spans import makes_spans, report_delivered
from cython.cimports.tidemq.engine.queues.clearing import cleared_place, may_take_place
from cython.cimports.tidemq.engine.queues.doubles import comes_twice
from cython.cimports.tidemq.engine.queues.offers import is_foreign, note_offer
from cython.cimports.tidemq.engine.queues.outbox import (
    append_entry,
    entry_at,
    forget_entry,
    ms_since,
    packet_id_of,
)
from cython.cimports.tidemq.engine.queues.promises import promise_sending
from cython.cimports.tidemq.engine.queues.queueing import (
    append_committed,
    goes_to_store,
    has_room,
    note_spilled,
    request_rows,
    spill,
)
from cython.cimports.tidemq.engine.queues.replayed import note_replayed
from cython.cimports.tidemq.engine.state.client import LARGE_PAYLOAD, AliasMap, Connection
from cython.cimports.tidemq.engine.state.queue import (
    DONE,
    RELEASED,
    ROW_IDLE,
    ROW_INFLIGHT,
    ROW_NONE,
    SENT,
    WAITING,
    Entry,
    Outbox,
)
from cython.cimports.tidemq.wire.packets import (
    PublishHead,
    encode_ack,
    encode_publish_head,
    publish_head_size,
)
from cython.cimports.tidemq.wire.protocol import PUBREL, RC_SUCCESS


def _choose_alias(c, head):
    """Puts an alias in the topic's place; the first topics that come get one, as many as the client takes."""
    topic: string
    topic.assign(cython.cast(cython.p_char, head.topic.data), head.topic.size)
    if c.aliases_out == cython.NULL:
        owner: unique_ptr[AliasMap] = make_unique[AliasMap]()
        c.aliases_out = owner.release()
    if c.aliases_out.count(topic):
        head.topic_alias = c.aliases_out[0][topic]
        head.topic.size = 0
    elif c.aliases_out.size() < c.alias_max:
        head.topic_alias = cython.cast(uint16_t, c.aliases_out.size() + 1)
        c.aliases_out[0][topic] = head.topic_alias


def _fill_head(head, p, version, qos, retain):
    head.version = version
    head.dup = False
    head.qos = qos
    head.retain = retain
    head.packet_id = 0
    head.topic_alias = 0
    head.message_expiry_s = -1
    head.topic = p.topic
    head.forwarded = p.properties
    head.subscription_ids = cython.NULL
    head.subscription_id_count = 0
    head.payload_size = p.payload.size


def _append_payload(r, c, p, out, large):
    """The payload after its head: copied to ``out``, or sent from the message where it is large."""
    if large:
        append_large(r, c, passage_message(p, r.tally))
    elif p.payload.size:
        memcpy(out, p.payload.data, p.payload.size)


def _write_common(r, c, p, qos, retain, dup, packet_id):
    """A PUBLISH whose head is the same for all receivers of its kind: encoded once, copied and patched."""
    variant: uint32_t = (
        qos | (cython.cast(uint32_t, retain) << 2) | (cython.cast(uint32_t, c.version == 5) << 3)
    )
    prepared: cython.pointer[string] = cython.address(r.heads[variant])
    if not p.heads_ready & (cython.cast(uint32_t, 1) << variant):
        head: PublishHead
        _fill_head(cython.address(head), p, c.version, qos, retain)
        prepared.resize(publish_head_size(cython.address(head), cython.address(r.head_packet_id_at[variant])))
        encode_publish_head(cython.address(head), cython.cast(cython.pointer[uint8_t], prepared.data()))
        p.heads_ready |= cython.cast(uint32_t, 1) << variant
    size: uint32_t = cython.cast(uint32_t, prepared.size())
    if size + p.payload.size > c.packet_bytes_max:
        return False
    large: cython.bint = p.payload.size >= LARGE_PAYLOAD
    out: cython.pointer[uint8_t] = reserve_output(r, c, size if large else size + p.payload.size)
    memcpy(out, prepared.data(), size)
    if qos:
        at: uint32_t = r.head_packet_id_at[variant]
        out[at] = cython.cast(uint8_t, packet_id >> 8)
        out[at + 1] = cython.cast(uint8_t, packet_id)
        if dup:
            out[0] |= 8
    out += size
    _append_payload(r, c, p, out, large)
    return True


def _write_own(r, c, p, head):
    """A PUBLISH with a head of its own: subscription identifiers, an expiry that runs, or a topic alias."""
    packet_id_at: uint32_t
    if p.expires_ms:
        left_ms: int64_t = p.expires_ms - r.now_ms
        head.message_expiry_s = (left_ms + 999) // 1000 if left_ms > 0 else 0
    size: uint32_t = publish_head_size(head, cython.address(packet_id_at))
    if size + p.payload.size > c.packet_bytes_max:
        return False
    # a new alias takes up to four bytes more
    if c.alias_max and size + p.payload.size + 4 <= c.packet_bytes_max:
        _choose_alias(c, head)
        size = publish_head_size(head, cython.address(packet_id_at))
    large: cython.bint = p.payload.size >= LARGE_PAYLOAD
    out: cython.pointer[uint8_t] = reserve_output(r, c, size if large else size + p.payload.size)
    encode_publish_head(head, out)
    out += size
    _append_payload(r, c, p, out, large)
    return True


def write_publish(r, c, p, qos, retain, dup, packet_id, ids, ids_count):
    """Writes a PUBLISH in the client's own form. False: larger than the client takes [MQTT-3.1.2-24]."""
    written: cython.bint
    if c.version == 5 and (ids_count or p.expires_ms or c.alias_max):
        head: PublishHead
        _fill_head(cython.address(head), p, c.version, qos, retain)
        head.dup = dup
        head.packet_id = packet_id
        head.subscription_ids = ids
        head.subscription_id_count = ids_count
        written = _write_own(r, c, p, cython.address(head))
    elif (
        qos == 0
        and p.frame != cython.NULL
        and p.frame_is_5 == (c.version == 5)
        and p.payload.size < LARGE_PAYLOAD
    ):
        written = p.frame_size <= c.packet_bytes_max
        if written:
            out: cython.pointer[uint8_t] = reserve_output(r, c, p.frame_size)
            memcpy(out, p.frame, p.frame_size)
            out[0] = 0x31 if retain else 0x30
    else:
        written = _write_common(r, c, p, qos, retain, dup, packet_id)
    if written:
        r.tally[C_MESSAGES_SENT] += 1
    else:
        note_drop(r, c.session, C_DROPPED_PACKET_TOO_LARGE, 1)
    return written


def _deliver_now(r, s, p, retain, ids, ids_count):
    """QoS 0: written, or dropped and counted."""
    c: cython.pointer[Connection] = s.connection
    if c == cython.NULL or c.doomed:
        r.tally[C_DROPPED_OFFLINE_QOS_0] += 1
        return
    pending: cython.ulonglong = pending_output(c)
    if pending > r.common.limits.output_high_bytes:
        wait_for(r, s, p.feeder)
        if s.strain.slow or pending > r.common.limits.output_bytes_max:
            note_drop(r, s, C_DROPPED_SLOW_CONSUMER, 1)
            return
    if write_publish(r, c, p, 0, retain, False, 0, ids, ids_count) and p.properties.size and makes_spans(r):
        report_delivered(r, c, p, 0)


def _comes_as_row(r, p, qos):
    """Whether another node only asks who takes the message, so that it comes once, by that node's log."""
    return p.offered and qos == 2 and is_foreign(r, cython.address(p.id))


def deliver(r, s, p, qos, retain, ids, ids_count):
    """Gives a message to a session of this reactor, at the lower of both QoS [MQTT-3.8.4-8]."""
    under_no_lock()
    if ASSERTS:
        holds(may_touch(s.reactor), b"delivery: a message goes to a session of this reactor")
    if s.watch:
        count_watched(r.common, s.watch, p.payload.size)
        return
    if s.internal:
        report_received(r, s.number, passage_message(p, r.tally))
        return
    if qos > p.qos:
        qos = p.qos
    if qos == 0:
        _deliver_now(r, s, p, retain, ids, ids_count)
        return
    if s.stored != cython.NULL and s.stored.doubles != cython.NULL and not _comes_as_row(r, p, qos):
        if comes_twice(r, s, p):
            return
    if not has_room(r, s, p):
        return
    _enqueue(r, s, p, qos, retain, ids, ids_count)
    if queue_is_high(r, s):
        wait_for_queue(r, s, p.feeder, p.attended)


def _enqueue(r, s, p, qos, retain, ids, ids_count):
    """QoS 1 and 2: a place in the queue, and on from there where the client takes it now."""
    message: cython.pointer[Message] = passage_message(p, r.tally)
    # what a shard's member takes has its row under the shard; at QoS 2 under the member, which keeps it
    queue: uint64_t = s.number
    stored: cython.bint = s.stored != cython.NULL
    if p.shard and not (stored and qos == 2):
        queue = p.shard
        stored = p.shard_stored
    if stored:
        p.places += 1
        if p.offered and qos == 2:
            note_offer(r, s, message, qos, retain, ids, ids_count)
            return
        p.kept = True
        if p.shard == 0 and goes_to_store(r, s, cython.address(message.id)):
            spill(r, s, message, qos, retain, ids, ids_count)
            return
    box: cython.pointer[Outbox] = cython.address(s.outbox)
    entry: cython.pointer[Entry] = append_entry(box, r.now_ms, r.tally)
    entry.message = message
    hold_message(message)
    entry.qos = qos
    entry.retain = retain
    entry.reported = p.reported
    box.bytes += message_bytes(message)
    if ids_count:
        entry.subscription_ids = copy_identifiers(ids, ids_count)
    if queue != s.number:
        entry.queue = queue
    if stored:
        entry.row = ROW_IDLE
        entry.section = r.section.number
        entry.record = add_row(r, queue, message, box.tail - 1, ROW_IDLE, qos, retain, ids, ids_count)
    c: cython.pointer[Connection] = s.connection
    if c != cython.NULL and not c.doomed and box.next + 1 == box.tail:
        _send_entry(r, s, c, p, entry)


def take_over(r, s, message, qos, retain, subscription_id, queue):
    """A message of another queue, under which its row stays, goes to this session."""
    entry: cython.pointer[Entry] = append_committed(r, s, message, qos, retain)
    entry.queue = queue
    entry.subscription_ids = copy_identifiers(cython.address(subscription_id), 1 if subscription_id else 0)


def arrive(r, s, message, qos, retain, ids):
    """A message whose row is committed already. ``ids``: a count, then so many; or NULL."""
    if goes_to_store(r, s, cython.address(message.id)):
        note_spilled(s, message)
        return
    entry: cython.pointer[Entry] = append_committed(r, s, message, qos, retain)
    if ids != cython.NULL:
        entry.subscription_ids = copy_identifiers(ids + 1, ids[0])


def _may_send_twice(r, s, c, entry):
    """Whether a QoS 2 message can go out: the store has it in flight at its place, so that after a crash it
    goes out with the same packet identifier and is known as the same message. If not, it and those that go
    out with it are put in flight, and sent once the store has that.
    """
    box: cython.pointer[Outbox] = cython.address(s.outbox)
    if entry.row == ROW_INFLIGHT and is_committed(r, entry):
        return True
    sequence: uint64_t = box.next
    end: uint64_t = min(box.tail, cleared_place(s.stored))
    room: uint32_t = c.send_max - box.inflight
    while sequence < end and room and sequence - box.head < 65535:
        following: cython.pointer[Entry] = entry_at(box, sequence)
        if following.state == WAITING and following.qos == 2:
            note_sent(r, s, following, sequence)
        room -= 1
        sequence += 1
    promise_sending(r, c)
    return False


def _may_be_hidden(r, s, c, entry):
    """Whether the client may hold the packet identifier that a QoS 2 message would get, of another one, for
    which it would take it; then it is asked to release it. What was sent under it before keeps it.
    """
    if entry.qos != 2 or s.stored == cython.NULL or s.stored.clearing == cython.NULL:
        return False
    if entry.row == ROW_INFLIGHT or (entry.row == ROW_NONE and entry.was_sent):
        return False
    return not may_take_place(r, s, c, s.outbox.next)


def _may_be_undone(r, entry):
    """Whether a new message, not yet stored, may share the fate of one before it that the store did not take:
    the publisher sends both again, and this one must not go out before the other (4.6).
    """
    if entry.row == ROW_NONE or entry.was_sent or is_committed(r, entry):
        return False
    refuses: cython.int = load_int(cython.address(r.common.store_refuses), RELAXED)
    return entry.section <= r.doubted or refuses != 0


def _send_entry(r, s, c, p, entry):
    """Sends the WAITING entry at ``next`` if the client takes one more now [MQTT-3.3.4-9]."""
    box: cython.pointer[Outbox] = cython.address(s.outbox)
    holds(entry == entry_at(box, box.next), b"delivery: what is sent next is the entry at next")
    if box.inflight >= c.send_max or box.next - box.head >= 65535:
        return False
    if pending_output(c) > r.common.limits.output_high_bytes:
        return False
    if _may_be_hidden(r, s, c, entry):
        return False
    if entry.qos == 2 and entry.row != ROW_NONE and not _may_send_twice(r, s, c, entry):
        return False
    if _may_be_undone(r, entry):
        promise_sending(r, c)
        return False
    ids: cython.pointer[uint32_t] = entry.subscription_ids
    written: cython.bint
    if ids == cython.NULL:
        written = write_publish(
            r, c, p, entry.qos, entry.retain, entry.was_sent, packet_id_of(box.next), cython.NULL, 0
        )
    else:
        written = write_publish(
            r, c, p, entry.qos, entry.retain, entry.was_sent, packet_id_of(box.next), ids + 1, ids[0]
        )
    if not written:
        # as if it had been delivered [MQTT-3.1.2-25]
        replay: uint16_t = entry.replay
        place: uint64_t = box.next
        remove_row(r, s, entry)
        forget_entry(box, entry, r.tally)
        if replay:
            note_replayed(r, s, replay, place)
        return True
    note_sent(r, s, entry, box.next)
    entry.state = SENT
    if not entry.was_sent:
        waited_ns: int64_t = cython.cast(int64_t, ms_since(entry.since_ms, r.now_ms)) * 1000000
        observe(cython.address(r.histograms[H_QUEUED]), waited_ns, 1)
        if p.properties.size and makes_spans(r):
            report_delivered(r, c, p, waited_ns)
    if not entry.was_sent or c.version == 3:  # which alone has a time-out for acknowledgements
        entry.since_ms = cython.cast(uint32_t, r.now_ms)
    box.waiting -= 1
    box.inflight += 1
    box.next += 1
    holds(box.inflight <= c.send_max, b"delivery: no more is in flight than the client takes")
    holds(box.next - box.head <= 65535, b"delivery: packet identifiers in flight never collide")
    if entry.was_sent:
        r.tally[C_MESSAGES_RESENT] += 1
    return True


def send_waiting(r, s):
    """Sends from the outbox, oldest first, until the client takes no more: after an acknowledgement, when the
    output has room again, and when the client comes back.
    """
    c: cython.pointer[Connection] = s.connection
    box: cython.pointer[Outbox] = cython.address(s.outbox)
    passage: Passage
    more: cython.bint = True
    while c != cython.NULL and not c.doomed and more and box.next < box.tail:
        entry: cython.pointer[Entry] = entry_at(box, box.next)
        if entry.state == DONE:
            box.next += 1
        elif entry.state == RELEASED and not is_committed(r, entry):
            promise_sending(r, c)
            more = False
        elif entry.state == RELEASED:
            encode_ack(PUBREL, packet_id_of(box.next), RC_SUCCESS, c.version, reserve_output(r, c, 4))
            box.next += 1
            box.inflight += 1
        elif entry.message.expires_ms and entry.message.expires_ms <= r.now_ms and not entry.was_sent:
            r.tally[C_DROPPED_EXPIRED] += 1
            remove_row(r, s, entry)
            forget_entry(box, entry, r.tally)
        else:
            open_passage(cython.address(passage), entry.message)
            more = _send_entry(r, s, c, cython.address(passage), entry)
            release_message(passage.message, r.tally)
    request_rows(r, s)
