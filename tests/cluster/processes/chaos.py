"""What is done to the nodes while their clients are at work. One node at a time; then all are there again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from cluster.processes.gaps import CUT, FULL, SILENT, SPLIT
from cluster.processes.nodes import MEET_S, WATCH_S, Node, Nodes
from crash.actors import Course
from crash.history import NEVER, Fault, Split
from crash.server import BrokerError
from waiting import WAIT_S, happens

from tidemq.testing.links import Link

SPLITS = ("split", "split-kill", "one-way", "flap")  # longer than nodes take each other for there
CLOCKS = frozenset(("clock", "far-clock"))
DISKS = frozenset(("full", "slow-disk", "power"))
FAULTS = (
    *("kill", "death", "nats", "copies", "cut", "silence", "slow", "strand", "restart", "rolling"),
    *sorted(CLOCKS | DISKS),
)
IN_SPLITS = (
    *SPLITS,
    *SPLITS,
    *SPLITS,
    "kill",
    "death",
    "restart",
    "silence",
    "slow",
    "copies",
    *sorted(DISKS),
)
CLOCK_OFF_S = 2.0  # at most: of two nodes twice that, less than `cluster_skew_s_max`
FAR_OFF_S = 600.0


class Chaos:
    """The acts of one run. `faults`: kinds, of which each act has one."""

    def __init__(self, nodes: Nodes, course: Course, choose: random.Random, suspect_s: float) -> None:
        self.nodes, self.course, self.history, self.choose = nodes, course, course.history, choose
        self._short_s = suspect_s / 3  # in which nobody is taken for dead
        self._long_s = suspect_s + 1.0, suspect_s + 4.0  # in which all are that are not heard

    async def play(self, faults: tuple[str, ...]) -> None:
        """An act for each, in their order; ends with all nodes up."""
        acts: dict[str, Callable[[Node], Awaitable[None]]] = {
            "kill": self._kill,
            "death": self._death,
            "nats": self._nats,
            "copies": self._copies,
            "cut": self._cut,
            "silence": self._silence,
            "strand": self._strand,
            "restart": self._restart,
            "rolling": self._rolling,
            "slow": self._slow,
            "clock": self._clock,
            "far-clock": self._far_clock,
            "full": self._full,
            "slow-disk": self._slow_disk,
            "power": self._power,
            "split": self._split,
            "split-kill": self._split_and_kill,
            "one-way": self._split_one_way,
            "flap": self._flap,
        }
        for fault in faults:
            self.course.acts += 1
            await asyncio.sleep(self.choose.uniform(0.2, 0.8))
            await acts[fault](self.choose.choice(self.nodes.all))
        await asyncio.sleep(self.choose.uniform(0.1, 0.3))

    async def _kill(self, node: Node) -> None:
        """It is back before anybody thinks that it is dead, if the machine is quick."""
        node.server.kill()
        await asyncio.sleep(self.choose.uniform(0, 0.3))
        await node.server.start()

    async def _death(self, node: Node) -> None:
        """Its sessions go on elsewhere before it is back."""
        incarnation = self.nodes.incarnation(node)
        node.server.kill()
        if not await happens(lambda: self._is_taken_over(incarnation), WAIT_S, poll_s=0.1):
            raise BrokerError(f"nobody has taken over what {node.name} had")
        await asyncio.sleep(self.choose.uniform(0, 1.0))
        await node.server.start()

    def _is_taken_over(self, incarnation: str) -> bool:
        """Whether a node has said so since it went on with that one: in a split it may be before it dies."""
        logs = [each.said() for each in self.nodes]
        words, meeting = f"nobody waits for node {incarnation}", f"node {incarnation} and this one go on"
        return any(each.rfind(words) > each.rfind(meeting) for each in logs)

    async def _nats(self, node: Node) -> None:
        node.kill_nats_server()
        await asyncio.sleep(self.choose.uniform(0, 1.0))

    async def _copies(self, node: Node) -> None:
        node.delete_copies()
        await asyncio.sleep(self.choose.uniform(0, 1.5))

    async def _cut(self, node: Node) -> None:
        """Nobody reaches it, it reaches nobody, or both."""
        fault = self.history.begin_fault(CUT, node.name)
        for link, names in self._links_of(node):
            link.cut(*names)
        await self._heal(fault)

    async def _silence(self, node: Node) -> None:
        """The same, but nothing is lost of what was said."""
        fault = self.history.begin_fault(SILENT, node.name)
        for link, names in self._links_of(node):
            link.silence(*names)
        await self._heal(fault)

    def _links_of(self, node: Node) -> list[tuple[Link, list[str]]]:
        """Links to it, from it, or both, with whose words are meant."""
        others = [each for each in self.nodes if each is not node]
        to = [(node.peers, [self.nodes.incarnation(each) for each in others])]
        away = [(each.peers, [self.nodes.incarnation(node)]) for each in others]
        return self.choose.choice((to, away, to + away))

    async def _heal(self, fault: Fault) -> None:
        await asyncio.sleep(self.choose.uniform(0.02, self._short_s))
        for node in self.nodes:
            node.peers.heal()
        fault.ended_at = self.history.note(fault.broker, "is reached again")

    async def _strand(self, node: Node) -> None:
        """Its clients lose their connections, and it does not know yet when they connect elsewhere."""
        fault = self.history.begin_fault("does not know that its clients have gone", node.name)
        node.clients.strand()
        await asyncio.sleep(self.choose.uniform(0.05, 1.0))
        node.clients.forget()
        fault.ended_at = self.history.note(node.name, "knows it")

    async def _restart(self, node: Node) -> None:
        await node.server.stop()
        await node.server.start()

    async def _rolling(self, _node: Node) -> None:
        for node in self.nodes:
            await self._restart(node)
            await asyncio.sleep(self.choose.uniform(0, 0.3))

    async def _slow(self, node: Node) -> None:
        """What it says, is told, or both, comes late, and heartbeats in time."""
        late_s = self.choose.uniform(0.01, self._short_s)
        for link, names in self._links_of(node):
            link.slow(late_s, *names)
        self.history.fault(f"is {late_s:.2f} s late", node.name)
        await asyncio.sleep(self.choose.uniform(*self._long_s))
        for each in self.nodes:
            each.peers.heal()

    async def _clock(self, _node: Node, off_s: float = CLOCK_OFF_S) -> None:
        """Some are set, forth or back."""
        for node in self.choose.sample(self.nodes.all, self.choose.randint(1, len(self.nodes.all))):
            node.set_clock(self.choose.uniform(-off_s, off_s))
            await asyncio.sleep(self.choose.uniform(0, 0.5))

    async def _far_clock(self, node: Node) -> None:
        await self._clock(node, FAR_OFF_S)

    # --- disks -------------------------------------------------------------------------------------

    async def _full(self, node: Node) -> None:
        """Now and then it is killed meanwhile."""
        assert node.disk is not None
        node.disk.tell(full=1)
        fault = self.history.begin_fault(FULL, node.name)
        await asyncio.sleep(self.choose.uniform(0.2, self._long_s[1]))
        if self.choose.random() < 0.3:
            node.server.kill()
        node.disk.heal()
        fault.ended_at = self.history.note(node.name, "has room again")
        if not node.server.running:
            await node.server.start()

    async def _slow_disk(self, node: Node) -> None:
        assert node.disk is not None
        node.disk.tell(fsync_delay_us=int(self.choose.uniform(0.01, self._short_s) * 1e6))
        self.history.fault("has a slow disk", node.name)
        await asyncio.sleep(self.choose.uniform(*self._long_s))
        node.disk.heal()

    async def _power(self, node: Node) -> None:
        """The machine is without power for a moment: what was not synced is lost, copies for others too."""
        assert node.disk is not None
        node.server.kill()
        cost = node.disk.lose_power(self.choose, kept=self.choose.random() < 0.5)
        self.history.note(node.name, f"power is lost: {cost}")
        if self.choose.random() < 0.5:
            node.delete_copies()
        await asyncio.sleep(self.choose.uniform(0, 1.0))
        await node.server.start()

    # --- splits ------------------------------------------------------------------------------------

    def _sides(self) -> tuple[list[Node], list[Node]]:
        """All nodes, in two parts of which none is empty."""
        nodes = self.nodes.all[:]
        self.choose.shuffle(nodes)
        first = self.choose.randint(1, len(nodes) - 1)
        return nodes[:first], nodes[first:]

    def _part(self, to: list[Node], others: list[Node]) -> None:
        """Nobody of the others reaches these."""
        names = [self.nodes.incarnation(each) for each in others]
        for node in to:
            node.peers.cut(*names)

    def _begin_split(self, *, both_ways: bool = True) -> tuple[Fault, list[Node], list[Node]]:
        """Two sides, in one of which nobody hears the other, or in both."""
        one, other = self._sides()
        shown = " + ".join(each.name for each in one)
        fault = self.history.begin_fault(SPLIT, shown)
        self.history.splits.append(Split(frozenset(each.name for each in one), fault.at))
        self._part(one, other)
        if both_ways:
            self._part(other, one)
        return fault, one, other

    async def _split(self, _node: Node) -> None:
        fault, _, _ = self._begin_split()
        await asyncio.sleep(self.choose.uniform(*self._long_s))
        await self._end_split(fault)

    async def _split_and_kill(self, _node: Node) -> None:
        """One of them is killed meanwhile, and is back on its side."""
        fault, one, other = self._begin_split()
        await asyncio.sleep(self.choose.uniform(0.1, self._long_s[0]))
        node = self.choose.choice([*one, *other])
        node.server.kill()
        await asyncio.sleep(self.choose.uniform(0, 1.0))
        await node.server.start()
        await asyncio.sleep(self.choose.uniform(0.1, self._long_s[0]))
        await self._end_split(fault)

    async def _split_one_way(self, _node: Node) -> None:
        fault, _, _ = self._begin_split(both_ways=False)
        await asyncio.sleep(self.choose.uniform(*self._long_s))
        await self._end_split(fault)

    async def _flap(self, _node: Node) -> None:
        """One split after the other, of different shapes, with moments between them."""
        for _ in range(self.choose.randint(2, 4)):
            fault, _, _ = self._begin_split(both_ways=self.choose.random() < 0.7)
            await asyncio.sleep(self.choose.uniform(0.2, self._long_s[1]))
            self._heal_all(fault)
            await asyncio.sleep(self.choose.uniform(0, 1.0))
        await self._meet()

    async def _end_split(self, fault: Fault) -> None:
        self._heal_all(fault)
        if self.choose.random() < 0.8:
            await self._meet()

    async def _meet(self) -> None:
        """All know again what the others have done, and messages come to all."""
        await happens(lambda: self.history.splits[-1].met_at < NEVER, MEET_S + WATCH_S, poll_s=WATCH_S)
        self.course.acts += 1
        await asyncio.sleep(self.choose.uniform(0.5, 1.5))

    def _heal_all(self, fault: Fault) -> None:
        for node in self.nodes:
            node.peers.heal()
        self.history.splits[-1].ended_at = fault.ended_at = self.history.note(
            fault.broker, "is reached again"
        )
