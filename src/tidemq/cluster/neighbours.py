"""Other nodes as receivers of the engine's messages: what each wants, and batches to and from it.

One thread takes batches off the engine, puts what has come into it, and tells the others what this node wants
of them. A node has a slot of the engine's until it is a member no more.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf

from tidemq.cluster.flushes import SETTLE_S, Flushes
from tidemq.cluster.holding import Holding
from tidemq.cluster.interest import GONE, Interest, encode_interest, parse_interest
from tidemq.cluster.mailboxes import (
    BATCH,
    FLUSH,
    FLUSHED,
    INTEREST,
    LIVES_BITS,
    PART,
    Arriving,
    Letter,
    Outgoing,
)
from tidemq.engine.door.node_access import NODES_MAX, NodeAccess
from tidemq.errors import ClusterError, RefusedError, UsageError

LETTER, ANSWER = "letter", "letter-answer"
KINDS = (LETTER, ANSWER)
SHARED = "$share/"
TURN_S = 0.02  # between two looks at what this node wants, and at what is to be sent again
CAME_MAX = 4096  # messages that wait
FILTERS_AT_ONCE = 5000  # in one letter

_log = logging.getLogger("tidemq.cluster")


@dataclass(slots=True)
class Neighbour:
    """Another node."""

    slot: int
    outgoing: Outgoing
    arriving: Arriving = field(default_factory=Arriving)
    wanted: dict[str, int] = field(default_factory=dict)
    doubtful: set[str] = field(default_factory=set)  # of these, what it has not named since it began anew
    has_said_all: bool = False  # what it wants, since it was started
    greeting: int = 0  # the letter by which it knows all that this node wanted when they met
    is_apart: bool = False  # what either had sent is void, and they begin anew when all have met
    was_dead: bool = False  # and nothing goes to it until then
    held: dict[str, int] = field(default_factory=dict)  # changes of what it wants that count then
    opens_at: float = inf  # while it is apart, and all have met
    is_dead: bool = False

    @property
    def is_open(self) -> bool:
        """Whether batches go to it, and come."""
        return not (self.is_dead or self.is_apart)


@dataclass(slots=True)
class Announcement:
    """The letters that must have arrived, and where; and nodes that may not know it, or have not said that
    what they sent before has arrived.
    """

    letters: list[tuple[int, Outgoing, int]]
    passed_over: set[int]


class Neighbours:
    """`send` passes a message on to a node. `counts`: `cluster_letters_refused`, of other nodes;
    `cluster_letters_dropped`, which come again; `cluster_letters_void`, for nodes that were parted with.
    """

    def __init__(self, access: NodeAccess, send: Callable[[int, str, bytes], object]) -> None:
        self._access = access
        self._send = send
        self._life = (secrets.randbits(63 - LIVES_BITS) | 1) << LIVES_BITS
        self._lock = threading.Lock()  # over what follows
        self._came: deque[tuple[str, int, bytes]] = deque()
        self._known: set[int] = set()  # nodes to be served
        self._dead: set[int] = set()  # nodes whose answers nobody waits for
        self._refused: set[int] = set()  # nodes that will not answer what they were asked until now
        self._parts: set[int] = set()  # nodes to be parted with
        self._opens: set[int] = set()  # nodes to be opened to
        self._gone: set[int] = set()  # members no more
        self._expected: dict[int, list[str]] = {}  # nodes that are not there, and what they want
        self._wanted = 0  # how often `announce` was asked
        self._announced = 0  # for so many of these letters are put
        self._said: dict[int, Announcement] = {}  # by that
        self._flushes = Flushes()
        self._nodes: dict[int, Neighbour] = {}
        self.holding = Holding(access, self._nodes)
        self._free = [(-inf, slot) for slot in range(NODES_MAX)]  # since when
        self._interest: Interest = {}
        self._closes = False
        self.problem = ""  # why no messages go to other nodes any more
        self.counts: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._run, name="tidemq-neighbours", daemon=True)

    def start(self) -> None:
        """The engine has started."""
        self._thread.start()

    def close(self) -> None:
        """Nothing goes out any more."""
        self._closes = True
        self._access.close()
        if self._thread.ident is not None:
            self._thread.join()

    # --- from any thread ---------------------------------------------------------------------------

    def meet(self, node: int) -> None:
        """There is a node."""
        with self._lock:
            self._known.add(node)
            self._dead.discard(node)

    def take(self, kind: str, node: int, body: bytes) -> None:
        """A message of another node."""
        with self._lock:
            if len(self._came) < CAME_MAX:
                self._came.append((kind, node, body))
            else:
                self.counts["cluster_letters_dropped"] += 1
        self._access.poke()

    def has_met(self, node: int) -> bool:
        """Whether this node and that one know what each of them wants."""
        with self._lock:
            found = self._nodes.get(node)
            if found is None or node in self._parts:
                return False
            return found.has_said_all and found.outgoing.answered >= found.greeting

    def part(self, node: int) -> None:
        """As in `Links`."""
        with self._lock:
            self._parts.add(node)
            self._opens.discard(node)

    def expect(self, node: int, filters: list[str]) -> None:
        """As in `Links`."""
        with self._lock:
            self._expected[node] = filters

    def open(self, node: int) -> None:
        """As in `Links`."""
        with self._lock:
            self._opens.add(node)

    def apart(self) -> set[int]:
        """As in `Links`."""
        with self._lock:
            return self._parts | {each for each, node in self._nodes.items() if node.is_apart}

    def announce(self, *, flush: bool = False) -> int:
        """As in `Links`."""
        with self._lock:
            self._wanted += 1
            number = self._wanted
            if flush:
                self._flushes.want(number)
        self._access.poke()
        return number

    def announced(self, number: int, is_live: Callable[[int], bool]) -> set[int] | None:
        """As in `Links`."""
        with self._lock:
            said = self._said.get(number)
            if said is None:
                return None
            missed = set(said.passed_over)
            for each, outgoing, last in said.letters:
                node = self._nodes.get(each)
                if node is None:  # a member no more
                    continue
                begun_anew = node.outgoing is not outgoing
                knows = node.outgoing.answered >= (node.greeting if begun_anew else last)
                if not (knows or node.is_dead) and is_live(each):
                    return None
                if begun_anew or not knows:
                    missed.add(each)
            if not self._flushes.is_done(number):
                return None
            del self._said[number]
            return missed

    def use_format(self, number: int) -> None:
        """As in `Links`."""
        self._access.use_format(number)

    def taken_so_far(self) -> list[tuple[int, int, int]] | None:
        """As in `Links`."""
        try:
            return self._access.taken_so_far()
        except UsageError:  # it has been closed
            return None

    def given_so_far(self) -> list[int]:
        """As in `Links`."""
        try:
            return self._access.given_so_far()
        except UsageError:  # it has been closed
            return []

    def has_acted_on(self, given: Sequence[int]) -> bool:
        """As in `Links`."""
        try:
            return self._access.has_acted_on(given)
        except UsageError:
            return True

    def is_idle(self) -> bool:
        """Whether everything has arrived that goes to nodes that are there."""
        nodes = list(self._nodes.values())
        return all(node.is_dead or node.outgoing.answered == node.outgoing.last for node in nodes)

    def refuse(self, node: int) -> None:
        """As in `Links`."""
        with self._lock:
            self._refused.add(node)

    def settle(self, node: int) -> None:
        """A dead node's sessions are elsewhere: what it was asked is refused, and it is asked nothing."""
        with self._lock:
            self._dead.add(node)
            self._known.discard(node)

    def forget(self, node: int) -> None:
        """A node is a member no more, and will not come back."""
        self.settle(node)
        with self._lock:
            self._gone.add(node)

    # --- the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self.begin()
            while not self._closes:
                taken = self._access.take(TURN_S)
                if taken is None:
                    return
                self.turn(taken)
        except Exception:  # noqa: BLE001 - the thread ends, and says so
            if not self._closes:
                self.problem = "messages do not reach other nodes any more, see the log: start the node again"
                _log.exception("messages do not reach other nodes any more")

    def begin(self) -> None:
        """Before the first turn."""
        self._interest = self._members(self._access.all_interest())

    def turn(self, taken: list[tuple[int, bytes]]) -> None:
        """Does what there is to do, with these batches of the engine's, by slot."""
        slots = {node.slot: node for node in self._nodes.values()}
        for slot, batch in taken:
            node = slots.get(slot)
            if node is None or node.is_dead:
                self._access.sent(slot, len(batch))
            elif node.is_apart:
                self._drop(node, batch)
            else:
                node.outgoing.put(BATCH, batch)
        with self._lock:
            known, dead, wanted = set(self._known), set(self._dead), self._wanted
            came = list(self._came)
            self._came.clear()
            refused = [self._nodes[each] for each in self._refused if each in self._nodes]
            self._refused.clear()
            parts, opens, gone = set(self._parts), set(self._opens), set(self._gone)
            self._opens.clear()
            self._gone.clear()
            expected, self._expected = self._expected, {}
        for each in parts:
            self._void(each)
        for each in opens:
            self._prepare_to_open(each)
        for node in refused:
            self._access.settle(node.slot, 0x80)
        for each in dead:
            self._bury(each)
        for each in gone:
            self._forget(each)
        for each in known:
            self._greet(each)
        for each, filters in expected.items():
            self._expect(each, filters)
        self.holding.turn()
        self._tell_interest()
        with self._lock:
            for number in range(self._announced + 1, wanted + 1):
                self._ask_to_flush(number)
                self._said[number] = Announcement(
                    [(each, node.outgoing, node.outgoing.last) for each, node in self._nodes.items()],
                    {each for each, node in self._nodes.items() if node.is_apart},
                )
            self._announced = wanted
        for kind, source, body in came:
            self._take(kind, source, body)
        now = time.monotonic()
        self._open_all(now)
        self._flush(now)
        for incarnation, node in self._nodes.items():
            for text in node.outgoing.due(now) if not node.is_dead else ():
                self._send(incarnation, LETTER, text)

    def _ask_to_flush(self, number: int) -> None:
        """All, this node too, are to say when that has arrived which they sent before they knew. With the
        lock.
        """
        if not self._flushes.is_wanted(number):
            return
        there = [each for each, node in self._nodes.items() if node.is_open]
        for each in there:
            self._nodes[each].outgoing.put(FLUSH, number.to_bytes(8))
        self._flushes.begin(number, there)

    def _flush(self, now: float) -> None:
        """Answers who has asked for it."""
        outgoing = [node.outgoing for node in self._nodes.values() if node.is_open]
        apart = {each for each, node in self._nodes.items() if node.is_apart}
        with self._lock:
            for source, number in self._flushes.take_done(outgoing, apart, now):
                node = self._nodes.get(source)
                if node is not None and not node.is_dead:
                    node.outgoing.put(FLUSHED, number.to_bytes(8))

    def _greet(self, incarnation: int) -> None:
        """A node that is new, or back, hears all that this one wants."""
        node = self._nodes.get(incarnation)
        if node is None:
            slot = self._free_slot()
            if slot is None:  # one gets free in a moment: there are more slots than other members
                return
            node = Neighbour(slot, Outgoing(self._life))
            with self._lock:
                self._nodes[incarnation] = node
        elif not node.is_dead:
            return
        else:
            node.is_dead, node.was_dead = False, True
            node.arriving.end_life()
            self._part(incarnation, node)
            return
        self._put_all_interest(node)

    def _expect(self, incarnation: int, filters: list[str]) -> None:
        if incarnation not in self._nodes:
            self._greet(incarnation)
        node = self._nodes.get(incarnation)
        if node is None or node.is_dead or node.has_said_all:
            return
        with self._lock:
            node.is_apart = True
        try:
            self._take_interest(node, dict.fromkeys(filters, 0))
        except (RefusedError, UsageError) as error:  # there are as many as there may be
            self._say_refused(incarnation, error)
        node.doubtful = set(node.wanted)

    def _free_slot(self) -> int | None:
        since, slot = min(self._free, default=(inf, 0))
        if since + SETTLE_S > time.monotonic():  # the engine may have written for who had it
            return None
        self._free.remove((since, slot))
        if since != -inf:
            self._access.settle(slot, 0x80)
            self._access.reset_node(slot)
        return slot

    def _forget(self, incarnation: int) -> None:
        self._bury(incarnation)
        with self._lock:
            self._dead.discard(incarnation)
            node = self._nodes.pop(incarnation, None)
        if node is not None:
            self._free.append((time.monotonic(), node.slot))

    def _void(self, incarnation: int) -> None:
        """What a node has sent is void, unless it has sent nothing since it was so before."""
        node = self._nodes.get(incarnation)
        if node is not None and (node.arriving.has_begun or not node.is_apart):
            node.arriving.end_life()
            self._part(incarnation, node)
        with self._lock:
            self._parts.discard(incarnation)

    def _part(self, incarnation: int, node: Neighbour) -> None:
        """What was sent to it is void."""
        if not node.is_apart or node.was_dead:
            _log.info("node %016x and this one part: what is on its way between them is refused", incarnation)
        for letter in node.outgoing.forget():
            if letter.kind == BATCH:
                self._drop(node, letter.body)
        with self._lock:
            self._flushes.forget(incarnation)
            node.is_apart, node.has_said_all, node.opens_at = True, False, inf
            node.outgoing = Outgoing(node.outgoing.life + 1)
        self._put_all_interest(node)

    def _renew(self, incarnation: int, node: Neighbour) -> None:
        """Its process is a new one, which knows nothing of what came before, and serves the same sessions."""
        if node.is_apart:
            self._part(incarnation, node)
            return
        self._refuse(node)
        with self._lock:
            self._flushes.forget(incarnation)
            node.outgoing, node.has_said_all = Outgoing(node.outgoing.life + 1), False
        self._put_all_interest(node)
        with self._lock:
            for said in self._said.values():
                said.letters = [
                    (each, node.outgoing, node.outgoing.last)
                    if each == incarnation
                    else (each, outgoing, last)
                    for each, outgoing, last in said.letters
                ]

    def _drop(self, node: Neighbour, batch: bytes) -> None:
        """Publishers that wait for an answer are refused later."""
        self.counts["cluster_letters_void"] += 1
        self._access.sent(node.slot, len(batch))

    def _prepare_to_open(self, incarnation: int) -> None:
        """All know what all want. What the engine matched before is a batch after a while, and is refused."""
        node = self._nodes.get(incarnation)
        if node is None or not node.is_apart or node.opens_at != inf:
            return
        held, node.held = node.held, {}
        try:
            self._take_interest(node, held)
        except (RefusedError, UsageError) as error:
            self._say_refused(incarnation, error)
            self.part(incarnation)  # it says all that it wants anew
        else:
            node.opens_at = time.monotonic() + SETTLE_S

    def _open_all(self, now: float) -> None:
        for incarnation, node in self._nodes.items():
            if node.is_apart and node.opens_at <= now:
                _log.info("node %016x and this one go on", incarnation)
                node.is_apart, node.was_dead, node.opens_at = False, False, inf
                self._access.settle(node.slot, 0x80)

    def _take_interest(self, node: Neighbour, known: Interest) -> None:
        self._change(
            node, {text: known[text] for text in known if node.wanted.get(text, GONE) != known[text]}
        )
        _update(node.wanted, list(known.items()))

    def _put_all_interest(self, node: Neighbour) -> None:
        """Begins with what is void, and ends with an empty letter."""
        node.outgoing.put(PART, node.arriving.void.to_bytes(8))
        self._put_interest(node, list(self._interest.items()))
        node.greeting = node.outgoing.put(INTEREST, b"[]")

    def _put_interest(self, node: Neighbour, changes: list[tuple[str, int]]) -> None:
        for at in range(0, len(changes), FILTERS_AT_ONCE):
            node.outgoing.put(INTEREST, encode_interest(changes[at : at + FILTERS_AT_ONCE]))

    def _tell_interest(self) -> None:
        said = self._access.interest_changes()
        now = self._members([text for text, there in said if there])
        now |= {text: GONE for text, there in said if not there}
        changes = [(text, count) for text, count in now.items() if self._interest.get(text, GONE) != count]
        if not changes:
            return
        _update(self._interest, changes)
        for node in self._nodes.values():
            if not node.is_dead:
                self._put_interest(node, changes)

    def _members(self, filters: list[str]) -> Interest:
        groups = [each for each in filters if each.startswith(SHARED)]
        return dict.fromkeys(filters, 0) | dict(zip(groups, self._access.members_online(groups), strict=True))

    def _change(self, node: Neighbour, changes: Interest) -> None:
        """Tells the engine what a node wants."""
        plain = {text: count for text, count in changes.items() if not text.startswith(SHARED)}
        groups = [(text, count) for text, count in changes.items() if text.startswith(SHARED)]
        self._access.change_filters(
            node.slot,
            [text for text, count in plain.items() if count == GONE],
            [text for text, count in plain.items() if count != GONE],
        )
        self._access.change_groups(node.slot, groups)

    def _bury(self, incarnation: int) -> None:
        node = self._nodes.get(incarnation)
        if node is None or node.is_dead:
            return
        node.is_dead = True
        node.wanted, node.held = {}, {}
        with self._lock:
            self._flushes.forget(incarnation)
        self._access.drop_node(node.slot)
        self._refuse(node)

    def _refuse(self, node: Neighbour) -> None:
        """All that the node was asked and has not answered."""
        for letter in node.outgoing.forget():
            if letter.kind == BATCH:
                self._access.sent(node.slot, len(letter.body))
        self._access.settle(node.slot, 0x80)

    def _take(self, kind: str, source: int, body: bytes) -> None:
        node = self._nodes.get(source)
        if node is None or node.is_dead:
            return  # it sends again
        try:
            if kind == ANSWER:
                for letter in node.outgoing.arrived(body):
                    if letter.kind == BATCH:
                        self._access.sent(node.slot, len(letter.body))
                return
            if node.arriving.is_of_another_process(body):
                if node.is_apart:  # it is to part as well: what it says that it wants does not count here yet
                    node.arriving.avoid(body)
                self._renew(source, node)
            letter_come = node.arriving.take(body)
            if letter_come is not None and self._act(source, node, letter_come):
                node.arriving.took(letter_come)
            self._send(source, ANSWER, node.arriving.answer)
        except (ClusterError, UsageError, RefusedError, ValueError) as error:
            if self._closes:
                return
            self._say_refused(source, error)

    def _say_refused(self, source: int, error: Exception) -> None:
        self.counts["cluster_letters_refused"] += 1
        _log.error("what node %016x has sent is refused: %s", source, error)

    def _act(self, source: int, node: Neighbour, letter: Letter) -> bool:
        """False: there is no room for it now."""
        if letter.kind == BATCH:
            return not node.is_apart and self._access.give(node.slot, letter.body)
        if letter.kind == PART:
            node.doubtful, node.has_said_all = set(node.wanted), False
            if node.outgoing.is_void(int.from_bytes(letter.body)):
                self._part(source, node)
            return True
        if letter.kind in (FLUSH, FLUSHED):
            if len(letter.body) != 8:
                raise ClusterError(f"the number of a flush has {len(letter.body)} bytes, not 8")
            number = int.from_bytes(letter.body)
            with self._lock:
                if letter.kind == FLUSH:
                    self._flushes.ask(source, number, time.monotonic())
                else:
                    self._flushes.hear(source, number)
            return True
        if letter.kind != INTEREST:
            raise ClusterError(f"a letter of the kind {letter.kind}; {BATCH} to {PART} are known")
        changes = parse_interest(letter.body)
        known = dict(changes)
        node.doubtful.difference_update(known)
        if not changes:  # that was all; what it wanted all the time it has got all the time
            known = dict.fromkeys(node.doubtful, GONE)
            node.doubtful.clear()
            node.has_said_all = True
        if node.is_apart and node.opens_at == inf:  # who wants now what it wanted may not be known yet
            node.held |= {text: count for text, count in known.items() if node.was_dead or count == GONE}
            known = {text: count for text, count in known.items() if node.held.get(text) != count}
            for text in known:
                node.held.pop(text, None)
        self._take_interest(node, known)
        return True


def _update(interest: Interest, changes: list[tuple[str, int]]) -> None:
    for text, count in changes:
        if count == GONE:
            interest.pop(text, None)
        else:
            interest[text] = count
