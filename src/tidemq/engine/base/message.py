"""Messages: constant once made, one allocation each, counted by reference from any thread.

``tally`` is the counting array of the reactor that calls: a message made on one and freed on another balances
in the sum over all of them.
"""

import cython
from cython.cimports.libc.stdint import uint8_t, uint32_t
from cython.cimports.libc.stdlib import free
from cython.cimports.libc.string import memcpy
from cython.cimports.tidemq.engine.base.allocation import obtain
from cython.cimports.tidemq.engine.base.asserting import holds
from cython.cimports.tidemq.engine.base.counters import (
    LIVE_MESSAGES,
    MEMORY_MESSAGES,
)
from cython.cimports.tidemq.engine.base.locks import under_no_lock
from cython.cimports.tidemq.engine.base.system import ACQ_REL, add_int
from cython.cimports.tidemq.wire.protocol import Span


def bytes_of(message):
    """Where topic, properties and payload lie, one after the other."""
    return cython.cast(cython.pointer[uint8_t], message) + cython.sizeof(Message)


def topic_of(message):
    """The topic name; valid as long as the message is held."""
    span: Span
    span.data = bytes_of(message)
    span.size = message.topic_size
    return span


def properties_of(message):
    """The 5.0 properties as they are forwarded, without their length."""
    span: Span
    span.data = bytes_of(message) + message.topic_size
    span.size = message.properties_size
    return span


def payload_of(message):
    """The payload; valid as long as the message is held."""
    span: Span
    span.data = bytes_of(message) + message.topic_size + message.properties_size
    span.size = message.payload_size
    return span


def new_message(passage, tally):
    """Copies what a passage points to into a message that the caller holds once."""
    size: cython.size_t = cython.sizeof(Message)
    size += passage.topic.size
    size += passage.properties.size
    size += passage.payload.size
    message: cython.pointer[Message] = cython.cast(cython.pointer[Message], obtain(size))
    message.references = 1
    message.qos = passage.qos
    message.retain = passage.retain
    message.topic_size = passage.topic.size
    message.properties_size = passage.properties.size
    message.payload_size = passage.payload.size
    message.publisher = passage.publisher
    message.feeder = passage.feeder
    message.expires_ms = passage.expires_ms
    message.id = passage.id
    message.counted = False
    at: cython.pointer[uint8_t] = bytes_of(message)
    memcpy(at, passage.topic.data, passage.topic.size)
    at += passage.topic.size
    if passage.properties.size:
        memcpy(at, passage.properties.data, passage.properties.size)
        at += passage.properties.size
    if passage.payload.size:
        memcpy(at, passage.payload.data, passage.payload.size)
    tally[LIVE_MESSAGES] += 1
    tally[MEMORY_MESSAGES] += size
    return message


def close_passage(passage, tally):
    """Lets go of the passage's message, if one was made. It knows by now whether several may keep it: nobody
    else looks at that before the turn ends, and where others have it too, it is set already.
    """
    if passage.message != cython.NULL:
        if passage.places > 1 and not passage.message.counted:
            passage.message.counted = True
        release_message(passage.message, tally)
        passage.message = cython.NULL


def release_message(message, tally):
    """One holder less; the last one frees it."""
    left: cython.int = add_int(cython.address(message.references), -1, ACQ_REL)
    holds(left >= 0, b"who releases a message holds it")
    if left == 0:
        under_no_lock()
        tally[LIVE_MESSAGES] -= 1
        tally[MEMORY_MESSAGES] -= message_bytes(message)
        free(message)


def passage_message(passage, tally):
    """The passage's message, made when first asked for; the passage keeps its hold, the caller gets none."""
    if passage.message == cython.NULL:
        passage.message = new_message(passage, tally)
    holds(passage.message.id.clock == passage.id.clock, b"message: that of a passage has its id")
    return passage.message


def copy_passage(passage, id):
    """The same on its way to a place of its own, as a message with an id of its own. It points into what the
    first points into; both are to be closed.
    """
    own: Passage = passage[0]
    own.message = cython.NULL
    own.id = id
    own.places = 0
    return own


def empty_passage(passage):
    """A passage of nothing, from nobody. Field by field, for it is done at each message: of a memset of this
    size GCC makes one instruction (rep stos), and that takes longer.
    """
    passage.topic = passage.properties = passage.payload = Span(cython.NULL, 0)
    passage.qos = 0
    passage.retain = False
    passage.publisher = passage.feeder = 0
    passage.expires_ms = 0
    passage.frame = cython.NULL
    passage.frame_size = 0
    passage.frame_is_5 = False
    passage.message = cython.NULL
    passage.heads_ready = passage.receivers = 0
    passage.only_reactors = 0
    passage.id = MessageId(0, 0)
    passage.places = 0
    passage.answers = 0
    passage.token = 0
    passage.offered = passage.kept = False
    passage.shard = 0
    passage.shard_stored = passage.attended = False
    passage.refused = 0
    passage.dup = False
    passage.packet_id = 0
    passage.reported = False
    passage.entry = cython.NULL


def open_passage(passage, message):
    """Fills a passage from a message; both hold it afterwards."""
    empty_passage(passage)
    passage.topic = topic_of(message)
    passage.properties = properties_of(message)
    passage.payload = payload_of(message)
    passage.qos = message.qos
    passage.retain = message.retain
    passage.publisher = message.publisher
    passage.feeder = message.feeder
    passage.expires_ms = message.expires_ms
    passage.id = message.id
    hold_message(message)
    passage.message = message


def copy_identifiers(ids, count):
    """Subscription identifiers as an entry keeps them: a count, then so many; free() it. NULL for none."""
    if count == 0:
        return cython.NULL
    kept: cython.pointer[uint32_t] = cython.cast(cython.pointer[uint32_t], obtain((count + 1) * 4))
    kept[0] = count
    memcpy(kept + 1, ids, count * 4)
    return kept
