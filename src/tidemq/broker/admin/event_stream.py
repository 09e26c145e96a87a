"""Answers that go on: server-sent events, to one who takes them; and the messages that some of them are."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

from aiohttp import web

from tidemq.broker.program_subscription import Message, Subscription

WRITE_S = 10.0  # for one who watches to take an event
SILENCE_S = 1.0  # after which it is looked whether somebody is still there
# a second, for one who reads them: each is work of Python's, on the loop that decides who may connect
MESSAGES_MAX = 500


async def messages_of(
    subscription: Subscription, seconds: float = float("inf"), lines_max: float = float("inf")
) -> AsyncIterator[Message | None]:
    """What comes; None where nothing does for SILENCE_S. Ends when the broker stops, when time or lines are
    used up, or when more than MESSAGES_MAX come in a second: then `subscription.dropped` is not 0.
    """
    second = came = lines = 0
    until = time.monotonic() + seconds
    async with subscription:
        while lines < lines_max and (left_s := until - time.monotonic()) > 0:
            try:
                message = await asyncio.wait_for(anext(subscription), min(left_s, SILENCE_S))
            except TimeoutError:
                yield None
                continue
            except StopAsyncIteration:
                return
            if int(time.monotonic()) != second:
                second, came = int(time.monotonic()), 0
            came += 1
            lines += 1
            if came > MESSAGES_MAX:
                subscription.dropped += 1
            if subscription.dropped:
                return
            yield message


async def sent_events(request: web.Request, events: AsyncIterator[str]) -> web.StreamResponse:
    """Sends events until there are no more, or nobody takes them; for an empty one a comment, since only who
    writes learns that the other side has gone.
    """
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
    try:
        await response.prepare(request)
        async for event in events:
            async with asyncio.timeout(WRITE_S):
                await response.write(f"data: {event}\n\n".encode() if event else b":\n\n")
    except (ConnectionError, TimeoutError):
        pass  # it has gone, or takes nothing
    return response
