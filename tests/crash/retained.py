"""Retained messages: what a new subscriber may be given for each topic, and whether it is."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import replace

from crash.client import Setting, Subscriber
from crash.history import NEVER, History, Interest, Message

KEPT = "crash/kept"  # topics below it have retained messages, each topic from one publisher at one QoS
WAIT_S = 3.0
QUIET_S = 0.02


class RetainedTopics:
    """The messages of each topic in the order of publishing. A topic's value is the last one acknowledged, or
    one that was sent after it; an empty payload removes it.
    """

    def __init__(self, history: History) -> None:
        self._history = history
        self._published: dict[str, list[Message]] = defaultdict(list)

    def add(self, message: Message) -> None:
        self._published[message.topic].append(message)

    def _newest_acknowledged(self) -> dict[str, int]:
        """By topic the place of its last acknowledged message, -1 for none."""
        return {
            topic: max(
                (place for place, each in enumerate(messages) if each.acknowledged_at != NEVER), default=-1
            )
            for topic, messages in self._published.items()
        }

    async def check(self, setting: Setting) -> bool:
        """Subscribes as a new client and compares; false where the connection did not last."""
        oldest = self._newest_acknowledged()
        found = await self.read(setting)
        for message, value in self._wrong(oldest, found) if found is not None else ():
            text = f"{message.topic} has {value[:16] or 'nothing'!r}, older than this"
            self._history.fail("retained", text, message)
        return found is not None

    async def is_right(self, setting: Setting) -> bool:
        """Whether a new client gets what it may get."""
        oldest = self._newest_acknowledged()
        found = await self.read(setting)
        return found is not None and not self._wrong(oldest, found)

    async def read(self, setting: Setting) -> dict[str, bytes] | None:
        """What a new client gets, by topic; None where the connection did not last."""
        reader = Subscriber(replace(setting, clean=True, history=History()), lambda payload: None)
        reader.eager = True
        await reader.open()
        oldest = self._newest_acknowledged()
        reader.subscribe(Interest(reader.client_id, f"{KEPT}/#", 1))
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline and not (reader.settled and self._is_complete(reader, oldest)):
            if await reader.lost(within_s=0.01):
                return None
        if await reader.lost(within_s=QUIET_S):
            return None
        reader.leave()
        return reader.retained

    def _values(self, topic: str, oldest: int) -> list[bytes]:
        """What the topic may have had since its message number `oldest` was acknowledged; empty: nothing."""
        messages = self._published[topic][max(oldest, 0) :]
        return [each.payload for each in messages if each.sent_at != NEVER] + [b""] * (oldest < 0)

    def _is_complete(self, reader: Subscriber, oldest: dict[str, int]) -> bool:
        """Nothing more must come."""
        return all(
            topic in reader.retained or b"" in self._values(topic, place) for topic, place in oldest.items()
        )

    def _wrong(self, oldest: dict[str, int], found: dict[str, bytes]) -> list[tuple[Message, bytes]]:
        """The last acknowledged message of each topic whose value is older, with that value."""
        wrong = []
        for topic, place in oldest.items():
            value = found.get(topic, b"")
            if value not in self._values(topic, place):
                wrong.append((self._published[topic][max(place, 0)], value))
        return wrong
