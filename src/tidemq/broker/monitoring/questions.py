"""Questions to reactors, one at a time, so that none gets two."""

from __future__ import annotations

import asyncio
from typing import overload

from tidemq.engine.door.figures import Finding, Inquiry, Question, Roster
from tidemq.engine.door.view import EngineView

REACTOR_S = 10.0  # for a reactor's answer: it is stuck


class Questions:
    """Of one broker. All methods belong to its event loop."""

    def __init__(self, view: EngineView) -> None:
        self._view = view
        self._last = 0
        self._answer: asyncio.Future[Roster | Finding] | None = None
        self._turn = asyncio.Lock()

    def on_answer(self, answer: Roster | Finding) -> None:
        """One that is too late is nobody's."""
        if answer.number == self._last and self._answer is not None and not self._answer.done():
            self._answer.set_result(answer)

    @overload
    async def ask(self, reactor: int, question: Question) -> Roster: ...
    @overload
    async def ask(self, reactor: int, question: Inquiry) -> Finding: ...
    async def ask(self, reactor: int, question: Question | Inquiry) -> Roster | Finding:
        """TimeoutError where the reactor does not answer, UsageError where the broker stops."""
        async with asyncio.timeout(REACTOR_S), self._turn:
            self._last += 1
            self._answer = asyncio.get_running_loop().create_future()
            self._view.ask(reactor, self._last, question)
            return await self._answer
