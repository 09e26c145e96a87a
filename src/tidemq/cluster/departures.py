"""Sessions that leave this node: handed over to another one, or taken by it; on the keeper's thread.

The engine closes the session, and goes on to take messages for it until its new home says that all know where
it is (`done`). Then it forgets the session, and the new home hears of that (`gone`). Where that word does not
come, it is asked (`kept`): who took the session may have died before it could say so. Where nobody takes the
session it comes back: until then its engine neither ends it nor publishes its will.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tidemq.cluster.conversion import Conversion
from tidemq.cluster.forms import encode
from tidemq.cluster.links import Links
from tidemq.cluster.move_states import Asker, Handed, Reminders, Round, clocks_of
from tidemq.cluster.node import Node
from tidemq.cluster.operations import Operation
from tidemq.cluster.rows import Standing

if TYPE_CHECKING:
    from tidemq.engine import StoreAccess

YIELD = "yield"  # all that this node did for a session is in its log
GONE = "gone"  # it has forgotten a session
KEPT = "kept"  # it still takes messages for one
LATE = "late"  # the client of a session that was asked for has come later than who asks
LINGER_S = 0.5  # what the reactors have taken for a session is in its queue by then
# Without a word of its new home, after which an old home asks: at first, and at most. That there is still an
# old home is news to the new one, too, which has to know within half of `sharing.DOUBLES_S`.
REMIND_S, REMIND_S_MAX = 2.0, 8.0
LET_IN_S = 0.1  # until the engine has the session of a client that was let in
LOOKS_AT_ONCE = 1024  # at sessions that were handed over, between two pieces of work


@dataclass(slots=True)
class _Lingering:
    """A session to forget, at the word of a node, when all that the engine had been `given` then has come to
    its sessions.
    """

    to: int
    given: Sequence[int]
    until: float = math.inf


class Departures:
    """`write` makes one batch durable; `changed`: something has come for a client that may wait here;
    `bring_back`: a session that was handed over for a CONNECT of this time has not been taken yet.

    `counts`: `cluster_sessions_handed_over`.
    """

    def __init__(
        self,
        node: Node,
        conversion: Conversion,
        access: StoreAccess,
        links: Links,
        write: Callable[[list[Operation]], None],
        changed: Callable[[str], None],
        bring_back: Callable[[str, int], None],
    ) -> None:
        self._node = node
        self._conversion = conversion
        self._access = access
        self._links = links
        self._write = write
        self._changed = changed
        self._bring_back = bring_back
        self._askers: dict[str, Asker | None] = {}  # of sessions that are about to be handed over
        self._handed: dict[str, Handed] = {}  # sessions that were; they take messages until released
        self._forgetting: set[str] = set()  # those that the engine was told to forget: `left` follows once
        self._reminders = Reminders(REMIND_S, REMIND_S_MAX)
        self._round = Round()  # through those that linger
        self._left: list[tuple[str, int, Asker]] = []  # to be handed over: its next place, who asked
        self._yields: list[tuple[int, int, str]] = []  # record that must be durable, whom to tell, client
        self._let_in: dict[str, float] = {}  # clients without a session before, until then
        self._early: dict[str, Asker] = {}  # who asks for such
        self._lingering: dict[str, _Lingering] = {}  # sessions to forget
        self._owing: dict[str, int] = {}  # those that are about to be forgotten, and whom to tell
        self._sharing = node.sharing
        self.counts: Counter[str] = Counter()

    @property
    def has_any(self) -> bool:
        """Whether one that was handed over is still here."""
        return bool(self._handed)

    @property
    def is_waiting(self) -> bool:
        """Whether a node is owed a session."""
        return bool(self._askers or self._left or self._yields or self._early)

    @property
    def under_way(self) -> Collection[str]:
        """Clients of whom the engine has not said yet that all is recorded."""
        return {*self._forgetting, *self._askers}

    def is_forgetting(self, client: str) -> bool:
        """Whether the engine has been told to forget the session."""
        return client in self._forgetting

    def is_asked_for(self, client: str) -> bool:
        """Whether it is about to be handed over."""
        return client in self._askers

    def still_takes(self, client: str) -> bool:
        """Whether it has been handed over, and takes messages here."""
        return client in self._handed

    def takers(self, client: str) -> Collection[int]:
        """The nodes to which it was handed over, if it was."""
        handed = self._handed.get(client)
        return handed.to if handed is not None else ()

    def let_in(self, client: str, now: float) -> None:
        """One without a session, of whom the engine is about to have one."""
        self._let_in[client] = now + LET_IN_S

    def take_back(self, client: str) -> None:
        """Nobody has come for a session that was handed over, if it was."""
        if self._handed.pop(client, None) is not None:
            self._lingering.pop(client, None)  # of a word that came before the record of it
            self._access.take_back(client.encode())
            self._sharing.begin(client)

    def advance(self, now: float) -> None:
        """Hands over what has been closed since the last call."""
        self._hand_over_all()
        self._settle_yields()
        self._answer_early(now)

    def release_handed(self, now: float, coming: Collection[str]) -> None:
        """Forgets what nobody needs here any more, unless something of it is still `coming` from a home that
        it had before, or what is published here would not reach its home yet.
        """
        apart = self._links.apart() if self._lingering else ()
        for client in self._round.some(self._lingering, LOOKS_AT_ONCE):
            lingers = self._lingering.get(client)
            if lingers is None:
                continue
            if lingers.until == math.inf and self._links.has_acted_on(lingers.given):
                lingers.until = now + LINGER_S
            if lingers.until > now or client in coming:
                continue
            standing = self._node.rows.standing(client)
            if standing is not None and standing.home in apart:
                continue
            if not self._conversion.has_current(client):
                self._owing[client] = self._lingering.pop(client).to
                self.release(client)  # the log says here, too, that it is elsewhere
        self._remind(now)

    def _remind(self, now: float) -> None:
        """Asks the homes of sessions that were handed over long ago whether these may be forgotten; those
        that nobody has taken are to come back.
        """
        for client in self._reminders.due(self._handed, now, LOOKS_AT_ONCE):
            standing, last = self._node.rows.standing(client), self._handed[client].last
            if standing is not None and standing.home != self._node.incarnation:
                self._links.send(standing.home, KEPT, client.encode())
            elif standing is not None and last is not None:
                self._bring_back(client, last.came)

    # --- another node asks -------------------------------------------------------------------------

    def has_later(self, client: str, wish: Asker) -> bool:
        """Whether a client has come to another node later, that has asked for its session."""
        last = self._last(client)
        return last is not None and last > wish

    def _last(self, client: str) -> Asker | None:
        handed = self._handed.get(client)
        return handed.last if handed is not None else self._askers.get(client)

    def refuse(self, asker: Asker, client: str) -> None:
        """A CONNECT there is not the client's last."""
        self._links.send(asker.node, LATE, encode("text Q", client, asker.came))

    def hand_over(self, client: str, asker: Asker) -> None:
        """The last who asks; who did before is refused."""
        before, handed = self._last(client), self._handed.get(client)
        if before is not None and before != asker:
            self.refuse(before, client)
        if handed is not None:
            handed.to.add(asker.node)
            handed.last = asker
            self._yields.append((self._node.last, asker.node, client))
            return
        if client in self._askers:
            self._askers[client] = asker  # the engine is at it
            return
        if client in self._forgetting:
            return  # it is asked for again
        if self._access.release(client.encode(), keep=True):
            self._askers[client] = asker
            self._let_in.pop(client, None)
        elif client in self._let_in:
            self._early[client] = max(asker, self._early.get(client, asker))
        else:
            self._askers[client] = asker
            self.left(client, 0, here=False)

    def _answer_early(self, now: float) -> None:
        """Answers what was asked for clients that had been let in and were not there yet."""
        for client in list(itertools.takewhile(lambda each: self._let_in[each] <= now, self._let_in)):
            del self._let_in[client]
        early, self._early = self._early, {}
        for client, asker in early.items():
            self.hand_over(client, asker)

    def left(self, client: str, place: int, *, here: bool) -> None:
        """The engine has no more to say of a session that is handed over, or has forgotten it."""
        if client not in self._askers:
            if client in self._forgetting:
                self._forgetting.discard(client)
                self._forgotten(client)
            return
        asker = self._askers.pop(client)
        if asker is None:
            return
        epoch = self._conversion.epoch(client)
        session = self._node.rows.sessions.get(client, None)
        if here and epoch is not None and session is not None and session.row.epoch == epoch:
            self._handed[client] = handed = Handed({asker.node}, asker)
            self._reminders.add(client, handed, time.monotonic())
            self._sharing.begin(client, until_it_goes=True)
            self.counts["cluster_sessions_handed_over"] += 1
            self._left.append((client, place, asker))
        else:
            self._yields.append((self._node.last, asker.node, client))

    def _hand_over_all(self) -> None:
        """One batch for all that have been handed over since the last."""
        if not self._left:
            return
        rows: list[Operation] = []
        for client, place, _ in self._left:
            session = self._node.rows.sessions.get(client, None)
            if session is not None and self._conversion.has_current(client):
                rows.append(replace(session.row, begins=False, next_sequence=place, received=()))
        if rows:
            self._write(rows)
        self._yields += [(self._node.last, asker.node, client) for client, _, asker in self._left]
        self._left.clear()

    def _settle_yields(self) -> None:
        durable = self._node.durable
        settled = [each for each in self._yields if each[0] <= durable]
        taken = self._links.taken_so_far() if settled else None
        if taken is None:
            return
        self._yields = [each for each in self._yields if each[0] > durable]
        vector = self._node.rows.vector
        marks = list(itertools.chain.from_iterable(taken))
        for _, asker, client in settled:
            takes = client in self._handed
            self._links.send(asker, YIELD, encode("text vector ? Q*", client, vector, takes, marks))

    # --- it is elsewhere ---------------------------------------------------------------------------

    def moved(self, client: str) -> None:
        """A record of another node says that the session is at home there, or has ended."""
        standing = self._node.rows.standing(client)
        rank = self._conversion.rank(client)
        if rank is None or (standing is not None and standing.epoch == rank[1]):
            return
        if client not in self._handed:
            self._lose(client, standing)
            return
        if standing is None or self._conversion.has_ended(client):
            self.release(client)  # it has ended: what it would take now would be the next session's

    def _lose(self, client: str, standing: Standing | None) -> None:
        """It was taken, or ended, without a word. If it goes on it is forgotten as one that was handed over:
        a client whose CONNECT was answered a moment ago would begin a new one, and this node may not know yet
        what the new home wants.
        """
        self._handed[client] = handed = Handed()
        self._sharing.begin(client, until_it_goes=True)
        if standing is None or not self._access.lose(client.encode()):
            self.release(client)
            return
        self._askers[client] = None
        self._links.send(standing.home, KEPT, client.encode())
        self._reminders.add(client, handed, time.monotonic())

    def hear_done(self, source: int, client: str, since: tuple[int, ...], passed_over: list[int]) -> None:
        """Of a session that came there before it was here last, and has gone on, it is said too late: nothing
        is left here of that. Nodes that were `passed_over` send here alone what is for it: this one parts
        with them, and takes what they send when they know more.
        """
        rank = self._conversion.rank(client)
        if client in self._handed and rank is not None and clocks_of(rank) < since:
            if client not in self._lingering:
                self._lingering[client] = _Lingering(source, self._links.given_so_far())
                for each in passed_over:
                    self._links.part(each)
        else:
            self._tell_gone(client, source)

    def _tell_gone(self, client: str, to: int) -> None:
        self._links.send(to, GONE, encode("text vector", client, self._node.rows.vector))

    def release(self, client: str) -> None:
        """Has the engine forget a session; then `left` is called. It is told once: what it forgot later
        might be the session that has come again.
        """
        if client in self._forgetting:
            return
        if self._access.release(client.encode()):
            self._forgetting.add(client)
        else:
            self._forgotten(client)

    def _forgotten(self, client: str) -> None:
        self._handed.pop(client, None)
        self._lingering.pop(client, None)
        waits = self._owing.pop(client, None)
        if waits is not None:
            self._tell_gone(client, waits)
        self._sharing.end(client)
        self._conversion.forget_session(client)
        self._changed(client)
