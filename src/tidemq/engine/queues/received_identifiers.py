"""QoS 2 messages from a client that wait for their PUBREL: a bit per packet identifier.

Where the session is stored a second bit says that the store has been told: one that nobody keeps need not be
remembered beyond the broker's life.

In a cluster a fingerprint of the message lies beside its identifier, 48 bits. A client may have released it
at another node, which this one did not hear, and use the identifier for another message.
"""

import cython
from cython.cimports.libc.stdint import uint16_t, uint32_t, uint64_t
from cython.cimports.libcpp.memory import make_unique, unique_ptr
from cython.cimports.libcpp.string import string
from cython.cimports.tidemq.engine.base.allocation import allocate
from cython.cimports.tidemq.engine.base.asserting import holds
from cython.cimports.tidemq.engine.base.counters import C_IDENTIFIERS_RELEASED_ELSEWHERE
from cython.cimports.tidemq.engine.base.steps import allow_steps, count_steps
from cython.cimports.tidemq.engine.journal.journal import delete_value, put_value
from cython.cimports.tidemq.engine.journal.rows import append_u16, append_u32, append_u64
from cython.cimports.tidemq.engine.queues.cache import hash_text
from cython.cimports.tidemq.engine.queues.received_identifiers import Fingerprints
from cython.cimports.tidemq.engine.state.section import FAMILY_RECEIVED
from cython.operator import dereference

_STORED = cython.declare(uint32_t, 65536)  # where the second bits begin


def _has_bit(s, bit):
    return s.received != cython.NULL and s.received[bit >> 6] >> (bit & 63) & 1


def is_received(s, packet_id):
    """Whether a QoS 2 message with this identifier waits for its PUBREL."""
    return _has_bit(s, packet_id)


def fingerprint_of(r, c, publish):
    """48 bits that the same message has on all nodes; 0: it needs none."""
    if publish.qos != 2 or c.session.stored == cython.NULL or not r.common.ask_sessions:
        return 0
    return hash_text(hash_text(1, publish.topic), publish.payload) >> 16 | 1


def _known_fingerprint(s, packet_id):
    if s.stored == cython.NULL or s.stored.fingerprints == cython.NULL:
        return 0
    found = s.stored.fingerprints.find(packet_id)
    return dereference(found).second if found != s.stored.fingerprints.end() else 0


def note_fingerprint(s, packet_id, fingerprint):
    """The message that waits for PUBREL under this identifier has it."""
    if fingerprint == 0:
        return
    if s.stored.fingerprints == cython.NULL:
        owner: unique_ptr[Fingerprints] = make_unique[Fingerprints]()
        s.stored.fingerprints = owner.release()
    s.stored.fingerprints[0][packet_id] = fingerprint


def free_fingerprints(q):
    """None is known any more."""
    if q != cython.NULL and q.fingerprints != cython.NULL:
        del q.fingerprints
        q.fingerprints = cython.NULL


def is_sent_again(r, c, publish):
    """Whether it is no new message, but one that waits for its PUBREL [MQTT-4.3.3-10].

    In a cluster that was split the client may have released that one at another node, and use its identifier
    for the next. On a new connection that is so where it comes without DUP, which a client sets on all that
    it repeats [MQTT-3.3.1-1], and where it is another message.
    """
    if publish.qos != 2 or not is_received(c.session, publish.packet_id):
        return False
    known: uint64_t = _known_fingerprint(c.session, publish.packet_id)
    same: cython.bint = publish.dup and (known == 0 or known == r.fingerprint)
    if same or not c.released_elsewhere:
        return True
    forget_received(r, c.session, publish.packet_id)
    r.tally[C_IDENTIFIERS_RELEASED_ELSEWHERE] += 1
    return False


def note_received(s, packet_id):
    """A QoS 2 message has come and waits for its PUBREL. The bits, 8 KiB or twice that, stay while the client
    is connected.
    """
    if _has_bit(s, packet_id):
        return
    if s.received == cython.NULL:
        size: cython.size_t = 8192 if s.stored == cython.NULL else 16384
        s.received = cython.cast(cython.pointer[uint64_t], allocate(size))
    s.received[packet_id >> 6] |= cython.cast(uint64_t, 1) << (packet_id & 63)
    s.received_count += 1


def _key(s, packet_id):
    key: string
    append_u64(cython.address(key), s.number)
    append_u16(cython.address(key), packet_id)
    return key


def _note_stored(s, packet_id):
    bit: uint32_t = _STORED + packet_id
    holds(s.stored != cython.NULL, b"received identifiers: only a stored session has second bits")
    note_received(s, packet_id)
    s.received[bit >> 6] |= cython.cast(uint64_t, 1) << (bit & 63)


def restore_received(s, mark):
    """What the store remembers from before the start: a packet identifier, and a fingerprint above it."""
    packet_id: uint16_t = cython.cast(uint16_t, mark)
    _note_stored(s, packet_id)
    note_fingerprint(s, packet_id, mark >> 16)


def store_received(r, s, packet_id):
    """Remembers it in the section that holds the message itself."""
    key: string = _key(s, packet_id)
    value: string
    known: uint64_t = _known_fingerprint(s, packet_id)
    _note_stored(s, packet_id)
    if known:
        append_u32(cython.address(value), cython.cast(uint32_t, known >> 16))
        append_u16(cython.address(value), cython.cast(uint16_t, known))
    put_value(r, FAMILY_RECEIVED, cython.address(key), cython.address(value))


def store_all_received(r, s):
    """Remembers those that nobody had to keep, too: the session goes on elsewhere, where its client may send
    them again, and who has got them here may still be here.
    """
    packet_id: uint32_t
    if s.received_count == 0:
        return
    allow_steps(s.received_count)
    for packet_id in range(1, _STORED):
        if _has_bit(s, packet_id) and not _has_bit(s, _STORED + packet_id):
            count_steps(1)
            store_received(r, s, cython.cast(uint16_t, packet_id))


def forget_received(r, s, packet_id):
    """PUBREL has come, or the message was refused. True: the store has to forget it too before it is said."""
    if not _has_bit(s, packet_id):
        return False
    s.received[packet_id >> 6] &= ~(cython.cast(uint64_t, 1) << (packet_id & 63))
    holds(s.received_count > 0, b"received identifiers: those that are set are counted")
    s.received_count -= 1
    if s.stored != cython.NULL and s.stored.fingerprints != cython.NULL:
        s.stored.fingerprints.erase(packet_id)
    return s.stored != cython.NULL and _forget_stored(r, s, packet_id)


def _forget_stored(r, s, packet_id):
    bit: uint32_t = _STORED + packet_id
    if not _has_bit(s, bit):
        return False
    s.received[bit >> 6] &= ~(cython.cast(uint64_t, 1) << (bit & 63))
    key: string = _key(s, packet_id)
    delete_value(r, FAMILY_RECEIVED, cython.address(key))
    return True
