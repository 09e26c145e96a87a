"""One run: clients under load, a broker that dies again and again, the end of it, the verdict.

Everything that is chosen is chosen from the seed. Threads and disks keep their own time, so a seed repeats
the choices and not each interleaving: run it again where a failure does not show at once.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from crash.actors import FILTERS, Course, PublishingActor, SubscribingActor, random_of
from crash.chaos import FAULTS, WITH_DISK, Chaos
from crash.client import Publisher, Setting, Subscriber
from crash.disk import Disk
from crash.history import Debts, History, judge, judge_returns
from crash.retained import RetainedTopics
from crash.server import BrokerError, Server
from crash.streamed import DECLARED, judge_stream
from waiting import happens

STALL_S = 30.0  # without progress of a publisher
SILENCE_S = 10.0  # without any event, with something still owed; a store may need 5 to take writes again
QUIET_S = 0.15  # in which nothing more may come
SETTLED_S = 1.0  # in which the broker has read every acknowledgement
RUN_S = 300.0  # some 3 s on free cores; most of it are starts of the broker
REPORTED_MAX = 2  # failures of one run


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What one run is; an empty value leaves it to the seed."""

    seed: int
    faults: str = ""
    store: str = "rocksdb"
    durability: str = ""
    reactors: int = 0
    wills: int = 0  # of clients, due around each kill: another kind of run, see `wills`
    kills: int = 4  # of such a run

    def resolved(self) -> Choice:
        """With all that the seed decides."""
        choose = random_of(self.seed, "settings")
        faults = self.faults or choose.choice(FAULTS)
        durability = choose.choice(("sync", "sync", "interval", "os"))
        reactors = choose.choice((1, 2))
        if self.wills:
            faults, reactors = "kill", 2
        if faults in ("eio", "power"):  # of these, `interval` and `os` promise nothing
            durability = "sync"
        return replace(
            self, faults=faults, durability=self.durability or durability, reactors=self.reactors or reactors
        )

    def names(self) -> tuple[str, ...]:
        """Of its faults."""
        return (self.faults,)

    def arguments(self) -> str:
        """The command that plays it again, for Python."""
        names = ["seed", "faults", "store", "durability", "reactors"]
        if self.wills:
            names[1:2] = ["wills", "kills"]
        return "tests/crash " + " ".join(f"--{name} {getattr(self, name)}" for name in names)


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What came of one run. `kinds` are its failures' kinds, none where all was well."""

    choice: Chosen
    kinds: list[str] = field(default_factory=list)
    report: str = ""
    folder: Path | None = None  # the files of a run that failed
    messages: int = 0
    deliveries: int = 0
    excused: Counter[str] = field(default_factory=Counter)  # failures that are known, by what is said of them
    repeated: int = 0  # wills at QoS 1 that a session got more than once
    starts: int = 0
    took_s: float = 0.0


class Clients:
    """All of a run. `stall_s`: without progress of a publisher; `silence_s`: without any event, and something
    is still owed.
    """

    def __init__(
        self,
        course: Course,
        publishers: list[Publisher],
        takers: list[SubscribingActor],
        *,
        stall_s: float = STALL_S,
        silence_s: float = SILENCE_S,
    ) -> None:
        self.course, self.history = course, course.history
        self.publishers, self.takers = publishers, takers
        self.sources = [PublishingActor(each, course) for each in publishers]
        self._stall_s, self._silence_s = stall_s, silence_s
        self._publishing: list[asyncio.Task[None]] = []
        self._taking: list[asyncio.Task[None]] = []

    def begin(self, group: asyncio.TaskGroup) -> None:
        """All act, until `end`."""
        self._taking = [group.create_task(each.act()) for each in self.takers]
        self._publishing = [group.create_task(each.act()) for each in self.sources]

    def end(self) -> None:
        for task in (*self._taking, *self._publishing):
            task.cancel()

    async def finish(self) -> None:
        """Nothing new is published. Until every publisher has its last acknowledgement."""
        self.course.ending = True
        before, since = -1, time.monotonic()
        while not all(each.done() for each in self._publishing):
            await asyncio.sleep(0.01)
            waiting = sum(len(each.in_flight) + len(each.waiting) for each in self.publishers)
            if waiting != before:
                before, since = waiting, time.monotonic()
            if time.monotonic() - since > self._stall_s:
                for each in self.publishers:
                    for message in list(each.in_flight.values())[:1]:
                        text = f"no acknowledgement for {self._stall_s} s"
                        self.history.fail("stalled", text, message, each.client_id)
                return

    async def drain(self) -> None:
        """Until everything owed is delivered and every QoS 2 flow complete, and nothing comes any more."""
        self.course.draining = True
        debts, subscribers = Debts(self.history), [each.subscriber for each in self.takers]
        before, since = -1, time.monotonic()
        patience_s = self._silence_s
        while time.monotonic() - since <= patience_s:
            await asyncio.sleep(0.01)
            if len(self.history.events) != before:
                before, since = len(self.history.events), time.monotonic()
            owing = debts.unpaid() or any(each.unreleased or not each.settled for each in subscribers)
            patience_s = self._silence_s if owing else QUIET_S  # what nobody is owed may come too
        for each in subscribers:
            for packet_id, payload in each.unreleased.items():
                text = f"no PUBREL for packet {packet_id}, whose PUBREC was sent"
                self.history.fail("unreleased", text, self.course.find(payload), each.client_id)


class Run:
    """The broker, its clients and its disk for one run."""

    def __init__(self, choice: Choice, folder: Path, library: Path | None) -> None:
        self.choice, self.history, self.limit_s = choice, History(), RUN_S
        self.choose = random_of(choice.seed, "run")
        self.course = Course(self.history, RetainedTopics(self.history))
        data = folder / "data"
        self.disk = Disk(library, data, folder / "disk", power=choice.faults == "power") if library else None
        settings: dict[str, object] = {
            "store": choice.store,
            "reactors": choice.reactors,
            "limits.inflight_max": self.choose.choice((1, 10, 1024)),
        }
        if choice.store != "memory":
            settings["durability"] = choice.durability
            settings["limits.queue_window_messages"] = self.choose.choice((1, 10, 1000))
        streams = DECLARED if choice.store != "memory" else "[]"
        self.server = Server(folder, data, settings, self.history, self.disk, streams)
        publishers = [
            Publisher(self._setting(f"pub{number}"), window=self.choose.choice((1, 10, 50)))
            for number in range(self.choose.randrange(2, 5))
        ]
        groups = ["", "", *self.choose.choice(([], [""], ["", ""]))]
        groups += self.choose.choice(([], [], ["red"] * 2, ["red", "red", "blue", "blue", "blue"]))
        takers = [self._taker(number, group) for number, group in enumerate(groups)]
        self.clients = Clients(self.course, publishers, takers)

    def _taker(self, number: int, group: str) -> SubscribingActor:
        """A subscriber; the members of a group have one filter."""
        subscriber = Subscriber(self._setting(f"{group}sub{number}"), self.course.find)
        choose = random_of(self.choice.seed, group) if group else subscriber.choose
        filters = choose.sample(FILTERS, 1 if group else choose.randrange(1, 4))
        return SubscribingActor(subscriber, self.course, filters, group)

    def _setting(self, name: str) -> Setting:
        return Setting(
            client_id=name,
            version=self.choose.choice((4, 5)),
            history=self.history,
            choose=random_of(self.choice.seed, name),
            place=self.server.place,
            receive_maximum=self.choose.choice((1, 5, 20, 65_535)),
        )

    async def play(self) -> None:
        """From the first start of the broker to the verdict, which is in the history."""
        await self.server.start()
        async with asyncio.TaskGroup() as group:
            self.clients.begin(group)
            beacon = replace(self._setting("beacon"), clean=True, history=History())
            chaos = Chaos(self.server, self.disk, self.course, random_of(self.choice.seed, "chaos"), beacon)
            await chaos.play(self.choice.faults)
            await self.clients.finish()
            await self.clients.drain()
            await self.course.retained.check(self._setting("reader"))
            if self.choose.random() < 0.3:
                await self._settle()
            self.clients.end()
        await self.server.stop()
        judge(self.history)
        if self.choice.store != "memory":
            judge_stream(self.history, self.server.data, self.course.find)

    async def _settle(self) -> None:
        """What everybody has acknowledged does not come back after an orderly restart."""
        before = -1
        while before != len(self.history.deliveries):  # what nobody is owed may still be on its way
            before = len(self.history.deliveries)
            await asyncio.sleep(SETTLED_S)
        await self.server.stop()
        await self.server.start()
        await happens(lambda: all(each.subscriber.online for each in self.clients.takers), STALL_S)
        await asyncio.sleep(QUIET_S)
        judge_returns(self.history, before, "an orderly restart")


class Chosen(Protocol):
    """What a run is."""

    @property
    def seed(self) -> int: ...
    def names(self) -> tuple[str, ...]: ...
    def arguments(self) -> str: ...


class Serving(Protocol):
    """A broker, or several."""

    @property
    def starts(self) -> int: ...
    def kill(self) -> None: ...
    def logged(self) -> str: ...


class Playable(Protocol):
    """What `conclude` plays."""

    @property
    def choice(self) -> Chosen: ...
    @property
    def history(self) -> History: ...
    @property
    def server(self) -> Serving: ...
    @property
    def disk(self) -> Disk | None: ...
    @property
    def limit_s(self) -> float: ...

    async def play(self) -> None: ...


async def bounded(run: Playable) -> None:
    """Plays it; TimeoutError where it takes longer than it may."""
    task = asyncio.create_task(run.play())
    if not (await asyncio.wait({task}, timeout=run.limit_s))[0]:
        # not cancelled here: a group cancels its tasks once, and wait_for (before Python 3.12) may swallow
        # that; asyncio.run cancels each task by itself
        raise TimeoutError
    task.result()


def play(choice: Choice, library: Path | None) -> Outcome:
    """Plays one run and reports; its files stay where it failed. `library`: the disk layer, if any."""
    choice = choice.resolved()
    folder = Path(tempfile.mkdtemp(prefix=f"tidemq-crash-{choice.seed}-"))
    return conclude(Run(choice, folder, library if choice.faults in WITH_DISK else None), folder)


def conclude(run: Playable, folder: Path) -> Outcome:
    """Plays a run to its end; its files go unless it failed."""
    started_s = time.monotonic()
    try:
        asyncio.run(bounded(run))
    except* (BrokerError, TimeoutError) as group:
        for error in group.exceptions:
            text = f"{error or f'not done after {run.limit_s} s'}\n{run.server.logged()}"
            run.history.fail("broker", text, client="broker")
    except* Exception:  # noqa: BLE001 (it is the verdict on this run)
        run.history.fail("harness", traceback.format_exc(), client="broker")
    finally:
        run.server.kill()
        if run.disk:
            run.disk.close()
    outcome = Outcome(
        choice=run.choice,
        kinds=[each.kind for each in run.history.failures],
        messages=len(run.history.messages),
        deliveries=len(run.history.deliveries),
        starts=run.server.starts,
        took_s=time.monotonic() - started_s,
    )
    if run.history.failures:
        outcome.report, outcome.folder = report(run, folder), folder
    else:
        shutil.rmtree(folder)
    return outcome


def report(run: Playable, folder: Path) -> str:
    """How to run it again, and the history of what went wrong."""
    failures = run.history.failures
    lines = [f"FAILED: python {run.choice.arguments()}", f"  files: {folder}"]
    lines += [run.history.explain(each) for each in failures[:REPORTED_MAX]]
    if len(failures) > REPORTED_MAX:
        lines.append(f"  and {len(failures) - REPORTED_MAX} more: {sorted({each.kind for each in failures})}")
    text = "\n".join(lines)
    (folder / "history.txt").write_text(
        "\n".join(
            f"{at:8} {when_s:8.3f} s  {who}: {what}" + (f" ({message})" if message else "")
            for at, (when_s, who, what, message) in enumerate(run.history.events, 1)
        )
    )
    (folder / "report.txt").write_text("\n".join(run.history.explain(each) for each in failures))
    return text
