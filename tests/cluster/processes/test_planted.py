"""What a broker may not do is found where a proxy does it in a real run: each of these once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from cluster.processes import liars
from cluster.processes.liars import Liar, Passage
from crash.actors import Course, random_of
from crash.client import Publisher, Setting, Subscriber
from crash.history import History, Interest, judge, judge_returns
from crash.retained import KEPT, RetainedTopics
from crash.run import Clients
from crash.server import Server
from waiting import until

MESSAGES = 6
STALL_S = 1.0
HONEST = Passage


class Stage:
    """A publisher and a subscriber of one broker, each behind a proxy, at one quality of service."""

    def __init__(self, broker: Server, qos: int) -> None:
        self.qos = qos
        self.history = History()
        self.course = Course(self.history, RetainedTopics(self.history))
        self.broker = broker
        self.liars: list[Liar] = []

    async def play(self, name: str, *, publishing: type[Passage], receiving: type[Passage]) -> None:
        """Messages, a new connection, an UNSUBSCRIBE and a message, a retained one and its removal, the
        verdict, a new session.
        """
        publisher = Publisher(await self._setting("pub", publishing), window=1)
        subscriber = Subscriber(await self._setting("sub", receiving), self.course.find)
        await subscriber.open()
        staying, going = (
            Interest(subscriber.client_id, topic, self.qos) for topic in (f"{name}/1", f"{name}/2")
        )
        subscriber.subscribe(staying, going)
        await until(lambda: subscriber.settled)
        await self._publish(publisher, staying.filter, MESSAGES)
        await self._come(subscriber)
        subscriber.eager = True
        subscriber.acknowledge_all()
        await self._come(subscriber)
        settled = len(self.history.deliveries)
        subscriber.drop()
        await subscriber.open()
        await self._come(subscriber)
        judge_returns(self.history, settled, "a new connection")
        subscriber.unsubscribe(going)
        await until(lambda: subscriber.settled)
        await self._publish(publisher, going.filter, 1)
        await self._publish(publisher, f"{KEPT}/{name}", 1)
        await self._publish(publisher, f"{KEPT}/{name}", 1, removal=True)
        await self._come(subscriber)
        await self.course.retained.check(await self._setting("reader", HONEST))
        judge(self.history)
        await subscriber.discard()
        await subscriber.open()
        for each in (subscriber, publisher):  # for the next stage
            each.setting.place = lambda: self.broker.place()
            await each.discard()

    async def _setting(self, name: str, passage: type[Passage]) -> Setting:
        liar = Liar(self.broker.port, passage)
        await liar.start()
        self.liars.append(liar)
        return Setting(
            client_id=name,
            version=liars.VERSION,
            history=self.history,
            choose=random_of(1, name),
            place=lambda: (self.broker.name, liar.port),
        )

    async def _publish(self, publisher: Publisher, topic: str, count: int, *, removal: bool = False) -> None:
        """On a connection of its own. What is not acknowledged is not waited for for long."""
        if self.history.failures:
            return  # it goes no further
        first = len(self.history.messages)
        for number in range(first, first + count):
            publisher.publish(self.course.make(publisher, number, topic, self.qos, removal=removal))
        clients = Clients(self.course, [publisher], [], stall_s=STALL_S)
        async with asyncio.TaskGroup() as group:
            clients.begin(group)
            await clients.finish()
            clients.end()

    async def _come(self, subscriber: Subscriber) -> None:
        """What is under way to the subscriber is there: an answer comes behind it."""
        for _ in range(2):
            subscriber.subscribe(Interest(subscriber.client_id, "rest", 1))
            await until(lambda: subscriber.settled)

    async def close(self) -> None:
        for each in self.liars:
            await each.close()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("broker")
    server = Server(folder, folder / "data", {"store": "memory"}, History())
    asyncio.run(server.start())
    yield server
    asyncio.run(server.stop())


RECEIVING = {
    "loses": (liars.Loses, 1, {"lost"}),
    "invents": (liars.Invents, 1, {"lost", "corrupt"}),
    "repeats at QoS 1": (liars.Repeats, 1, {"repeated"}),
    "repeats at QoS 2": (liars.Repeats, 2, {"twice"}),
    "swaps": (liars.Swaps, 1, {"disorder"}),
    "swallows": (liars.Swallows, 2, {"lost", "identifier"}),
    "forgets sessions": (liars.ForgetsSession, 1, {"session lost"}),
    "keeps sessions": (liars.KeepsSession, 1, {"session back"}),
    "keeps subscriptions": (liars.KeepsSubscription, 1, {"stray"}),
    "brings back at QoS 1": (liars.BringsBack, 1, {"came back", "repeated"}),
    "brings back at QoS 2": (liars.BringsBack, 2, {"came back", "twice"}),
}
PUBLISHING = {
    "keeps retained messages": (liars.KeepsRetained, 1, {"retained"}),
    "sticks": (liars.Sticks, 1, {"stalled"}),
}


@pytest.mark.parametrize("name", [*RECEIVING, *PUBLISHING, "honest", "honest at QoS 2"])
async def test_it_is_found(broker: Server, name: str) -> None:
    lie, qos, kinds = {**RECEIVING, **PUBLISHING}.get(name, (HONEST, 1 + name.endswith("2"), set[str]()))
    stage = Stage(broker, qos)
    await stage.play(
        name,
        publishing=lie if name in PUBLISHING else HONEST,
        receiving=HONEST if name in PUBLISHING else lie,
    )
    await stage.close()
    assert {each.kind for each in stage.history.failures} == kinds
