"""Work that is done to its end, whoever stops waiting for it; and who it is that was cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def is_wanted() -> bool:
    """Of a CancelledError that has come up in this task: whether the task itself is cancelled. Else what it
    waited for has been, or somebody has raised one: a failure as any other.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def complete(work: Coroutine[Any, Any, T]) -> T:
    """What the work gives. A cancellation meanwhile is raised when the work has ended, not before: for what
    must not be left half done, as a store that another thread is opening.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        task.cancelled() or task.exception()  # it is said in the place of what the work gave
        raise cancelled
    return task.result()
