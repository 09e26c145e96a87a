"""One run: devices publish, the job brings what they say into tables, and all that takes part is killed.

What is killed, and when, is chosen from the seed. Processes keep their own time, so a seed repeats the
choices and not each interleaving.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from crash.history import History
from crash.server import BrokerError, Server
from pipeline_crash.cluster import Cluster, ClusterError, children_of
from pipeline_crash.driver import Driver, DriverError, Job
from pipeline_crash.publishing import FILTER, RULES, Publisher, Sent
from pipeline_crash.relay import Relay
from pipeline_crash.verdict import Found, judge, read
from waiting import happens

from tidemq.testing.ports import free_port

STREAM = "plant"
VICTIMS = ("driver", "executor", "broker", "driver's Java", "Python worker", "planner", "connections")
TABLES = ("bronze", "silver/json", "silver/number", "dead_letters")
PROGRESS_S = 300.0  # within which bronze must have more, whatever was killed
MOMENT_S = 20.0  # to wait for the moment of a kill
ACKNOWLEDGED_S = 60.0  # the devices' last messages
MESSAGES_MIN = 1500  # of a run


@dataclass(frozen=True, slots=True)
class Kill:
    """Who is killed, and when: a while after what was before, or when something happens to a table."""

    victim: str
    after_s: float
    event: str = ""  # written: a batch's files begin to be written; committed: they are the table's
    table: str = ""
    recovered: bool = True  # wait for a further commit before it

    def __str__(self) -> str:
        at = f"as {self.table} is {self.event}" if self.event else f"after {self.after_s:.2f} s"
        return f"{self.victim} {at}" + ("" if self.recovered else ", without a batch before")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What one run is."""

    seed: int
    kills: int = 6
    forgetful: bool = False  # tables take a batch again that they have: this must be found out

    def plan(self) -> list[Kill]:
        """The driver, an executor and the broker first, in any order; last the driver, whose successor ends
        with the last message.
        """
        choose = random_of(self.seed, "plan")
        if self.forgetful:
            return [Kill("driver", 0, "committed", "bronze")] * 2
        first = ["driver", "executor", "broker"] if self.kills > 3 else ["executor", "broker"]
        choose.shuffle(first)
        victims = first + [choose.choice(VICTIMS) for _ in range(self.kills - 1 - len(first))]
        kills = [self._kill(victim, choose) for victim in victims[: self.kills - 1]]
        return [*kills, self._kill("driver", choose)]

    def _kill(self, victim: str, choose: random.Random) -> Kill:
        event = choose.choice(("", "written", "written", "committed"))
        return Kill(
            victim,
            after_s=choose.uniform(0, 3),
            event=event,
            table=choose.choice(TABLES) if event else "",
            recovered=choose.random() < 0.85 or self.kills <= 3,
        )

    def arguments(self) -> str:
        """As the command line takes it."""
        return f"--seed {self.seed} --kills {self.kills}" + (" --forgetful" if self.forgetful else "")


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What came of one run. `failures` are lines, none where all was well."""

    choice: Choice
    folder: Path  # its files; removed where all was well
    failures: list[str] = field(default_factory=list)
    report: str = ""
    sent: dict[int, Sent] = field(default_factory=dict)
    found: Found = field(default_factory=Found)
    kills: int = 0
    took_s: float = 0.0


class Run:
    """The cluster, the broker, its devices and the job."""

    def __init__(self, choice: Choice, folder: Path) -> None:
        self.choice, self.folder, self.history = choice, folder, History()
        self.choose = random_of(choice.seed, "run")
        self.sent: dict[int, Sent] = {}
        self.found = Found()
        self.kills = 0
        self._rows_max = self.choose.choice((1000, 5000, 100_000))
        self._admin_port = free_port()
        settings: dict[str, object] = {
            "store": "rocksdb",
            "durability": "sync",
            "reactors": self.choose.choice((1, 2)),
            "admin_port": self._admin_port,
        }
        streams = f'[{{"name": "{STREAM}", "filters": ["{FILTER}"]}}]'
        self.server = Server(folder, folder / "data", settings, self.history, streams=streams)
        count = self.choose.randrange(3, 6)
        self.publishers = [
            Publisher(place, random_of(choice.seed, f"device {place}"), self.sent)
            for place in range(1, count + 1)
        ]
        self.driver: Driver | None = None

    async def play(self, cluster: Cluster) -> None:
        """From the broker's first start to the verdict, which is in the history."""
        rules = self.folder / "rules.toml"
        rules.write_text(RULES)
        url = f"http://127.0.0.1:{self._admin_port}"
        job = Job(url, STREAM, self.folder / "lake", rules, cluster.master, self._rows_max)
        self.driver = driver = Driver(job, self.folder, self.history, forgetful=self.choice.forgetful)
        await self.server.start()
        driver.start()
        async with Relay(self.server.port) as relay, asyncio.TaskGroup() as group:
            devices = [
                group.create_task(each.publish(f"mqtt://127.0.0.1:{relay.port}")) for each in self.publishers
            ]
            chaos = Chaos(self.server, driver, cluster, relay, self.publishers, self.history, self.choose)
            *kills, last = self.choice.plan()
            for kill in kills:
                await chaos.play(kill)
            await chaos.play(last, again=False)
            self.kills = len(kills) + 1
            await self._enough_messages()
            for each in self.publishers:
                each.stopping = True
            _, late = await asyncio.wait(devices, timeout=ACKNOWLEDGED_S)
            if late:
                raise BrokerError(f"{len(late)} devices lack acknowledgements after {ACKNOWLEDGED_S} s")
        driver.start(once=True)
        await driver.finish()
        self.found = await asyncio.to_thread(read, url, STREAM, job.folder)
        for line in judge(self.sent.values(), self.found):
            self.history.fail("verdict", line)
        await self.server.stop()

    async def _enough_messages(self) -> None:
        await happens(lambda: len(self.sent) >= MESSAGES_MIN, ACKNOWLEDGED_S)


class Chaos:
    """Kills, each at its moment, and starts again what does not come back by itself."""

    def __init__(
        self,
        server: Server,
        driver: Driver,
        cluster: Cluster,
        relay: Relay,
        devices: Sequence[Publisher],
        history: History,
        choose: random.Random,
    ) -> None:
        self._server, self._driver, self._cluster, self._relay = server, driver, cluster, relay
        self._devices, self._history, self._choose = devices, history, choose
        self._commits = 0

    async def play(self, kill: Kill, *, again: bool = True) -> None:
        """Waits for the moment and kills; `again`: a driver gets a successor."""
        if kill.recovered:
            await self._until(lambda: self._count("bronze", "committed") > self._commits, PROGRESS_S, True)
        if kill.event:
            before = self._count(kill.table, kill.event)
            await self._until(lambda: self._count(kill.table, kill.event) > before, MOMENT_S, False)
        else:
            await asyncio.sleep(kill.after_s)
        if kill.victim in ("broker", "connections"):
            await self._lose_answers()
        self._history.note("chaos", f"kills {kill}")
        if kill.victim == "broker":
            self._server.kill()
            self._relay.cut()
            await asyncio.sleep(self._choose.choice((0, 0.5, 3)))
            await self._server.start()
            self._relay.server_port = self._server.port
        elif kill.victim == "connections":
            self._relay.cut()
        elif kill.victim.startswith("driver"):
            if kill.victim == "driver":
                self._driver.kill()
            else:
                await self._driver.kill_java()
            if again:
                self._driver.start()
        else:
            self._end(kill.victim)
        self._commits = self._count("bronze", "committed")

    async def _lose_answers(self) -> None:
        """So that messages which the broker has come again: devices do not know that it has them."""
        self._relay.keep_answers()
        await self._until(lambda: all(each.under_way for each in self._devices), MOMENT_S, False)
        await asyncio.sleep(self._choose.uniform(0, 0.2))

    def _end(self, victim: str) -> None:
        """A process that Spark starts again, if there is one now."""
        if victim == "planner":
            processes = self._driver.planners()
        else:
            processes = self._cluster.executors()
            if victim == "Python worker":
                processes = [child for each in processes for child in children_of(each.pid, every=True)]
        if not processes:
            self._history.note(victim, "is not there")
            return
        one = self._choose.choice(sorted(processes, key=lambda each: each.pid))
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
        self._history.note(victim, "is killed")

    def _count(self, table: str, event: str) -> int:
        """How often it has happened."""
        pattern = "_delta_log/*.json" if event == "committed" else "batch-*"
        return len(list((self._driver.job.folder / table).glob(pattern)))

    async def _until(self, happened: Callable[[], bool], within_s: float, must: bool) -> None:
        deadline = time.monotonic() + within_s
        while not happened():
            self._driver.check()
            if time.monotonic() > deadline:
                if must:
                    raise DriverError(f"no batch was committed within {within_s} s")
                return
            await asyncio.sleep(0.05 if must else 0.002)


def play(choice: Choice, *, keep: bool = False) -> Outcome:
    """Plays one run and reports; its files stay where it failed, or all the same with `keep`."""
    folder = Path(tempfile.mkdtemp(prefix=f"tidemq-pipeline-crash-{choice.seed}-"))
    started_s = time.monotonic()
    run = Run(choice, folder)
    try:
        with Cluster(folder) as cluster:
            asyncio.run(run.play(cluster))
    except* (BrokerError, DriverError, ClusterError) as group:
        logged = run.driver.logged() if run.driver else ""
        for error in group.exceptions:
            run.history.fail("stopped", f"{error}\n{logged}\n{run.server.logged()}")
    except* Exception:  # noqa: BLE001 (it is the verdict on this run)
        run.history.fail("harness", traceback.format_exc())
    finally:
        if run.driver:
            run.driver.kill()
        run.server.kill()
    outcome = Outcome(
        choice=choice,
        folder=folder,
        failures=[f"{each.kind}: {each.text}" for each in run.history.failures],
        sent=run.sent,
        found=run.found,
        kills=run.kills,
        took_s=time.monotonic() - started_s,
    )
    (folder / "history.txt").write_text(history_of(run))
    if outcome.failures:
        outcome.report = report(run, outcome)
    elif not keep:
        shutil.rmtree(folder)
    return outcome


def history_of(run: Run) -> str:
    """What happened, in order."""
    return "\n".join(f"{when_s:8.3f} s  {who}: {what}" for when_s, who, what, _ in run.history.events)


def report(run: Run, outcome: Outcome) -> str:
    """How to run it again, what went wrong, and what had happened."""
    lines = [
        f"FAILED: python tests/pipeline_crash {outcome.choice.arguments()}",
        f"  files: {outcome.folder}",
    ]
    return "\n".join([*lines, history_of(run)])


def random_of(seed: int, name: str) -> random.Random:
    """The random numbers of one part of a run: what others draw does not change them."""
    return random.Random(f"{name} of {seed}")
