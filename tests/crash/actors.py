"""What the clients of a run do with their time: publish in bursts, come and go, acknowledge late.

All choices are the client's own, from the run's seed.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field

from crash.client import Publisher, Subscriber
from crash.history import History, Interest, Message
from crash.retained import KEPT, RetainedTopics

TOPICS = ["crash/a/1", "crash/a/2", "crash/b/1", "crash/b/2/x", "crash/c"]
FILTERS = [*TOPICS, "crash/#", "crash/a/+", "crash/+/1", "crash/b/#", f"{KEPT}/+"]
MESSAGES_OF_ACT = 100  # a publisher
KEY_BYTES = 16  # a payload begins with its publisher and number
FILLING_SIZES = [0] * 6 + [16] * 6 + [200] * 6 + [3_000, 40_000]
AFTER_REFUSAL_S = 0.05


@dataclass(slots=True)
class Course:
    """How far a run is, and what it has published."""

    history: History
    retained: RetainedTopics
    acts: int = 0  # that have begun
    ending: bool = False  # nothing new is published
    draining: bool = False  # subscribers stay, and acknowledge at once
    messages: dict[bytes, Message] = field(default_factory=dict)  # by the beginning of their payloads

    def find(self, payload: bytes) -> Message | None:
        return self.messages.get(payload[:KEY_BYTES])

    def make(
        self, publisher: Publisher, number: int, topic: str, qos: int, *, removal: bool = False
    ) -> Message:
        """A new message; on the topics under `KEPT` a retained one, or the removal of one."""
        key = f"{publisher.client_id}#{number}".ljust(KEY_BYTES).encode()
        payload = b"" if removal else key + publisher.choose.randbytes(publisher.choose.choice(FILLING_SIZES))
        message = Message(publisher.client_id, number, topic, qos, topic.startswith(KEPT), payload)
        self.history.messages.append(message)
        if payload:
            self.messages[key] = message
        if message.retain:
            self.retained.add(message)
        return message


class PublishingActor:
    """A publisher of two topics and of one retained message, which it replaces and removes."""

    def __init__(self, publisher: Publisher, course: Course) -> None:
        self.publisher, self.course, self.choose = publisher, course, publisher.choose
        self.topics = self.choose.sample(TOPICS, 2)
        self.kept_qos = self.choose.choice((1, 2))
        self.pace_s = self.choose.choice((0.002, 0.01, 0.03))
        self.number = 0

    @property
    def done(self) -> bool:
        return self.course.ending and self.publisher.done

    async def act(self) -> None:
        """Until the run is ending and everything is acknowledged."""
        while not self.done:
            await self.publisher.open()
            await self._attend(time.monotonic() + self.choose.expovariate(1 / 0.6))
            await asyncio.sleep(self.choose.uniform(0, 0.03))
        self.publisher.leave()

    async def _attend(self, leaves_at: float) -> None:
        """One connection, ended by the broker, by choice, or by the end of the run."""
        refused = self.publisher.refusals
        while not self.done:
            if not self.course.ending:
                self._publish()
            if await self.publisher.lost(within_s=self.choose.uniform(0, 2 * self.pace_s)):
                return
            if self.publisher.refusals > refused:
                refused = self.publisher.refusals
                await asyncio.sleep(AFTER_REFUSAL_S)
            if not self.course.ending and time.monotonic() > leaves_at:
                go_away(self.publisher)
                await asyncio.sleep(self.choose.uniform(0, 0.1))
                return

    def _publish(self) -> None:
        for _ in range(self.choose.randrange(1, 12)):
            messages_max = MESSAGES_OF_ACT * self.course.acts + self.publisher.refusals
            if self.number >= messages_max or len(self.publisher.waiting) >= self.publisher.window:
                return
            self.number += 1
            if self.choose.random() < 0.2:
                topic, removal = f"{KEPT}/{self.publisher.client_id}", self.choose.random() < 0.2
                message = self.course.make(self.publisher, self.number, topic, self.kept_qos, removal=removal)
            else:
                topic, qos = self.choose.choice(self.topics), self.choose.choice((1, 2))
                message = self.course.make(self.publisher, self.number, topic, qos)
            self.publisher.publish(message)


class SubscribingActor:
    """A subscriber of some filters for the whole run, and of one more now and then; or a group's member."""

    def __init__(self, subscriber: Subscriber, course: Course, filters: list[str], group: str = "") -> None:
        self.subscriber, self.course, self.choose = subscriber, course, subscriber.choose
        self.interests = tuple(self._interest(each, group) for each in filters)
        self.group = group
        self.toggled: Interest | None = None

    def _interest(self, topic_filter: str, group: str = "") -> Interest:
        return Interest(self.subscriber.client_id, topic_filter, self.choose.choice((1, 2, 2)), group)

    async def act(self) -> None:
        """For ever; from the run's draining on it only takes what comes."""
        await self._open()
        self.subscriber.subscribe(*self.interests)
        while not self.course.draining:
            await self._attend(time.monotonic() + self.choose.expovariate(1 / 0.5))
            if self.subscriber.online and not self.course.draining:
                go_away(self.subscriber)
                await asyncio.sleep(self.choose.expovariate(1 / 0.15))
                if not self.group and self.choose.random() < 0.1:
                    await self._begin_anew()
            await self._open()
        self.subscriber.eager = True
        self.subscriber.acknowledge_all()
        while True:
            await self.subscriber.lost(within_s=3600)
            await self._open()

    async def _open(self) -> None:
        """As a client that subscribes again where its session is not there any more."""
        await self.subscriber.open()
        if self.subscriber.begins_anew:
            self.subscriber.begins_anew = False
            self._subscribe_anew()

    def _subscribe_anew(self) -> None:
        self.toggled = None
        self.interests = tuple(self._interest(each.filter, self.group) for each in self.interests)
        self.subscriber.subscribe(*self.interests)

    async def _attend(self, until: float) -> None:
        """One connection."""
        while not self.course.draining and time.monotonic() < until:
            if await self.subscriber.lost(within_s=self.choose.choice((0.001, 0.01, 0.03))):
                return
            self.subscriber.acknowledge(self.choose.choice((0, 1, 3, 30)))
            dice = self.choose.random()
            if dice < 0.01:
                self.subscriber.pause(True)
                await self.subscriber.lost(within_s=self.choose.uniform(0, 0.3))
                self.subscriber.pause(False)
            elif dice < 0.03 and not self.group and self.subscriber.settled:
                self._toggle()

    async def _begin_anew(self) -> None:
        """The session goes, a new one subscribes to the same."""
        await self.subscriber.discard()
        await self._open()
        self._subscribe_anew()

    def _toggle(self) -> None:
        if self.toggled is not None:
            self.subscriber.unsubscribe(self.toggled)
            self.toggled = None
            return
        free = set(FILTERS) - {each.filter for each in self.interests}
        self.toggled = self._interest(self.choose.choice(sorted(free)))
        self.subscriber.subscribe(self.toggled)


def go_away(client: Publisher | Subscriber) -> None:
    """Mostly without a DISCONNECT."""
    (client.drop if client.choose.random() < 0.6 else client.leave)()


def random_of(seed: int, name: str) -> random.Random:
    """The random numbers of one part of a run: what others draw does not change them."""
    return random.Random(f"{name} of {seed}")
