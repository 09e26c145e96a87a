"""How endpoints ask the reactors: in slices, because the broker's event loop decides who may connect, too."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from tidemq.broker.admin.api import refuse
from tidemq.broker.monitoring.client_lists import CursorError
from tidemq.errors import StoreError, UsageError

PAGE_MAX = 1000  # rows of an answer
BYTES_MAX = 1 << 20  # of an answer, about: names may be long
ANSWER_S = 1.0  # that is searched for one answer; the rest is for the next
SLICE = 10  # rows that are asked for, and written, at once: some 0.1 ms of the event loop
PAUSE_S = 0.005  # between two slices

LATE = {
    401: "The token is missing or wrong.",
    503: "The broker loads what is stored, or stops, or a reactor does not answer.",
}

T = TypeVar("T")


async def asked(answer: Awaitable[T]) -> T:
    """What the reactors, or the keeper, say; or a refusal."""
    try:
        return await answer
    except CursorError as error:
        refuse(400, f"cursor: {error}")
    except (UsageError, StoreError) as error:
        refuse(503, str(error))
    except TimeoutError:
        refuse(503, "a reactor does not answer")
