"""Queues of received messages: asynchronous iterators that acknowledge what the program is done with.

A message of QoS 1 or 2 is acknowledged when every program that was given it asks for its next, unless one
says so itself. Needs the GIL; one thread at a time.
"""

import asyncio
from contextlib import suppress
from weakref import WeakSet

import cython
from cython.cimports.libc.stdint import uint8_t, uint16_t
from cython.cimports.libc.string import memset
from cython.cimports.tidemq.client.message import Message, size_of
from cython.cimports.tidemq.client.outgoing import Outgoing
from cython.cimports.tidemq.wire.protocol import PUBACK, PUBREC, RC_SUCCESS
from cython.cimports.tidemq.wire.reasons import allowed_reason

from tidemq.errors import UsageError

if not cython.compiled:
    raise ImportError("tidemq.client.queue is compiled code: run `make build`")

_COMPACT_AT = cython.declare(cython.Py_ssize_t, 1024)  # taken messages in front of a list, before they go
_FAILURE = cython.declare(uint8_t, 0x80)  # reason codes from here on


def has_bit(bits, packet_id):
    return bits[packet_id >> 3] & (1 << (packet_id & 7)) != 0


def set_bit(bits, packet_id, value):
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
        self.takers = WeakSet()

    @property
    def is_full(self) -> bool:
        return self.messages >= self.messages_max or self.size_bytes >= self.bytes_max

    def is_overfull(self, times: cython.int) -> bool:
        """It holds so many times what makes it full."""
        return self.messages >= times * self.messages_max or self.size_bytes >= times * self.bytes_max

    def connect(self, session_present: cython.bint) -> None:
        """A new connection begins; messages of earlier ones are acknowledged no more, but for QoS 2."""
        self.connection += 1
        self.loop = this_loop()
        self.unacknowledged = 0
        if not session_present:
            self.session_began = self.connection
            memset(self.received, 0, 8192)
            memset(self.answered, 0, 8192)

    def taken(self, message):
        """A queue has given it to the program."""
        message.holders -= 1
        if message.holders:
            return
        self.messages -= 1
        self.size_bytes -= size_of(message)
        if self.on_room is not None and self.is_half_empty():
            on_room = self.on_room
            self.on_room = None
            on_room()

    def done(self, message):
        """A program that it was given to is done with it."""
        message.owed -= 1
        if not message.owed and message.packet_id:
            self.answer(message, RC_SUCCESS)

    def give(self, messages: list) -> None:
        """The program has been given these, and is done with them."""
        message: Message
        for each in messages:
            message = each
            self.taken(message)
            if not self.manual:
                self.done(message)

    def drop(self, given: list, left: list) -> None:
        """Nobody has their queue any more: it gave the program the first, and never will the others."""
        for message in given:
            self.done(message)
        self.give(left)

    def finish(self, task) -> None:
        """A task ends the client, and so is done with what it took."""
        for taker in list(self.takers):
            if taker.task is task:
                taker.finish()

    def is_half_empty(self):
        return 2 * self.messages <= self.messages_max and 2 * self.size_bytes <= self.bytes_max

    def answer(self, message, reason):
        """PUBACK or PUBREC. A QoS 1 message of an earlier connection comes again, and is answered then; in
        another session its identifier is another message's."""
        packet_id: uint16_t = message.packet_id
        message.packet_id = 0
        if message.qos == 2:
            if message.connection < self.session_began or not has_bit(self.received, packet_id):
                return
            set_bit(self.answered, packet_id, True)
            if self.outgoing.connected:  # otherwise answered when it comes again
                self.outgoing.acknowledge(PUBREC, packet_id, reason)
                if reason >= _FAILURE and self.outgoing.version == 5:
                    self.forget(packet_id)
        elif self.outgoing.connected and message.connection == self.connection:
            if self.unacknowledged:
                self.unacknowledged -= 1
            self.outgoing.acknowledge(PUBACK, packet_id, reason)

    def forget(self, packet_id):
        """A handshake of QoS 2 is over."""
        set_bit(self.received, packet_id, False)
        set_bit(self.answered, packet_id, False)
        if self.unacknowledged:
            self.unacknowledged -= 1

    def acknowledge(self, message: Message, reason: uint8_t = 0) -> None:
        """For the program that says when; a second time it does nothing. `UsageError` for a reason code that
        an acknowledgement cannot have."""
        if not allowed_reason(PUBACK, reason, 5):
            raise UsageError(f"reason code {reason:#04x} is none of an acknowledgement")
        if message.packet_id:
            self.answer(message, reason)


def this_task():
    """The task that calls; None outside of any."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def this_loop():
    """The event loop that runs; None outside of any."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


@cython.final
@cython.cclass
class MessageIterator:
    """One loop over a queue."""

    def __init__(self, queue: MessageQueue) -> None:
        self.queue = queue
        self.task = this_task()
        queue.intake.takers.add(self)

    def __aiter__(self):
        return self

    async def __anext__(self):
        queue: MessageQueue = self.queue
        if self.given is not None:
            self.finish()
        while queue.head >= len(queue.messages):
            await queue.wait()
        message: Message = queue.pop()
        if message.packet_id and not queue.intake.manual:
            self.given = message
        return message

    def finish(self) -> None:
        """The program is done with what it was given."""
        given: Message = self.given
        self.given = None
        if given is not None:
            self.queue.intake.done(given)

    def __del__(self) -> None:
        # the loop has ended, but nobody said how
        if self.given is not None:
            self.queue.keep(self.given, self.task)
            if self.queue.dropped:  # the collector came to it first
                self.queue.drop()


@cython.cclass
class MessageQueue:
    """Asynchronous iterator over received messages, in their order. Several tasks may iterate it, each
    message goes to one."""

    def __init__(self, intake: Intake) -> None:
        self.intake = intake
        self.messages = []
        self.given = []
        intake.takers.add(self)

    def __len__(self) -> int:
        return len(self.messages) - self.head

    def __aiter__(self):
        return MessageIterator(self)

    async def __anext__(self):
        self.finish()
        while self.head >= len(self.messages):
            await self.wait()
        message: Message = self.pop()
        self.keep(message, this_task())
        return message

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
        self.finish()
        while self.head >= len(self.messages):
            await self.wait()
        return self.take_nowait(limit)

    def take_nowait(self, limit: cython.Py_ssize_t = 0) -> list:
        """All messages that are there, at most `limit`; maybe none."""
        self.finish()
        batch: list = self.fetch(limit)
        message: Message
        for each in batch:
            message = each
            self.intake.taken(message)
            if message.packet_id:
                self.keep(message, None)
        if self.given:
            self.task = this_task()
        return batch

    def keep(self, message, task):
        """It was given to the program, which may not be done with it."""
        if message.packet_id and not self.intake.manual:
            self.given.append(message)
            self.task = task

    def finish(self) -> None:
        """The program is done with what it was given, but for loops that are at work."""
        if self.given:
            given: list = self.given
            self.given = []
            for message in given:
                self.intake.done(message)

    def fetch(self, limit: cython.Py_ssize_t = 0) -> list:
        """As `take_nowait`, but they do not count as taken until `give`."""
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
        """The program has been given these, which `fetch` returned, and is done with them."""
        self.intake.give(messages)

    def leave(self, messages: list) -> None:
        """These, which `fetch` returned, have nobody who takes them: they end with the queue."""
        self.messages.extend(messages)
        if self.dropped:
            self.drop()

    def pop(self):
        message: Message = self.messages[self.head]
        self.messages[self.head] = None
        self.head += 1
        self.compact()
        self.intake.taken(message)
        return message

    def compact(self):
        if self.head == len(self.messages):
            self.messages.clear()
            self.head = 0
        elif self.head >= _COMPACT_AT and 2 * self.head >= len(self.messages):
            del self.messages[: self.head]
            self.head = 0

    def put(self, message):
        self.messages.append(message)
        if self.waiter is not None:
            self.wake()

    def wake(self):
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

    def __del__(self) -> None:
        # nobody can ask for more: what is here would count, unacknowledged, for ever
        if self.ended:
            self.dropped = True
            self.drop()

    def drop(self):
        """In any thread, for that of the collector may be one; the rest is done in the event loop."""
        intake: Intake = self.intake
        given: list = self.given
        left: list = self.messages[self.head :]
        self.given, self.messages, self.head = [], [], 0
        if (given or left) and intake.loop is not None and intake.outgoing.closed_error is None:
            with suppress(RuntimeError):  # the event loop has been closed
                intake.loop.call_soon_threadsafe(intake.drop, given, left)
