"""What a client receives, without I/O: bytes are written into a buffer and parsed where they lie.

Messages go to queues, acknowledgements to `Outgoing`. Every other packet ends the parsing and is returned, so
that its reader acts on it before what follows is looked at. Needs the GIL; one thread at a time.
"""

import cython
from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
from cython.cimports.cpython.unicode import PyUnicode_AsUTF8AndSize
from cython.cimports.libc.stdint import uint8_t, uint32_t, uint64_t
from cython.cimports.libc.string import memcmp, memcpy, memmove
from cython.cimports.tidemq.client.message import Message, size_of
from cython.cimports.tidemq.client.outgoing import Outgoing
from cython.cimports.tidemq.client.queue import Intake, MessageQueue, has_bit, set_bit
from cython.cimports.tidemq.wire.packets import (
    Ack,
    FixedHeader,
    Publish,
    parse_ack,
    parse_fixed_header,
    parse_publish,
)
from cython.cimports.tidemq.wire.properties import has_property
from cython.cimports.tidemq.wire.protocol import (
    CONNECT,
    FAULT_BEFORE_CONNECT,
    FAULT_NEED_MORE,
    FAULT_NONE,
    FAULT_PACKET_TOO_LARGE,
    FAULT_PACKET_TYPE,
    FAULT_RECEIVE_MAXIMUM,
    FAULT_TOPIC_ALIAS,
    PINGREQ,
    PROP_TOPIC_ALIAS,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    RC_PACKET_IDENTIFIER_NOT_FOUND,
    RC_SUCCESS,
    SUBSCRIBE,
    UNSUBSCRIBE,
    Fault,
)

from tidemq.wire.faults import protocol_error
from tidemq.wire.reader import decode

if not cython.compiled:
    raise ImportError("tidemq.client.incoming is compiled code: run `make build`")

_BUFFER_BYTES_MIN = cython.declare(cython.size_t, 1 << 14)
_BUFFER_BYTES_MAX = cython.declare(cython.size_t, 1 << 18)  # but for a larger packet
_ROOM_BYTES_MIN = cython.declare(cython.size_t, 1 << 12)  # for one read
_TOPICS = cython.declare(uint64_t, 512)
_SPREAD = cython.declare(uint64_t, 0x9E37_79B9_7F4A_7C15)  # 2**64 by the golden ratio: mixes all bits
_ROUTES_MAX = 8192  # topics whose queues are remembered


@cython.final
@cython.cclass
class Incoming:
    def __init__(self, outgoing: Outgoing, intake: Intake, queue: MessageQueue) -> None:
        self.outgoing, self.intake, self.queue = outgoing, intake, queue
        self.buffer = bytearray(_BUFFER_BYTES_MIN)
        self.topics = [""] * _TOPICS
        self.aliases = []

    def begin(
        self, version: cython.int, packet_bytes_max: uint32_t, receive_max: uint32_t, alias_max: int
    ) -> None:
        """A new connection: only CONNACK and AUTH may come, until `accept`."""
        self.version = cython.cast(uint8_t, version)
        self.packet_bytes_max, self.receive_max = packet_bytes_max, receive_max
        self.aliases = [None] * (alias_max + 1)
        self.start = self.end = 0
        self.accepted = False

    def accept(self, session_present: cython.bint) -> None:
        """The server's CONNACK said yes."""
        self.accepted = True
        if session_present:
            self.receive_max *= 2  # Mosquitto 2.0.11 keeps no account of what it sends again
        self.intake.connect(session_present)

    # --- the buffer

    def room(self):
        """A view of the buffer's free end, to be written to; `wrote` says how much was."""
        size: cython.size_t = len(self.buffer)
        if self.start:
            data: cython.p_char = self.buffer
            memmove(data, data + self.start, self.end - self.start)
            self.end -= self.start
            self.start = 0
        needed: cython.size_t = self.end + _ROOM_BYTES_MIN
        if needed > size:
            self.enlarge(needed * 2)
        return memoryview(self.buffer)[self.end :]

    def enlarge(self, size):
        """A new one: views of the old may be about."""
        larger: bytearray = bytearray(size)
        memcpy(cython.cast(cython.p_char, larger), cython.cast(cython.p_char, self.buffer), self.end)
        self.buffer = larger

    def wrote(self, size: cython.size_t) -> None:
        self.end += size
        capacity: cython.size_t = len(self.buffer)
        if self.end == capacity and capacity < _BUFFER_BYTES_MAX:
            self.enlarge(capacity * 4)  # a read that fills it: the next may be larger

    def feed(self, data) -> None:
        """Append a copy of `data`."""
        size: cython.size_t = len(data)
        if len(self.buffer) - self.end < size:
            self.room()
            if len(self.buffer) - self.end < size:
                self.enlarge(self.end + size)
        self.buffer[self.end : self.end + size] = data
        self.end += size

    # --- parsing

    def parse(self):
        """Takes in whole packets up to one that is neither message nor acknowledgement, which is returned;
        None when no whole packet is left. `ProtocolError` at a fault."""
        header = cython.declare(FixedHeader)
        fault: Fault = FAULT_NONE
        while self.start < self.end:
            data: cython.pointer[cython.const[uint8_t]] = cython.cast(
                cython.pointer[uint8_t], cython.cast(cython.p_char, self.buffer)
            )
            at: cython.pointer[cython.const[uint8_t]] = data + self.start
            fault = parse_fixed_header(at, self.end - self.start, cython.address(header))
            if fault == FAULT_NEED_MORE:
                break
            size: cython.size_t = cython.cast(cython.size_t, header.header_size) + header.body_size
            if fault == FAULT_NONE and size > self.packet_bytes_max:
                fault = FAULT_PACKET_TOO_LARGE
            if fault != FAULT_NONE:
                raise protocol_error(fault)
            if self.start + size > self.end:
                self.reserve(size)
                break
            packet_type: uint8_t = header.first >> 4
            self.start += size
            if packet_type == PUBLISH and self.accepted:
                self.take_publish(header.first, at + header.header_size, header.body_size)
            elif PUBACK <= packet_type <= PUBCOMP and self.accepted:
                self.take_ack(header.first, at + header.header_size, header.body_size)
            else:
                return self.other(packet_type, cython.cast(cython.p_const_char, at)[:size])
        self.outgoing.refill()
        return None

    def reserve(self, size):
        """Room for a packet of which a part is there."""
        if size > len(self.buffer):
            self.enlarge(size + _ROOM_BYTES_MIN)

    def other(self, packet_type, data):
        if packet_type in (CONNECT, SUBSCRIBE, UNSUBSCRIBE, PINGREQ):
            raise protocol_error(FAULT_PACKET_TYPE)
        if PUBLISH <= packet_type <= PUBCOMP:
            raise protocol_error(FAULT_BEFORE_CONNECT)
        packet, _ = decode(data, self.version)
        return packet

    def take_ack(self, first, body, size):
        ack = cython.declare(Ack)
        fault: Fault = parse_ack(first, body, size, self.version, cython.address(ack))
        if fault != FAULT_NONE:
            raise protocol_error(fault)
        if first >> 4 != PUBREL:
            self.outgoing.apply_ack(first >> 4, ack.packet_id, ack.reason)
            return 0
        known: cython.bint = has_bit(self.intake.received, ack.packet_id)
        if known:
            self.intake.forget(ack.packet_id)
        reason: uint8_t = RC_SUCCESS if known else RC_PACKET_IDENTIFIER_NOT_FOUND
        self.outgoing.acknowledge(PUBCOMP, ack.packet_id, reason)
        return 0

    def take_publish(self, first, body, size):
        p = cython.declare(Publish)
        fault: Fault = parse_publish(first, body, size, self.version, cython.address(p))
        if fault != FAULT_NONE:
            raise protocol_error(fault)
        topic: str = self.topic_of(cython.address(p))
        if p.qos and not self.admits(cython.address(p)):
            return 0
        message: Message = Message.__new__(Message)
        message.topic = topic
        message.payload = PyBytes_FromStringAndSize(
            cython.cast(cython.p_const_char, p.payload.data), p.payload.size
        )
        message.qos = p.qos
        message.retain = p.retain
        message.dup = p.dup
        message.packet_id = p.packet_id
        message.connection = self.intake.connection
        if p.properties.present:
            message.block = cython.cast(cython.p_const_char, p.properties.raw.data)[: p.properties.raw.size]
        self.deliver(message)
        return 0

    def admits(self, p):
        """False for a QoS 2 message that is here already."""
        intake: Intake = self.intake
        if p.qos == 2 and has_bit(intake.received, p.packet_id):
            if has_bit(intake.answered, p.packet_id):
                self.outgoing.acknowledge(PUBREC, p.packet_id, RC_SUCCESS)
            return False
        if not p.dup:
            intake.unacknowledged += 1
        if intake.unacknowledged > self.receive_max:
            raise protocol_error(FAULT_RECEIVE_MAXIMUM)
        if p.qos == 2:
            set_bit(intake.received, p.packet_id, True)
        return True

    def deliver(self, message):
        self.intake.messages += 1
        self.intake.size_bytes += size_of(message)
        if self.routes is None:
            message.holders = message.owed = 1
            self.queue.put(message)
            return 0
        queues = self.routes.get(message.topic)
        if queues is None:
            if len(self.routes) >= _ROUTES_MAX:
                self.routes.clear()
            queues = self.find_routes(message.topic)
            self.routes[message.topic] = queues
        message.holders = message.owed = cython.cast(uint32_t, len(queues))
        for each in queues:
            cython.cast(MessageQueue, each).put(message)
        return 0

    # --- topics

    def topic_of(self, p):
        if not has_property(cython.address(p.properties), PROP_TOPIC_ALIAS):
            return self.shared_topic(p.topic)
        alias: cython.Py_ssize_t = p.properties.topic_alias
        if alias == 0 or alias >= len(self.aliases):
            raise protocol_error(FAULT_TOPIC_ALIAS)
        if p.topic.size:
            self.aliases[alias] = self.shared_topic(p.topic)
        if self.aliases[alias] is None:
            raise protocol_error(FAULT_TOPIC_ALIAS)
        return self.aliases[alias]

    def shared_topic(self, topic):
        """The `str` of a topic: the one that the last message on it had, mostly."""
        slot: cython.Py_ssize_t = cython.cast(cython.Py_ssize_t, hash_of(topic) % _TOPICS)
        known: str = self.topics[slot]
        size: cython.Py_ssize_t = 0
        text = PyUnicode_AsUTF8AndSize(known, cython.address(size))
        if size == topic.size and memcmp(text, topic.data, topic.size) == 0:
            return known
        known = cython.cast(cython.p_const_char, topic.data)[: topic.size].decode("utf-8")
        self.topics[slot] = known
        return known


def hash_of(topic):
    value: uint64_t = topic.size
    word: uint64_t = 0
    at: uint32_t = 0
    while at + 8 <= topic.size:
        memcpy(cython.address(word), topic.data + at, 8)
        value = (value ^ word) * _SPREAD
        value ^= value >> 32
        at += 8
    word = 0
    memcpy(cython.address(word), topic.data + at, topic.size - at)
    value = (value ^ word) * _SPREAD
    return value >> 40
