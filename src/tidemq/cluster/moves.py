"""Sessions on their way from node to node, one after the other's word; on the keeper's thread.

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
from dataclasses import replace
from typing import TYPE_CHECKING

from tidemq.cluster import operations as ops
from tidemq.cluster.adoption import Adoption
from tidemq.cluster.conversion import Conversion
from tidemq.cluster.forms import decode, encode
from tidemq.cluster.links import Links
from tidemq.cluster.members import next_in_ring
from tidemq.cluster.move_states import Asker, Begun, Come, Coming, Handed, Reminders, Visits
from tidemq.cluster.node import Node
from tidemq.cluster.operations import SESSION, Operation, Owner, PutSession
from tidemq.cluster.orphans import TOOK, Orphans
from tidemq.cluster.rows import Session
from tidemq.cluster.sessions import connect
from tidemq.cluster.vectors import covers
from tidemq.errors import ClusterError
from tidemq.store import Store

if TYPE_CHECKING:
    from tidemq.engine import StoreAccess

ASK, YIELD, DONE, GONE = "ask", "yield", "done", "gone"
TAKE = "take"  # a node that leaves would have another take a session
KEPT = "kept"  # an old home still takes messages for a session
LATE = "late"  # the client of a session that was asked for has come later than who asks
KINDS = (ASK, YIELD, DONE, GONE, TAKE, KEPT, LATE, TOOK)
AGAIN_S = 0.5  # without an answer
LINGER_S = 0.5  # what has come for a session by then is in its queue
REMIND_S = 2.0  # without a word of its new home, after which an old home asks
BEGUN_AT_ONCE = 64  # epochs in a batch, between two pieces of work
LOOKS_AT_ONCE = 1024  # at clients that wait, or at sessions that were handed over
TELL_S = 0.02  # between two looks at sessions that have come
POLL_S = 1.0  # in which nodes say whether they have a session
LET_IN_S = 0.1  # until the engine has the session of a client that was let in
SERVER_UNAVAILABLE = 0x88

_log = logging.getLogger("tidemq.cluster")


class Moves:
    """`write` makes one batch durable.

    `counts`: `cluster_sessions_asked`, `cluster_sessions_handed_over`, `cluster_sessions_taken` (from a node
    that gave them), `cluster_sessions_taken_over` (from one that is dead), `cluster_sessions_unanswered`.
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
        self._askers: dict[str, Asker | None] = {}  # of sessions that are about to be handed over
        self._handed: dict[str, Handed] = {}  # sessions that were; they take messages until released
        self._forgetting: set[str] = set()  # those that the engine was told to forget: `left` follows once
        self._reminders = Reminders()
        self._visits = Visits()
        self._changed: deque[str] = deque()  # clients for whom something has come
        self._round: Iterator[str] = iter(())  # and all that wait, looked at one after the other
        self._begun: dict[str, Begun] = {}  # by client
        self._left: list[tuple[str, int, Asker]] = []  # to be handed over: its next place, who asked
        self._yields: list[tuple[int, int, str]] = []  # record that must be durable, whom to tell, client
        self._come: dict[str, Come] = {}
        self._new: list[Come] = []  # of which nobody knows
        self._announced: list[tuple[int, list[Come]]] = []  # as of `Links.announce`
        self._told_at = now
        self._let_in: dict[str, float] = {}  # clients without a session before, until then
        self._early: dict[str, Asker] = {}  # who asks for such
        self._lingering: dict[str, tuple[float, int]] = {}  # sessions to forget, from when on, for whom
        self._owing: dict[str, int] = {}  # those that are about to be forgotten, and whom to tell
        self._sharing = node.sharing
        self.orphans = Orphans(
            node,
            links,
            self._bring,
            lambda: any(each.taken and not each.asked for each in self._coming.values()),
            lambda: any(each in self._coming for each in (*self._forgetting, *self._askers)),
            now,
        )
        self._pauses = False
        self.keeps_none = False  # this node leaves, and takes no sessions
        self.counts: Counter[str] = Counter()

    @property
    def is_quiet(self) -> bool:
        """Whether none is on its way, nor one here that was handed over."""
        return not (self.is_waiting or self._handed)

    @property
    def is_waiting(self) -> bool:
        """Whether a session is on its way."""
        return bool(self._coming or self._come or self._askers or self._left or self._yields or self._early)

    # --- a client comes ----------------------------------------------------------------------------

    def connect(self, client: str, clean: bool, answer: Future[int], came_at: float) -> None:
        """CONNECT: the future gets 0 when the session is here, or there is none, else a reason code."""
        coming = self._comes(client, came_at)
        coming.clean = clean
        coming.waiting.append(answer)

    def _comes(self, client: str, came_at: float) -> Coming:
        """A session is to come here, as is known since then."""
        self._changed.append(client)
        coming = self._coming.setdefault(client, Coming(time.monotonic()))
        coming.came = self._node.clock.next_ns() - int((time.monotonic() - came_at) * 1e9)
        return coming

    def advance(self, now: float, *, pauses: bool) -> None:
        """Does what can be done now. `pauses`: no client gets a session that there is, nor does this node."""
        self._hand_over_all()
        self._settle_yields()
        self._answer_early(now)
        others = [each for each in self._node.members.live(now) if each != self._node.incarnation]
        self._begun = {}
        self._pauses = pauses
        for client in self._due():
            coming = self._coming.get(client)
            if coming is not None and client not in self._begun:
                self._try(client, coming, others, now)
        self._begin_all()
        if self._new:
            self._announced.append((self._links.announce(flush=True), self._new))
            self._new = []
        if now - self._told_at > TELL_S:
            self._told_at = now
            self._tell_done(now)
        self._release_handed(now)
        self._remind(now)
        self._sharing.advance(now)
        self.orphans.advance(now, pauses=pauses)

    def _due(self) -> Iterator[str]:
        """Clients for whom something has come, then others that wait, as many as are looked at at once."""
        for _ in range(LOOKS_AT_ONCE):
            if len(self._begun) >= BEGUN_AT_ONCE:
                return
            client = self._changed.popleft() if self._changed else next(self._round, None)
            if client is None:
                self._round = iter(list(self._coming))
                return
            yield client

    def _try(self, client: str, coming: Coming, others: Collection[int], now: float) -> None:
        if coming.taken or client in self._forgetting:
            return
        session = self._node.rows.sessions.get(client, None)
        if coming.is_left and not coming.stays:
            # its client has gone, maybe to another node, which would lose it if this one took the session now
            del self._coming[client]
            return
        if session is None and self._conversion.epoch(client) is not None:
            return  # it has ended elsewhere: the engine still has what is left of it
        if session is None:
            if self._is_unknown(client, coming, others, now):
                if coming.shares:
                    self._sharing.begin(client)
                self._let_in[client] = now + LET_IN_S
                self._finish(client, 0)
            return
        if self._pauses:
            self._finish(client, SERVER_UNAVAILABLE)
            return
        home, own = session.row.home, self._node.incarnation
        if client in self._askers:
            return  # it is on its way elsewhere
        if home == own and self._conversion.epoch(client) is not None:
            if self._is_awaited(client, coming, now):
                return
            if self._handed.pop(client, None) is not None:  # nobody has come for it
                self._lingering.pop(client, None)  # of a word that came before the record of it
                self._access.take_back(client.encode())
                self._sharing.begin(client)
            if coming.clean:
                self._finish(client, 0)
            else:
                self._begun[client] = Begun(coming, self._new_epoch(session, asked=True))
        elif home == own or self._is_yielded(client, coming, home, now):
            self._take(client, coming, session)

    def _is_awaited(self, client: str, coming: Coming, now: float) -> bool:
        """Whether a node to which it was handed over has taken the session, or may do so: it is asked."""
        handed, members = self._handed.get(client, Handed()), self._node.members
        there = [each for each in handed.to if members.is_live(each, now)]
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
        answer is not waited for.
        """
        if now - coming.begun_at > POLL_S and any(each not in coming.answers for each in others):
            self.counts["cluster_sessions_unanswered"] += 1
            return True
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

    def _new_epoch(self, session: Session, *, asked: bool) -> PutSession:
        row = replace(session.row, epoch=self._node.stamp(), home=self._node.incarnation)
        return connect(self._node.rows, row, clean=False, asked=asked)

    def _take(self, client: str, coming: Coming, session: Session) -> None:
        if self._conversion.epoch(client) is not None:
            # It is taken when the engine has forgotten what is left of it. While others do not know that it
            # has been elsewhere, what they publish comes here alone.
            live = self._node.members.is_live(session.row.home, time.monotonic())
            if client not in self._handed or not live:
                self._release(client)
            return
        asked = coming.yielded is not None or session.row.home == self._node.incarnation
        coming.shares |= coming.yielded is not None or self._node.is_recent(session.row.epoch)
        epoch = self._new_epoch(session, asked=asked)
        self._begun[client] = Begun(coming, epoch, asked=asked, adopts=True)

    def _begin_all(self) -> None:
        """One batch for all whose time has come; then the engine has them, or hears that it may go on."""
        if self._begun:
            self._write([each.epoch for each in self._begun.values()])
        for client, each in self._begun.items():
            self._conversion.begin_epoch(client, each.epoch.epoch)
            if each.adopts:
                self._bring_in(client, each.coming, asked=each.asked)
            else:
                self._finish(client, 0)

    def _bring_in(self, client: str, coming: Coming, *, asked: bool) -> None:
        self.counts["cluster_sessions_taken" if asked else "cluster_sessions_taken_over"] += 1
        if coming.shares:
            self._sharing.begin(client)
        coming.taken = True
        if not self._adoption.adopt(
            client,
            coming.marks,
            doubles_s=self._sharing.for_s,
            crashed=not asked,
            older_may_come=coming.yielded is not None,
        ):
            self._give_up(client, coming)

    def _give_up(self, client: str, coming: Coming) -> None:
        """A session cannot be read. Who wants a new one gets it all the same."""
        session = self._node.rows.sessions.get(client, None)
        if not coming.clean or coming.is_left or session is None:
            self._finish(client, SERVER_UNAVAILABLE)
            return
        self._write([ops.EndSession(client, session.row.epoch)])
        if coming.yielded is not None:
            # its old home may hear of the end together with the next session, and not know it is over
            self._has_come(client, coming.asked)
        self._finish(client, 0)

    def arrived(self, client: str, here: bool) -> None:
        """The engine has a session that was given to it, or had one already."""
        coming = self._coming.get(client)
        if not here and coming is not None:
            _log.error("what was left of the session of %r was here still", client)
            coming.taken = False
            self._release(client)
            return
        if coming is not None and coming.yielded is not None:
            self._has_come(client, coming.asked)
        session = self._node.rows.sessions.get(client, None)
        if coming is not None and session is not None and session.row.home != self._node.incarnation:
            coming.taken = False  # another node has taken it meanwhile
        else:
            self._finish(client, 0)

    def _has_come(self, client: str, home: int) -> None:
        epoch = self._conversion.epoch(client) or self._node.stamp()
        self._come[client] = come = Come(home, epoch.clock)
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

    # --- what other nodes want ---------------------------------------------------------------------

    def hear(self, kind: str, source: int, body: bytes) -> None:
        """A message of another node; ClusterError where it is none."""
        if kind == TOOK:
            self.orphans.hear_took(body)
        elif kind == YIELD:
            self._hear_yield(source, body)
        elif kind in (ASK, LATE, DONE):
            hear = {ASK: self._hear_ask, LATE: self._hear_late, DONE: self._hear_done}[kind]
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
                self._bring(client)

    def _hear_late(self, _: int, client: str, came: int) -> None:
        coming = self._coming.get(client)
        if coming is not None and coming.came == came and not coming.taken:
            self._finish(client, SERVER_UNAVAILABLE)

    def _hear_done(self, source: int, client: str, since: int) -> None:
        """Of a session that came there before it was here last, and has gone on, it is said too late: nothing
        is left here of that.
        """
        epoch = self._conversion.epoch(client)
        if client in self._handed and epoch is not None and epoch.clock < since:
            self._lingering.setdefault(client, (time.monotonic() + LINGER_S, source))
        else:
            self._tell_gone(client, source)

    def _tell_gone(self, client: str, to: int) -> None:
        self._links.send(to, GONE, encode("text vector", client, self._node.rows.vector))

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
        wish, handed = Asker(came, asker), self._handed.get(client)
        coming = self._coming.get(client)
        last = (handed.last if handed is not None else self._askers.get(client)) or wish
        waits = coming is not None and coming.waiting and not coming.taken
        came_here = coming.came if coming is not None and waits else self._visits.last(client)
        if max(last, Asker(came_here, self._node.incarnation)) > wish:
            self._refuse(wish, client)
            return
        if waits:
            self._finish(client, SERVER_UNAVAILABLE)
        self._hand_over(client, wish)

    def _refuse(self, asker: Asker, client: str) -> None:
        self._links.send(asker.node, LATE, encode("text Q", client, asker.came))

    def _hand_over(self, client: str, asker: Asker) -> None:
        handed = self._handed.get(client)
        before = handed.last if handed is not None else self._askers.get(client)
        if before is not None and before != asker:
            self._refuse(before, client)
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
            self._hand_over(client, asker)

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
            self._reminders.add(client, handed, time.monotonic() + REMIND_S)
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
            if session is not None and session.row.epoch == self._conversion.epoch(client):
                rows.append(replace(session.row, next_sequence=place, received=()))
        if rows:
            self._write(rows)
        self._yields += [(self._node.last, asker.node, client) for client, _, asker in self._left]
        self._left.clear()

    def _release(self, client: str) -> None:
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
        self._changed.append(client)

    def moved(self, client: str) -> None:
        """A record of another node says that the session is at home there, or has ended."""
        session = self._node.rows.sessions.get(client, None)
        epoch = self._conversion.epoch(client)
        if epoch is None or (session is not None and session.row.epoch == epoch):
            return
        if client not in self._handed:
            self._lose(client, session)
            return
        ends = [end.over for _, end in self._node.rows.ends.of(client)]
        if session is None or any(over is not None and over[0] >= epoch for over in ends):
            self._release(client)  # it has ended: what it would take now would be the next session's

    def _lose(self, client: str, session: Session | None) -> None:
        """It was taken, or ended, without a word. If it goes on it is forgotten as one that was handed over:
        a client whose CONNECT was answered a moment ago would begin a new one, and this node may not know yet
        what the new home wants.
        """
        self._handed[client] = handed = Handed()
        if session is None or not self._access.lose(client.encode()):
            self._release(client)
            return
        self._askers[client] = None
        self._sharing.begin(client, until_it_goes=True)
        self._links.send(session.row.home, KEPT, client.encode())
        self._reminders.add(client, handed, time.monotonic() + REMIND_S)

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

    def _tell_done(self, now: float) -> None:
        """Tells old homes that they may forget sessions, until they have."""
        vector = self._node.rows.vector
        for each in [each for each in self._announced if self._links.is_announced(each[0])]:
            self._announced.remove(each)
            for come in each[1]:
                come.is_known = True
        for client, come in list(self._come.items()):
            if come.gone is not None and covers(vector, come.gone):
                self._end_coming(client)
            elif not self._node.members.is_live(come.home, now):
                self._end_coming(client)  # it learns by the log that the session is here
            elif come.is_known and come.gone is None and now - come.told_at > AGAIN_S:
                come.told_at = now
                self._links.send(come.home, DONE, encode("text Q", client, come.epoch))

    def _end_coming(self, client: str) -> None:
        """All is here that its old home had for it, or ever will be."""
        del self._come[client]
        number = self._conversion.number(Owner(SESSION, client))
        if number:
            self._access.all_came(number)

    def _release_handed(self, now: float) -> None:
        """When all is here that one got before it came itself, and the log says here that it is elsewhere."""
        due = itertools.takewhile(lambda each: each[1][0] <= now, self._lingering.items())
        for client in [client for client, _ in due if client not in self._come]:
            session = self._node.rows.sessions.get(client, None)
            if session is None or session.row.epoch != self._conversion.epoch(client):
                self._owing[client] = self._lingering.pop(client)[1]
                self._release(client)

    def _remind(self, now: float) -> None:
        """Asks the homes of sessions that were handed over long ago whether these may be forgotten."""
        for client in self._reminders.due(self._handed, now, REMIND_S, LOOKS_AT_ONCE):
            session = self._node.rows.sessions.get(client, None)
            if session is not None and session.row.home != self._node.incarnation:
                self._links.send(session.row.home, KEPT, client.encode())

    def _hear_kept(self, client: str, source: int) -> None:
        session = self._node.rows.sessions.get(client, None)
        is_here = session is not None and session.row.epoch == self._conversion.epoch(client)
        if is_here and not (client in self._come or client in self._coming):
            if client not in self._handed:
                self._sharing.begin(client)
            self._has_come(client, source)

    def _bring(self, client: str) -> None:
        self._comes(client, time.monotonic()).stays = True
