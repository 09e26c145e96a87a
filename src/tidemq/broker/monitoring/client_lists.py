"""Lists of clients, from all reactors, by a cursor."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace

from tidemq.broker.monitoring.questions import Questions
from tidemq.engine.door.figures import ClientFigures, Place, Question
from tidemq.errors import UsageError

SLICE = 50  # clients that are asked for at once where all are gone through: some 0.5 ms of the event loop
PAUSE_S = 0.005  # between two slices

Cursor = tuple[int, Place | None]  # reactor, and where in it; None: at its beginning


class CursorError(UsageError):
    """A cursor that no answer can have had."""


@dataclass(frozen=True, slots=True)
class Page:
    """Some clients, and where to go on; None: there are no more."""

    clients: Sequence[ClientFigures]
    cursor: Cursor | None


@dataclass(frozen=True, slots=True)
class OneClient:
    """A client with its subscriptions: topic filter, options, subscription identifier (0: none)."""

    figures: ClientFigures
    filters: Sequence[tuple[str, int, int]]
    more_filters: bool


class ClientLists:
    """Asks the reactors. All methods belong to the broker's event loop."""

    def __init__(self, questions: Questions, reactors: int) -> None:
        self._ask = questions.ask
        self._reactors = reactors

    async def page(self, question: Question, cursor: Cursor | None = None) -> Page:
        """Up to `question.rows_max` clients of a reactor from the cursor on, often fewer, or none.

        CursorError for a cursor that is none, TimeoutError where a reactor does not answer, UsageError where
        the broker stops.
        """
        reactor, place = cursor or (0, None)
        if not 0 <= reactor < self._reactors:
            raise CursorError(f"the cursor names reactor {reactor}, there are {self._reactors}")
        roster = await self._ask(reactor, replace(question, place=place))
        reactor += roster.place is None
        return Page(roster.clients, (reactor, roster.place) if reactor < self._reactors else None)

    async def connected(self) -> AsyncIterator[ClientFigures]:
        """Every client that is connected, some at a time: the event loop has time for others. Raises what
        `page` raises.
        """
        cursor: Cursor | None = (0, None)
        while cursor is not None:
            page = await self.page(Question(rows_max=SLICE, away=False), cursor)
            for each in page.clients:
                yield each
            cursor = page.cursor
            await asyncio.sleep(PAUSE_S)

    async def one(self, client_id: str) -> OneClient | None:
        """The client, or the session of one that is away; None: there is none."""
        roster = await self._ask(0, Question(one=True, client_id=client_id))
        if not roster.clients:
            return None
        return OneClient(roster.clients[0], roster.filters, roster.more_filters)

    async def oldest(self) -> tuple[int, str]:
        """Age in ms of the message that has waited longest in a queue, -1: all are empty; and whose queue."""
        oldest = (-1, "")
        for reactor in range(self._reactors):
            place: Place | None = None
            while True:
                roster = await self._ask(reactor, Question(survey=True, place=place))
                oldest, place = max(oldest, roster.oldest), roster.place
                if place is None:
                    break
        return oldest
