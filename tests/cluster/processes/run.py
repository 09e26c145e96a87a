"""One run: nodes, clients that come and go between them, faults, the end of it, the verdict.

Everything that is chosen is chosen from the seed. Processes keep their own time, so a seed repeats the
choices and not each interleaving: run it again where a failure does not show at once.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from cluster.processes.agreement import PATIENT, compare, look_for_tombstones, wait_for_moves
from cluster.processes.chaos import CLOCKS, DISKS, FAULTS, IN_SPLITS, SPLITS, Chaos
from cluster.processes.gaps import excuse
from cluster.processes.guests import GUESTS, Guest, Host
from cluster.processes.logs import LogWatch
from cluster.processes.nodes import Nodes, Route
from crash.actors import FILTERS, TOPICS, Course, SubscribingActor, random_of
from crash.client import Publisher, Setting, Subscriber
from crash.disk import Disk
from crash.history import History, Interest, judge, judge_returns
from crash.retained import RetainedTopics
from crash.run import RUN_S, Clients, Outcome, conclude
from waiting import happens

CONNACK_S = 20.0  # a session may have to wait until its home is taken for dead
STALL_S = 60.0
SILENCE_S = 20.0
CONVERGED_S = 20.0  # from the last acknowledgement to the same retained messages on all nodes
QUIET_S = 1.0  # in which what was acknowledged would come again
ACTS = (2, 4)  # from and to
ACT_S = 60.0  # some 12 s on free cores


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What one run is; an empty value leaves it to the seed."""

    seed: int
    nodes: int = 0
    faults: tuple[str, ...] = ()  # in this order
    acts: int = 0  # so many faults are drawn
    splits: bool = False  # faults that are drawn begin with a split, and have more of them
    suspect_s: float = 4.0  # without a word of a node, which may just be slow
    traced: bool = False  # what nodes do to their rows is written down (`tracing.py`)

    def resolved(self) -> Choice:
        """With all that the seed decides."""
        choose = random_of(self.seed, "settings")
        kinds = IN_SPLITS if self.splits else FAULTS
        faults = tuple(choose.choice(kinds) for _ in range(self.acts or choose.randint(*ACTS)))
        if self.splits:
            faults = choose.choice(SPLITS), *faults[1:]
        return replace(self, nodes=self.nodes or choose.choice((3, 3, 4)), faults=self.faults or faults)

    def names(self) -> tuple[str, ...]:
        """Of its faults."""
        return self.faults

    def arguments(self) -> str:
        """The command that plays it again, for Python."""
        return (
            f"tests/cluster/processes --seed {self.seed} --nodes {self.nodes} "
            f"--faults {','.join(self.faults)} --suspect-s {self.suspect_s}"
        )


class ClusterRun:
    """The nodes and their clients for one run."""

    def __init__(self, choice: Choice, folder: Path) -> None:
        self.disk: Disk | None = None
        self.choice, self.history = choice, History()
        self.limit_s = max(RUN_S, ACT_S * len(choice.faults))
        self.excused: Counter[str] = Counter()  # failures of what is not yet promised
        self.choose = random_of(choice.seed, "run")
        self.course = Course(self.history, RetainedTopics(self.history))
        self.server = Nodes(folder, choice.nodes, self.history)
        publishers = [
            Publisher(self._setting(f"pub{number}"), window=self.choose.choice((1, 10, 50)))
            for number in range(self.choose.randrange(2, 5))
        ]
        takers = [self._taker(number) for number in range(self.choose.randrange(3, 6))]
        self.hosts: list[Host] = []
        self.clients = Clients(self.course, publishers, takers, stall_s=STALL_S, silence_s=SILENCE_S)

    def _taker(self, number: int) -> SubscribingActor:
        subscriber = Subscriber(self._setting(f"sub{number}"), self.course.find)
        filters = subscriber.choose.sample(FILTERS, subscriber.choose.randrange(1, 4))
        return SubscribingActor(subscriber, self.course, filters)

    def _setting(self, name: str) -> Setting:
        choose = random_of(self.choice.seed, f"route of {name}")
        moves, patient = choose.choice((0, 0, 0.3, 0.7)), choose.random() < 0.3
        route = Route(self.server, choose, moves=moves, patient=patient)
        return Setting(
            client_id=name,
            version=self.choose.choice((4, 5)),
            history=self.history,
            choose=random_of(self.choice.seed, name),
            place=route,
            connack_s=CONNACK_S,
            receive_maximum=self.choose.choice((1, 5, 20, 65_535)),
        )

    async def play(self) -> None:
        """From the first start of the nodes to the verdict, which is in the history."""
        settings: dict[str, object] = {
            "reactors": self.choose.choice((1, 2)),
            "cluster_suspect_s": self.choice.suspect_s,
            "cluster_skew_s_max": 3600.0 if "far-clock" in self.choice.faults else 5.0,
            "limits.inflight_max": self.choose.choice((1, 10, 1024)),
            "limits.queue_window_messages": self.choose.choice((1, 10, 1000)),
        }
        faults = set(self.choice.faults)
        await self.server.start(
            settings, clocks=bool(faults & CLOCKS), disks=bool(faults & DISKS), traced=self.choice.traced
        )
        async with asyncio.TaskGroup() as group:
            logs = LogWatch(self.server, self.history)
            watching = [
                group.create_task(each) for each in (self.server.watch(self.choice.suspect_s), logs.watch())
            ]
            self.clients.begin(group)
            guests = await self._invite(group)
            chaos = Chaos(
                self.server, self.course, random_of(self.choice.seed, "chaos"), self.choice.suspect_s
            )
            await chaos.play(self.choice.faults)
            await self.clients.finish()
            await self._see_guests_off()
            await self.clients.drain()
            await self._compare_retained()
            await self._settle()
            for each in watching:
                each.cancel()
            self.clients.end()
            for guest in guests:
                await guest.end()
        await compare(self.server, self.history)
        patient = self.choose.random() < PATIENT
        if patient:
            await wait_for_moves(self.choice.suspect_s)
        await self.server.stop()
        look_for_tombstones(self.server.all[0], self.history, patient=patient)
        await self.server.close_links()
        for host in self.hosts:
            await host.door.close()
        judge(self.history)
        self.excused = excuse(self.history)

    async def _invite(self, group: asyncio.TaskGroup) -> list[Guest]:
        """One client of each kind that is not of these tests."""
        guests: list[Guest] = []
        for make in GUESTS:
            name = make.__name__.lower()
            choose = random_of(self.choice.seed, name)
            route = Route(self.server, choose, moves=0.3, patient=False)
            host = Host(name, self.course, choose, route)
            await host.door.start()
            self.hosts.append(host)
            guests.append(make(host))
            await guests[-1].begin(group)
        return guests

    async def _see_guests_off(self) -> None:
        """Until each has its last acknowledgement, or has given up."""
        if not await happens(lambda: not any(each.busy for each in self.hosts), STALL_S):
            names = ", ".join(each.name for each in self.hosts if each.busy)
            self.history.fail("stalled", f"no acknowledgement for {STALL_S} s to {names}")

    async def _settle(self) -> None:
        """Everything is acknowledged, and two nodes know of it. Then one is killed, and all clients are on
        others: nothing comes again. What is published from each node comes to whom it is for, and to nobody
        else.
        """
        for taker in self.clients.takers:
            await self._barrier(taker.subscriber)
        settled = len(self.history.deliveries)
        self.server.patience = False
        dead = self.choose.choice(self.server.all)
        dead.server.kill()
        for taker in self.clients.takers:
            taker.subscriber.drop()
        await happens(self._is_everybody_there, CONNACK_S)
        await asyncio.sleep(QUIET_S)
        names = {taker.subscriber.client_id for taker in self.clients.takers}
        judge_returns(self.history, settled, f"the death of {dead.name}", of=names)
        await dead.server.start()
        await self._probe()

    def _is_everybody_there(self) -> bool:
        return all(each.subscriber.online for each in self.clients.takers)

    async def _barrier(self, subscriber: Subscriber) -> None:
        """Until the node has taken all that the client has sent: a SUBACK comes after that."""
        subscriber.subscribe(Interest(subscriber.client_id, f"barrier/{subscriber.client_id}", 1))
        if not await happens(lambda: subscriber.settled, CONVERGED_S):
            self.history.fail("stalled", f"no SUBACK for {CONVERGED_S} s", client=subscriber.client_id)

    async def _probe(self) -> None:
        """One message on each topic, through each node."""
        for number, node in enumerate(self.server):
            setting = replace(self._setting(f"probe{number}"), place=node.place)
            probe = Publisher(setting, window=len(TOPICS))
            for place, topic in enumerate(TOPICS):
                probe.publish(self.course.make(probe, place + 1, topic, 1))
            await self._until_done(probe)
            probe.leave()
        await self.clients.drain()

    async def _until_done(self, probe: Publisher) -> None:
        """A node that was killed refuses what comes before it knows what the others want: 3.1.1 is closed."""
        try:
            async with asyncio.timeout(CONVERGED_S):
                while not probe.done:
                    await probe.open()
                    while not (probe.done or await probe.lost(within_s=0.01)):
                        pass
        except TimeoutError:
            self.history.fail("stalled", f"no PUBACK for {CONVERGED_S} s", client=probe.client_id)

    async def _compare_retained(self) -> None:
        """All nodes come to have what was acknowledged last."""
        for node in self.server:
            await self._compare_with(replace(self._setting("reader"), place=node.place))

    async def _compare_with(self, setting: Setting) -> None:
        if not await happens(lambda: self.course.retained.is_right(setting), CONVERGED_S, poll_s=0.1):
            await self.course.retained.check(setting)


def play(choice: Choice) -> Outcome:
    """Plays one run and reports; its files stay where it failed."""
    choice = choice.resolved()
    folder = Path(tempfile.mkdtemp(prefix=f"tidemq-cluster-{choice.seed}-"))
    run = ClusterRun(choice, folder)
    outcome = conclude(run, folder)
    outcome.excused = run.excused
    return outcome
