"""The program's callbacks: each in a task, called one at a time, in order. What they raise goes to the loop's
exception handler."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import TypeVar

from tidemq.client.message import Message
from tidemq.client.queue import Intake, MessageQueue
from tidemq.errors import TideMQError
from tidemq.wire import Connack, ReasonCode

T = TypeVar("T")
Callback = Callable[[Message], Awaitable[None] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionChange:
    """The connection was made, or was lost. Given to `on_connection`."""

    connected: bool
    connack: Connack | None = None  # what the server said; None where it was lost
    error: Exception | None = None  # why it was lost; ServerRefusedError has the server's reason code
    comes_back: bool = True  # False: it was lost for good


ConnectionCallback = Callable[[ConnectionChange], Awaitable[None] | None]


class Callbacks:
    """Of one client."""

    def __init__(self, intake: Intake, on_connection: ConnectionCallback | None) -> None:
        self._intake, self._on_connection = intake, on_connection
        self._changes: asyncio.Queue[ConnectionChange] = asyncio.Queue()
        self._telling = False
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, queue: MessageQueue, callback: Callback) -> None:
        """From now on the queue's messages go to the callback."""
        self._spawn(self._give(queue, callback))

    async def _give(self, queue: MessageQueue, callback: Callback) -> None:
        messages = aiter(queue)
        while True:
            try:
                message = await anext(messages)
            except (StopAsyncIteration, TideMQError):  # `on_connection` is told why the client has ended
                return
            if not await self._call(callback, message) and not self._intake.manual:
                # MQTT cannot hand it back, but can say what became of it
                self._intake.acknowledge(message, ReasonCode.UNSPECIFIED_ERROR)

    def tell(self, change: ConnectionChange) -> None:
        """For the program that wants to know of the connection."""
        if self._on_connection is not None:
            self._changes.put_nowait(change)
            if not self._telling:
                self._telling = True
                self._spawn(self._tell(self._on_connection))

    async def _tell(self, callback: ConnectionCallback) -> None:
        while not self._changes.empty():
            await self._call(callback, self._changes.get_nowait())
        self._telling = False

    async def _call(self, callback: Callable[[T], Awaitable[None] | None], value: T) -> bool:
        """False where it failed."""
        try:
            result = callback(value)
            if result is not None and inspect.isawaitable(result):
                await result
        except Exception as error:  # noqa: BLE001 - it is the program's callback
            context = {"message": f"a callback failed for {value!r}", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)
            return False
        return True

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work, name="tidemq-callback")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def end(self) -> None:
        """Cancels them, but for the one that calls."""
        tasks = self._tasks - {asyncio.current_task()}  # a callback may end its own client
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
