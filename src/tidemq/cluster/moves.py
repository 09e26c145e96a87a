"""Sessions that come from another node, one step after the other's word; on the keeper's thread. What their
old home does is in `departures.py`.

A client's CONNECT waits here until its session is at home on this node. Of one that is not known here all
other nodes are asked first, which end or hand over what they have. Then:

1. Its home is asked, disconnects the client, and says by a vector when all that it did is applied (`yield`).
   It goes on to take messages for the session. Where the client has come there later than it came here, it
   has given this CONNECT up (`late`).
2. This node takes the session under a new epoch, and brings it into the engine from the rows that are there.
3. When all nodes know that messages for it go here, and what they sent to its old home before has arrived,
   that forgets it (`done`, `gone`). An old home that waits for that asks (`kept`): who took the session may
   have died before it could say so.

Between 2 and 3 both may add one message, so that its removal is remembered (`Node.sharing`), and the engine
gives it to the client once (`queues/doubles.py`). Until all that the old home has added is here, the engine
sends nothing that waits: a message of before it may still come. Of a home that is not there nobody is asked;
its sessions go to the next node in the ring, clients or not (`orphans.py`).

What is decided for many sessions is one batch: a node may die that had fifty thousand.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from tidemq.cluster import operations as ops
from tidemq.cluster.adoption import Adoption
from tidemq.cluster.contests import Contests
from tidemq.cluster.conversion import Conversion
from tidemq.cluster.departures import GONE, KEPT, LATE, YIELD, Departures
from tidemq.cluster.forms import decode, encode
from tidemq.cluster.held_sessions import HeldSessions
from tidemq.cluster.links import Links
from tidemq.cluster.members import next_in_ring
from tidemq.cluster.move_states import Asker, Begun, Come, Coming, Round, Visits, clocks_of
from tidemq.cluster.node import Node
from tidemq.cluster.operations import SESSION, Operation, Owner, PutSession
from tidemq.cluster.orphans import TOOK, Orphans
from tidemq.cluster.reunions import Reunions
from tidemq.cluster.rows import Session
from tidemq.cluster.sessions import connect
from tidemq.cluster.unattended import Unattended
from tidemq.cluster.vectors import covers
from tidemq.errors import ClusterError
from tidemq.store import Store

if TYPE_CHECKING:
    from tidemq.engine import StoreAccess

ASK, DONE = "ask", "done"
TAKE = "take"  # a node that leaves would have another take a session
KINDS = (ASK, YIELD, DONE, GONE, TAKE, KEPT, LATE, TOOK)
AGAIN_S, AGAIN_S_MAX = 0.5, 8.0  # without an answer
BEGUN_AT_ONCE = 64  # epochs in a batch, between two pieces of work
LOOKS_AT_ONCE = 1024  # at clients that wait, or at sessions that have come
TELL_S = 0.02  # between two looks at sessions that have come
POLL_S = 1.0  # in which nodes say whether they have a session
SERVER_UNAVAILABLE = 0x88

_log = logging.getLogger("tidemq.cluster")


class Moves:
    """`write` makes one batch durable.

    `counts`: `cluster_connects_late`, `cluster_sessions_asked`, `cluster_sessions_held` (for which what is
    published had to wait), `cluster_sessions_taken` (from a node that gave them),
    `cluster_sessions_taken_over` (from one that is dead), `cluster_sessions_unanswered`.
    """

    def __init__(
        self,
        node: Node,
        conversion: Conversion,
        store: Store,
        access: StoreAccess,
        links: Links,
        write: Callable[[list[Operation]], None],
        now: float,
    ) -> None:
        self._node = node
        self._conversion = conversion
        self._adoption = Adoption(node, conversion, store, access)
        self._access = access
        self._links = links
        self._write = write
        self._begun_at = now
        self._coming: dict[str, Coming] = {}
        self._visits = Visits()
        self._changed: deque[str] = deque()  # clients for whom something has come
        self._round = Round()  # and all that wait
        self._begun: dict[str, Begun] = {}  # by client
        self._come: dict[str, Come] = {}
        self._come_round = Round()
        self._new: list[Come] = []  # of which nobody knows
        self._unmet: list[Come] = []  # the same, and they wait until this node has met others
        self._announced: list[tuple[int, list[Come]]] = []  # as of `Links.announce`
        self._told_at = now
        self._sharing = node.sharing
        self.departures = Departures(
            node, conversion, access, links, write, self._changed.append, self._bring_back
        )
        self.contests = Contests(node, conversion, access, self.departures, write, self.share)
        self._unattended = Unattended(node, conversion, access)
        self.reunions = Reunions(node, links)
        self.orphans = Orphans(
            node,
            links,
            self._bring_orphan,
            lambda: any(each.taken and not each.asked for each in self._coming.values()),
            lambda: any(each in self._coming for each in self.departures.under_way),
            now,
        )
        self._pauses = False
        self.keeps_none = False  # this node leaves, and takes no sessions
        self.counts: Counter[str] = Counter()
        self._held = HeldSessions(node, links, self.counts)

    @property
    def is_quiet(self) -> bool:
        """Whether none is on its way, nor one here that was handed over."""
        return not (self.is_waiting or self.departures.has_any)

    @property
    def is_waiting(self) -> bool:
        """Whether a session is on its way."""
        return bool(self._coming or self._come) or self.departures.is_waiting

    # --- a client comes ----------------------------------------------------------------------------

    def connect(self, client: str, clean: bool, answer: Future[int], came_at: float) -> None:
        """CONNECT: the future gets 0 when the session is here, or there is none, else a reason code."""
        coming = self._comes(client)
        if not coming.taken:
            coming.ask_anew()
        coming.came = self._node.clock.next_ns() - int((time.monotonic() - came_at) * 1e9)
        coming.clean = clean
        coming.waiting.append(answer)

    def _comes(self, client: str) -> Coming:
        """A session is to come here."""
        self._changed.append(client)
        if client not in self._coming:
            self._coming[client] = Coming(time.monotonic(), self._node.clock.next_ns())
        return self._coming[client]

    def advance(self, now: float, *, pauses: bool) -> None:
        """Does what can be done now. `pauses`: no client gets a session that there is, nor does this node."""
        self.orphans.advance(now, pauses=pauses)
        self.reunions.advance(now, opens=not self.orphans.is_searching)
        self.departures.advance(now)
        begun, self._conversion.begun = self._conversion.begun, []
        for client in begun:
            self.share(client)
        self._held.advance(self._coming)
        others = [each for each in self._node.members.live(now) if each != self._node.incarnation]
        self._begun = {}
        self._pauses = pauses
        for client in self._due():
            coming = self._coming.get(client)
            if coming is not None and client not in self._begun:
                self._try(client, coming, others, now)
        self._begin_all()
        if self._unmet and not (self.reunions.meeting() and self._unmet[0].may_wait(now)):
            self._new += self._unmet
            self._unmet = []
        if self._new:
            self._announced.append((self._links.announce(flush=True), self._new))
            self._new = []
        if now - self._told_at > TELL_S:
            self._told_at = now
            self._tell_done(now)
        self.departures.release_handed(now, self._come)
        self._sharing.advance(now)
        self._unattended.advance()

    def _due(self) -> Iterator[str]:
        """Clients for whom something has come, then others that wait, as many as are looked at at once."""
        told = min(len(self._changed), LOOKS_AT_ONCE)
        changed = (self._changed.popleft() for _ in range(told))
        for client in itertools.chain(changed, self._round.some(self._coming, LOOKS_AT_ONCE - told)):
            yield client
            if len(self._begun) >= BEGUN_AT_ONCE:
                return

    def _try(self, client: str, coming: Coming, others: Collection[int], now: float) -> None:
        if coming.taken or self.departures.is_forgetting(client):
            return
        session = self._node.rows.sessions.get(client, None)
        if session is not None and session.row.home == self._node.incarnation:
            self._conversion.catch_up_with(session.row)
        if coming.is_left and not self._stays(coming, session, now):
            # its client has gone, maybe to another node, which would lose it if this one took the session now
            del self._coming[client]
            return
        if session is None and self._conversion.epoch(client) is not None:
            return  # it has ended elsewhere: the engine still has what is left of it
        if session is None:
            if self._is_unknown(client, coming, others, now):
                if coming.shares:
                    self._sharing.begin(client)
                self.departures.let_in(client, now)
                self._finish(client, 0)
            return
        if self._pauses:
            self._finish(client, SERVER_UNAVAILABLE)
            return
        home, own = session.row.home, self._node.incarnation
        if self.departures.is_asked_for(client):
            return  # it is on its way elsewhere
        if home == own and self._conversion.epoch(client) is not None:
            if self._is_awaited(client, coming, now):
                return
            self.departures.take_back(client)
            # also for who wants a new one: that ends this one, and all of before on other nodes
            self._begun[client] = Begun(coming, self._new_epoch(session, coming, asked=True))
        elif home == own or self._is_yielded(client, coming, home, now):
            self._take(client, coming, session)

    def _stays(self, coming: Coming, session: Session | None, now: float) -> bool:
        """Whether a session is to come here without its client."""
        if session is not None and coming.returns:
            return session.row.home == self._node.incarnation
        if session is None or not coming.is_orphan:
            return coming.stays
        return not self._node.members.is_live(session.row.home, now)

    def _is_awaited(self, client: str, coming: Coming, now: float) -> bool:
        """Whether a node to which it was handed over has taken the session, or may do so: it is asked."""
        members = self._node.members
        there = [each for each in self.departures.takers(client) if members.is_live(each, now)]
        return not self._have_answered(client, coming, there, now)

    def _have_answered(self, client: str, coming: Coming, others: Collection[int], now: float) -> bool:
        """Whether these have said that they have no session of the client, and all that they did is here."""
        missing = [each for each in others if each not in coming.answers]
        if missing and now - coming.polled_at > AGAIN_S:
            coming.polled_at = now
            for each in missing:
                self._links.send(each, ASK, encode("text Q", client, coming.came))
        vector = self._node.rows.vector
        return not missing and all(covers(vector, coming.answers[each]) for each in others)

    def _is_unknown(self, client: str, coming: Coming, others: Collection[int], now: float) -> bool:
        """Whether no other node has a session of a client that is unknown here, as a new one that nobody has
        heard of yet, one that is about to end, or one that ends with its connection. A node that does not
        hear this one is not waited for, nor is any other that does not answer, where a new session is wanted.
        """
        if now - coming.begun_at > POLL_S:
            hearing = [each for each in others if self._node.members.is_heard_by(each)]
            awaited = [] if coming.clean else hearing
            if any(each not in coming.answers for each in set(others).difference(awaited)):
                self.counts["cluster_sessions_unanswered"] += 1
            others = awaited
        return self._have_answered(client, coming, others, now)

    def _is_yielded(self, client: str, coming: Coming, home: int, now: float) -> bool:
        """Whether the home has handed it over. Of a node that is not there its next in the ring alone takes
        sessions: where two took one, either would close it at the other.
        """
        members = self._node.members
        if not members.is_live(home, now):
            return next_in_ring(members.live(now), home) == self._node.incarnation
        if coming.asked != home or (coming.yielded is None and now - coming.asked_at > AGAIN_S):
            coming.asked, coming.asked_at, coming.yielded = home, now, None
            self.counts["cluster_sessions_asked"] += 1
            self._links.send(home, ASK, encode("text Q", client, coming.came))
        return coming.yielded is not None and covers(self._node.rows.vector, coming.yielded)

    def _new_epoch(self, session: Session, coming: Coming, *, asked: bool) -> PutSession:
        epoch = self._node.stamp()
        connected = session.row.connected if coming.is_left else epoch
        row = replace(session.row, epoch=epoch, home=self._node.incarnation, connected=connected)
        return connect(self._node.rows, row, clean=False, asked=asked)

    def _take(self, client: str, coming: Coming, session: Session) -> None:
        if self._conversion.epoch(client) is not None:
            # It is taken when the engine has forgotten what is left of it. While others do not know that it
            # has been elsewhere, what they publish comes here alone.
            home = session.row.home
            live = self._node.members.is_live(home, time.monotonic())
            if not (self.departures.still_takes(client) and live) and self._is_held(client, home, live):
                self.departures.release(client)
            return
        asked = coming.yielded is not None or session.row.home == self._node.incarnation
        coming.shares |= coming.yielded is not None or self._node.is_recent(session.row.epoch)
        epoch = self._new_epoch(session, coming, asked=asked)
        self._begun[client] = Begun(coming, epoch, asked=asked, adopts=True)

    def _is_held(self, client: str, home: int, live: bool) -> bool:
        """Whether somebody takes what is published for a session, while its home has it, and no more is here;
        or it waits until it is here again.
        """
        if live and home not in self._links.apart():
            return True
        return self._held.hold(client, home)

    def _begin_all(self) -> None:
        """One batch for all whose time has come; then the engine has them, or hears that it may go on."""
        if self._begun:
            self._write([each.epoch for each in self._begun.values()])
        for client, each in self._begun.items():
            self._conversion.begin_epoch(each.epoch)
            if each.adopts:
                self._bring_in(each.epoch, each.coming, asked=each.asked)
            else:
                self._finish(client, 0)

    def _bring_in(self, row: PutSession, coming: Coming, *, asked: bool) -> None:
        client, stays = row.client, not asked and self._unattended.may_be_elsewhere(row)
        if coming.shares:
            self._sharing.begin(client)
        is_read = self._adoption.adopt(
            client,
            coming.marks,
            doubles_s=self._sharing.for_s,
            crashed=not asked,
            older_may_come=coming.yielded is not None,
            stays=stays,
        )
        coming.taken = is_read  # not before: where the store cannot be read now it is tried again
        self.counts["cluster_sessions_taken" if asked else "cluster_sessions_taken_over"] += 1
        if not is_read:
            self._give_up(client, coming)
        elif stays:
            self._unattended.add(row)

    def _give_up(self, client: str, coming: Coming) -> None:
        """A session cannot be read. Who wants a new one gets it all the same."""
        coming.taken = False  # where its end cannot be stored it is tried again
        session = self._node.rows.sessions.get(client, None)
        if not coming.clean or coming.is_left or session is None:
            self._finish(client, SERVER_UNAVAILABLE)
            return
        self._write([ops.EndSession(client, session.row.connected)])
        if coming.yielded is not None:
            # its old home may hear of the end together with the next session, and not know it is over
            self._has_come(client, coming.asked)
        self._finish(client, 0)

    def arrived(self, client: str, here: bool) -> None:
        """The engine has a session that was given to it, or had one already."""
        coming = self._coming.get(client)
        if not here and coming is not None:
            # one that has ended, and whose end has no copy yet, as in a split
            _log.info("what is left of the session of %r goes before it is taken from elsewhere", client)
            coming.taken = False
            self.departures.release(client)
            return
        standing = self._node.rows.standing(client)
        if coming is not None and coming.yielded is not None:
            self._has_come(client, coming.asked)
        if coming is not None and standing is not None and standing.home != self._node.incarnation:
            coming.taken = False  # another node has taken it meanwhile
        elif coming is not None and not coming.is_left and self._has_come_since(client, coming):
            coming.taken = False
            self._changed.append(client)
        else:
            self._finish(client, 0)

    def _has_come_since(self, client: str, coming: Coming) -> bool:
        """Whether its client has come while the engine was given the session: that is a CONNECT, too."""
        rank = self._conversion.rank(client)
        return rank is not None and rank[0].clock < coming.came

    def _has_come(self, client: str, home: int) -> None:
        rank = self._conversion.rank(client) or (self._node.stamp(),) * 2
        self._come[client] = come = Come(home, clocks_of(rank), time.monotonic())
        self._new.append(come)

    def is_arriving(self, client: str) -> bool:
        """Whether the engine is about to have a session."""
        coming = self._coming.get(client)
        return coming is not None and coming.taken

    def _finish(self, client: str, reason: int) -> None:
        coming = self._coming.pop(client, None)
        if coming is not None and coming.waiting and not reason:
            self._visits.note(client, coming.came)
        for answer in coming.waiting if coming is not None else ():
            if answer.set_running_or_notify_cancel():
                answer.set_result(reason)

    def _finish_late(self, client: str) -> None:
        """It has come to another node later."""
        self.counts["cluster_connects_late"] += bool(self._coming[client].waiting)
        self._finish(client, SERVER_UNAVAILABLE)

    # --- what other nodes want ---------------------------------------------------------------------

    def hear(self, kind: str, source: int, body: bytes) -> None:
        """A message of another node; ClusterError where it is none."""
        if kind == TOOK:
            self.orphans.hear_took(body)
        elif kind == YIELD:
            self._hear_yield(source, body)
        elif kind == DONE:
            self.departures.hear_done(source, *decode("text Q* Q*", body))
        elif kind in (ASK, LATE):
            hear = {ASK: self._hear_ask, LATE: self._hear_late}[kind]
            hear(source, *decode("text Q", body))
        elif kind == GONE:
            client, vector = decode("text vector", body)
            if client in self._come and self._come[client].home == source:
                self._come[client].gone = vector
        else:
            client = body.decode(errors="replace")
            if kind == KEPT:
                self._hear_kept(client, source)
            elif not self.keeps_none:
                self._comes(client).stays = True

    def _hear_late(self, _: int, client: str, came: int) -> None:
        coming = self._coming.get(client)
        if coming is not None and coming.came == came and not coming.taken:
            self._finish_late(client)

    def _hear_yield(self, source: int, body: bytes) -> None:
        client, vector, takes, flat = decode("text vector ? Q*", body)
        if len(flat) % 3:
            raise ClusterError(f"a session is handed over with {len(flat)} numbers, no multiple of 3")
        coming = self._coming.get(client)
        if coming is not None:
            coming.answers[source] = vector
            coming.shares |= takes
            self._changed.append(client)
        if coming is not None and coming.asked == source:
            coming.yielded = vector
            # after a restart, too, its ids are above these: it hears this node before it serves anybody
            self._node.clock.raise_to(max(flat[2::3], default=0))
            coming.marks = list(zip(flat[::3], flat[1::3], flat[2::3], strict=True))

    def _hear_ask(self, asker: int, client: str, came: int) -> None:
        """Not where the client has come to this node later, or to another one that has asked: this one does
        so for a connection that it has given up, and would have it disconnected.
        """
        wish, coming = Asker(came, asker), self._coming.get(client)
        waits = coming is not None and coming.waiting and not coming.taken
        came_here = coming.came if coming is not None and coming.waiting else self._visits.last(client)
        if Asker(came_here, self._node.incarnation) > wish or self.departures.has_later(client, wish):
            self.departures.refuse(wish, client)
            return
        if waits:
            self._finish_late(client)
        elif coming is not None and coming.returns:
            del self._coming[client]
        self.departures.hand_over(client, wish)

    def answer_unknown(self, asker: int, body: bytes) -> None:
        """To an `ASK` while this node does nothing with sessions, as before it serves, or on a full disk: of
        a client that it has nothing of it says so. For others it is asked again.
        """
        client, _ = decode("text Q", body)
        standing = self._node.rows.standing(client)
        here = standing is not None and standing.home == self._node.incarnation
        if not here and self._conversion.epoch(client) is None:
            self._links.send(asker, YIELD, encode("text vector ? Q*", client, self._node.applied, False, []))

    def answer_out_of_turn(self, asks: list[tuple[int, bytes]]) -> None:
        """The same for what waits in the inbox, and is heard, or refused, in its turn as well."""
        with suppress(ClusterError):
            for asker, body in asks:
                self.answer_unknown(asker, body)

    def _tell_done(self, now: float) -> None:
        """Tells old homes that they may forget sessions, until they have."""
        vector = self._node.rows.vector
        for each in list(self._announced):
            missed = self._links.announced(each[0])
            if missed is None:
                continue
            self._announced.remove(each)
            passed_over = sorted({*missed, *self.reunions.passed_over()})
            meets = not self.reunions.meeting().isdisjoint(passed_over)
            for known in each[1]:
                # who is passed over is parted with by the old home; one that is about to know is waited for
                if meets and known.may_wait(now):
                    self._unmet.append(known)
                else:
                    known.is_known, known.passed_over = True, passed_over
        for client in self._come_round.some(self._come, LOOKS_AT_ONCE):
            come = self._come.get(client)
            if come is None:
                continue
            if come.gone is not None and covers(vector, come.gone):
                self._end_coming(client)
            elif not self._node.members.is_live(come.home, now):
                self._end_coming(client)  # it learns by the log that the session is here
            elif come.is_known and come.gone is None and now - come.told_at > come.again_s:
                come.told_at, come.again_s = now, min(max(2 * come.again_s, AGAIN_S), AGAIN_S_MAX)
                self._links.send(come.home, DONE, encode("text Q* Q*", client, come.rank, come.passed_over))

    def _end_coming(self, client: str) -> None:
        """All is here that its old home had for it, or ever will be."""
        del self._come[client]
        number = self._conversion.number(Owner(SESSION, client))
        if number:
            self._access.all_came(number)

    def _hear_kept(self, client: str, source: int) -> None:
        if self._conversion.has_current(client) and not (client in self._come or client in self._coming):
            self.share(client)
            self._has_come(client, source)

    def share(self, client: str) -> None:
        """Another node has had a session that is at home here, and takes messages for it still."""
        if not self._conversion.has_current(client) or self.departures.still_takes(client):
            return
        self._sharing.begin(client)
        number = self._conversion.number(Owner(SESSION, client))
        if number:
            self._access.expect_doubles(number, self._sharing.for_s)

    def _bring_back(self, client: str, came: int) -> None:
        """A session that was handed over is this node's again, unless somebody takes it: those who may are
        asked, as for a client that came before the one that they have asked for.
        """
        if client not in self._coming and not self.keeps_none:
            coming = self._comes(client)
            coming.returns, coming.came = True, came - 1

    def _bring_orphan(self, client: str) -> None:
        self._comes(client).is_orphan = True
        standing = self._node.rows.standing(client)
        if standing is not None and standing.home in self.orphans.late:
            self._held.hold(client, standing.home)  # what that node wants is not known any more
