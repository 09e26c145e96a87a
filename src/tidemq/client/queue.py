"""Queues of received messages: asynchronous iterators that acknowledge what the program takes.

A message of QoS 1 or 2 is acknowledged when the last queue that holds it has given it to the program, unless
the program does that itself. Needs the GIL; one thread at a time.
"""

import asyncio

import cython
from cython.cimports.libc.stdint import uint8_t, uint16_t
from cython.cimports.libc.string import memset
from cython.cimports.tidemq.client.message import Message, size_of
from cython.cimports.tidemq.client.outgoing import Outgoing
from cython.cimports.tidemq.wire.protocol import PUBACK, PUBREC, RC_SUCCESS

if not cython.compiled:
    raise ImportError("tidemq.client.queue is compiled code: run `make build`")

_COMPACT_AT = cython.declare(cython.Py_ssize_t, 1024)  # taken messages in front of a list, before they go


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def has_bit(bits: cython.pointer[uint8_t], packet_id: uint16_t) -> cython.bint:
    return bits[packet_id >> 3] & (1 << (packet_id & 7)) != 0


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def set_bit(bits: cython.pointer[uint8_t], packet_id: uint16_t, value: cython.bint) -> cython.void:
    if value:
        bits[packet_id >> 3] |= 1 << (packet_id & 7)
    else:
        bits[packet_id >> 3] &= ~(1 << (packet_id & 7))


@cython.final
@cython.cclass
class Intake:
    def __init__(self, outgoing: Outgoing, manual: bool, messages_max: int, bytes_max: int) -> None:
        self.outgoing = outgoing
        self.manual = manual
        self.messages_max, self.bytes_max = messages_max, bytes_max

    @property
    def is_full(self) -> bool:
        return self.messages >= self.messages_max or self.size_bytes >= self.bytes_max

    def is_overfull(self, times: cython.int) -> bool:
        """It holds so many times what makes it full."""
        return self.messages >= times * self.messages_max or self.size_bytes >= times * self.bytes_max

    def connect(self, session_present: cython.bint) -> None:
        """A new connection begins; messages of earlier ones are acknowledged no more, but for QoS 2."""
        self.connection += 1
        self.unacknowledged = 0
        if not session_present:
            memset(self.received, 0, 8192)
            memset(self.answered, 0, 8192)

    @cython.cfunc
    def taken(self, message: Message) -> cython.void:
        """A queue has given it to the program."""
        message.holders -= 1
        if message.holders:
            return
        self.messages -= 1
        self.size_bytes -= size_of(message)
        if message.packet_id and not self.manual:
            self.answer(message)
        if self.on_room is not None and self.is_half_empty():
            on_room = self.on_room
            self.on_room = None
            on_room()

    @cython.cfunc
    @cython.exceptval(check=False)
    def is_half_empty(self) -> cython.bint:
        return 2 * self.messages <= self.messages_max and 2 * self.size_bytes <= self.bytes_max

    @cython.cfunc
    def answer(self, message: Message) -> cython.void:
        """PUBACK or PUBREC. A QoS 1 message of an earlier connection comes again, and is answered then."""
        packet_id: uint16_t = message.packet_id
        message.packet_id = 0
        if not self.outgoing.connected:
            if message.qos == 2 and has_bit(self.received, packet_id):
                set_bit(self.answered, packet_id, True)  # answered when it comes again
        elif message.qos == 2:
            if has_bit(self.received, packet_id):
                set_bit(self.answered, packet_id, True)
                self.outgoing.acknowledge(PUBREC, packet_id, RC_SUCCESS)
        elif message.connection == self.connection:
            if self.unacknowledged:
                self.unacknowledged -= 1
            self.outgoing.acknowledge(PUBACK, packet_id, RC_SUCCESS)

    def acknowledge(self, message: Message) -> None:
        """For the program that acknowledges itself; a second time it does nothing."""
        if message.packet_id:
            self.answer(message)


@cython.cclass
class MessageQueue:
    """Asynchronous iterator over received messages, in their order. Several tasks may take from it, one
    waits."""

    def __init__(self, intake: Intake) -> None:
        self.intake = intake
        self.messages = []

    def __len__(self) -> int:
        return len(self.messages) - self.head

    def __aiter__(self):
        return self

    async def __anext__(self):
        while self.head >= len(self.messages):
            await self.wait()
        return self.pop()

    async def wait(self):
        """Returns when there is a message; StopAsyncIteration, or the client's error, when none will come."""
        while self.head >= len(self.messages):
            if self.ended:
                raise StopAsyncIteration if self.error is None else self.error
            if self.waiter is None or self.waiter.done():
                self.waiter = asyncio.get_running_loop().create_future()
            await asyncio.shield(self.waiter)

    async def take(self, limit: int = 0):
        """All messages that are there, at most `limit`, at least one: waits for it."""
        while self.head >= len(self.messages):
            await self.wait()
        return self.take_nowait(limit)

    def take_nowait(self, limit: cython.Py_ssize_t = 0) -> list:
        """All messages that are there, at most `limit`; maybe none."""
        batch: list = self.fetch(limit)
        self.give(batch)
        return batch

    def fetch(self, limit: cython.Py_ssize_t = 0) -> list:
        """As `take_nowait`, but they do not count as taken, and are not acknowledged, until `give`."""
        count: cython.Py_ssize_t = len(self.messages) - self.head
        if 0 < limit < count:
            count = limit
        batch: list = self.messages[self.head : self.head + count]
        if self.head + count == len(self.messages):
            self.messages, self.head = [], 0
        else:
            self.head += count
            self.compact()
        return batch

    def give(self, messages: list) -> None:
        """The program has been given these, which `fetch` returned."""
        for message in messages:
            self.intake.taken(message)

    @cython.cfunc
    def pop(self) -> Message:
        message: Message = self.messages[self.head]
        self.messages[self.head] = None
        self.head += 1
        self.compact()
        self.intake.taken(message)
        return message

    @cython.cfunc
    def compact(self) -> cython.void:
        if self.head == len(self.messages):
            self.messages.clear()
            self.head = 0
        elif self.head >= _COMPACT_AT and 2 * self.head >= len(self.messages):
            del self.messages[: self.head]
            self.head = 0

    @cython.cfunc
    def put(self, message: Message) -> cython.void:
        self.messages.append(message)
        if self.waiter is not None:
            self.wake()

    @cython.cfunc
    def wake(self) -> cython.void:
        waiter = self.waiter
        self.waiter = None
        if not waiter.done():
            waiter.set_result(None)

    def hand_over(self, target: MessageQueue, wanted) -> None:
        """Moves the messages that are here and for which `wanted(topic)` is true to another queue."""
        rest: list = []
        for message in self.messages[self.head :]:
            if wanted(cython.cast(Message, message).topic):
                target.put(message)
            else:
                rest.append(message)
        self.messages, self.head = rest, 0

    def end(self, error=None) -> None:
        """Nothing comes any more; what is there may still be taken."""
        self.ended = True
        self.error = error
        if self.waiter is not None:
            self.wake()
