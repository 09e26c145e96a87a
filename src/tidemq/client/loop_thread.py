"""An event loop in a thread of its own, for programs that have none: what they wait for ends with it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from tidemq.client.errors import AnswerTimeoutError, DisconnectedError
from tidemq.errors import UsageError

T = TypeVar("T")
_LAST_TURNS_S = 1.0  # for those in the loop who have been told that it ends


def wait_for(answer: concurrent.futures.Future[T], timeout_s: float | None, what: str) -> T:
    """The result; `AnswerTimeoutError` after `timeout_s`."""
    try:
        return answer.result(timeout_s)
    except concurrent.futures.CancelledError:
        raise DisconnectedError("the client is closed") from None
    except concurrent.futures.TimeoutError as error:
        if not answer.cancel():
            return answer.result()  # it came in this moment; or the work itself ran out of time
        raise AnswerTimeoutError(f"{what}: nothing within {timeout_s:g} s") from error


class LoopThread:
    """From `start` to `stop`, once. Its methods are for other threads."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None  # None: it has not begun, or has ended
        self._lock = threading.Lock()  # over `_loop`: whoever sees one is heard before its end
        self._ends = False
        self._thread = threading.Thread(target=self._run, name="tidemq-client", daemon=True)

    def start(self) -> None:
        """The loop runs."""
        self._loop = asyncio.new_event_loop()
        self._thread.start()

    @property
    def is_running(self) -> bool:
        return self._loop is not None

    def stop(self) -> None:
        """Whoever waits for something in the loop gets its end, or `DisconnectedError`. From any thread, any
        number of times."""
        with self._lock:
            if self._loop is not None and not self._ends:
                self._ends = True  # a second one would stop what comes last, `_finish`
                self._loop.call_soon_threadsafe(self._loop.stop)
        self._join()

    def _join(self) -> None:
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def post(self, function: Callable[..., object], *arguments: object) -> None:
        """Calls the function in the loop, soon; where that has ended, here."""
        with self._lock:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(function, *arguments)
                return
        self._join()
        function(*arguments)

    def report(self, context: dict[str, Any]) -> None:
        """Something failed: for the loop's exception handler, where there is a loop."""
        with self._lock:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._loop.call_exception_handler, context)

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Begins a coroutine in the loop. `DisconnectedError` where there is none."""
        with self._lock:
            if self._loop is not None:
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        work.close()
        raise DisconnectedError("the client is not connected")

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Runs a coroutine in the loop and waits for it."""
        if self._thread is threading.current_thread():
            work.close()
            raise UsageError("what runs in the client's event loop must not wait for it")
        return wait_for(self.submit(work), timeout_s, "no answer")

    def _run(self) -> None:
        loop = self._loop
        assert loop is not None
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            with self._lock:
                self._loop = None
            loop.run_until_complete(self._finish())
        finally:
            self._loop = None
            loop.close()

    async def _finish(self) -> None:
        """Those who have been told the end come to theirs; who wait for something else are cancelled."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        waiting = (await asyncio.wait(tasks, timeout=_LAST_TURNS_S))[1] if tasks else set()
        for task in waiting:
            task.cancel()
        if waiting:
            await asyncio.wait(waiting)
