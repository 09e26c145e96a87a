"""The keeper of a cluster's node: each of its batches is a record, and what is owed for it waits for a copy.

The store has the rows of all nodes' sessions; the engine has those that are at home here. What other nodes
did is written between two pieces of work.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

from tidemq.broker.durability.keeper import PROBE, RETRY_S, Keeper
from tidemq.broker.durability.queue_rows import ID
from tidemq.broker.plugins.forks import OnForks
from tidemq.broker.providers import IMPLEMENTATION_SPECIFIC_ERROR, QUOTA_EXCEEDED
from tidemq.cluster import operations as ops
from tidemq.cluster.catching_up import catch_up
from tidemq.cluster.conversion import Conversion, as_stamp
from tidemq.cluster.draining import Draining
from tidemq.cluster.exchange import BEAT, FETCH, RECORDS, Exchange
from tidemq.cluster.following import Following
from tidemq.cluster.hybrid_clock import HybridClock
from tidemq.cluster.identity import Identity
from tidemq.cluster.inbox import FETCHED, LAST, REACHED, Inbox
from tidemq.cluster.left_rows import LeftRows
from tidemq.cluster.links import Links
from tidemq.cluster.loading import Loading
from tidemq.cluster.members import Heartbeat
from tidemq.cluster.membership import STRUCK, Membership
from tidemq.cluster.minority import Minority
from tidemq.cluster.moves import ASK, KINDS, Moves
from tidemq.cluster.node import Node
from tidemq.cluster.operations import GROUP, SESSION, Operation, Owner
from tidemq.cluster.owed import Owed
from tidemq.cluster.promises import Promises
from tidemq.cluster.records import Record, formats_read
from tidemq.cluster.rejoining import NEW_REJOINS, Returning, begin_anew_if_due, note_struck_off
from tidemq.cluster.shared_queues import SharedQueues
from tidemq.cluster.snapshots import UNFINISHED, Giver, Taker, begin_taking, remove_rows
from tidemq.cluster.stored_rows import StoredRows
from tidemq.cluster.stored_tables import FAMILY
from tidemq.cluster.survey import Survey
from tidemq.cluster.telling import Telling
from tidemq.cluster.vectors import Vector, has_seen
from tidemq.cluster.verifying import Verifying
from tidemq.errors import ClusterError, StoreError
from tidemq.store import Store, Write
from tidemq.store.interface import Row

if TYPE_CHECKING:
    from tidemq.engine import StoreAccess, StoreWork

TICK_S = 0.1
MOVING_S = 0.005  # instead of it while a session is awaited
PAUSE_S = 0.001  # while as many batches are under way as may be
IN_A_ROW_MAX = 4096  # messages of other nodes between two pieces of work
TOGETHER_MAX = 65_536  # rows of new messages in one batch
SERVED = "this node served clients before it met {:016x}, whose log it lacks: start it again"
GROWS_S = 0.25  # in which a batch gets what other nodes did, and one record more

_log = logging.getLogger("tidemq.cluster")


class ClusterKeeper(Keeper):
    """As `Keeper`, with `durability="sync"` alone. `links` are this node's ways to others."""

    def __init__(
        self, store: Store, access: StoreAccess, *, identity: Identity, links: Links, **options: Any
    ) -> None:
        super().__init__(store, access, **options)
        if not self._sync:
            raise ClusterError("a node of a cluster needs durability sync: what it has told others stays so")
        self._identity = identity
        self._links = links
        self.inbox = Inbox(access.poke, self.counts)
        self._left_rows = LeftRows()
        self._is_in_doubt = False  # whether the store has the last batch: writing it failed
        self._owed = Owed(access, links, self.counts)
        self._applied: list[Record] = []  # since the last batch
        self._grows_until = 0.0
        self._taker: Taker | None = None  # while a snapshot is taken
        self._numbers = 0  # of queues, until the engine gives them
        self.rejoins: list[str] = []  # where the others were; empty: the node has not left before
        self._ends = False  # for a reason that was said
        self._reached: set[int] = set()  # nodes to which this one can send
        self._loaded = self._serves = False  # the engine has what is at home here; and has started
        self.went_on_s = time.monotonic()  # when it could last do all that there was to do
        self.survey = Survey(identity.cluster)
        self.on_forks: OnForks = lambda _: None  # called on the keeper's thread

    # --- start -------------------------------------------------------------------------------------

    def load(self) -> None:
        """Begins the node. What the engine is to have it gets by `load_engine`, when this node has heard
        where its sessions are by now.
        """
        self.rejoins = begin_anew_if_due(self._store)
        self._open()
        self._giver = Giver(self._store, self._data)
        self.verifying = Verifying(self._store, self._links, self.ask)
        if self._store.get(FAMILY, UNFINISHED) is not None:
            remove_rows(self._store)
            self._store.write([(FAMILY, UNFINISHED, None)], sync=True)
        incarnation = int.from_bytes(self._store.get("meta", b"incarnation") or b"")
        boot = int.from_bytes(self._store.get(FAMILY, b"b") or b"") + 1
        if boot == 1 and any(next(iter(self._store.scan(each)), None) for each in ("session", "retained")):
            raise StoreError("the store was filled by a broker without a cluster: a node begins with none")
        self._begin_node(incarnation, boot, secrets.randbits(64))
        self.rows.boots.put(None, None, boot)
        self._write([])

    def load_engine(self) -> None:
        """What is at home here comes into the engine, which has not started, all else stays in the store. On
        the keeper's thread.
        """
        self._follow_format(time.monotonic())
        self._links.use_format(self.node.format)
        self._access.raise_queues(self._numbers)
        loading = Loading(self._store, self._access, self.node, self.conversion, self._set_aside)
        loading.load_sessions()
        self.rows.count_at(0)  # all are, before anybody waits for it
        loading.load_shared(self.shared.let_go)
        self._load_each("retained", self._access.load_retained)
        self._load_queues()
        self._access.ask_for_sessions()
        self._end_loading()
        if self.rejoins:
            self._store.write([(FAMILY, NEW_REJOINS, None)], sync=True)
        self._loaded = True

    def serve(self) -> None:
        """The engine has started: sessions may come and go. On the keeper's thread."""
        self._serves = True

    def connect(self, client: str, clean: bool) -> Future[int]:
        """A client is about to get its session: the future gets 0 when that is here, or there is none, else
        the reason code that the client is refused with. From any thread.
        """
        answer: Future[int] = Future()
        came_at = time.monotonic()
        self.ask(lambda: self.moves.connect(client, clean, answer, came_at))
        return answer

    @property
    def has_members(self) -> bool:
        """Whether this node has met others, at any time. Before `serve`."""
        return len(self.node.members.incarnations) > 1

    @property
    def is_up_to_date(self) -> bool:
        """Whether this node has all that its members that are there have done. On the keeper's thread."""
        taken = not self.takes_snapshot and self.exchange.giver_of_all(time.monotonic()) is None
        return taken and bool(self.node.members.known()) and not self.node.incoming.gaps()

    @property
    def takes_snapshot(self) -> bool:
        """Whether what is here is a part of what another node has."""
        return self._taker is not None

    @property
    def problems(self) -> list[str]:
        """What is not as it should be, in words."""
        return [each for each in (self.minority.problem, self.promises.problem) if each]

    def all_counts(self) -> list[Mapping[str, int]]:
        """Counters of all its parts."""
        node, moves = self.node, self.moves
        of_node = (self.exchange, self.conversion, node.incoming, node.applier)
        parts = (moves, moves.departures, moves.contests, self.shared, self.membership, *of_node)
        return [self.counts, *(each.counts for each in parts)]

    def _begin_node(self, incarnation: int, boot: int, nonce: int) -> None:
        """The node as its rows are now."""
        identity = self._identity
        self.rows = StoredRows(self._store, self._new_number)
        self._numbers = max(self._numbers, self.rows.owners.highest())
        last_ns = self.rows.clock.get(None, None) or 0
        clock = HybridClock(time.time_ns, skew_s_max=identity.skew_s_max, last_ns=last_ns)
        written, reads = self.rows.written_format, formats_read()
        if written and not reads.reads(written):
            raise StoreError(
                f"this node has written format {written} of the cluster, and this version reads {reads}:"
                f" start one that reads {written}"
            )
        who = (identity.cluster, written, identity.name, incarnation, boot, nonce, identity.address)
        own = Heartbeat(*who, 0, 0, 0, {})
        self.node = Node(self.rows, own, clock, suspect_s=identity.suspect_s)
        self.node.members.unread_since = self.inbox.since
        self.node.may_grow = self._may_grow
        self.node.members.reached = self._reached
        self.minority = Minority(self.node.members, identity.split)
        self.promises = Promises(identity.acks, identity.degraded, degraded_s=identity.suspect_s)
        self.conversion = Conversion(
            self.rows, incarnation, self.node.stamp, clock.raise_to, self.node.sharing
        )
        self.node.applier.home = self.conversion.home
        self.conversion.ended = self.node.applier.ended
        self.exchange = Exchange(
            self.node, self.promises, self._links, self._giver, time.time_ns, time.monotonic()
        )
        self.verifying.attach(self.node, self.exchange)
        self.moves = Moves(
            self.node, self.conversion, self._store, self._access, self._links, self._write, time.monotonic()
        )
        self.shared = SharedQueues(
            self.node, self.rows, self.conversion, self._store, self._access, self._write
        )
        self.telling = Telling(
            self._store, self._access, self.node, self.conversion, self.moves, lambda it: self.on_forks(it)
        )
        self._following = Following(self.moves, self.telling, self.shared)
        self.membership = Membership(
            self.node, self._links, self._write, self._note_struck_off, identity.patience
        )
        self._returning = Returning(self._store, self.rows, self.counts)
        self.draining = Draining(self.node, self.moves, self.exchange, self._links, self._store, self._write)
        self._owed.kept = self.node.last

    def _new_number(self) -> int:
        if self._loaded:
            return self._access.new_queue()
        self._numbers += 1
        return self._numbers

    def _queue_rows(self) -> Iterator[Row]:
        for key, value in self._store.scan("queue"):
            if self.conversion.owner(int.from_bytes(key[:8])) is not None:
                yield key, value

    def _return_held(self, rows: list[Row]) -> None:
        stamp = self.node.stamp
        self._write([ops.Return(owner, stamp(), as_stamp(each)) for owner, _, each in self._owned(rows)])

    def _owned(self, rows: Iterable[Row]) -> Iterator[tuple[Owner, int, bytes]]:
        """Those of the engine's queues: whose, in which, and the message's id."""
        for key, _ in rows:
            number = int.from_bytes(key[:8])
            owner = self.conversion.owner(number)
            if owner is not None:
                yield owner, number, key[ID]

    # --- work --------------------------------------------------------------------------------------

    def _take_work(self) -> StoreWork | None:
        while not self.promises.may_begin:
            self.times.step()
            self._hear_of_copies()
            self._settle()
            if self.inbox:  # who has applied a record has a copy, and who is there is heard
                self._try(self._go_on)
            time.sleep(PAUSE_S)
        wait_s = MOVING_S if self.moves.is_waiting or self._owed or self.draining.phase else TICK_S
        return self._access.take_work(min(wait_s, self._wait_s()), described=True)

    def _hear_of_next(self, named: Collection[bytes]) -> None:
        """What a session takes that began after another one had ended is not for nobody, only because its
        node's record of that is still on its way. StoreError where that cannot be known in time.
        """
        if self._left_rows and any(map(self.conversion.is_over, named)):
            raise StoreError("what other nodes did is not heard before what is left is stored")
        catch_up(self.node, lambda: any(map(self.conversion.is_over, named)), partial(self._try, self._go_on))

    def _is_purged(self, start: bytes) -> bool:
        """Rows of a shard that has ended. Those of a session go when all nodes know of its end."""
        owner = self.conversion.owner(int.from_bytes(start[:8]))
        if owner is not None and owner.kind == SESSION:
            self.conversion.forget(int.from_bytes(start[:8]))
        return owner is not None and owner.kind == GROUP

    def _writes_of(self, work: StoreWork | None) -> tuple[list[Write], list[tuple[bytes, int]]]:
        if work is not None and work.elsewhere:
            self._hear_of_next(work.elsewhere)
        self.rows.discard()  # of a batch that failed
        self._end_doubt()  # or what it did would be converted again as if it had not been done
        operations, plain = self.conversion.convert(*self._left_rows.with_work(work))
        return [*self._record(operations), *plain, *([] if work is None else work.writes)], []

    def _record(self, operations: list[Operation]) -> list[Write]:
        """The writes of one batch of this node's own. StoreError as `_end_doubt`."""
        self._end_doubt()
        if operations:
            self.node.write(operations)
        writes = self.rows.take_changes()
        self._is_in_doubt = bool(writes)  # until they have been written
        return writes

    def _end_doubt(self) -> None:
        """The store may have a batch although writing it failed: then a record with its number would be
        another one here than on other nodes. What others did in one that it lacks comes, and is told, again.
        StoreError where the store takes no writes yet.
        """
        if self._is_in_doubt:
            self._store.write([PROBE], sync=False)
            self.rows.read_again()
            self._is_in_doubt = False
        if self._applied and not has_seen(self.rows.vector, self._applied[-1].dot):
            self._forget_applied()

    def _forget_applied(self) -> None:
        """What others did since the last batch is not stored, and comes again."""
        self.node.applier.go_back()
        self._applied = []

    def _confirm(self) -> None:
        """The store has what `_record` gave."""
        self.rows.confirm()
        self._is_in_doubt = False

    def _saved(self) -> None:
        """What is to be known of a batch when the store has it, durably."""
        self._confirm()
        self._left_rows.clear()
        self.conversion.stored()
        self.node.applier.added += self.conversion.came
        self.conversion.came.clear()
        self._tell()

    def _write(self, operations: list[Operation], plain: Sequence[Write] = ()) -> None:
        """A batch beside the engine's works, or what other nodes' records have changed. `plain`: rows that
        are this node's alone.
        """
        writes = [*self._record(operations), *plain]
        if not writes and self.node.applied != self.rows.vector:
            writes = [PROBE]  # what was in doubt is there: it is to be durable, and told
        if writes:
            self._store.write(writes, sync=True)
            self._confirm()
            self._tell()

    def _tell(self) -> None:
        """Everything that was written is durable: it may be told."""
        now, last = time.monotonic(), self.node.last
        self.node.applier.stored()
        for number in range(self.node.durable + 1, last + 1):
            self.promises.begin(number, now)
        self.node.synced(self.rows.vector)
        self.promises.durable(last)
        self.exchange.send_new(now)
        self.exchange.tell_applied(self._applied)
        self._applied = []

    def _leave_undone(self, work: StoreWork) -> None:
        self.rows.discard()  # or it would be in what is written next
        self._left_rows.add(work.described or [], work.elsewhere)
        self._leave(work.writes)

    @property
    def _is_behind(self) -> bool:
        return bool(self._left_rows) or super()._is_behind

    def _remove_rows(self, rows: Iterable[Row]) -> None:
        owned = list(self._owned(rows))
        self.rows.discard()
        try:
            self._write([ops.Remove(owner, as_stamp(message_id)) for owner, _, message_id in owned])
        except StoreError:
            self._left_rows.add([("remove", number, message_id, 0) for _, number, message_id in owned])
            raise

    # --- what is owed ------------------------------------------------------------------------------

    def _do_the_rest(self, work: StoreWork) -> None:
        # not before the work is converted: until then its rows are those of a session
        work.purges[:] = [start for start in work.purges if self._is_purged(start)]
        self._attempt(partial(self._following.follow, work, rows_left=bool(self._left_rows)))
        super()._do_the_rest(work)

    def _answer(self, work: StoreWork, reason: int = 0) -> None:
        """When what the work did, and all before, has its copies; and other nodes know what they are to send
        here, where it has a new subscription, or what is published there right after SUBACK would be lost.
        """
        if not reason:
            self.conversion.stored()
        last = self.node.durable if reason else self.node.last  # what failed has no record
        self._owed.add(last, work, reason, announces=self.conversion.subscribes and self._serves)
        self._settle()

    def _settle(self) -> None:
        fails = self.failure or self.takes_snapshot
        otherwise = None if fails else QUOTA_EXCEEDED * self._full
        self._owed.settle(self.promises, time.monotonic(), otherwise, pauses=self.minority.pauses)

    def _end(self) -> None:
        super()._end()
        self._owed.answer_all()

    # --- other nodes -------------------------------------------------------------------------------

    def _hear_of_copies(self) -> None:
        for there, whose, number in self.inbox.copies():
            (self.exchange.copied if there else self.exchange.copies_lost)(whose, number)

    def _hear(self) -> None:
        """Takes what has come."""
        self._grows_until = time.monotonic() + GROWS_S
        self._applied += self.node.apply_waiting()
        for _ in range(min(len(self.inbox), IN_A_ROW_MAX)):
            if time.monotonic() > self._grows_until:
                return
            kind, source, body, came_at = self.inbox.next()
            if kind == REACHED:
                (self._reached.add if body else self._reached.discard)(source)
                continue
            if kind not in (BEAT, FETCH, STRUCK) and self.membership.refuses(source):
                continue
            if self._taker is not None and kind in (FETCHED, RECORDS):
                continue  # they are asked for again when all before them is here
            if kind == FETCHED:
                self.counts["cluster_records_fetched"] += len(body)
                self._applied += self.exchange.records_came(source, body)
            elif kind == LAST:
                self.moves.orphans.hear_last(source, body)
            elif kind not in (*KINDS, STRUCK):
                self._applied += self.exchange.receive(
                    kind, source, body, came_at, time.monotonic() - came_at
                )
            else:
                try:
                    if kind == STRUCK:
                        self.membership.hear_struck(source, body, time.monotonic())
                    elif self._serves:
                        self.moves.hear(kind, source, body)
                    elif kind == ASK:
                        self.moves.answer_unknown(source, body)
                except ClusterError as error:
                    self.exchange.refuse(source, error)

    def _may_grow(self) -> bool:
        """Whether this batch may get more of what other nodes did. Each scan looks through what has been
        written together, and what is for a session that was put goes one by one.
        """
        rows = self.rows
        late = time.monotonic() > self._grows_until
        return not (late or rows.together >= TOGETHER_MAX or rows.has_changed_sessions)

    def _return_entries(self) -> None:
        """Those that this node had before it was struck off."""
        returned = self._returning.advance(self._write)
        self.node.applier.added += returned  # the engine may have the session: it is told
        if any(owner.kind == GROUP for owner, _ in returned):
            self.shared.look_for_own()

    def _note_struck_off(self, known: Vector, address: str) -> None:
        """What is here that whoever has applied this lacks is put aside when the node starts again."""
        others = [each.beat.address for each in self.node.members.known()]
        note_struck_off(self._store, [address, *others], known)

    def _take_snapshot(self, now: float) -> None:
        """Where this node is new, and records that it lacks are gone."""
        pieces, self.exchange.pieces = self.exchange.pieces, []  # those that nobody asked for go
        if self._taker is not None and self._taker.is_lost(now):
            self._taker.give_up(self._store)
            self.rows.read_again()
        if self._taker is None or not self._taker.giver:
            giver = self.exchange.giver_of_all(now)
            if giver is None:
                return
            if self._serves:
                self._end_with(SERVED.format(giver))
                return
            self._access.refuse(IMPLEMENTATION_SPECIFIC_ERROR)  # what is stored now would be overwritten
            self._taker = begin_taking(self._store, giver, self._new_number)
        for source, body in pieces:
            if source == self._taker.giver:
                self._store.write(self._taker.take(body), sync=False)
                self._taker.took()
        if self._taker.is_done:
            self._end_snapshot(self._taker.rows)
        elif (question := self._taker.question(now)) is not None:
            self.exchange.ask_for_piece(self._taker.giver, question)

    def _end_snapshot(self, rows: int) -> None:
        """From now on this node is as the one that has given it all was then."""
        self._store.write([(FAMILY, UNFINISHED, None)], sync=True)
        self._taker = None
        self._begin_node(self.node.own.incarnation, self.node.own.boot, self.node.own.nonce)
        self._access.refuse(0)
        _log.warning("this node has taken over %d rows", rows)

    def _follow_members(self, now: float) -> None:
        self.membership.advance(now)
        if self._loaded and self._taker is None:
            self._follow_format(now)
        if self._serves and self.draining.is_member and not self.minority.pauses:
            self.membership.strike_off(self.moves.orphans.settled, now)
        self.draining.advance(now)
        if self.membership.verdict:
            self._end_with(self.membership.verdict)

    def _end_with(self, reason: str) -> None:
        """The process is to end: this node cannot be one of them, or not any more."""
        if self._ends:
            return
        self._ends = True
        _log.critical("%s", reason)
        self._access.refuse(IMPLEMENTATION_SPECIFIC_ERROR)
        self._on_death(reason)

    def _follow_format(self, now: float) -> None:
        """Writes what all members read, from the moment on that they do."""
        if not self.node.follow_format(now):
            return
        self._write([])
        if self._loaded:
            self._links.use_format(self.node.format)
        _log.info("format %d of records and messages is in use from now on", self.node.format)

    @property
    def is_settled(self) -> bool:
        """Whether a node that leaves owes nothing any more. On the keeper's thread."""
        return self.draining.is_settled and not self._owed and not self._left_rows

    def forget(self, who: str) -> Future[str]:
        """As `Membership.forget`, from any thread; StoreError where nothing can be stored."""

        def act() -> str:
            if self.failure or self._left_rows:
                raise StoreError("nothing can be stored now; try again when that works")
            return self.membership.forget(who, time.monotonic(), self.moves.orphans.settled)

        return self.ask(act)

    def _look(self, now: float) -> None:
        joins, settled = self.takes_snapshot or not self._serves, self.moves.orphans.settled
        degraded, rows = self.problems, self._giver.rows_given
        self.survey.look(self.node, now, settled=settled, joins=joins, degraded=degraded, rows_given=rows)

    def _go_on(self) -> None:
        """Applies what other nodes did, says how it stands here, and answers what can be answered."""
        self._hear_of_copies()
        self._settle()
        if self.failure or self._left_rows:
            self.moves.answer_out_of_turn(self.inbox.unseen(ASK))
            return  # what is left comes first
        self.rows.discard()
        try:
            self._end_doubt()
            self._errands.answer()
            now = time.monotonic()
            self._hear()
            self._follow_members(now)
            self.exchange.keep_last_of(self.moves.orphans.settled)
            if self.minority.look(now):
                self.counts["cluster_pauses"] += 1
                _log.warning("%s", self.minority.problem)
            self._access.raise_ids(self.node.clock.last_ns)
            self.exchange.tick(now, unread=bool(self.inbox))
            self._look(now)
            self._write([])
            if self._serves:
                self.telling.tell()
            elif not self._loaded:
                self.telling.forget()  # what other nodes have done is not in the engine's memory yet
            if self._serves and self.draining.is_member:
                self._return_entries()
                self.moves.advance(now, pauses=self.minority.pauses)
                self.shared.advance(self.moves.orphans.mine, now)
            self._giver.tend(now)
            if self.draining.is_member:
                self._take_snapshot(now)
            self.went_on_s = now
        except StoreError as error:
            self.rows.discard()
            if not self._is_in_doubt:  # else it is open whether what others did is there
                self._forget_applied()
            self.node.tidy_again()
            self.exchange.keep_again()
            self._report("what other nodes did cannot be stored", error)
            time.sleep(RETRY_S)
        if self.inbox or self.node.incoming.is_ready:
            self._access.poke()
        self._settle()
