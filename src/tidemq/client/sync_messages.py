"""Received messages of the blocking client, on their way from its event loop to the program's threads."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Iterator

from tidemq.client.errors import AnswerTimeoutError, DisconnectedError
from tidemq.client.loop_thread import LoopThread
from tidemq.client.message import Message
from tidemq.client.queue import MessageQueue
from tidemq.errors import TideMQError

_BATCH = 1024  # messages fetched from the loop at a time


class Messages:
    """Received messages: `for message in messages` waits for each, until the client ends. Threads may share
    it: each message goes to one of them, and is acknowledged when that one asks for its next."""

    def __init__(self, queue: MessageQueue, loop: LoopThread) -> None:
        self._queue, self._loop = queue, loop
        self._changed = threading.Condition()
        self._fetched: deque[Message] = deque()
        self._held: dict[threading.Thread, Message] = {}  # what a thread works on, of QoS 1 and 2
        self._done: deque[Message] = deque()  # not reported to the loop yet
        self._reporting = False
        self._fetching = False
        self._end: BaseException | None = None

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        try:
            return self.get()
        except DisconnectedError:
            if isinstance(self._end, StopAsyncIteration):
                raise StopIteration from None
            raise

    def get(self, timeout_s: float | None = None) -> Message:
        """The next message; `AnswerTimeoutError` where none came within `timeout_s`."""
        if self._held:
            self.finish()
        try:
            message = self._fetched.popleft()
        except IndexError:
            message = self._wait(timeout_s)
        if message.qos:
            self._held[threading.current_thread()] = message
        else:
            self._done.append(message)
        return message

    @property
    def ended(self) -> bool:
        """Nothing comes any more; what is there may still be taken."""
        return self._queue.ended

    def __del__(self) -> None:
        # the queue is done with it; what threads hold is in the hands of nobody who could end it
        self._queue.leave([*self._fetched, *self._held.values(), *self._done])

    def finish(self) -> None:
        """The calling thread is done with what it has."""
        self._report_done(threading.current_thread())

    def _report_done(self, thread: threading.Thread) -> None:
        message = self._held.pop(thread, None)
        if message is not None:
            self._done.append(message)
            if not self._reporting:
                self._reporting = True
                self._loop.post(self._report)

    def _wait(self, timeout_s: float | None) -> Message:
        for thread in [each for each in list(self._held) if not each.is_alive()]:
            self._report_done(thread)
        with self._changed:
            found = self._changed.wait_for(self._next, timeout_s)
        if found is None:
            raise AnswerTimeoutError(f"no message within {timeout_s:g} s")
        if isinstance(found, BaseException):
            raise DisconnectedError("no message will come any more") from found
        return found

    def each(self, timeout_s: float) -> Iterator[Message]:
        """Messages until none has come for `timeout_s`."""
        try:
            while True:
                yield self.get(timeout_s)
        except AnswerTimeoutError:
            return

    def _next(self) -> Message | BaseException | None:
        """A message, or the end; None when one is being waited for."""
        if not self._fetched and not self._fetching and self._end is None:
            self._fetching = True
            try:
                self._loop.submit(self._fetch())
            except DisconnectedError:  # the loop has ended: nobody else is at the queue
                self._fetched.extend(self._queue.fetch())
                self._end = StopAsyncIteration()
        try:
            return self._fetched.popleft()
        except IndexError:  # other threads take without the lock
            return self._end

    async def _fetch(self) -> None:
        """In the loop: brings what is there, at least one message."""
        end: BaseException | None = None
        self._report()
        try:
            await self._queue.wait()
        except (StopAsyncIteration, TideMQError) as error:
            end = error
        except asyncio.CancelledError:
            end = StopAsyncIteration()  # the loop ends
        with self._changed:
            self._fetched.extend(self._queue.fetch(_BATCH))
            self._end = end
            self._fetching = False
            self._changed.notify_all()

    def _report(self) -> None:
        """In the loop: what the program is done with makes room, and is acknowledged."""
        self._reporting = False
        self._queue.give([self._done.popleft() for _ in range(len(self._done))])
