"""What other threads ask of one: it is done there when that thread comes to it, or refused when it has
ended.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import TypeVar

T = TypeVar("T")


class Errands:
    """Calls that wait for their thread. Who asked may cancel; what has begun is done to its end."""

    def __init__(self) -> None:
        self._waiting: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._ended: Exception | None = None  # what everybody is answered from now on

    def ask(self, act: Callable[[], T]) -> Future[T]:
        """From any thread: what `act` gives, or raises, on the thread that it is for."""
        future: Future[T] = Future()

        def answer() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                if self._ended is not None:
                    raise self._ended
                result = act()
            except Exception as error:  # noqa: BLE001 - it is told to who asked
                future.set_exception(error)
            else:
                future.set_result(result)

        self._waiting.put(answer)
        if self._ended is not None:
            self.answer()  # it may have ended before it could see this one
        return future

    def answer(self) -> None:
        """Does what waits, or after `end` refuses it."""
        while True:
            try:
                answer = self._waiting.get_nowait()
            except Empty:
                return
            answer()

    def end(self, error: Exception) -> None:
        """Nobody does anything from now on; each who asked, or asks yet, gets the error."""
        self._ended = error
        self.answer()
