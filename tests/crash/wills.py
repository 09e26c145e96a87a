"""Wills that are due when the broker is killed: each comes, and at QoS 2 once.

A run is a broker on one directory that is killed a few times. Before each kill many clients with sessions
that are kept have connected, each with a will on a topic of its own; they drop their connections so that the
wills become due in the moments around the kill. Of some the connection still stands then: to the broker they
are gone since the start that follows. Watchers with sessions, half of them there and half of them away, are
owed every will from its client's CONNACK on, for no client of a will says goodbye or comes back.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

from crash.actors import random_of
from crash.client import Client, Setting, Subscriber
from crash.disk import Disk
from crash.history import Debts, History, Interest, Message, judge
from crash.run import RUN_S, Choice, Outcome, conclude
from crash.server import Server
from waiting import until

from tidemq.wire import Packet, Properties, Will

WATCHERS = 6  # so that with two reactors each has some of them
DELAY_S = 1  # of a will that has a delay: seconds are its unit
WINDOWS_S = (0.02, 0.1, 0.25)  # before the kill, in which wills are due; and a fifth of it after the kill
KILLED_S = DELAY_S + max(WINDOWS_S)  # after the first client may drop
CONNECTING = 50  # at a time
SILENCE_S = 10.0  # without any event, with something still owed
QUIET_S = 0.3  # in which nothing more may come


class WillClient(Client):
    """A client that has a will and nothing else. `drops_after_s`: from its round's beginning."""

    def __init__(self, setting: Setting, message: Message, delay_s: int, drops_after_s: float) -> None:
        properties = Properties(will_delay_s=delay_s) if delay_s else Properties()
        will = Will(message.topic, message.payload, qos=message.qos, properties=properties)
        super().__init__(replace(setting, will=will))
        self.message, self.delay_s, self.drops_after_s = message, delay_s, drops_after_s

    def has_acknowledged_state(self) -> bool:
        return False

    def resume(self, session_present: bool) -> None:
        """From here on the will is owed: the session is in the store."""
        self.message.sent_at = self.note(f"has a will with a delay of {self.delay_s} s", self.message)

    def received(self, packet: Packet) -> None:
        self.history.fail("unexpected", f"a client without subscriptions got {packet}", client=self.client_id)


class Watcher:
    """A subscriber to all wills that is there, or away, as it is told; it acknowledges at once."""

    def __init__(self, setting: Setting, find: dict[bytes, Message]) -> None:
        self.subscriber = Subscriber(setting, find.get)
        self.subscriber.eager = True
        self.present = asyncio.Event()

    async def act(self) -> None:
        """For ever."""
        while True:
            await self.present.wait()
            await self.subscriber.open()
            while self.present.is_set() and not await self.subscriber.lost(within_s=0.02):
                pass
            self.subscriber.drop()

    async def subscribe(self) -> None:
        interest = Interest(self.subscriber.client_id, "will/#", 2)
        self.present.set()
        await until(lambda: self.subscriber.online and self.subscriber.known, "the subscriber is there")
        self.subscriber.subscribe(interest)
        await until(lambda: self.subscriber.settled, "its subscription is acknowledged")


class WillRun:
    """The broker, its watchers, and the clients of each kill."""

    def __init__(self, choice: Choice, folder: Path) -> None:
        self.disk: Disk | None = None
        self.choice, self.history, self.limit_s = choice, History(), RUN_S
        self.choose = random_of(choice.seed, "wills")
        settings: dict[str, object] = {"store": choice.store, "reactors": choice.reactors}
        if choice.store != "memory":
            settings["durability"] = choice.durability
        self.server = Server(folder, folder / "data", settings, self.history)
        self.wills: dict[bytes, Message] = {}
        self.watchers = [
            Watcher(self._setting(f"watcher{number}", 4 + number % 2), self.wills)
            for number in range(WATCHERS)
        ]

    def _setting(self, name: str, version: int) -> Setting:
        return Setting(
            client_id=name,
            version=version,
            history=self.history,
            choose=random.Random(f"{name} of {self.choice.seed}"),
            place=self.server.place,
        )

    async def play(self) -> None:
        """From the first start of the broker to the verdict, which is in the history."""
        await self.server.start()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each.act()) for each in self.watchers]
            await asyncio.gather(*(each.subscribe() for each in self.watchers))
            for kill in range(self.choice.kills):
                await self._kill_among_wills(kill)
                await self._drain()
            for task in tasks:
                task.cancel()
        await self.server.stop()
        judge(self.history)

    async def _kill_among_wills(self, kill: int) -> None:
        """The clients come and go, and their wills are due; the broker dies meanwhile, and starts again."""
        window_s = self.choose.choice(WINDOWS_S)
        clients = [self._client(f"k{kill}c{number}", window_s) for number in range(self.choice.wills)]
        for first in range(0, len(clients), CONNECTING):
            await asyncio.gather(*(each.open() for each in clients[first : first + CONNECTING]))
        for at, watcher in enumerate(self.choose.sample(self.watchers, WATCHERS)):
            (watcher.present.clear if at % 2 else watcher.present.set)()
        began_s = time.monotonic()
        clients.sort(key=lambda each: each.drops_after_s)
        for each in clients:
            if each.drops_after_s < KILLED_S:
                await sleep_until(began_s + each.drops_after_s)
                each.note("drops", each.message)
                each.drop()
        await sleep_until(began_s + KILLED_S)
        self.server.kill()
        for each in clients:
            each.drop()
        await self.server.start()
        for watcher in self.watchers:
            watcher.present.set()

    def _client(self, name: str, window_s: float) -> WillClient:
        """Its will is due around the kill. Below 5.0 no will has a delay."""
        delay_s = self.choose.choice((0, DELAY_S, DELAY_S))
        payload = name.encode()
        message = Message(name, 1, f"will/{name}", self.choose.choice((1, 2)), False, payload)
        self.wills[payload] = message
        self.history.messages.append(message)
        setting = self._setting(name, 5 if delay_s else self.choose.choice((4, 5)))
        due_s = KILLED_S + self.choose.uniform(-window_s, window_s / 5)
        return WillClient(setting, message, delay_s, due_s - delay_s)

    async def _drain(self) -> None:
        """Until every will has come, and nothing comes any more."""
        debts, subscribers = Debts(self.history), [each.subscriber for each in self.watchers]
        before, since = -1, time.monotonic()
        while True:
            await asyncio.sleep(0.01)
            if len(self.history.events) != before:
                before, since = len(self.history.events), time.monotonic()
            owing = debts.unpaid() or any(each.unreleased for each in subscribers)
            if time.monotonic() - since > (SILENCE_S if owing else QUIET_S):
                return


async def sleep_until(when_s: float) -> None:
    if (left_s := when_s - time.monotonic()) > 0:
        await asyncio.sleep(left_s)


def play_wills(choice: Choice) -> Outcome:
    """Plays one run and reports; its files stay where it failed."""
    choice = choice.resolved()
    folder = Path(tempfile.mkdtemp(prefix=f"tidemq-wills-{choice.seed}-"))
    run = WillRun(choice, folder)
    outcome = conclude(run, folder)
    copies = Counter((each.subscriber, id(each.message)) for each in run.history.deliveries if each.qos == 1)
    outcome.repeated = sum(count > 1 for count in copies.values())
    return outcome


def summary_of_wills(outcomes: list[Outcome], took_s: float) -> str:
    """One line: how many wills were due around how many kills, and what became of them."""
    kinds = Counter(kind for each in outcomes for kind in each.kinds)
    parts = [
        f"{len(outcomes)} runs",
        f"{sum(each.starts - 1 for each in outcomes)} kills",
        f"{sum(each.messages for each in outcomes)} wills to {WATCHERS} sessions each",
        f"{sum(each.deliveries for each in outcomes)} deliveries",
        f"{kinds['lost']} lost",
        f"{kinds['twice']} twice at QoS 2",
        f"{sum(each.repeated for each in outcomes)} more than once at QoS 1",
        f"{took_s:.0f} s",
        f"{sum(bool(each.kinds) for each in outcomes)} runs failed" + (f" {dict(kinds)}" if kinds else ""),
    ]
    return "wills: " + ", ".join(parts)
