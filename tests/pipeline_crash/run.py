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
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from crash.history import History
from crash.server import BrokerError, Server
from pipeline_crash.alarms import ALERTS, Alarmed, say_end
from pipeline_crash.cluster import Cluster, ClusterError, children_of
from pipeline_crash.jobs import DriverError, Job, Jobs
from pipeline_crash.publishing import FILTER, RULES, Publisher, Sent
from pipeline_crash.relay import Relay
from pipeline_crash.tables import COMMITS
from pipeline_crash.verdict import Found, judge, read
from waiting import happens

from tidemq.testing.ports import free_port

STREAM = "plant"
SPARK = ("executor", "worker", "master")
JOBS = ("alerts", "maintain", "refine")
VICTIMS = (
    *("driver", "broker", "driver's Java", "Python worker", "planner", "connections"),
    *SPARK,
    *JOBS,
)
TABLES = ("bronze", "silver/json", "silver/number", "dead_letters")
EVENTS = {  # by victim; "": a while after what was before
    "alerts": ("", "raised", "raised"),  # an alert has come
    "maintain": ("", "gathered", "gathered"),  # files begin to be put together
    "refine": ("begun",),
}
WRITTEN = ("", "written", "written", "committed")  # of a table that all others may be in the middle of
PROGRESS_S = 900.0  # within which bronze must have more, whatever was killed, and however busy the machine
MOMENT_S = 20.0  # to wait for the moment of a kill
ACKNOWLEDGED_S = 180.0  # the devices' last messages
ALARMED_S = 600.0  # the alerts of the last messages
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
        at = (
            f"as {self.table} is {self.event}".replace("  ", " ")
            if self.event
            else f"after {self.after_s:.2f} s"
        )
        return f"{self.victim} {at}" + ("" if self.recovered else ", without a batch before")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What one run is."""

    seed: int
    kills: int = 8
    format: str = "delta"  # of the tables; or iceberg
    forgetful: bool = False  # tables take a batch again that they have: this must be found out

    def plan(self) -> list[Kill]:
        """The driver, one of Spark's processes, the broker and the other jobs first, in any order; last all
        jobs at once, whose successors end with the last message.
        """
        choose = random_of(self.seed, "plan")
        if self.forgetful:
            return [Kill("driver", 0, "committed", "bronze")] * 2
        first = (
            ["driver", choose.choice(SPARK), "broker", *JOBS] if self.kills > 3 else ["executor", "broker"]
        )
        choose.shuffle(first)
        victims = first + [choose.choice(VICTIMS) for _ in range(self.kills - 1 - len(first))]
        kills = [self._kill(victim, choose) for victim in victims[: self.kills - 1]]
        return [*kills, self._kill("driver", choose)]

    def _kill(self, victim: str, choose: random.Random) -> Kill:
        event = choose.choice(EVENTS.get(victim, WRITTEN))
        tables = TABLES[1:3] if victim == "refine" else TABLES
        return Kill(
            victim,
            after_s=choose.uniform(0, 3),
            event=event,
            table=choose.choice(tables) if event else "",
            recovered=choose.random() < 0.85 or self.kills <= 3,
        )

    def arguments(self) -> str:
        """As the command line takes it."""
        more = " --forgetful" if self.forgetful else ""
        return f"--seed {self.seed} --kills {self.kills} --format {self.format}{more}"


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
        self.alarmed = Alarmed()
        self.jobs: Jobs | None = None

    async def play(self, cluster: Cluster) -> None:
        """From the broker's first start to the verdict, which is in the history."""
        url = f"http://127.0.0.1:{self._admin_port}"
        job = Job(url, STREAM, self.folder, cluster.master, self._rows_max, self.choice.format)
        job.rules.write_text(RULES)
        job.alert_rules.write_text(ALERTS)
        await self.server.start()
        async with Relay(self.server.port) as relay:
            mqtt = f"mqtt://127.0.0.1:{relay.port}"
            self.jobs = Jobs(job, mqtt, self.history, forgetful=self.choice.forgetful)
            listening = asyncio.create_task(self.alarmed.listen(mqtt))
            await asyncio.wait_for(self.alarmed.listening.wait(), ACKNOWLEDGED_S)
            self.jobs.driver.begin()
            self.jobs.alerts.begin()
            chaos = Chaos(self, self.jobs, cluster, relay)
            await self._published(mqtt, chaos)
            self.jobs.driver.begin(once=True)
            await self.jobs.driver.finish()
            self.found = await asyncio.to_thread(read, url, STREAM, job.folder, job.format)
            await self._alarmed(mqtt, listening)
            self.found.alerts, self.found.repeats_max = self.alarmed.came, chaos.interruptions
        for line in judge(self.sent.values(), self.found):
            self.history.fail("verdict", line)
        await self.server.stop()

    async def _published(self, mqtt: str, chaos: Chaos) -> None:
        """What devices do while everything is killed, until all of it is acknowledged."""
        async with asyncio.TaskGroup() as group:
            devices = [group.create_task(each.publish(mqtt)) for each in self.publishers]
            *kills, last = self.choice.plan()
            for kill in kills:
                await chaos.play(kill)
            await chaos.play_last(last)
            self.kills = len(kills) + 1
            await happens(lambda: len(self.sent) >= MESSAGES_MIN, ACKNOWLEDGED_S)
            for each in self.publishers:
                each.stopping = True
            _, late = await asyncio.wait(devices, timeout=ACKNOWLEDGED_S)
            if late:
                raise BrokerError(f"{len(late)} devices lack acknowledgements after {ACKNOWLEDGED_S} s")

    async def _alarmed(self, mqtt: str, listening: asyncio.Task[None]) -> None:
        """Until all alerts of all messages have come; in a longer run, a backtest says the same of them."""
        assert self.jobs is not None
        alerts, job = self.jobs.alerts, self.jobs.job
        end = max(row["offset"] for row in self.found.stream) + 1

        def done() -> bool:
            alerts.check()
            return job.alerts_done() >= int(end)

        if self.choice.kills > 3:
            self.jobs.backtest.start(job.backtest())
            await self.jobs.backtest.finish()
            self.found.backtest = self.jobs.backtest.lines()
        if not await happens(done, ALARMED_S, 0.1):
            raise DriverError(f"the alerts of all messages are not out after {ALARMED_S} s")
        alerts.kill()
        await say_end(mqtt)
        await asyncio.wait_for(listening, ACKNOWLEDGED_S)


class Chaos:
    """Kills, each at its moment, and starts again what does not come back by itself."""

    def __init__(self, run: Run, jobs: Jobs, cluster: Cluster, relay: Relay) -> None:
        self._server, self._devices, self._alarmed = run.server, run.publishers, run.alarmed
        self._history, self._choose = run.history, run.choose
        self._jobs, self._driver, self._cluster, self._relay = jobs, jobs.driver, cluster, relay
        self._commits = 0
        self._longer = run.choice.kills > 1
        self.interruptions = 0  # of those by whom alerts are published and passed on

    async def play(self, kill: Kill) -> None:
        """Waits for the moment and kills; what a supervisor would start begins again."""
        await self._moment(kill)
        if kill.victim in ("broker", "connections"):
            await self._lose_answers()
        self._history.note("chaos", f"kills {kill}")
        self.interruptions += kill.victim in ("broker", "connections", "alerts")
        await self._played(kill.victim)
        self._commits = self._count("bronze", "committed")

    async def _played(self, victim: str) -> None:
        if victim == "broker":
            await self._restart_broker()
        elif victim == "connections":
            self._relay.cut()
        elif victim == "driver":
            self._driver.kill()
            self._driver.begin()
        elif victim == "driver's Java":
            await self._driver.kill_java()
            self._driver.begin()
        elif victim in ("alerts", "maintain"):
            job = self._jobs.alerts if victim == "alerts" else self._jobs.maintain
            job.kill()
            job.begin()
        elif victim == "refine":
            self._jobs.refine.kill()  # ingest goes on with it
        elif victim == "master":
            await asyncio.to_thread(self._cluster.kill_master)
        elif victim == "worker":
            self._cluster.kill_worker(self._choose.randrange(2))
        else:
            self._end(victim)

    async def play_last(self, kill: Kill) -> None:
        """Kills all jobs at once, in longer runs while a rule is worked again; alerts get a successor."""
        await self._moment(kill, self._choose.choice(TABLES[1:3]) if self._longer else "")
        self._history.note("chaos", f"kills all jobs with the {kill}")
        self.interruptions += 1
        for job in (self._jobs.refine, self._jobs.maintain, self._jobs.alerts, self._driver):
            job.kill()
        self._jobs.alerts.begin()

    async def _moment(self, kill: Kill, refining: str = "") -> None:
        """Waits for it, and before that until there is something to kill, or a rule is worked again."""
        if kill.recovered:
            await self._until(lambda: self._count("bronze", "committed") > self._commits, PROGRESS_S, True)
        if not self._jobs.maintain.begun:
            await self._until(lambda: self._count("bronze", "committed") > 0, PROGRESS_S, True)
            self._jobs.maintain.begin()
        if refining or kill.event == "begun":
            await self._refining(refining or kill.table)
        if kill.event in ("", "begun"):
            await asyncio.sleep(kill.after_s)
        else:
            before = self._count(kill.table, kill.event)
            await self._until(lambda: self._count(kill.table, kill.event) > before, MOMENT_S, False)

    async def _refining(self, table: str) -> None:
        """A rule's messages are worked again, from any place; returns when that has begun."""
        refine = self._jobs.refine
        await refine.finish()
        before = self._jobs.job.working(table)
        start = self._choose.choice(("earliest", "earliest", "0", str(self._choose.randrange(2000))))
        refine.start(self._jobs.job.refine(table.removeprefix("silver/"), start))
        begun = lambda: not refine.running or self._jobs.job.working(table) != before  # noqa: E731
        await self._until(begun, PROGRESS_S, True, 0.2)

    async def _restart_broker(self) -> None:
        self._server.kill()
        self._relay.cut()
        await asyncio.sleep(self._choose.choice((0, 0.5, 3)))
        await self._server.start()
        self._relay.server_port = self._server.port

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
        if event == "raised":
            return len(self._alarmed.came)
        patterns = {
            "committed": COMMITS[self._jobs.job.format],
            "written": "batch-*",
            "gathered": "compact-*",
        }
        return len(list((self._jobs.job.folder / table).glob(patterns[event])))

    async def _until(
        self, happened: Callable[[], bool], within_s: float, must: bool, poll_s: float = 0.0
    ) -> None:
        deadline = time.monotonic() + within_s
        while not happened():
            self._jobs.check()
            if time.monotonic() > deadline:
                if must:
                    raise DriverError(f"no batch was committed within {within_s} s")
                return
            await asyncio.sleep(poll_s or (0.05 if must else 0.002))


def play(choice: Choice, *, keep: bool = False) -> Outcome:
    """Plays one run and reports; its files stay where it failed, or all the same with `keep`."""
    folder = Path(tempfile.mkdtemp(prefix=f"tidemq-pipeline-crash-{choice.seed}-"))
    started_s = time.monotonic()
    run = Run(choice, folder)
    try:
        with Cluster(folder) as cluster:
            asyncio.run(run.play(cluster))
    except* (BrokerError, DriverError, ClusterError) as group:
        logged = run.jobs.logged() if run.jobs else ""
        for error in group.exceptions:
            run.history.fail("stopped", f"{error}\n{logged}\n{run.server.logged()}")
    except* Exception:  # noqa: BLE001 (it is the verdict on this run)
        run.history.fail("harness", traceback.format_exc())
    finally:
        if run.jobs:
            run.jobs.kill()
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
