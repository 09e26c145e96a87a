"""What became of a message that was published: a receipt says when it left and when it was acknowledged.

Futures are made only when somebody asks. Needs the GIL; one thread at a time.
"""

from asyncio import Future, InvalidStateError, get_running_loop
from concurrent.futures import InvalidStateError as ThreadInvalidStateError

import cython
from cython.cimports.cpython.unicode import PyUnicode_AsUTF8AndSize
from cython.cimports.libc.stdint import uint8_t, uint32_t
from cython.cimports.tidemq.client.message import Message
from cython.cimports.tidemq.client.receipt import DONE, WAITING
from cython.cimports.tidemq.wire.protocol import FAULT_NONE, FAULT_TOPIC_EMPTY, Fault, Span
from cython.cimports.tidemq.wire.topics import check_topic_text

from tidemq.client.errors import BufferFullError, DisconnectedError
from tidemq.errors import UsageError
from tidemq.wire.codes import ReasonCode
from tidemq.wire.faults import fault_text
from tidemq.wire.payloads import payload_bytes

if not cython.compiled:
    raise ImportError("tidemq.client.receipt is compiled code: run `make build`")

_OVERHEAD = cython.declare(cython.Py_ssize_t, 64)
_LOST_MAX = 100  # connections whose loss is remembered
_REASONS = {int(code): code for code in ReasonCode}  # an enum's own look-up costs more than the message


@cython.cclass
class Progress:
    def __init__(self) -> None:
        self.lost = []
        self.asked = []

    def was_lost(self, offset):
        return any(begin < offset <= end for begin, end in self.lost)

    def advance(self):
        self.gone = self.written
        if self.asked:
            self.settle(None)

    def lose(self):
        if self.gone < self.written:
            self.lost.append((self.gone, self.written))
            del self.lost[:-_LOST_MAX]
            self.gone = self.written
            self.settle(DisconnectedError("the connection ended before the message had left"))

    def settle(self, error):
        """Tells those who wait for what has gone, or was lost; what is to be sent again goes on waiting."""
        rest: list = []
        receipt: Receipt
        for each in self.asked:
            receipt = each
            if receipt.offset == 0 or receipt.offset > self.gone or (error is not None and receipt.qos):
                rest.append(receipt)
                continue
            waiters: list = receipt.sent_waiters
            receipt.sent_waiters = None
            for waiter in waiters:
                settle_future(waiter, None, error)
        self.asked = rest


@cython.cclass
class Group:
    def __init__(self) -> None:
        self.remaining = 0


def settle_future(waiter, value, error):
    if waiter.done():
        return  # its owner was cancelled
    try:
        if error is None:
            waiter.set_result(value)
        else:
            waiter.set_exception(error)
    except (InvalidStateError, ThreadInvalidStateError):
        pass  # its owner, another thread, has given up since the look


@cython.final
@cython.freelist(1024)
@cython.cclass
class Receipt:
    """Returned by `publish_nowait`; its two awaitables may be awaited any number of times, or not at all."""

    @property
    def sent(self):
        waiter = Future(loop=get_running_loop())
        self.notify_sent(waiter)
        return waiter

    @property
    def acknowledged(self):
        waiter = Future(loop=get_running_loop())
        self.notify_acknowledged(waiter)
        return waiter

    @property
    def stored(self):
        waiter = Future(loop=get_running_loop())
        self.notify_stored(waiter)
        return waiter

    @property
    def done(self) -> bool:
        return self.state == DONE

    @property
    def reason(self):
        return _REASONS[self.reason_code] if self.reason_code >= 0 else None

    def notify_sent(self, waiter) -> None:
        if self.offset and self.offset <= self.progress.gone:
            lost: cython.bint = self.qos == 0 and self.progress.was_lost(self.offset)
            error = DisconnectedError("the connection ended before the message had left") if lost else None
            settle_future(waiter, None, error)
        elif self.state == DONE and self.offset == 0:
            settle_future(waiter, None, self.error)
        else:
            if self.sent_waiters is None:
                self.sent_waiters = []
                self.progress.asked.append(self)
            self.sent_waiters.append(waiter)

    def notify_acknowledged(self, waiter):
        if self.state == DONE:
            settle_future(waiter, self.reason, self.error)
        elif self.waiters is None:
            self.waiters = [waiter]
        else:
            self.waiters.append(waiter)

    def refuse(self, error) -> None:
        """It was not accepted: for those who wait already."""
        self.finish(-1, error)

    def notify_stored(self, waiter) -> None:
        if self.on_disk:
            settle_future(waiter, None, None)
        elif self.state == DONE:
            settle_future(waiter, None, self.error or UsageError("there is no outbox, or it is QoS 0"))
        else:
            self.stored_waiters = [*(self.stored_waiters or ()), waiter]

    def tell_stored(self):
        """It is on disk now."""
        self.on_disk = True
        self.settle_stored(None)

    def settle_stored(self, error):
        waiters: list = self.stored_waiters
        self.stored_waiters = None
        if waiters is not None:
            for waiter in waiters:
                settle_future(waiter, None, error)

    def size(self):
        size: cython.Py_ssize_t = _OVERHEAD + len(self.payload)
        return size if self.block is None else size + len(self.block)

    def finish(self, reason, error):
        """The end of it, good or bad: `error` is what those who wait get, None if it was acknowledged."""
        self.state = DONE
        self.reason_code = reason
        self.error = error
        if self.waiters is not None:
            waiters: list = self.waiters
            self.waiters = None
            for waiter in waiters:
                settle_future(waiter, self.reason, error)
        if self.offset == 0 and self.sent_waiters is not None:
            waiters = self.sent_waiters
            self.sent_waiters = None
            self.progress.asked.remove(self)
            for waiter in waiters:
                settle_future(waiter, None, error)
        if self.stored_waiters is not None:
            self.settle_stored(error or UsageError("there is no outbox, or it is QoS 0"))
        if self.group is not None:
            group: Group = self.group
            self.group = None
            group.remaining -= 1
            if error is not None and group.first_error is None:
                group.first_error = error
            if group.remaining <= group.wake_at and group.waiter is not None:
                settle_future(group.waiter, None, None)
                group.waiter = None

    def __repr__(self) -> str:
        states = ("waiting", "unacknowledged", "received", "done")
        return f"<Receipt {self.topic!r} qos={self.qos} {states[self.state]}>"


def make_receipt(progress, topic, payload, qos, retain, block):
    """Checks what was given, as UsageError says."""
    receipt: Receipt = Receipt.__new__(Receipt)
    receipt.topic = checked_topic(topic)
    receipt.payload = payload if type(payload) is bytes else payload_bytes(payload)
    if qos < 0 or qos > 2:
        raise UsageError(f"qos is {qos}; accepted: 0, 1, 2")
    receipt.qos = cython.cast(uint8_t, qos)
    receipt.retain = retain
    receipt.block = block
    receipt.state = WAITING
    receipt.reason_code = -1
    receipt.progress = progress
    return receipt


def receipt_of(progress, item, qos, retain, block):
    """Of a pair of topic and payload, with these options; or of a `Message`, with its own."""
    if type(item) is not Message:
        topic, payload = item
        return make_receipt(progress, topic, payload, qos, retain, block)
    message: Message = item
    return make_receipt(progress, message.topic, message.payload, message.qos, message.retain, message.block)


def check_size(receipt, bytes_max):
    """Nobody waits, and nothing is dropped, for what even an empty buffer has no room for."""
    if receipt.size() > bytes_max:
        raise BufferFullError(
            f"a payload of {len(receipt.payload)} bytes takes {receipt.size()} of the client's buffer; "
            f"accepted: {bytes_max} (buffer_bytes_max)"
        )
    return 0


def checked_topic(topic):
    if type(topic) is not str:
        raise UsageError(f"topic is {topic!r}; accepted: a str")
    size: cython.Py_ssize_t = 0
    try:
        data = PyUnicode_AsUTF8AndSize(topic, cython.address(size))
    except UnicodeEncodeError as error:
        raise UsageError(f"topic has no UTF-8 form: {error}") from error
    if size > 0xFFFF:
        raise UsageError(f"topic has {size} bytes; accepted: up to 65,535")
    name: Span = Span(cython.cast(cython.pointer[cython.const[uint8_t]], data), cython.cast(uint32_t, size))
    fault: Fault = check_topic_text(cython.address(name)) if size else FAULT_TOPIC_EMPTY
    if fault != FAULT_NONE:
        raise UsageError(f"topic is {topic!r}: {fault_text(fault)}")
    return topic
