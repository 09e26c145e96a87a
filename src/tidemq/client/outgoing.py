"""What a client sends, without I/O: messages in order, packet identifiers, the window, handshakes, and bytes.

A message is accepted (`publish`), written to the output as soon as connection and window allow, and held
until it is done. After a broken connection `resume` sends what is unacknowledged again. The output is one
growing block: its owner takes it (`take`) and says when it has gone (`gone`). Needs the GIL; one thread at a
time.
"""

from collections import deque
from contextlib import suppress

import cython
from cython.cimports.cpython.unicode import PyUnicode_AsUTF8AndSize
from cython.cimports.libc.stdint import int64_t, uint8_t, uint16_t, uint32_t
from cython.cimports.libc.string import memcpy
from cython.cimports.tidemq.client.identifiers import IDENTIFIERS_MAX, Identifiers
from cython.cimports.tidemq.client.message import property_block
from cython.cimports.tidemq.client.receipt import (
    DONE,
    RECEIVED,
    WAITING,
    WRITTEN,
    Group,
    Progress,
    Receipt,
    check_size,
    make_receipt,
    receipt_of,
)
from cython.cimports.tidemq.wire.packets import (
    PublishHead,
    encode_ack,
    encode_publish_head,
    publish_head_size,
)
from cython.cimports.tidemq.wire.protocol import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    RC_PACKET_IDENTIFIER_NOT_FOUND,
    RC_PACKET_TOO_LARGE,
    RC_QOS_NOT_SUPPORTED,
    RC_RETAIN_NOT_SUPPORTED,
    RC_SUCCESS,
    Span,
    span_of,
)

from tidemq.client.errors import BufferFullError, DisconnectedError, PublishError, full_error
from tidemq.errors import UsageError

if not cython.compiled:
    raise ImportError("tidemq.client.outgoing is compiled code: run `make build`")

FLUSH_BYTES = 1 << 16  # output from which on it is handed over at once
_FLUSH_BYTES = cython.declare(cython.size_t, FLUSH_BYTES)
_FAILURE = cython.declare(uint8_t, 0x80)  # reason codes from here on


@cython.final
@cython.cclass
class Outgoing:
    def __init__(
        self,
        on_output,
        on_full,
        held_messages_max: int,
        held_bytes_max: int,
        drops_oldest: bool,
        alias_limit: int,
    ) -> None:
        self.on_output, self.on_full = on_output, on_full
        self.held_messages_max, self.held_bytes_max = held_messages_max, held_bytes_max
        self.drops_oldest = drops_oldest
        self.alias_limit = alias_limit
        self.identifiers = Identifiers()
        self.waiting, self.waiting_qos0, self.room_waiters = deque(), deque(), deque()
        self.progress = Progress()
        self.version = 5
        self.inflight_max = 0
        self.packet_bytes_max = 0xFFFFFFFF
        self.qos_max, self.retain_available = 2, True

    # --- the output

    def append(self, data, size):
        begun: cython.bint = self.output.empty()
        self.output.append(cython.cast(cython.p_const_char, data), size)
        self.progress.written += size
        if begun:
            self.on_output()

    def write(self, packet: bytes) -> None:
        """Append an encoded packet."""
        self.append(packet, len(packet))

    def take(self) -> bytes:
        """The output so far; it is no longer here."""
        data: bytes = cython.cast(cython.p_const_char, self.output.data())[: self.output.size()]
        self.output.clear()
        return data

    @property
    def output_bytes(self) -> int:
        return self.output.size()

    @property
    def unsent_bytes(self) -> int:
        return self.progress.written - self.progress.gone

    def gone(self) -> None:
        """Everything that was taken has been handed to the operating system."""
        self.progress.advance()
        if self.room_waiters and self.is_half_empty():
            self.wake_room_waiters()

    def pause(self) -> None:
        self.paused = True

    def proceed(self) -> None:
        """The transport takes more."""
        self.paused = False
        self.refill()

    # --- accepting messages

    def publish(self, topic, payload, qos: cython.int, retain: cython.bint, properties) -> Receipt:
        """Accepts a message; `UsageError` for a wrong one, `BufferFullError` where there is no room."""
        block: bytes = None
        if properties is not None:
            if properties is not self.last_properties:
                self.last_block = property_block(properties)
                self.last_properties = properties
            block = self.last_block
        receipt: Receipt = make_receipt(self.progress, topic, payload, qos, retain, block)
        self.admit(receipt)
        return receipt

    def prepare(self, topic, payload, qos: cython.int, retain: cython.bint, properties) -> Receipt:
        """A message checked and not accepted yet. May be called by any thread."""
        block: bytes = property_block(properties)
        receipt: Receipt = make_receipt(self.progress, topic, payload, qos, retain, block)
        check_size(receipt, self.held_bytes_max)
        return receipt

    def admit(self, receipt):
        if receipt.block is not None and self.connected and self.version != 5:
            raise UsageError("only MQTT 5.0 has properties")
        if self.closed_error is not None:
            raise self.closed_error
        if not self.has_room_for(receipt):
            self.make_room(receipt)
        if self.connected:
            reason: cython.int = self.objection(receipt)
            if reason:
                raise PublishError(f"publishing to {receipt.topic!r}", reason)
        self.held_messages += 1
        self.held_bytes += receipt.size()
        if receipt.qos == 0:
            if self.connected and not self.paused and not self.waiting_qos0:
                self.send_qos0(receipt)
            else:
                self.waiting_qos0.append(receipt)
        elif self.journal is None:
            self.queue(receipt)
        else:
            self.record("insert", receipt)
        return 0

    def publish_some(
        self,
        messages,
        qos: cython.int,
        retain: cython.bint,
        properties,
        group: Group,
        ahead: cython.Py_ssize_t,
    ) -> cython.bint:
        """Accepts messages of an iterator: pairs of topic and payload, or `Message`. False when it has ended,
        True when there is enough output, no room for the next, or `ahead` of them are not done."""
        block: bytes = property_block(properties)
        if group.roomless is not None and not self.admit_next(group.roomless, group):
            return True
        for each in messages:
            if not self.admit_next(receipt_of(self.progress, each, qos, retain, block), group):
                return True
            if self.output.size() >= _FLUSH_BYTES or group.remaining >= ahead:
                return True
        return False

    def admit_next(self, receipt, group):
        """False where the group has to keep it until there is room."""
        group.roomless = None
        if not self.has_room_for(receipt) and receipt.size() <= self.held_bytes_max:
            group.roomless = receipt
            return False
        receipt.group = group
        group.count += 1
        group.remaining += 1
        try:
            self.admit(receipt)
        except PublishError as error:
            receipt.finish(error.reason, error)
        except BufferFullError as error:
            receipt.finish(-1, error)
        return True

    def has_room(self, size):
        """A message with a payload of `size` would be accepted."""
        bytes_max: int64_t = self.held_bytes_max - self.promised_bytes
        messages: int64_t = self.held_messages + self.promised_messages
        return messages < self.held_messages_max and self.held_bytes + size + 64 <= bytes_max

    def has_room_for(self, receipt):
        return self.has_room(receipt.size() - 64)

    def make_room(self, receipt):
        """By dropping the oldest messages of QoS 0 that wait, where that is the policy."""
        check_size(receipt, self.held_bytes_max)
        oldest: Receipt
        while self.drops_oldest and self.waiting_qos0 and not self.has_room_for(receipt):
            oldest = self.waiting_qos0.popleft()
            self.dropped += 1
            self.finish(oldest, -1, BufferFullError("dropped for newer messages: the buffer is full"))
        if not self.has_room_for(receipt):
            held: tuple = (self.held_messages, self.held_bytes)
            raise full_error(held, (self.held_messages_max, self.held_bytes_max))
        return 0

    def withdraw(self, receipt: Receipt, error) -> cython.bint:
        """Takes a message back that was not sent. False for another: only its session gets it again."""
        if receipt.state != WAITING or receipt.packet_id:
            receipt.given_up = True
            return False
        waiting = self.waiting if receipt.qos else self.waiting_qos0
        with suppress(ValueError):  # on its way to the disk, from where `finish` removes it
            waiting.remove(receipt)
        self.finish(receipt, -1, error)
        return True

    def objection(self, receipt):
        """Why this server would not take it, as a reason code; 0: it would."""
        if receipt.qos > self.qos_max:
            return RC_QOS_NOT_SUPPORTED  # [MQTT-3.2.2-11]
        if receipt.retain and not self.retain_available:
            return RC_RETAIN_NOT_SUPPORTED  # [MQTT-3.2.2-14]
        bytes_max: cython.Py_ssize_t = self.packet_bytes_max  # an upper bound first, which costs nothing
        if 16 + 4 * len(receipt.topic) + receipt.size() > bytes_max and self.packet_size(receipt) > bytes_max:
            return RC_PACKET_TOO_LARGE  # [MQTT-3.2.2-15]
        return 0

    def packet_size(self, receipt):
        head: PublishHead = self.head_of(receipt, False)
        at: uint32_t = 0
        return publish_head_size(cython.address(head), cython.address(at)) + len(receipt.payload)

    # --- sending messages

    def queue(self, receipt):
        """QoS 1 and 2: sent now, or in their turn."""
        if not self.waiting and self.may_send():
            self.send(receipt)
        else:
            self.waiting.append(receipt)

    def refill(self):
        """Sends of what waits as much as transport and window take."""
        while self.waiting_qos0 and self.connected and not self.paused:
            self.send_qos0(self.waiting_qos0.popleft())
        while self.waiting and self.may_send():
            self.send(self.waiting.popleft())

    def may_send(self):
        """At QoS 1 or 2."""
        open: cython.bint = self.connected and not self.paused
        return open and self.inflight < self.inflight_max and self.identifiers.used < IDENTIFIERS_MAX

    def send_qos0(self, receipt):
        reason: cython.int = self.objection(receipt)
        if reason:
            self.refuse(receipt, reason)
            return
        self.write_publish(receipt, False)
        self.finish(receipt, RC_SUCCESS, None)

    def send(self, receipt):
        reason: cython.int = self.objection(receipt)
        if reason:
            self.refuse(receipt, reason)
            return
        receipt.packet_id = self.identifiers.assign(receipt)
        self.inflight += 1
        self.serial += 1
        receipt.serial = self.serial
        if self.journal is not None and receipt.qos == 2:
            receipt.storing = True
            self.record("assign", receipt)
        else:
            self.write_publish(receipt, False)

    def refuse(self, receipt, reason):
        self.finish(receipt, reason, PublishError(f"publishing to {receipt.topic!r}", reason))

    def head_of(self, receipt, dup):
        head = cython.declare(PublishHead)
        size: cython.Py_ssize_t = 0
        topic = PyUnicode_AsUTF8AndSize(receipt.topic, cython.address(size))
        head.version = self.version
        head.dup = dup
        head.qos = receipt.qos
        head.retain = receipt.retain
        head.packet_id = receipt.packet_id
        head.topic_alias = 0
        head.message_expiry_s = -1
        head.topic = Span(
            cython.cast(cython.pointer[cython.const[uint8_t]], topic), cython.cast(uint32_t, size)
        )
        head.forwarded = Span(cython.NULL, 0) if receipt.block is None else span_of(receipt.block)
        head.subscription_ids = cython.NULL
        head.subscription_id_count = 0
        head.payload_size = cython.cast(uint32_t, len(receipt.payload))
        return head

    def set_alias(self, topic, head):
        """The first topics get an alias each, until all aliases are used."""
        known = self.aliases.get(topic)
        if known is not None:
            head.topic_alias = known
            head.topic.size = 0
        elif cython.cast(uint32_t, len(self.aliases)) < self.alias_max:
            head.topic_alias = cython.cast(uint16_t, len(self.aliases) + 1)
            self.aliases[topic] = len(self.aliases) + 1

    def write_publish(self, receipt, dup):
        head: PublishHead = self.head_of(receipt, dup)
        if self.alias_max:
            self.set_alias(receipt.topic, cython.address(head))
        at: uint32_t = 0
        head_size: cython.size_t = publish_head_size(cython.address(head), cython.address(at))
        before: cython.size_t = self.output.size()
        self.output.resize(before + head_size + head.payload_size)
        out: cython.pointer[uint8_t] = cython.cast(cython.pointer[uint8_t], self.output.data()) + before
        encode_publish_head(cython.address(head), out)
        memcpy(out + head_size, cython.cast(cython.p_const_char, receipt.payload), head.payload_size)
        self.progress.written += head_size + head.payload_size
        receipt.offset = self.progress.written
        receipt.state = WRITTEN
        if before == 0:
            self.on_output()
        if self.output.size() >= _FLUSH_BYTES:
            self.on_full()

    # --- packet identifiers of other requests

    def reserve_id(self, request) -> int:
        """An identifier for a SUBSCRIBE or UNSUBSCRIBE; `request.packet_id` becomes it."""
        if self.identifiers.used == IDENTIFIERS_MAX:
            raise BufferFullError("all 65,535 packet identifiers are in use")
        request.packet_id = self.identifiers.assign(request)
        return request.packet_id

    def release_id(self, packet_id: uint16_t):
        """The request that had it; None where none had."""
        found = self.identifiers.owner(packet_id)
        if found is None or type(found) is Receipt:
            return None
        self.identifiers.free(packet_id)
        return found

    # --- acknowledgements

    def acknowledge(self, packet_type, packet_id, reason):
        """Writes PUBACK, PUBREC, PUBREL or PUBCOMP."""
        encoded = cython.declare(uint8_t[5])
        size: uint32_t = encode_ack(packet_type, packet_id, reason, self.version, encoded)
        self.append(encoded, size)

    def apply_ack(self, packet_type, packet_id, reason):
        """PUBACK, PUBREC or PUBCOMP came; an unknown one is passed over, but for PUBREC, which wants an
        answer."""
        found = self.identifiers.owner(packet_id)
        receipt: Receipt = found if type(found) is Receipt else None
        if receipt is None or receipt.qos != (1 if packet_type == PUBACK else 2):
            if packet_type == PUBREC:
                self.acknowledge(PUBREL, packet_id, RC_PACKET_IDENTIFIER_NOT_FOUND)
            return
        if packet_type == PUBREC and reason < _FAILURE:
            self.release(receipt)
        elif packet_type != PUBCOMP or receipt.state == RECEIVED:
            self.identifiers.free(packet_id)
            self.inflight -= 1
            if reason < _FAILURE or packet_type == PUBCOMP:
                self.finish(receipt, RC_SUCCESS if packet_type == PUBCOMP else reason, None)
            else:
                self.refuse(receipt, reason)

    def release(self, receipt):
        """PUBREC came: the message is the server's, PUBREL goes out, on disk first where there is an
        outbox."""
        if receipt.state != RECEIVED and self.journal is not None:
            receipt.state = RECEIVED
            receipt.storing = True
            self.record("release", receipt)
        elif not receipt.storing:
            receipt.state = RECEIVED
            self.acknowledge(PUBREL, receipt.packet_id, RC_SUCCESS)

    def finish(self, receipt, reason, error):
        self.held_messages -= 1
        self.held_bytes -= receipt.size()
        if receipt.row:
            self.record("delete", receipt)
        receipt.payload = b""
        receipt.finish(reason, error)
        if self.room_waiters and self.is_half_empty():
            self.wake_room_waiters()

    def is_half_empty(self):
        half: cython.bint = 2 * self.held_messages <= self.held_messages_max
        return half and 2 * self.held_bytes <= self.held_bytes_max

    def wake_room_waiters(self):
        """All of them, when half of the buffer is free: they look again."""
        while self.room_waiters:
            waiter = self.room_waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)

    # --- connections

    def connect(
        self,
        version: cython.int,
        inflight_max: uint32_t,
        packet_bytes_max: uint32_t,
        qos_max: uint8_t,
        retain_available: cython.bint,
        alias_max: uint32_t,
    ) -> None:
        """The server has accepted the client: what it takes, by CONNACK. `resume` or `restart` must
        follow."""
        self.version = cython.cast(uint8_t, version)
        self.inflight_max = min(inflight_max, IDENTIFIERS_MAX)
        self.packet_bytes_max = packet_bytes_max
        self.qos_max = qos_max
        self.retain_available = retain_available
        self.alias_max = min(alias_max, self.alias_limit)
        self.aliases = {}
        self.connected, self.paused = True, False

    def resume(self) -> None:
        """The session goes on: sends again what is unacknowledged, then what waits. [MQTT-4.4.0-1]"""
        receipt: Receipt
        for each in self.identifiers.receipts():
            receipt = each
            if receipt.storing:
                continue
            if receipt.state == RECEIVED:
                self.acknowledge(PUBREL, receipt.packet_id, RC_SUCCESS)
            else:
                self.write_publish(receipt, receipt.state == WRITTEN)
        self.refill()

    def restart(self) -> None:
        """The session is a new one: messages unacknowledged are new to it, in their order."""
        receipt: Receipt
        for each in reversed(self.identifiers.receipts()):
            receipt = each
            self.identifiers.free(receipt.packet_id)
            self.inflight -= 1
            receipt.packet_id = 0
            if receipt.state == RECEIVED:
                self.finish(receipt, RC_SUCCESS, None)  # the server had it
            elif receipt.given_up:
                self.finish(receipt, -1, DisconnectedError("nobody waited for it any more"))
            else:
                receipt.state, receipt.offset = WAITING, 0
                self.waiting.appendleft(receipt)
        self.refill()

    def disconnect(self) -> None:
        """The connection has ended: what was not gone is lost with it."""
        self.connected = False
        self.output.clear()
        self.progress.lose()
        self.wake_room_waiters()

    def close(self, error) -> None:
        """Nothing is accepted or sent any more: `error` for all that is not done, and for further
        messages."""
        self.closed_error = error
        self.connected = False
        receipts: list = self.identifiers.receipts() + list(self.waiting) + list(self.waiting_qos0)
        if self.journal is not None:
            receipts += [receipt for step, receipt, _ in self.journal if step == "insert"]
            self.journal = None  # what is on disk stays there
        self.waiting.clear()
        self.waiting_qos0.clear()
        self.identifiers, self.inflight = Identifiers(), 0
        receipt: Receipt
        for each in receipts:
            receipt = each
            if receipt.state != DONE:
                self.finish(receipt, -1, error)
        self.wake_room_waiters()
        self.progress.lose()

    # --- the outbox on disk

    def record(self, step, receipt):
        if self.journal is None:
            return
        values: tuple = (receipt.row,)
        if step == "insert":
            self.rows += 1
            receipt.row = self.rows
            values = (receipt.row, receipt.topic, receipt.payload, receipt.block, receipt.qos, receipt.retain)
        elif step == "assign":
            values = (receipt.row, receipt.packet_id)
        self.journal.append((step, receipt, values))
        if len(self.journal) == 1:
            self.on_journal()

    def take_journal(self) -> list:
        """The steps to be written to disk; `stored` must follow."""
        steps: list = self.journal or []
        if steps:
            self.journal = []
        return steps

    def stored(self, steps: list) -> None:
        """They are on disk: what waited for that goes on. Or they will never be, and `close` came before."""
        receipt: Receipt
        for step, each, _ in steps:
            receipt = each
            if receipt.state == DONE:
                continue
            if self.closed_error is not None:
                self.finish(receipt, -1, self.closed_error)
            elif step == "insert":
                receipt.tell_stored()
                self.queue(receipt)
            else:
                receipt.storing = False
                if self.connected and step == "assign":
                    self.write_publish(receipt, False)
                elif self.connected and step == "release":
                    self.acknowledge(PUBREL, receipt.packet_id, RC_SUCCESS)

    def restore(self, rows: list) -> None:
        """Messages that an earlier process left in the outbox, in order."""
        receipt: Receipt
        for row, topic, payload, block, qos, retain, packet_id, received in rows:
            receipt = make_receipt(self.progress, topic, payload, qos, retain, block)
            receipt.row = self.rows = row
            self.held_messages += 1
            self.held_bytes += receipt.size()
            if packet_id and self.identifiers.occupy(packet_id, receipt):
                receipt.packet_id = packet_id
                receipt.state = RECEIVED if received else WRITTEN
                self.inflight += 1
                self.serial += 1
                receipt.serial = self.serial
            else:  # an identifier that another has as well was of an earlier session
                self.waiting.append(receipt)
