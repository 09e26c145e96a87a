"""Sessions on their way from node to node, one after the other's word; on the keeper's thread.

A client's CONNECT waits here until its session is at home on this node. Of one that is not known here all
other nodes are asked first, which end or hand over what they have. Then:

1. Its home is asked, disconnects the client, and says by a vector when all that it did is applied (`yield`).
   It goes on to take messages for the session.
2. This node takes the session under a new epoch, and brings it into the engine from the rows that are there.
3. When all nodes know that messages for it go here, and what they sent to its old home before has arrived,
   that forgets it (`done`, `gone`). An old home that waits for that asks (`kept`): who took the session may
   have died before it could say so.

Between 2 and 3 both may add one message, so that its removal is remembered (`Node.moving`), and the engine
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
from math import inf
from typing import TYPE_CHECKING

from tidemq.cluster import operations as ops
from tidemq.cluster.adoption import LATE_S, Adoption
from tidemq.cluster.conversion import Conversion
from tidemq.cluster.forms import decode, encode
from tidemq.cluster.links import Links
from tidemq.cluster.members import next_in_ring
from tidemq.cluster.move_states import Begun, Come, Coming, Handed
from tidemq.cluster.node import Node
from tidemq.cluster.operations import SESSION, Operation, Owner, PutSession
from tidemq.cluster.orphans import TOOK, Orphans
from tidemq.cluster.rows import Session
from tidemq.cluster.sessions import connect
from tidemq.cluster.sharing import Sharing
from tidemq.cluster.vectors import covers
from tidemq.errors import ClusterError
from tidemq.store import Store

if TYPE_CHECKING:
    from tidemq.engine import StoreAccess

ASK, YIELD, DONE, GONE = "ask", "yield", "done", "gone"
TAKE = "take"  # a node that leaves would have another take a session
KEPT = "kept"  # an old home still takes messages for a session
KINDS = (ASK, YIELD, DONE, GONE, TAKE, KEPT, TOOK)
AGAIN_S = 0.5  # without an answer
LINGER_S = 0.5  # what has come for a session by then is in its queue
RETURN_S = 5.0  # that a session which was handed over is waited for, where its client is back
DOUBLES_S = LATE_S  # and twice `cluster_suspect_s`: longer than its old home takes messages for it
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
        self._askers: dict[str, set[int]] = {}  # of sessions that are about to be handed over
        self._handed: dict[str, Handed] = {}  # sessions that were; they take messages until released
        self._forgetting: set[str] = set()  # those that the engine was told to forget: `left` follows once
        self._reminders: deque[tuple[float, str, Handed]] = deque()  # when to ask about which
        self._changed: deque[str] = deque()  # clients for whom something has come
        self._round: Iterator[str] = iter(())  # and all that wait, looked at one after the other
        self._begun: dict[str, Begun] = {}  # by client
        self._left: list[tuple[str, int, set[int]]] = []  # to be handed over: its next place, who asked
        self._yields: list[tuple[int, int, str]] = []  # record that must be durable, whom to tell, client
        self._come: dict[str, Come] = {}
        self._new: list[Come] = []  # of which nobody knows
        self._announced: list[tuple[int, list[Come]]] = []  # as of `Links.announce`
        self._told_at = now
        self._let_in: dict[str, float] = {}  # clients without a session before, until then
        self._early: dict[tuple[str, int], None] = {}  # questions about such, and who asks
        self._lingering: dict[str, tuple[float, int]] = {}  # sessions to forget, from when on, for whom
        self._owing: dict[str, int] = {}  # those that are about to be forgotten, and whom to tell
        self._sharing = Sharing(node.moving)
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
        ours = self._coming or self._come or self._askers
        return bool(ours or self._left or self._yields or self._early)

    @property
    def _doubles_s(self) -> float:
        """For how long after it has come a session may get a message by its old home, too."""
        return DOUBLES_S + 2 * self._node.members.suspect_s

    # --- a client comes ----------------------------------------------------------------------------

    def connect(self, client: str, clean: bool, answer: Future[int]) -> None:
        """CONNECT: the future gets 0 when the session is here, or there is none, else a reason code."""
        coming = self._coming.setdefault(client, Coming(time.monotonic()))
        coming.clean = clean
        coming.waiting.append(answer)
        self._changed.append(client)

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
                self._let_in[client] = now + LET_IN_S
                self._finish(client, 0)
            return
        if self._pauses:
            self._finish(client, SERVER_UNAVAILABLE)
            return
        home, own = session.row.home, self._node.incarnation
        if client in self._askers or self._is_awaited(client, now):
            return  # it is on its way elsewhere, or others think that it is here
        if home == own and self._conversion.epoch(client) is not None:
            if self._has_left(client, now):
                return
            if self._handed.pop(client, None) is not None:  # nobody has come for it
                self._lingering.pop(client, None)  # of a word that came before the record of it
                self._access.take_back(client.encode())
                self._sharing.begin(client, self._doubles_s)
            if coming.clean:
                self._finish(client, 0)
            else:
                self._begun[client] = Begun(coming, self._new_epoch(session, asked=True))
        elif home == own or (self._is_yielded(client, coming, home, now)):
            self._take(client, coming, session)

    def _is_awaited(self, client: str, now: float) -> bool:
        """Whether a node to which the session was handed over may still take it."""
        handed, members = self._handed.get(client, Handed()), self._node.members
        now = min(now, members.unread_since())  # where it was taken, that may be among what waits
        return now - handed.at < RETURN_S and any(members.is_live(each, now) for each in handed.to)

    def _has_left(self, client: str, now: float) -> bool:
        """Whether a node says that it has the session, although its record has not come."""
        lingering = self._lingering.get(client)
        return lingering is not None and self._node.members.is_live(lingering[1], now)

    def _is_unknown(self, client: str, coming: Coming, others: Collection[int], now: float) -> bool:
        """Whether no other node has a session of a client that is unknown here, as a new one that nobody has
        heard of yet, one that is about to end, or one that ends with its connection. A node that does not
        answer is not waited for.
        """
        missing = [each for each in others if each not in coming.answers]
        if missing and now - coming.begun_at > POLL_S:
            self.counts["cluster_sessions_unanswered"] += 1
            return True
        if missing and now - coming.polled_at > AGAIN_S:
            coming.polled_at = now
            for each in missing:
                self._links.send(each, ASK, client.encode())
        vector = self._node.rows.vector
        return not missing and all(covers(vector, coming.answers[each]) for each in others)

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
            self._links.send(home, ASK, client.encode())
        return coming.yielded is not None and covers(self._node.rows.vector, coming.yielded)

    def _new_epoch(self, session: Session, *, asked: bool) -> PutSession:
        row = replace(session.row, epoch=self._node.stamp(), home=self._node.incarnation)
        return connect(self._node.rows, row, clean=False, asked=asked)

    def _take(self, client: str, coming: Coming, session: Session) -> None:
        if self._conversion.epoch(client) is not None:
            if client in self._handed:
                coming.before = self._sharing.marks(client)
            self._release(client)  # it is taken when the engine has forgotten what is left of it
            return
        asked = coming.yielded is not None or session.row.home == self._node.incarnation
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
        marks = coming.marks if coming.before is None else coming.before
        if coming.yielded is not None:
            self._sharing.begin(client, self._doubles_s)
            self._sharing.note_marks(client, marks)
        coming.taken = True
        if not self._adoption.adopt(
            client,
            marks,
            doubles_s=self._doubles_s,
            crashed=not asked,
            older_may_come=coming.yielded is not None,
            returns=coming.before is not None,
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
        self._come[client] = come = Come(home)
        self._new.append(come)

    def is_arriving(self, client: str) -> bool:
        """Whether the engine is about to have a session."""
        coming = self._coming.get(client)
        return coming is not None and coming.taken

    def _finish(self, client: str, reason: int) -> None:
        coming = self._coming.pop(client, None)
        for answer in coming.waiting if coming is not None else ():
            if answer.set_running_or_notify_cancel():
                answer.set_result(reason)

    # --- what other nodes want ---------------------------------------------------------------------

    def hear(self, kind: str, source: int, body: bytes) -> None:
        """A message of another node; ClusterError where it is none."""
        if kind == ASK:
            self._hand_over(body.decode(errors="replace"), source)
            return
        if kind == TOOK:
            self.orphans.hear_took(body)
            return
        if kind == TAKE:
            if not self.keeps_none:
                self._bring(body.decode(errors="replace"))
            return
        if kind == YIELD:
            self._hear_yield(source, body)
            return
        if kind == KEPT:
            self._hear_kept(body.decode(errors="replace"), source)
            return
        if kind == GONE:
            client, vector = decode("text vector", body)
            if client in self._come and self._come[client].home == source:
                self._come[client].gone = vector
            return
        self._hear_done(body.decode(errors="replace"), source)

    def _hear_done(self, client: str, source: int) -> None:
        """Of a session that has come back and gone elsewhere meanwhile it is said too late: that is not for
        this node any more.
        """
        handed, session = self._handed.get(client), self._node.rows.sessions.get(client, None)
        if handed is not None and (source in handed.to or (session and session.row.home == source)):
            self._lingering.setdefault(client, (time.monotonic() + LINGER_S, source))
        else:
            self._tell_gone(client, source)

    def _tell_gone(self, client: str, to: int) -> None:
        self._links.send(to, GONE, encode("text vector", client, self._node.rows.vector))

    def _hear_yield(self, source: int, body: bytes) -> None:
        client, vector, flat = decode("text vector Q*", body)
        if len(flat) % 3:
            raise ClusterError(f"a session is handed over with {len(flat)} numbers, no multiple of 3")
        coming = self._coming.get(client)
        if coming is not None:
            coming.answers[source] = vector
            self._changed.append(client)
        if coming is not None and coming.asked == source:
            coming.yielded = vector
            # after a restart, too, its ids are above these: it hears this node before it serves anybody
            self._node.clock.raise_to(max(flat[2::3], default=0))
            coming.marks = list(zip(flat[::3], flat[1::3], flat[2::3], strict=True))

    def _hand_over(self, client: str, asker: int) -> None:
        handed = self._handed.get(client)
        if handed is not None:
            handed.to.add(asker)
            self._yields.append((self._node.last, asker, client))
            return
        if client in self._askers:
            self._askers[client].add(asker)  # the engine is at it
            return
        if client in self._forgetting:
            return  # it is asked for again
        coming = self._coming.get(client)
        if coming is not None and self._node.rows.sessions.get(client, None) is None:
            # it has come to both nodes; where the incarnation is greater it is to come again
            if asker > self._node.incarnation:
                return
            self._finish(client, SERVER_UNAVAILABLE)
        if self._access.release(client.encode(), keep=True):
            self._askers[client] = {asker}
            self._let_in.pop(client, None)
        elif client in self._let_in:
            self._early[client, asker] = None
        else:
            self._askers[client] = {asker}
            self.left(client, 0, here=False)

    def _answer_early(self, now: float) -> None:
        """Answers what was asked for clients that had been let in and were not there yet."""
        for client in list(itertools.takewhile(lambda each: self._let_in[each] <= now, self._let_in)):
            del self._let_in[client]
        early, self._early = self._early, {}
        for client, asker in early:
            self._hand_over(client, asker)

    def left(self, client: str, place: int, *, here: bool) -> None:
        """The engine has no more to say of a session that is handed over, or has forgotten it."""
        if client not in self._askers:
            if client in self._forgetting:
                self._forgetting.discard(client)
                self._forgotten(client)
            return
        askers = self._askers.pop(client)
        epoch = self._conversion.epoch(client)
        session = self._node.rows.sessions.get(client, None)
        if here and epoch is not None and session is not None and session.row.epoch == epoch:
            self._handed[client] = handed = Handed(time.monotonic(), set(askers))
            self._reminders.append((handed.at + REMIND_S, client, handed))
            self._sharing.begin(client, inf)
            self.counts["cluster_sessions_handed_over"] += 1
            self._left.append((client, place, askers))
        else:
            self._yields += [(self._node.last, asker, client) for asker in askers]

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
        self._yields += [
            (self._node.last, asker, client) for client, _, askers in self._left for asker in askers
        ]
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
        self._askers[client] = set()
        self._sharing.begin(client, inf)
        self._links.send(session.row.home, KEPT, client.encode())
        self._reminders.append((time.monotonic() + REMIND_S, client, handed))

    def _settle_yields(self) -> None:
        durable = self._node.durable
        settled = [each for each in self._yields if each[0] <= durable]
        if not settled:
            return
        taken = self._links.taken_so_far()
        if taken is None:
            return
        self._yields = [each for each in self._yields if each[0] > durable]
        vector = self._node.rows.vector
        marks = list(itertools.chain.from_iterable(taken))
        for _, asker, client in settled:
            self._links.send(asker, YIELD, encode("text vector Q*", client, vector, marks))

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
                self._links.send(come.home, DONE, client.encode())

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
        for _ in range(LOOKS_AT_ONCE):
            if not self._reminders or self._reminders[0][0] > now:
                return
            _, client, handed = self._reminders.popleft()
            if self._handed.get(client) is not handed:
                continue
            session = self._node.rows.sessions.get(client, None)
            if session is not None and session.row.home != self._node.incarnation:
                self._links.send(session.row.home, KEPT, client.encode())
            self._reminders.append((now + REMIND_S, client, handed))

    def _hear_kept(self, client: str, source: int) -> None:
        session = self._node.rows.sessions.get(client, None)
        is_here = session is not None and session.row.epoch == self._conversion.epoch(client)
        if is_here and not (client in self._handed or client in self._come or client in self._coming):
            self._sharing.begin(client, self._doubles_s)
            self._has_come(client, source)

    def _bring(self, client: str) -> None:
        self._coming.setdefault(client, Coming(time.monotonic())).stays = True
        self._changed.append(client)
