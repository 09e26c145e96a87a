"""A session's QoS 1 and 2 messages, oldest first, as a ring that grows.

An entry's place is its packet identifier, so an acknowledgement finds its entry at once, and the order of the
ring is the order of delivery. What is acknowledged out of order stays as a hole until the head passes it;
packet identifiers are never in use twice because at most 65,535 places are in flight: a client that never
acknowledges one message gets at most so many after it.
"""

import cython
from cython.cimports.libc.stdint import int64_t, uint16_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import free
from cython.cimports.libc.string import memset
from cython.cimports.tidemq.engine.base.allocation import allocate, release
from cython.cimports.tidemq.engine.base.asserting import ASSERTS, holds
from cython.cimports.tidemq.engine.base.counters import LIVE_ENTRIES, MEMORY_BUFFERS
from cython.cimports.tidemq.engine.base.message import message_bytes, release_message
from cython.cimports.tidemq.engine.queues.outbox import entry_at, packet_id_of
from cython.cimports.tidemq.engine.state.queue import DONE, RELEASED, ROW_NONE, SENT, WAITING, Entry, Outbox

_FIRST_CAPACITY = cython.declare(uint32_t, 4)  # of a ring; it doubles
_KEPT_CAPACITY = cython.declare(uint32_t, 1024)  # an empty ring larger than this is given back
_CHECKED_MAX = cython.declare(uint64_t, 64)  # places of an outbox whose counts are checked


def _grow(box, tally):
    capacity: uint32_t = box.capacity * 2 if box.capacity else _FIRST_CAPACITY
    entries: cython.pointer[Entry] = cython.cast(
        cython.pointer[Entry], allocate(capacity * cython.sizeof(Entry))
    )
    sequence: uint64_t = box.head
    while sequence != box.tail:
        entries[sequence & (capacity - 1)] = entry_at(box, sequence)[0]
        sequence += 1
    tally[MEMORY_BUFFERS] += cython.cast(int64_t, capacity - box.capacity) * cython.sizeof(Entry)
    release(box.entries)
    box.entries = entries
    box.capacity = capacity


def append_entry(box, now_ms, tally):
    """A new WAITING entry at the tail; the caller fills in message, QoS and so on, and adds to ``bytes``."""
    if box.tail - box.head == box.capacity:
        _grow(box, tally)
    box.tail += 1
    return _new_entry(box, box.tail - 1, now_ms, tally)


def prepend_entry(box, now_ms, tally):
    """The same before the head, where nothing is in flight: no place is a packet identifier then."""
    holds(box.inflight == 0, b"outbox: nothing is in flight where an entry goes before the head")
    if box.tail - box.head == box.capacity:
        _grow(box, tally)
    box.head -= 1
    box.next = box.head
    return _new_entry(box, box.head, now_ms, tally)


def _new_entry(box, place, now_ms, tally):
    entry: cython.pointer[Entry] = entry_at(box, place)
    entry.message = cython.NULL
    entry.subscription_ids = cython.NULL
    entry.state = WAITING
    entry.since_ms = cython.cast(uint32_t, now_ms)
    entry.was_sent = entry.reported = False
    entry.row = ROW_NONE
    entry.queue = 0
    entry.replay = 0
    box.waiting += 1
    tally[LIVE_ENTRIES] += 1
    return entry


def place_of(box, packet_id):
    """The first place from the head on that has this packet identifier."""
    first: uint16_t = packet_id_of(box.head)
    if packet_id < first:
        return box.head + 65535 - first + packet_id
    return box.head + packet_id - first


def find_entry(box, packet_id):
    """The entry in flight with this packet identifier, or NULL."""
    if ASSERTS:
        _check_outbox(box)
    if packet_id == 0 or box.head == box.next:
        return cython.NULL
    place: uint64_t = place_of(box, packet_id)
    holds(packet_id_of(place) == packet_id, b"outbox: a place is found by its packet identifier")
    return entry_at(box, place) if place < box.next else cython.NULL


def release_payload(box, entry, tally):
    """Lets go of an entry's message; the place itself stays."""
    if entry.message != cython.NULL:
        size: uint64_t = message_bytes(entry.message)
        holds(box.bytes >= size, b"outbox: bytes are those of the messages held")
        box.bytes -= size
        release_message(entry.message, tally)
        entry.message = cython.NULL
    if entry.subscription_ids != cython.NULL:
        free(entry.subscription_ids)
        entry.subscription_ids = cython.NULL


def forget_entry(box, entry, tally):
    """Acknowledged, dropped or expired: the place becomes a hole, and the head moves past all holes."""
    holds(entry.state != DONE, b"outbox: an entry is forgotten once")
    if entry.state == WAITING:
        box.waiting -= 1
    else:
        box.inflight -= 1
    release_payload(box, entry, tally)
    entry.state = DONE
    tally[LIVE_ENTRIES] -= 1
    trim_outbox(box)
    if box.head == box.tail and box.capacity > _KEPT_CAPACITY:
        tally[MEMORY_BUFFERS] -= cython.cast(int64_t, box.capacity) * cython.sizeof(Entry)
        release(box.entries)
        box.entries = cython.NULL
        box.capacity = 0


def trim_outbox(box):
    """Moves the head past what is done, and ``next`` along with it."""
    while box.head != box.tail and entry_at(box, box.head).state == DONE:
        box.head += 1
    if box.next < box.head:
        box.next = box.head
    while box.next != box.tail and entry_at(box, box.next).state == DONE:
        box.next += 1
    holds(box.head <= box.next and box.next <= box.tail, b"outbox: head <= next <= tail")
    holds(box.inflight + box.waiting <= box.tail - box.head, b"outbox: entries are at its places")


def _check_outbox(box):
    """Counts agree with the entries."""
    waiting: uint32_t = 0
    inflight: uint32_t = 0
    size: uint64_t = 0
    sequence: uint64_t = box.head
    if box.tail - box.head > _CHECKED_MAX:
        return
    while sequence != box.tail:
        entry: cython.pointer[Entry] = entry_at(box, sequence)
        if entry.state == WAITING:
            waiting += 1
        elif entry.state != DONE and sequence < box.next:
            inflight += 1
        if entry.state != DONE and entry.message != cython.NULL:
            size += message_bytes(entry.message)
        sequence += 1
    holds(waiting == box.waiting, b"outbox: as many entries wait as are counted")
    holds(inflight == box.inflight, b"outbox: as many entries are in flight as are counted")
    holds(size == box.bytes, b"outbox: bytes are the sum over its entries")


def rewind_outbox(box):
    """The client comes back: all that was in flight is to be sent again, from the oldest [MQTT-4.4.0-1]."""
    if ASSERTS:
        _check_outbox(box)
    sequence: uint64_t = box.head
    while sequence != box.next:
        entry: cython.pointer[Entry] = entry_at(box, sequence)
        if entry.state == SENT:
            entry.state = WAITING
            entry.was_sent = True
            box.waiting += 1
        elif entry.state == RELEASED:
            entry.was_sent = True
        sequence += 1
    box.next = box.head
    # the client's Receive Maximum counts anew; what is RELEASED counts when its PUBREL goes out
    box.inflight = 0


def free_outbox(box, tally):
    """Frees the ring and lets go of every message in it."""
    while box.head != box.tail:
        entry: cython.pointer[Entry] = entry_at(box, box.head)
        if entry.state != DONE:
            release_payload(box, entry, tally)
            tally[LIVE_ENTRIES] -= 1
        box.head += 1
    tally[MEMORY_BUFFERS] -= cython.cast(int64_t, box.capacity) * cython.sizeof(Entry)
    release(box.entries)
    memset(box, 0, cython.sizeof(Outbox))
