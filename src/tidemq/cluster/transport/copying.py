"""This node's records on their way into a stream at one peer's server, until the server has them.

Every message says after which sequence it belongs, so that the server refuses what comes after one that was
lost. Whatever goes wrong, the answer is the same: ask what the stream has, and go on from there.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from tidemq.cluster.transport.connecting import HEADERS_BYTES
from tidemq.cluster.transport.frames import COPIES_HEAD_BYTES, pack_copies
from tidemq.cluster.transport.jetstream import (
    DamagedError,
    GoneError,
    Stream,
    delete_stream,
    find_stream,
    make_stream,
    purge,
    read_last,
)
from tidemq.cluster.transport.settings import Bounds, Patience
from tidemq.errors import ClusterError, UsageError

BATCH_BYTES = 256 << 10  # of records in one message; one record may be larger
BATCH_RECORDS = 1024
FLIGHT_BYTES = 4 << 20  # sent to a server and not acknowledged: what a heartbeat may have to wait behind
FLIGHT_MESSAGES = 256
MARKS_MAX = 4096  # messages of which is known where they are in the stream
AGAIN_S = 0.05  # before a stream is asked what it has, after what was sent into it in vain; doubles
AGAIN_S_MAX = 5.0
WRONG_SEQUENCE = 10071
HEADER = "Nats-Expected-Last-Sequence"

_log = logging.getLogger("tidemq.cluster")


class Teller(Protocol):
    """What becomes of copies, on the transport's thread."""

    def count(self, name: str, more: int = 1) -> None: ...
    def copied(self, to: int, number: int) -> None: ...
    def copies_lost(self, to: int, first_needed: int) -> None: ...
    def copies_stuck(self, to: int, text: str) -> None: ...
    def post(self, function: Callable[[], object]) -> object:
        """Calls it on the transport's thread, soon."""


@dataclass(frozen=True, slots=True)
class _Sent:
    """A message that the server has not acknowledged. `number`: the last record that ends with it; 0: it is a
    piece of one that goes on.
    """

    sequence: int
    number: int
    bytes: int


class _AgainError(ClusterError):
    """The stream is not as it was thought to be."""


class Copying:
    """Of one peer. `give` and `trim` are for any thread; the rest belongs to the transport's.

    Held are the records that the server has not acknowledged, up to a size. What comes beyond, or is not the
    next one, is dropped, and asked for when there is room.
    """

    def __init__(self, to: int, name: str, bounds: Bounds, patience: Patience, teller: Teller) -> None:
        self.to = to
        self.copied = 0  # acknowledged
        self._name, self._bounds, self._patience, self._teller = name, bounds, patience, teller
        self._lock = threading.Lock()  # over all that follow, up to `_work`
        self._held: deque[tuple[int, bytes]] = deque()  # not sent yet; numbers rise by one
        self._sent: deque[tuple[int, bytes]] = deque()  # those before
        self._bytes = 0  # of both
        self._next: int | None = None  # number that has to come; None: any, as long as nothing is known
        self._dropped = 0  # the highest number of those dropped
        self._asked = False  # for `_next`
        self._is_known = False  # what the stream has, in this connection
        self._trimmed = 0
        self._is_woken = self._is_told_again = False
        self._work = asyncio.Event()
        self._stream = Stream(name, "", 0, 0, 0)
        self._sequence = 0  # that the last message sent will have
        self._flight: deque[_Sent] = deque()
        self._flight_bytes = 0
        self._failure: Exception | None = None
        self._marks: deque[tuple[int, int]] = deque()  # number, sequence: where records are, oldest first
        self._fruitless = 0  # attempts without an acknowledgement
        self._fruitless_since = 0.0  # when the first of them failed
        self._client: Client | None = None
        self._task: asyncio.Task[object] | None = None

    @property
    def waiting_bytes(self) -> int:
        return self._bytes

    def give(self, records: Iterable[tuple[int, bytes]]) -> None:
        """Records with rising numbers. UsageError for one that is larger than any may be."""
        records = list(records)
        for number, record in records:
            if len(record) > self._bounds.record_bytes_max:
                most = self._bounds.record_bytes_max
                raise UsageError(f"record {number} has {len(record)} bytes; accepted: up to {most}")
        with self._lock:
            if self._next is not None and self._next <= self._trimmed and not self._held:
                self._next, self._asked = self._trimmed + 1, False  # what is trimmed nobody gives any more
            for number, record in records:
                self._give_one(number, record)
            self._is_told_again |= bool(records) and records[0][0] <= self.copied
            wakes = not self._is_woken
            self._is_woken = True
        if wakes:
            self._teller.post(self._wake)

    def _give_one(self, number: int, record: bytes) -> None:
        due = number if self._next is None else self._next
        if number < due:
            self._teller.count("cluster_copies_known")
        elif number > due:
            self._teller.count("cluster_copies_out_of_turn")
            self._dropped = max(self._dropped, number)
        elif self._bytes and self._bytes + len(record) > self._bounds.copies_bytes_max:
            self._teller.count("cluster_copies_put_off")
            self._next = number
            self._dropped = max(self._dropped, number)
        else:
            self._held.append((number, record))
            self._bytes += len(record)
            self._next = number + 1
            self._asked = False

    def trim(self, number: int) -> None:
        """Records up to this one are not needed any more, there or anywhere."""
        with self._lock:
            self._trimmed = max(self._trimmed, number)

    def end(self) -> None:
        """For good; from the transport's thread."""
        if self._task is not None:
            self._task.cancel()

    def _wake(self) -> None:
        with self._lock:
            self._is_woken = False
            tells, self._is_told_again = self._is_told_again and self._is_known, False
        if tells:  # who gives what is there does not know that it is
            self._teller.copied(self.to, self.copied)
        self._ask_for_dropped()
        self._work.set()

    def _ask_for_dropped(self) -> None:
        with self._lock:
            roomy = self._bytes <= self._bounds.copies_bytes_max // 2
            due = self._next
            if due is None or due > self._dropped or self._asked or not (roomy and self._is_known):
                return
            self._asked = True
        self._lost(due)

    def _lost(self, first_needed: int) -> None:
        self._teller.count("cluster_copies_asked_again")
        self._teller.copies_lost(self.to, first_needed)

    async def run(self, client: Client) -> None:
        """Until it is cancelled: a stream that takes nothing is no reason to give up the connection."""
        self._client, self._task = client, asyncio.current_task()
        self._fruitless, pause_s = 0, AGAIN_S
        trimming = asyncio.create_task(self._trim_now_and_then())
        try:
            while True:
                try:
                    await self._look()
                    await self._publish()
                except (ClusterError, nats.errors.Error, OSError) as error:
                    self._failure = error
                except Exception as error:  # noqa: BLE001 - a defect of ours must not end copies for good
                    _log.exception("copies to %016x failed", self.to)
                    self._failure = error
                self._teller.count("cluster_copies_resent")
                if not self._fruitless:
                    self._fruitless_since = time.monotonic()
                self._fruitless += 1
                pause_s = AGAIN_S if self._fruitless < 2 else min(pause_s * 2, AGAIN_S_MAX)
                if self._fruitless > 2:
                    self._teller.copies_stuck(self.to, str(self._failure) or type(self._failure).__name__)
                await asyncio.sleep(pause_s)
        finally:
            trimming.cancel()
            self._client = self._task = None
            with self._lock:
                self._is_known = False

    async def _look(self) -> None:
        """What the stream has; a new one where there is none, or it cannot be read."""
        assert self._client is not None
        client, answer_s = self._client, self._patience.answer_s
        number = 0
        try:
            stream = await find_stream(client, self._name, answer_s)
            is_long = time.monotonic() - self._fruitless_since > self._patience.stuck_s
            if self._fruitless and is_long and isinstance(self._failure, _StuckError):
                raise DamagedError("it takes nothing")
            if stream.messages:
                number = (await read_last(client, stream, answer_s)).last_whole
        except GoneError:
            stream = await make_stream(client, self._name, answer_s)
            self._teller.count("cluster_copies_begun")
        except DamagedError:
            await delete_stream(client, self._name, answer_s)
            self._fruitless = 0
            stream = await make_stream(client, self._name, answer_s)
            self._teller.count("cluster_copies_damaged")
        self._begin(stream, number)

    def _begin(self, stream: Stream, number: int) -> None:
        """Goes on behind the last record that the stream has."""
        while self._marks and (stream.subject != self._stream.subject or self._marks[-1][1] >= stream.last):
            self._marks.pop()
        self._stream, self._sequence = stream, stream.last
        self._flight.clear()
        self._flight_bytes, self._failure = 0, None
        if number:
            self._mark(number, stream.last)
        self.copied = number
        with self._lock:
            due = max(number, self._trimmed) + 1
            self._held.extendleft(reversed(self._sent))
            self._sent.clear()
            while self._held and self._held[0][0] < due:
                self._bytes -= len(self._held.popleft()[1])
            begins = self._held[0][0] if self._held else self._next
            lost = begins != due
            if lost:
                self._held.clear()
                self._bytes, self._next, self._asked = 0, due, True
            self._is_known = True
        self._teller.copied(self.to, number)  # maybe fewer than before: it has lost some
        if lost:
            self._lost(due)
        self._ask_for_dropped()

    async def _publish(self) -> None:
        """Until something fails."""
        client = self._client
        assert client is not None
        inbox = client.new_inbox()
        subscription = await client.subscribe(f"{inbox}.*", cb=self._answered)
        piece_bytes = client.max_payload - HEADERS_BYTES
        while self._failure is None:
            self._work.clear()
            while len(self._flight) < FLIGHT_MESSAGES and self._flight_bytes < FLIGHT_BYTES:
                first, batch = self._take()
                if not batch:
                    break
                await self._send(client, inbox, first, batch, piece_bytes)
            await self._await_answer()
        with suppress(nats.errors.Error, OSError):
            await subscription.unsubscribe()
        raise self._failure

    async def _await_answer(self) -> None:
        """Or something to send."""
        acknowledged = self.copied, len(self._flight)
        try:
            async with asyncio.timeout(self._patience.answer_s if self._flight else None):
                await self._work.wait()
        except TimeoutError:
            if acknowledged == (self.copied, len(self._flight)):
                self._failure = self._failure or _StuckError("copies are not acknowledged")

    def _take(self) -> tuple[int, list[bytes]]:
        """The next records for a message."""
        batch: list[bytes] = []
        room = BATCH_BYTES
        with self._lock:
            first = self._held[0][0] if self._held else 0
            while self._held and len(batch) < BATCH_RECORDS:
                record = self._held[0][1]
                if batch and len(record) > room:
                    break
                self._sent.append(self._held.popleft())
                batch.append(record)
                room -= len(record)
        return first, batch

    async def _send(
        self, client: Client, inbox: str, first: int, batch: list[bytes], piece_bytes: int
    ) -> None:
        frames = pack_copies(first, batch, piece_bytes - COPIES_HEAD_BYTES - 4)
        for left, frame in zip(range(len(frames) - 1, -1, -1), frames, strict=True):
            before, self._sequence = self._sequence, self._sequence + 1
            ends = 0 if left else first + len(batch) - 1
            self._flight.append(_Sent(self._sequence, ends, len(frame)))
            self._flight_bytes += len(frame)
            reply = f"{inbox}.{self._sequence}"
            await client.publish(self._stream.subject, frame, reply=reply, headers={HEADER: str(before)})

    async def _answered(self, msg: Msg) -> None:
        """A message was stored, or not: those before it were as well, or it would have been refused."""
        if (msg.headers or {}).get("Status"):
            self._fail(GoneError("the stream of copies is gone"))
            return
        try:
            answer = json.loads(msg.data)
            failure = answer.get("error")
            sequence = 0 if failure else int(answer["seq"])
        except (ValueError, KeyError, TypeError, AttributeError):
            self._fail(_AgainError(f"JetStream answers {msg.data[:80]!r}"))
            return
        if failure:
            stuck = failure.get("err_code") == WRONG_SEQUENCE
            text = f"copies are refused: {failure.get('description')}"
            self._fail(_StuckError(text) if stuck else _AgainError(text))
            return
        self._acknowledge(sequence)

    def _fail(self, error: ClusterError) -> None:
        self._failure = self._failure or error
        self._work.set()

    def _acknowledge(self, sequence: int) -> None:
        number = self.copied
        while self._flight and self._flight[0].sequence <= sequence:
            sent = self._flight.popleft()
            self._flight_bytes -= sent.bytes
            if sent.number:
                number = sent.number
                self._mark(number, sent.sequence)
        self._fruitless = 0
        if number > self.copied:
            self.copied = number
            with self._lock:
                while self._sent and self._sent[0][0] <= number:
                    self._bytes -= len(self._sent.popleft()[1])
            self._teller.copied(self.to, number)
        self._ask_for_dropped()
        self._work.set()

    def _mark(self, number: int, sequence: int) -> None:
        self._marks.append((number, sequence))
        if len(self._marks) > MARKS_MAX:  # every second: then less is removed at a time
            self._marks = deque([*self._marks][1::2])

    async def _trim_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(self._patience.trim_s)
            sequence = 0
            while self._marks and self._marks[0][0] <= self._trimmed:
                sequence = self._marks.popleft()[1]
            # the last message stays, to tell how far the stream has come
            before = min(sequence + 1, self._sequence - len(self._flight))
            if sequence and before > self._stream.first and self._client is not None:
                with suppress(ClusterError):
                    await purge(self._client, self._stream, before, self._patience.answer_s)
                    self._teller.count("cluster_copies_trimmed")


class _StuckError(_AgainError):
    """As a stream behaves that has lost its files."""
