"""What comes in at one side of a bridge goes out at the other, without I/O: topics mapped, properties kept.

A bridge is a client of both brokers and stands between them as if it were not there: a message keeps its
packet identifier, and so every acknowledgement goes back to where the message came from. Identifiers that a
server chooses never meet those that a client chooses, and a bridge chooses none. So nothing has to be
remembered here: sessions and queues of the two brokers hold what is under way, and send it again when both
connections are made anew. That is how QoS 1 crosses at least once and QoS 2 once (docs/decisions/0021).

Bytes are written to the buffer of a half, and parsed where they lie; what is to go out waits in the other
half's output. One thread at a time; the GIL is let go while packets are passed on.
"""

import cython
from cython.cimports.libc.stdint import uint8_t, uint16_t, uint32_t
from cython.cimports.libc.string import memcmp, memcpy, memmove, memset
from cython.cimports.tidemq.bridge.relay import FAULTY, HELD, OTHER, PASSED, REFUSED, Mapping
from cython.cimports.tidemq.wire.cursor import Cursor, read_binary, read_varint
from cython.cimports.tidemq.wire.packets import (
    Ack,
    FixedHeader,
    Publish,
    PublishHead,
    append_pair_property,
    encode_ack,
    encode_publish_head,
    parse_ack,
    parse_fixed_header,
    parse_publish,
    publish_head_size,
)
from cython.cimports.tidemq.wire.properties import copy_forwarded, has_property, skip_value
from cython.cimports.tidemq.wire.protocol import (
    FAULT_NEED_MORE,
    FAULT_NONE,
    FAULT_PACKET_TOO_LARGE,
    FAULT_REASON_CODE,
    FAULT_TOPIC_ALIAS,
    PROP_MESSAGE_EXPIRY,
    PROP_TOPIC_ALIAS,
    PROP_USER_PROPERTY,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    RC_NOT_AUTHORIZED,
    RC_PACKET_TOO_LARGE,
    RC_PAYLOAD_FORMAT_INVALID,
    RC_QOS_NOT_SUPPORTED,
    RC_RETAIN_NOT_SUPPORTED,
    RC_SUCCESS,
    RC_TOPIC_NAME_INVALID,
    REMAINING_MAX,
    Span,
)
from cython.cimports.tidemq.wire.topics import check_topic_levels

from tidemq.errors import RefusedError, UsageError
from tidemq.wire.faults import protocol_error
from tidemq.wire.reader import decode

if not cython.compiled:
    raise ImportError("tidemq.bridge.relay is compiled code: run `make build`")

HOPS = "tidemq-hops"  # user property: how many bridges a message has crossed
_HOPS = cython.declare(bytes, HOPS.encode())
_HOPS_NAME = cython.declare(cython.pointer[cython.const[uint8_t]], _HOPS)
_HOPS_SIZE = cython.declare(uint32_t, len(_HOPS))
_HOPS_END = cython.declare(uint32_t, 1000)  # a number beyond is this
_BUFFER_BYTES = cython.declare(cython.size_t, 1 << 18)  # unless a packet is larger
_ROOM_BYTES_MIN = cython.declare(cython.size_t, 1 << 12)  # for one read
_FAILURE = cython.declare(uint8_t, 0x80)  # reason codes from here on
_SLASH = cython.declare(uint8_t, 0x2F)
_PLUS = cython.declare(uint8_t, 0x2B)
_HASH = cython.declare(uint8_t, 0x23)
_DOLLAR = cython.declare(uint8_t, 0x24)


class PeerRefusedError(RefusedError):
    """A side does not take a message now; it may later. Caught by who keeps the bridge up, who waits.
    `packet_id` is the message's.
    """

    def __init__(self, reason: int, packet_id: int) -> None:
        super().__init__(reason)
        self.reason, self.packet_id = reason, packet_id


@cython.final
@cython.cclass
class Counts:
    """Of one bridge, both ways, since it was made."""


@cython.final
@cython.cclass
class Half:
    def __init__(self, counts: Counts, *, is_local: bool, packet_bytes_max: int) -> None:
        self.counts, self.is_local = counts, is_local
        self.buffer = bytearray(_BUFFER_BYTES)
        self.version = 5
        self.packet_bytes_max = packet_bytes_max
        self.peer_bytes_max = REMAINING_MAX
        self.topic_bytes_max = self.topic_levels_max = 0xFFFFFFFF
        self.qos_max, self.keeps_retain, self.hops_max = 2, True, 1
        memset(self.lowered, 0, cython.sizeof(self.lowered))

    def join(self, other) -> None:
        """What comes in here goes out there, and the other way round; before anything comes."""
        half: Half = other
        self.other, half.other = half, self

    def part(self) -> None:
        """No longer; else each would keep the other."""
        self.other = None

    def map(self, filter: bytes, strip: int, prefix: bytes) -> None:
        """Messages that come in on the filter go out with the prefix in place of their first `strip` bytes.
        The first filter that matches counts.
        """
        mapping = cython.declare(Mapping)
        mapping.filter = filter
        mapping.prefix = prefix
        mapping.strip = strip
        self.mappings.push_back(mapping)

    # --- the buffer

    def room(self) -> memoryview:
        """A view of the buffer's free end, to be written to; `wrote` says how much was."""
        data: cython.p_char = self.buffer
        if self.start:
            memmove(data, data + self.start, self.end - self.start)
            self.end -= self.start
            self.start = 0
        needed: cython.size_t = max(self.end + _ROOM_BYTES_MIN, self.wanted)
        if needed > cython.cast(cython.size_t, len(self.buffer)):
            larger: bytearray = bytearray(needed)  # a new one: views of the old may be about
            memcpy(cython.cast(cython.p_char, larger), data, self.end)
            self.buffer = larger
        return memoryview(self.buffer)[self.end :]

    def wrote(self, size: cython.size_t) -> None:
        self.end += size

    def feed(self, data: bytes) -> None:
        """Append a copy of `data`."""
        at: cython.size_t = 0
        while at < cython.cast(cython.size_t, len(data)):
            room = self.room()
            size: cython.size_t = min(len(room), len(data) - at)
            room[:size] = data[at : at + size]
            self.end += size
            at += size

    # --- the output

    def write(self, packet: bytes) -> None:
        """Append an encoded packet."""
        self.output.append(cython.cast(cython.p_const_char, packet), len(packet))

    def take(self) -> bytes:
        """The output so far; it is no longer here."""
        data: bytes = cython.cast(cython.p_const_char, self.output.data())[: self.output.size()]
        self.output.clear()
        return data

    @property
    def output_bytes(self) -> int:
        return self.output.size()

    # --- passing on

    def parse(self):
        """Passes on whole packets up to one that is neither message nor acknowledgement, which is returned;
        None when no whole packet is left, or the next has to wait (`held`). ProtocolError at a fault,
        PeerRefusedError as that says.
        """
        if self.other is None:
            raise UsageError("a half passes nothing on before it is joined to another, and after")
        data: cython.pointer[uint8_t] = cython.cast(
            cython.pointer[uint8_t], cython.cast(cython.p_char, self.buffer)
        )
        outcome: cython.int
        with cython.nogil:
            outcome = self.run(data)
        self.held = outcome == HELD
        if outcome == FAULTY:
            raise protocol_error(self.fault)
        if outcome == REFUSED:
            raise PeerRefusedError(self.reason, self.refused_id)
        if outcome != OTHER:
            return None
        at: cython.size_t = self.start
        self.start += self.wanted
        size: cython.size_t = self.wanted
        self.wanted = 0
        packet, _ = decode(cython.cast(cython.p_const_char, data)[at : at + size], self.version)
        return packet

    def run(self, data):
        header = cython.declare(FixedHeader)
        self.wanted = 0
        while self.start < self.end:
            at: cython.pointer[cython.const[uint8_t]] = data + self.start
            self.fault = parse_fixed_header(at, self.end - self.start, cython.address(header))
            if self.fault == FAULT_NEED_MORE:
                break
            size: cython.size_t = cython.cast(cython.size_t, header.header_size) + header.body_size
            if self.fault == FAULT_NONE and size > self.packet_bytes_max:
                self.fault = FAULT_PACKET_TOO_LARGE
            if self.fault != FAULT_NONE:
                return FAULTY
            if self.start + size > self.end:
                self.wanted = size
                break
            packet_type: uint8_t = header.first >> 4
            outcome: cython.int = PASSED
            if packet_type == PUBLISH:
                outcome = self.take_publish(header.first, at + header.header_size, header.body_size)
            elif PUBACK <= packet_type <= PUBCOMP:
                outcome = self.take_ack(header.first, at + header.header_size, header.body_size)
            else:
                self.wanted = size
                return OTHER
            if outcome != PASSED:
                return outcome
            self.start += size
        return PASSED

    def take_publish(self, first, body, size):
        """A message: what is dropped is acknowledged here, so that its sender does not wait for it."""
        p = cython.declare(Publish)
        self.fault = parse_publish(first, body, size, self.version, cython.address(p))
        if self.fault == FAULT_NONE and has_property(cython.address(p.properties), PROP_TOPIC_ALIAS):
            self.fault = FAULT_TOPIC_ALIAS  # we have said that we take none
        if self.fault != FAULT_NONE:
            return FAULTY
        if p.qos and p.packet_id == self.other.skip:
            self.other.skip = 0
            return self.drop(cython.address(p), cython.address(self.counts.dropped_refused))
        if p.qos and self.other.careful and self.other.under_way:
            return HELD
        if not self.map_topic(p.topic):
            return self.drop(cython.address(p), cython.address(self.counts.dropped_unmatched))
        hops: uint32_t = self.keep_properties(p.properties.raw)
        if hops >= self.hops_max:
            return self.drop(cython.address(p), cython.address(self.counts.dropped_hops))
        if self.other.version == 5:
            digits = cython.declare(uint8_t[2])
            digits[0] = cython.cast(uint8_t, 0x30 + (hops + 1) // 10)
            digits[1] = cython.cast(uint8_t, 0x30 + (hops + 1) % 10)
            skip: uint32_t = hops + 1 < 10
            number: cython.pointer[cython.const[uint8_t]] = cython.address(digits[skip])
            append_pair_property(
                PROP_USER_PROPERTY,
                Span(_HOPS_NAME, _HOPS_SIZE),
                Span(number, 2 - skip),
                cython.address(self.properties),
            )
        if not self.fits():
            return self.drop(cython.address(p), cython.address(self.counts.dropped_unfit))
        self.send(cython.address(p))
        return PASSED

    def map_topic(self, topic):
        """The topic with which the message goes on, into `topic`; False: it is nobody's."""
        i: cython.size_t
        for i in range(self.mappings.size()):
            mapping: cython.pointer[Mapping] = cython.address(self.mappings[i])
            if topic.size >= mapping.strip and matches(cython.address(mapping.filter), topic):
                self.topic = mapping.prefix
                rest: cython.p_const_char = cython.cast(cython.p_const_char, topic.data) + mapping.strip
                self.topic.append(rest, topic.size - mapping.strip)
                return True
        return False

    def keep_properties(self, raw):
        """What is passed on of a message's properties, into `properties`, and of these the count of bridges
        is left out and returned.
        """
        hops: uint32_t = 0
        self.properties.resize(raw.size)
        if raw.size == 0:
            return 0
        data: cython.pointer[uint8_t] = cython.cast(cython.pointer[uint8_t], self.properties.data())
        self.properties.resize(copy_forwarded(raw, data))
        c: Cursor = Cursor(data, data + self.properties.size(), FAULT_NONE)
        kept: cython.size_t = 0  # bytes so far: one pass, for there may be a million of these
        while c.at < c.end:
            begin: cython.size_t = c.at - data
            property_id: uint32_t = read_varint(cython.address(c))
            if property_id == PROP_USER_PROPERTY:
                name: Span = read_binary(cython.address(c))
                value: Span = read_binary(cython.address(c))
                if name.size == _HOPS_SIZE and memcmp(name.data, _HOPS_NAME, _HOPS_SIZE) == 0:
                    hops = max(hops, number_of(value))
                    continue
            else:
                skip_value(cython.address(c), property_id)
            size: cython.size_t = (c.at - data) - begin
            memmove(data + kept, data + begin, size)
            kept += size
        self.properties.resize(kept)
        return hops

    def fits(self):
        """The other side takes a message on `topic`."""
        topic: Span = Span(
            cython.cast(cython.pointer[cython.const[uint8_t]], self.topic.data()),
            cython.cast(uint32_t, self.topic.size()),
        )
        if topic.size == 0 or topic.size > min(self.other.topic_bytes_max, 0xFFFF):
            return False
        if self.other.is_local and topic.data[0] == _DOLLAR:
            return False
        return check_topic_levels(cython.address(topic), self.other.topic_levels_max) == FAULT_NONE

    def send(self, p):
        """Writes the message to the other half's output, unless it is too large."""
        head = cython.declare(PublishHead)
        head.version = self.other.version
        head.qos = min(p.qos, self.other.qos_max)
        head.dup = p.dup
        head.retain = p.retain and self.other.keeps_retain
        head.packet_id = p.packet_id
        head.topic_alias = 0
        head.message_expiry_s = -1
        if has_property(cython.address(p.properties), PROP_MESSAGE_EXPIRY):
            head.message_expiry_s = p.properties.message_expiry_s
        head.topic = Span(
            cython.cast(cython.pointer[cython.const[uint8_t]], self.topic.data()),
            cython.cast(uint32_t, self.topic.size()),
        )
        head.forwarded = Span(
            cython.cast(cython.pointer[cython.const[uint8_t]], self.properties.data()),
            cython.cast(uint32_t, self.properties.size()),
        )
        head.subscription_ids = cython.NULL
        head.subscription_id_count = 0
        head.payload_size = p.payload.size
        at: uint32_t = 0
        head_size: cython.size_t = publish_head_size(cython.address(head), cython.address(at))
        size: cython.size_t = head_size + p.payload.size
        if size > self.other.peer_bytes_max:
            self.drop(p, cython.address(self.counts.dropped_unfit))
            return
        before: cython.size_t = self.other.output.size()
        self.other.output.resize(before + size)
        out: cython.pointer[uint8_t] = cython.cast(cython.pointer[uint8_t], self.other.output.data()) + before
        encode_publish_head(cython.address(head), out)
        if p.payload.size:
            memcpy(out + head_size, p.payload.data, p.payload.size)
        if p.qos:
            self.other.under_way += 1
            self.other.last_id = p.packet_id
        if p.qos == 2:
            self.lower(p.packet_id, head.qos == 1)
        if self.is_local:
            self.counts.messages_out += 1
            self.counts.bytes_out += size
        else:
            self.counts.messages_in += 1
            self.counts.bytes_in += size

    def drop(self, p, counter):
        """Answers a message that does not go on: nobody else would."""
        counter[0] += 1
        if p.qos:
            self.send_ack(PUBACK if p.qos == 1 else PUBREC, p.packet_id, RC_SUCCESS)
        return PASSED

    def take_ack(self, first, body, size):
        """An acknowledgement goes back to where its message came from. A refusal for good is one, too; one
        that may pass ends both connections before the message's sender hears of it, so that it comes again.
        """
        ack = cython.declare(Ack)
        self.fault = parse_ack(first, body, size, self.version, cython.address(ack))
        packet_type: uint8_t = first >> 4
        if self.fault == FAULT_REASON_CODE and packet_type <= PUBREC and is_final(body[2]):
            # against 3.4.2.1, as Mosquitto says of a payload that is too large (0x95)
            self.fault = FAULT_NONE
            ack.packet_id = cython.cast(uint16_t, (body[0] << 8) | body[1])
            ack.reason = RC_PAYLOAD_FORMAT_INVALID
        if self.fault != FAULT_NONE:
            return FAULTY
        if packet_type == PUBCOMP and self.releases:
            self.releases -= 1  # it answers to a PUBREL of the bridge's own
            return PASSED
        if packet_type <= PUBREC:
            if ack.reason >= _FAILURE and not is_final(ack.reason):
                self.reason, self.refused_id = ack.reason, ack.packet_id
                return REFUSED
            self.counts.dropped_refused += ack.reason >= _FAILURE
            self.answered += 1
            self.under_way -= self.under_way > 0
            self.careful -= self.careful > 0
        if packet_type == PUBREL and self.other.qos_max < 2:
            self.send_ack(PUBCOMP, ack.packet_id, RC_SUCCESS)  # there it was QoS 1, and is done
            return PASSED
        if packet_type == PUBACK and self.other.lower(ack.packet_id, False):
            packet_type = PUBREC
        reason: uint8_t = ack.reason if ack.reason >= _FAILURE else cython.cast(uint8_t, RC_SUCCESS)
        self.other.send_ack(packet_type, ack.packet_id, reason)
        return PASSED

    def send_ack(self, packet_type, packet_id, reason):
        encoded = cython.declare(uint8_t[5])
        size: uint32_t = encode_ack(packet_type, packet_id, reason, self.version, encoded)
        self.output.append(cython.cast(cython.p_const_char, cython.cast(cython.p_char, encoded)), size)

    def lower(self, packet_id, lowers):
        """Whether the message of this identifier went on at QoS 1; from now on as said."""
        at: cython.pointer[uint8_t] = cython.address(self.lowered[packet_id >> 3])
        mask: uint8_t = cython.cast(uint8_t, 1 << (packet_id & 7))
        was: cython.bint = (at[0] & mask) != 0
        at[0] = at[0] | mask if lowers else at[0] & ~mask
        return was


def matches(filter, topic):
    """Whether a filter, well formed and not shared, matches a topic name (5.0 section 4.7)."""
    wanted: cython.pointer[cython.const[uint8_t]] = cython.cast(
        cython.pointer[cython.const[uint8_t]], filter.data()
    )
    size: cython.size_t = filter.size()
    i: cython.size_t = 0
    j: uint32_t = 0
    while True:
        if i < size and (wanted[i] == _HASH or wanted[i] == _PLUS):
            if i == 0 and topic.size and topic.data[0] == _DOLLAR:
                return False  # [MQTT-4.7.2-1]
            if wanted[i] == _HASH:
                return True
            i += 1
            while j < topic.size and topic.data[j] != _SLASH:
                j += 1
        else:
            while i < size and wanted[i] != _SLASH:
                if j >= topic.size or topic.data[j] != wanted[i]:
                    return False
                i += 1
                j += 1
            if j < topic.size and topic.data[j] != _SLASH:
                return False
        if i == size:
            return j == topic.size
        if j == topic.size:
            return i + 2 == size and wanted[i + 1] == _HASH
        i += 1
        j += 1


def number_of(text):
    """A decimal number; what is none is 0, what is too large the largest that counts."""
    value: uint32_t = 0
    i: uint32_t
    for i in range(text.size):
        if text.data[i] < 0x30 or text.data[i] > 0x39:
            return 0
        value = min(value * 10 + (text.data[i] - 0x30), _HOPS_END)
    return value


def is_final(reason):
    """A message that is refused for this would be refused again."""
    return reason in (
        RC_NOT_AUTHORIZED,
        RC_TOPIC_NAME_INVALID,
        RC_PACKET_TOO_LARGE,
        RC_PAYLOAD_FORMAT_INVALID,
        RC_RETAIN_NOT_SUPPORTED,
        RC_QOS_NOT_SUPPORTED,
    )
