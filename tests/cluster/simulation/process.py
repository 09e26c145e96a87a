"""A node's process in the simulation: the keeper and the neighbours are the real ones, without their threads;
the engine, the transport and the streams of copies are simulated.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from cluster.nodes import START_NS
from cluster.simulation.engine import Engine
from cluster.simulation.visitors import Journal, Visit
from cluster.simulation.world import World

from tidemq.cluster.exchange import BEAT, RECORDS
from tidemq.cluster.heartbeats import Heartbeats
from tidemq.cluster.host import ALONE_S, USE_ANOTHER_SERVER
from tidemq.cluster.identity import Identity
from tidemq.cluster.keeping import ClusterKeeper
from tidemq.cluster.members import BEAT_S
from tidemq.cluster.moves import SERVER_UNAVAILABLE
from tidemq.cluster.neighbours import KINDS, Neighbours
from tidemq.cluster.operations import Operation
from tidemq.cluster.reunions import MEET_S
from tidemq.cluster.snapshots import Giver
from tidemq.errors import ClusterError
from tidemq.store import Write
from tidemq.store.memory import MemoryStore

if TYPE_CHECKING:
    from cluster.simulation.visitors import Subscriber

SOON_S = (0.0005, 0.02)  # until a thread that was woken goes on
TURN_S = (0.0001, 0.004)  # until a reactor does, or an event loop
OPEN_S = (0.0, 0.0, 0.0, 0.03, 0.2)  # for so long something of sessions that are to leave is open
DECISION_S = 5.0  # then a CONNECT is refused; nobody is told before that its client has gone
WAITS_S = 0.06  # between two looks of the keeper while something is awaited
TICK_S = 0.15


class SimulatedKeeper(ClusterKeeper):
    """Without a thread: `turn` is what its loop does. Nothing that fails is passed over."""

    def turn(self, work: Any) -> None:
        """One piece of work, and what is done between two."""
        self._commit(work)
        self._do_the_rest(work)
        self._go_on()
        self._errands.answer()
        self._tend()

    def _try(self, act: Callable[[], None]) -> None:
        act()

    def _record(self, operations: list[Operation]) -> list[Write]:
        """Most turns change nothing, and histories are many."""
        return super()._record(operations) if operations or self.rows.has_changes else []

    def _look(self, now: float) -> None:
        """Nobody asks how the cluster is."""

    @property
    def owes(self) -> bool:
        """Whether the engine waits for an answer."""
        return bool(self._owed)


class SimulatedGiver(Giver):
    """Its frozen copy is in memory."""

    def _freeze(self, nonce: int) -> None:
        self._copy = copy.deepcopy(self._store)
        self._nonce = nonce


class Hosts(World):
    """The world of processes. `current`: the machine that something happens on."""

    def __init__(self, seed: int, count: int) -> None:
        super().__init__(seed, 0)
        self.current = 0
        self.hosts: dict[int, int] = {}  # machines by incarnation
        self.losing: set[tuple[int, int]] = set()  # directions in which records are lost
        self.open_s: tuple[float, ...] = OPEN_S
        self.journal = Journal()
        self.machines: list[Any] = [Host(self, index) for index in range(count)]

    def send(self, source: int, target: int, kind: str, *body: object) -> None:
        link = (source, target)
        if kind != RECORDS or link not in self.losing:
            super().send(source, target, kind, *body)

    def restore(self, link: tuple[int, int]) -> None:
        """It is as quick as others."""
        self.slow.pop(link, None)

    def lose(self, link: tuple[int, int]) -> None:
        """All that is under way on it."""
        self.broken[link] = self.broken.get(link, 0) + 1

    def cut_off(self, link: tuple[int, int]) -> None:
        """The connection of a node to another one's server breaks."""
        self.lose(link)
        self.cut.add(link)
        self._tell(link, is_reached=False)

    def connect(self, link: tuple[int, int]) -> None:
        """There is another connection."""
        if link in self.cut:
            self.cut.discard(link)
            self.journal.joined_at = self.now
            self._tell(link, is_reached=True)

    def _tell(self, link: tuple[int, int], *, is_reached: bool) -> None:
        source, target = (self.machines[each].broker for each in link)
        if source is not None and target is not None:
            source.keeper.inbox.take_reached(target.own, is_reached=is_reached)

    def wall_ns(self, index: int) -> int:
        """The wall clock of a machine."""
        return START_NS + int(self.now * 1e9) + int(self.machines[index].skew_ns)


class Host:
    """A machine: its disk, its wall clock, the copies that its `nats-server` has, and a process that may run.

    Each batch of the keeper is durable when it is written, so that a kill loses what was in memory alone.
    """

    def __init__(self, world: Hosts, index: int) -> None:
        self.world = world
        self.index = index
        self.name = f"n{index + 1}"
        self.skew_ns = 0
        self.copies: dict[int, dict[int, bytes]] = {}
        self.store = MemoryStore()
        self.broker: Process | None = None
        self.has_left = False

    def wipe(self) -> None:
        """Another disk."""
        self.store = MemoryStore()

    def start(self) -> None:
        """Its process, if none runs."""
        if self.broker is None:
            self.store.open()
            self.has_left = False
            self.world.current = self.index
            self.broker = Process(self)

    def kill(self) -> None:
        """Its process ends at once, and with it, now and then, what it has sent."""
        if self.broker is not None:
            self.broker.end()
            if self.world.choose.random() < 0.5:
                for other in range(len(self.world.machines)):
                    self.world.lose((self.index, other))
        self.broker = None


class Process:
    """One start of a node."""

    def __init__(self, host: Host) -> None:
        self.host, self.world = host, host.world
        self.is_over = False
        self._skew_ns = host.skew_ns  # the engine's clock is monotonic
        self._turn_at = self._neighbours_at = self._engine_at = float("inf")
        self._stands_until = 0.0  # the disk
        choose = self.world.choose
        self.engine = Engine(
            host.store,
            self._now,
            self._wall_ns,
            self.poke,
            self._poke_neighbours,
            self._wake_engine,
            lambda: choose.choice(self.world.open_s),
            choose.getrandbits(40),
        )
        access: Any = self.engine
        identity = Identity("c", host.name, host.name)
        self._begun_at = self.world.now
        self.phase = "joins"
        self._heartbeats = Heartbeats(
            partial(self._send_to_all, BEAT), self._now, wall_ns=partial(self.world.wall_ns, host.index)
        )
        self.neighbours = Neighbours(access, self.send)
        self.keeper = SimulatedKeeper(host.store, access, identity=identity, links=self)
        self.keeper.load()
        self.world.hosts[self.own] = host.index
        self.poke()

    @property
    def own(self) -> int:
        """Its incarnation."""
        return self.keeper.node.incarnation

    @property
    def serves(self) -> bool:
        """Whether clients are let in."""
        return self.phase == "serves"

    def _now(self) -> float:
        return self.world.now

    def _wall_ns(self) -> int:
        return START_NS + int(self.world.now * 1e9) + self._skew_ns

    def end(self) -> None:
        """The process is gone."""
        self.is_over = True
        self.engine.disconnect_all()

    # --- what its threads do -----------------------------------------------------------------------

    def poke(self) -> None:
        """The keeper has something to do."""
        self._turn_within(self.world.choose.uniform(*SOON_S))

    def _turn_within(self, delay_s: float) -> None:
        when = max(self.world.now + delay_s, self._stands_until)
        if when < self._turn_at:
            self._turn_at = when
            self.world.at(when - self.world.now, partial(self._turn, when))

    def stand(self, for_s: float) -> None:
        """The keeper waits for its disk."""
        self._stands_until = self.world.now + for_s
        self._turn_at = float("inf")
        self.poke()
        self._look()

    def _look(self) -> None:
        """As the thread of heartbeats, which has something to do only then."""
        if not self.is_over and self.world.now < self._stands_until:
            self.world.current = self.host.index
            self._heartbeats.look(self.world.now)
            self.world.at(BEAT_S / 3, self._look)

    def _turn(self, when: float) -> None:
        if self.is_over or when != self._turn_at:
            return
        self._turn_at = float("inf")
        self.world.current = self.host.index
        keeper = self.keeper
        work: Any = self.engine.take_work()
        keeper.turn(work)
        if keeper.membership.verdict:
            self.world.journal.wrong("refused", keeper.membership.verdict)
            self.host.kill()
            return
        self._go_on()
        busy = self.phase != "serves" or keeper.moves.is_waiting or keeper.owes
        self._turn_within(WAITS_S if busy else TICK_S)

    def _go_on(self) -> None:
        """As `ClusterHost` does."""
        keeper, passed = self.keeper, self.world.now - self._begun_at
        if self.phase == "joins" and (keeper.is_up_to_date or (passed > ALONE_S and not self._others())):
            keeper.load_engine()
            self.neighbours.begin()
            self.phase, self._begun_at = "meets", self.world.now
            self._poke_neighbours()
        elif self.phase == "meets" and (keeper.moves.reunions.may_serve(self.world.now) or passed > MEET_S):
            keeper.serve()
            self.phase = "serves"
        elif self.phase == "drains":
            self.engine.disconnect_all()
            if keeper.is_settled and self.neighbours.is_idle() and not self.engine.has_clients:
                keeper.draining.leave()
                self.phase = "leaves"
        elif self.phase == "leaves" and keeper.draining.phase == "left":
            self.host.kill()
            self.host.has_left = True

    def _wake_engine(self) -> None:
        delay_s = self.world.choose.uniform(*TURN_S)
        when = self.world.now + delay_s
        if when < self._engine_at:
            self._engine_at = when
            self.world.at(delay_s, partial(self._turn_engine, when))

    def _turn_engine(self, when: float) -> None:
        if not self.is_over and when == self._engine_at:
            self._engine_at = float("inf")
            self.world.current = self.host.index
            self.engine.turn()

    def _poke_neighbours(self) -> None:
        self._neighbours_within(self.world.choose.uniform(*SOON_S))

    def _neighbours_within(self, delay_s: float) -> None:
        when = self.world.now + delay_s
        if when < self._neighbours_at and self.phase != "joins":
            self._neighbours_at = when
            self.world.at(delay_s, partial(self._turn_neighbours, when))

    def _turn_neighbours(self, when: float) -> None:
        if not self.is_over and when == self._neighbours_at:
            self._neighbours_at = float("inf")
            self.neighbours.turn(self.engine.take_batches())
            self._neighbours_within(TICK_S)

    # --- clients -----------------------------------------------------------------------------------

    def connect(self, client: Subscriber, *, clean: bool) -> Visit:
        """CONNECT."""
        visit = Visit(self, client, clean=clean)
        if self.phase != "serves":
            self.engine.session_ready(visit, USE_ANOTHER_SERVER)
            return visit
        answer = self.keeper.connect(client.name, clean)

        def ready(future: Any) -> None:
            reason = SERVER_UNAVAILABLE if future.cancelled() else future.result()
            self.world.at(
                self.world.choose.uniform(*TURN_S), lambda: self.engine.session_ready(visit, reason)
            )

        def refuse() -> None:
            answer.cancel()

        answer.add_done_callback(ready)
        self.world.at(DECISION_S, refuse)
        return visit

    def drain(self) -> None:
        """The node is to leave."""
        if self.phase == "serves" and self._others():
            try:
                self.keeper.draining.begin(self.world.now)
            except ClusterError:
                return
            self.phase = "drains"
            self.engine.disconnect_all()

    # --- links -------------------------------------------------------------------------------------

    def _others(self) -> list[int]:
        """Incarnations of the other processes that run and are reached."""
        found = []
        for host in self.world.machines:
            link = (self.host.index, host.index)
            if host.broker is not None and host is not self.host and link not in self.world.cut:
                found.append(host.broker.own)
        return found

    def send(self, to: int, kind: str, body: Any) -> None:
        if to in self.world.hosts:
            self.world.send(self.host.index, self.world.hosts[to], kind, self.own, to, body)

    def broadcast(self, kind: str, body: bytes) -> None:
        if kind == BEAT:
            self._heartbeats.say(body)
        else:
            self._send_to_all(kind, body)

    def _send_to_all(self, kind: str, body: bytes) -> None:
        for each in self._others():
            self.send(each, kind, body)

    def take(self, _index: int, kind: str, source: int, to: int, body: Any) -> None:
        """What another process has sent."""
        if to != self.own or self.is_over:
            return
        self.world.current = self.host.index
        act = getattr(self, f"_on_{kind}", None)
        if act is not None:
            act(source, body)
        elif kind in KINDS:
            self.neighbours.take(kind, source, body)
        else:
            self.keeper.inbox.take_in(kind, source, body)

    def copy(self, to: int, records: Sequence[tuple[int, bytes]]) -> None:
        self.send(to, "copies", list(records))

    def _on_copies(self, source: int, records: list[tuple[int, bytes]]) -> None:
        kept = self.host.copies.setdefault(source, {})
        if kept and records[0][0] > max(kept) + 1:
            self.send(source, "lost", max(kept) + 1)
        else:
            kept.update(records)
            self.send(source, "copied", max(kept))

    def _on_copied(self, source: int, number: int) -> None:
        self.keeper.inbox.take_copied(source, number)

    def _on_lost(self, source: int, number: int) -> None:
        self.keeper.inbox.take_lost(source, number)

    def trim(self, number: int) -> None:
        for host in self.world.machines:
            kept = host.copies.get(self.own, {})
            for each in [each for each in kept if each <= number]:
                del kept[each]

    def fetch(self, holder: int, incarnation: int, first: int, last: int) -> None:
        if holder == self.own:
            self._on_wanted(self.own, (incarnation, first, last))
        else:
            self.send(holder, "wanted", (incarnation, first, last))

    def _on_wanted(self, source: int, wanted: tuple[int, int, int]) -> None:
        incarnation, first, last = wanted
        kept = self.host.copies.get(incarnation, {})
        found = [kept[number] for number in range(first, last + 1) if number in kept]
        if found and source == self.own:
            self._on_found(source, found)
        elif found:
            self.send(source, "found", found)

    def _on_found(self, source: int, records: list[bytes]) -> None:
        self.keeper.inbox.take_fetched(source, records)

    def ask_for_last(self, incarnation: int) -> None:
        self.keeper.inbox.take_last(incarnation, max(self.host.copies.get(incarnation, {}), default=0))

    def meet(self, incarnation: int, address: str) -> None:
        """All know where the others are."""

    def greet(self, incarnation: int) -> None:
        self.neighbours.meet(incarnation)

    def use_format(self, number: int) -> None:
        """There is one."""

    def announce(self, *, flush: bool = False) -> int:
        return self.neighbours.announce(flush=flush)

    def announced(self, number: int) -> Collection[int] | None:
        members = self.keeper.node.members
        return self.neighbours.announced(number, lambda node: members.is_live(node, self.world.now))

    def has_met(self, incarnation: int) -> bool:
        return self.neighbours.has_met(incarnation)

    def part(self, incarnation: int) -> None:
        self.neighbours.part(incarnation)
        self._poke_neighbours()

    def expect(self, incarnation: int, filters: list[str]) -> None:
        self.neighbours.expect(incarnation, filters)
        self._poke_neighbours()

    def hold(self, client: str, incarnation: int, filters: list[str]) -> bool:
        held: bool = self.neighbours.holding.hold(client, incarnation, filters)
        self._poke_neighbours()
        return held

    def let_go(self, client: str) -> None:
        self.neighbours.holding.let_go(client)
        self._poke_neighbours()

    def open(self, incarnation: int) -> None:
        self.neighbours.open(incarnation)

    def apart(self) -> Collection[int]:
        return self.neighbours.apart()

    def given_so_far(self) -> list[int]:
        return self.neighbours.given_so_far()

    def has_acted_on(self, given: Sequence[int]) -> bool:
        return self.neighbours.has_acted_on(given)

    def taken_so_far(self) -> list[tuple[int, int, int]] | None:
        return self.neighbours.taken_so_far()

    def forget_copies(self, incarnation: int, number: int) -> None:
        if max(self.host.copies.get(incarnation, {}), default=0) <= number:
            self.host.copies.pop(incarnation, None)

    def drop(self, incarnation: int) -> None:
        self.neighbours.forget(incarnation)

    def refuse(self, incarnation: int) -> None:
        self.neighbours.refuse(incarnation)

    def taken_over(self, incarnation: int) -> None:
        self.neighbours.settle(incarnation)
