"""A record's operations, done to what this node keeps.

Records are applied in causal order: when all that their node had applied is applied here. So what an
operation is about is there, and two operations that come in different orders on two nodes were done by nodes
that did not know of each other. For these the rules below give the same outcome in either order:

- An entry is one, whoever added it, by its owner and id. Who adds it says whether another node may do so, too
  (`Added.shared`). The removal of one that is shared removes it, whoever adds it, and is remembered
  (`removed`). That of another one takes back what its node knew of alone: what a node has added that did not
  know of that one, as in a split, stays.
- Of a session's rows that of the client's last CONNECT counts, and of what nodes have made of it without the
  client, as where they took it over, the last: whole, with what it has received and in flight. What another
  one had in flight waits again.
- The end of a session hides what its node knew of the session's rows, and what nodes have added that did not
  know of the end, or knew of no session after it. They are deleted when all nodes know of it
  (`stability.py`). It is void where a CONNECT with a higher epoch did not know of it: the session went on.
- Of a subscription and of what is retained the last change counts, by time.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from tidemq.cluster import operations as ops
from tidemq.cluster.operations import GROUP, SESSION, Owner, Stamp, packet_id_of
from tidemq.cluster.records import Record, read_run, run_of
from tidemq.cluster.rows import Added, End, Entry, Payload, Retained, Rows, Session, Subscription
from tidemq.cluster.sessions import flights_of
from tidemq.cluster.sharing import LATE_S
from tidemq.cluster.vectors import Dot, Vector, has_seen
from tidemq.store.rows import BACKLOG

ENDED_MAX = 10_000  # sessions that have ended, remembered longer than their ends are; and all of `LATE_S`
FORKS_MAX = 100_000  # that are remembered; an older one that brings more rows is counted again


def _waiting(entry: Entry) -> Entry:
    """In flight no more."""
    adds = tuple(each._replace(unsent=False) for each in entry.adds)
    return replace(entry, adds=adds, sequence=-1, released=False)


class Changes(NamedTuple):
    """What records have changed, as `Applier` has it under these names."""

    added: list[tuple[Owner, Stamp]]
    removed: list[tuple[Owner, Stamp, Entry]]
    retained: dict[str, Stamp]
    sessions: list[str]
    subscriptions: list[tuple[str, str]]
    forked: list[str]


class Applier:
    """Applies records to rows. `counts`: what was met, by name. `home`: clients of whose entries the caller
    is told (`added`, `removed`) also where many are changed together, with their sessions' epochs.
    """

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self.counts: Counter[str] = Counter()
        self.home: Mapping[str, Stamp] = {}
        self.added: list[tuple[Owner, Stamp]] = []  # entries that came since the caller took this
        self.removed: list[tuple[Owner, Stamp, Entry]] = []  # and that went
        self.retained: dict[str, Stamp] = {}  # topics, and when
        self.sessions: list[str] = []  # clients whose sessions were put or ended
        self.forked: list[str] = []  # clients whose sessions another node has had, too, and go on as here
        self.visited: list[str] = []  # of these, clients that have been connected there
        self.forks: list[str] = []  # clients whose sessions two nodes have had, whichever goes on
        self.subscriptions: list[tuple[str, str]] = []  # of whom, to which filters
        self.overruled: dict[str, ops.PutSession] = {}  # of `home`, as they were before that
        # clients whose sessions ended last, and when; they may have others by now
        self.ended: dict[str, float] = {}
        self.shadowed: dict[tuple[str, str], Subscription] = {}  # of `home`, to be made again
        self._stored = 0, 0  # so many of `added` and `removed` are in the store
        self._messages: dict[Stamp, bytes] = {}
        self._runs: list[ops.Run] = []  # of this record, whose messages are not among these
        self._forks: dict[str, Dot] = {}  # by client: what went on, of forks that were counted
        self._own = False
        self._dot = Dot(0, 0)
        self._seen: Vector = {}
        self._acts: dict[type[Any], Callable[[Any], None]] = {
            ops.Run: self._run,
            ops.Payload: self._payload,
            ops.Add: self._add,
            ops.Remove: self._remove,
            ops.Send: self._send,
            ops.Release: self._release,
            ops.Return: self._return,
            ops.PutSession: self._put_session,
            ops.EndSession: self._end_session,
            ops.Receive: self._receive,
            ops.Forget: self._forget,
            ops.Subscribe: self._subscribe,
            ops.Serve: self._serve,
            ops.Unsubscribe: self._unsubscribe,
            ops.Retain: self._retain,
            ops.Clear: self._clear,
            ops.Strike: self._strike,
        }

    def forget_changes(self) -> None:
        """The caller has taken what came and went."""
        self.added, self.removed, self.retained, self.sessions = [], [], {}, []
        self.subscriptions, self.forked, self.visited, self.forks = [], [], [], []
        self._stored = 0, 0

    def take_changes(self) -> Changes:
        """What came and went, which the caller does something about, or puts back."""
        taken = Changes(
            self.added, self.removed, self.retained, self.sessions, self.subscriptions, self.forked
        )
        self.forget_changes()
        return taken

    def put_back(self, changes: Changes) -> None:
        """They are in the store, and nothing could be done about them."""
        self.added[:0], self.removed[:0] = changes.added, changes.removed
        self.retained = changes.retained | self.retained
        self.sessions[:0], self.subscriptions[:0] = changes.sessions, changes.subscriptions
        self.forked[:0] = changes.forked
        added, removed = self._stored
        self._stored = added + len(changes.added), removed + len(changes.removed)

    def stored(self) -> None:
        """All until now is in the store."""
        self._stored = len(self.added), len(self.removed)

    def go_back(self) -> None:
        """What came and went since then is not, and comes again."""
        added, removed = self._stored
        del self.added[added:], self.removed[removed:]

    def apply(self, record: Record, *, own: bool = False) -> None:
        """All of it: the next of its node, whose `check_payloads` has passed, and whose vector is applied.
        `own`: it is of this node, which knows of all that it does, and is told of nothing.
        """
        told = self.added, self.removed, self.retained, self.sessions, self.subscriptions
        forks, stored = (self.forked, self.visited, self.forks), self._stored
        if own:
            self.forget_changes()
        self._dot, self._seen, self._own = record.dot, record.seen, own
        self._messages.clear()
        self._runs.clear()
        try:
            for operation in record.operations:
                self._acts[type(operation)](operation)
            self._rows.applied.put(record.dot.incarnation, None, (record.dot.number, record.digest))
        finally:
            if own:
                self.added, self.removed, self.retained, self.sessions, self.subscriptions = told
                self.forked, self.visited, self.forks = forks
                self._stored = stored

    # --- queues ------------------------------------------------------------------------------------

    def _run(self, op: ops.Run) -> None:
        """Together, where the rows can; what is left of it one by one."""
        self._runs.append(op)
        for left in self._rows.do_run(op, self._dot, self._seen, () if self._own else self.home, self.added):
            for each in read_run(left):
                self._acts[type(each)](each)

    def _message(self, message_id: Stamp) -> bytes:
        while message_id not in self._messages:
            for each in read_run(self._runs.pop().text):
                if isinstance(each, ops.Payload):
                    self._payload(each)
        return self._messages[message_id]

    def _payload(self, op: ops.Payload) -> None:
        self._messages[op.id] = op.message

    def _add(self, op: ops.Add) -> None:
        rows, dot = self._rows, self._dot
        gone = rows.removed.get(op.owner, op.id) or ()
        if not all(has_seen(self._seen, removal) for removal in gone):
            self.counts["cluster_added_after_removal"] += 1
            return
        shared = op.shared or op.owner.kind == GROUP
        self._note_known(op.owner)
        entry = rows.entries.get(op.owner, op.id)
        unsent = entry is not None and entry.sequence >= 0
        fields = op.flags, op.qos, op.message_bytes, op.expires_at_ms, op.subscription_ids
        added = Added(dot, shared, unsent, *fields)
        if entry is None:
            self._hold_payload(op.id)
            entry = Entry(())
        else:
            self.counts["cluster_added_twice"] += 1
        was_there = rows.shown(op.owner, entry)  # else it is new, or went with a session that has ended
        now = replace(entry, adds=tuple(sorted((*entry.adds, added))))
        rows.entries.put(op.owner, op.id, now)
        if op.owner.kind == SESSION and rows.is_hidden(op.owner.name, dot):
            self.counts["cluster_added_after_end"] += 1
        elif not was_there:
            self.added.append((op.owner, op.id))

    def _note_known(self, owner: Owner) -> None:
        """From this record on what its node has for a client is for the session that came after those whose
        end it knows of. Where it knows of none that came after, it is for nobody.
        """
        by, number = self._dot
        for dot, end in self._rows.ends.of(owner.name) if owner.kind == SESSION else ():
            if end.known is None or by in end.known or not has_seen(self._seen, dot):
                continue
            if any(has_seen(self._seen, Dot(*each)) for each in end.after.items()):
                known = {**end.known, by: number}
                self._rows.ends.put(owner.name, dot, replace(end, known=known))

    def _note_after(self, op: ops.PutSession) -> None:
        """A session that came after those whose end its node knows of."""
        by, number = self._dot
        for dot, end in self._rows.ends.of(op.client):
            comes_after = op.connected > end.epoch and has_seen(self._seen, dot)
            if end.known is not None and by not in end.after and comes_after:
                self._rows.ends.put(op.client, dot, replace(end, after={**end.after, by: number}))

    def _hold_payload(self, message_id: Stamp) -> None:
        payload = self._rows.payloads.get(message_id, None)
        if payload is None:
            payload = Payload(self._message(message_id), 0)
        self._rows.payloads.put(message_id, None, replace(payload, references=payload.references + 1))

    def drop_entry(self, owner: Owner, message_id: Stamp) -> None:
        """Deletes a row of a queue, and its payload with the last one."""
        self._rows.entries.put(owner, message_id, None)
        payload = self._rows.payloads.get(message_id, None)
        if payload is not None:
            left = replace(payload, references=payload.references - 1)
            self._rows.payloads.put(message_id, None, left if left.references else None)

    def drop_entries(self, owner: Owner, ids: Sequence[Stamp]) -> None:
        """The same for many of a session's, together."""
        run = run_of([ops.Remove(owner, each) for each in ids])
        for left in self._rows.do_run(run, Dot(0, 0), self._rows.vector, (), []):
            for each in read_run(left):
                assert isinstance(each, ops.Remove)
                self.drop_entry(each.owner, each.id)

    def _remove(self, op: ops.Remove) -> None:
        entry = self._rows.entries.get(op.owner, op.id)
        gone = self._rows.removed.get(op.owner, op.id)
        known = [each for each in entry.adds if has_seen(self._seen, each.dot)] if entry is not None else []
        is_remembered = bool(gone) or any(each.shared for each in known)
        if entry is not None and len(known) < len(entry.adds) and not is_remembered:
            if known:
                self._take_back(op, entry)
        elif entry is not None:
            if self._rows.shown(op.owner, entry):  # else it had gone with a session that has ended
                self.removed.append((op.owner, op.id, entry))
            self.drop_entry(op.owner, op.id)
        if is_remembered:
            self._rows.removed.put(op.owner, op.id, (*(gone or ()), self._dot))

    def _take_back(self, op: ops.Remove, entry: Entry) -> None:
        """Leaves what others have added, in flight only where who sent it knew of any of that."""
        left = replace(entry, adds=tuple(each for each in entry.adds if not has_seen(self._seen, each.dot)))
        if all(each.unsent for each in left.adds):
            left = replace(_waiting(left), sent=False)
        self._rows.entries.put(op.owner, op.id, left)
        self.counts["cluster_added_elsewhere"] += 1

    def _in_flight(self, op: ops.Send | ops.Release | ops.Return) -> Entry | None:
        """The entry, where the operation is of the session that goes on, or of the group's newest epoch for
        it, and its node knew of this entry: else it was about one that has been taken back.
        """
        entry = self._rows.entries.get(op.owner, op.id)
        if op.owner.kind == GROUP:
            newest = entry is None or op.epoch >= entry.epoch
        else:
            newest = self._session_under(op.owner.name, op.epoch) is not None
        if not newest:
            self.counts["cluster_older_epoch"] += 1
        if not newest or entry is None or not any(has_seen(self._seen, each.dot) for each in entry.adds):
            return None
        return entry

    def _flying(self, entry: Entry, sequence: int, *, released: bool, epoch: Stamp) -> Entry:
        """As the record sends it."""
        adds = tuple(each._replace(unsent=not has_seen(self._seen, each.dot)) for each in entry.adds)
        return replace(entry, adds=adds, sequence=sequence, released=released, sent=True, epoch=epoch)

    def _session_under(self, client: str, epoch: Stamp) -> Session | None:
        """The client's session, where this is its newest epoch."""
        session = self._rows.sessions.get(client, None)
        return session if session is not None and epoch == session.row.epoch else None

    def _send(self, op: ops.Send) -> None:
        entry = self._in_flight(op)
        session = self._session_under(op.owner.name, op.epoch) if op.owner.kind == SESSION else None
        if session is not None:
            row = replace(session.row, next_sequence=max(session.row.next_sequence, op.sequence + 1))
            self._rows.sessions.put(op.owner.name, None, replace(session, row=row))
        if entry is not None:
            sent = self._flying(entry, op.sequence, released=False, epoch=op.epoch)
            self._rows.entries.put(op.owner, op.id, sent)

    def _release(self, op: ops.Release) -> None:
        entry = self._in_flight(op)
        if entry is not None:
            self._rows.entries.put(op.owner, op.id, replace(entry, released=True))

    def _return(self, op: ops.Return) -> None:
        entry = self._in_flight(op)
        if entry is not None:
            self._rows.entries.put(op.owner, op.id, replace(_waiting(entry), epoch=op.epoch))

    # --- sessions ----------------------------------------------------------------------------------

    def _put_session(self, op: ops.PutSession) -> None:
        rows = self._rows
        self.sessions.append(op.client)
        known = rows.sessions.get(op.client, None)
        is_new = known is None or known.row.epoch != op.epoch
        if known is not None and is_new and not has_seen(self._seen, known.dot):
            self._note_fork(op, known)
        if op.begins and is_new and (op.replaces or self._has_rows(op.client)):
            # what this record has of the session comes behind this: it may hide records before this one alone
            own, number = self._dot
            before_this = {**self._seen, own: number - 1}
            self._end(op.client, op.epoch, before_this, {own: number} if op.replaces else None)
        self._note_after(op)
        if self._is_ended(op):
            self.counts["cluster_older_epoch"] += 1
            return
        before = rows.sessions.get(op.client, None)
        if before is not None and before.row.epoch != op.epoch and before.row.rank > op.rank:
            self.forked.append(op.client)
            if op.connected == op.epoch:
                self.visited.append(op.client)
            return
        row = replace(op, flights=(), replaces=False)
        if before is None or before.row.epoch != op.epoch:
            if before is not None and not self._own and self.home.get(op.client) == before.row.epoch:
                self.overruled[op.client] = replace(before.row, flights=flights_of(rows, op.client))
            self._set_flights(op)
        else:
            same = before.row
            last = max(same.next_sequence, op.next_sequence)
            row = replace(
                row,
                begins=same.begins,
                next_sequence=last,
                received=same.received,
                connected=same.connected,
                unasked=same.unasked or op.unasked,
            )
        rows.sessions.put(op.client, None, Session(row, self._dot))

    def _note_fork(self, op: ops.PutSession, known: Session) -> None:
        """A node had not heard of the session as it is known here. It is counted once, however many rows each
        side brings: who has not heard of what went on then is still on the other side of that fork.
        """
        counted = self._forks.get(op.client)
        is_new, wins = counted is None or has_seen(self._seen, counted), op.rank > known.row.rank
        if is_new:
            self.counts["cluster_sessions_forked"] += 1
            self._forks.pop(op.client, None)
            self._forks[op.client] = self._dot if wins else known.dot
            if len(self._forks) > FORKS_MAX:
                del self._forks[next(iter(self._forks))]
        if is_new or wins:  # else what was told still holds
            self.forks.append(op.client)

    def _is_ended(self, op: ops.PutSession) -> bool:
        """Whether a later end did not know of this CONNECT. Earlier ends are void: the session went on."""
        ended = False
        for dot, end in self._rows.ends.of(op.client):
            if has_seen(self._seen, dot):
                continue
            if end.epoch < op.connected:
                self._void(op.client, dot, end)
                continue
            ended = True
            if end.over is None or end.over[0] < op.connected:
                self._rows.ends.put(op.client, dot, replace(end, over=(op.connected, self._dot)))
        return ended

    def _void(self, client: str, dot: Dot, end: End) -> None:
        """What went with a session that went on all the same is there again. Its node may have begun another
        one instead, whose engine knows nothing of that.
        """
        rows, owner = self._rows, Owner(SESSION, client)
        self.counts["cluster_end_void"] += 1
        rows.ends.put(client, dot, None)
        if client not in self.home:
            return
        for message_id, entry in rows.entries.of(owner):
            there = rows.shown(owner, entry)
            if there and all(end.hides(each.dot) for each in there):
                self.added.append((owner, message_id))
        for topic_filter, row in rows.subscriptions.of(client):
            if end.hides(row.dot) and not rows.is_hidden(client, row.dot):
                self.subscriptions.append((client, topic_filter))

    def _set_flights(self, op: ops.PutSession) -> None:
        """Under a new epoch just this is in flight; what any other one had so waits again."""
        entries, owner = self._rows.entries, Owner(SESSION, op.client)
        for message_id, entry in self._rows.in_flight(op.client):
            entries.put(owner, message_id, _waiting(entry))
        for message_id, sequence, released in op.flights:
            waiting = entries.get(owner, message_id)
            # else another node has had the answer
            if waiting is not None and any(has_seen(self._seen, each.dot) for each in waiting.adds):
                flying = self._flying(waiting, sequence, released=released, epoch=waiting.epoch)
                entries.put(owner, message_id, flying)

    def _has_rows(self, client: str) -> bool:
        return self._rows.entries.has(Owner(SESSION, client)) or self._rows.subscriptions.has(client)

    def _end_session(self, op: ops.EndSession) -> None:
        self.sessions.append(op.client)
        self._end(op.client, op.epoch, self._seen, {})

    def _end(self, client: str, epoch: Stamp, seen: Vector, known: Mapping[int, int] | None) -> None:
        rows = self._rows
        session = rows.sessions.get(client, None)
        ended = [end.over for _, end in rows.ends.of(client) if end.over is not None]
        others = [*ended, *([(session.row.connected, session.dot)] if session else [])]
        if any(each > epoch and not has_seen(self._seen, dot) for each, dot in others):
            self.counts["cluster_end_void"] += 1
            return
        # where a session ends the one before it, it comes after that
        rows.ends.put(client, self._dot, End(epoch, seen, max(others, default=None), known, known or {}))
        rows.sessions.put(client, None, None)
        self.ended.pop(client, None)  # the last one comes last
        now = self.ended[client] = time.monotonic()
        while len(self.ended) > ENDED_MAX and self.ended[first := next(iter(self.ended))] < now - LATE_S:
            del self.ended[first]

    def _receive(self, op: ops.Receive) -> None:
        self._change_received(op, packet_id_of(op.mark), op.mark)

    def _forget(self, op: ops.Forget) -> None:
        self._change_received(op, op.packet_id)

    def _change_received(self, op: ops.Receive | ops.Forget, packet_id: int, *now: int) -> None:
        session = self._session_under(op.client, op.epoch)
        if session is None:
            self.counts["cluster_older_epoch"] += 1
            return
        others = (each for each in session.row.received if packet_id_of(each) != packet_id)
        row = replace(session.row, received=tuple(sorted([*others, *now])))
        self._rows.sessions.put(op.client, None, replace(session, row=row))

    # --- what the last change of counts ------------------------------------------------------------

    def _subscribe(self, op: ops.Subscribe) -> None:
        self._change_subscription(op, op.options, op.subscription_id)

    def _serve(self, op: ops.Serve) -> None:
        row = self._rows.subscriptions.get(op.client, op.topic_filter)
        if row is not None and row.stamp == op.stamp and row.options is not None:
            row = replace(row, options=row.options & ~BACKLOG)
            self._rows.subscriptions.put(op.client, op.topic_filter, row)

    def _unsubscribe(self, op: ops.Unsubscribe) -> None:
        self._change_subscription(op, None, 0)

    def _change_subscription(
        self, op: ops.Subscribe | ops.Unsubscribe, options: int | None, subscription_id: int
    ) -> None:
        self._note_known(Owner(SESSION, op.client))
        before = self._rows.subscriptions.get(op.client, op.topic_filter)
        if before is None or before.stamp < op.stamp:
            there = self._rows.subscription(op.client, op.topic_filter) if op.client in self.home else None
            if there is not None and self._rows.is_hidden(op.client, self._dot):
                # a later change in a session that has ended, on the other side of a split: only one row is
                # kept, so that of the session that goes on is to be made again by its home
                self.shadowed[op.client, op.topic_filter] = there
            row = Subscription(op.stamp, self._dot, options, subscription_id)
            self._rows.subscriptions.put(op.client, op.topic_filter, row)
            self._rows.gone.put(op.client, op.topic_filter, self._dot if options is None else None)
            self.subscriptions.append((op.client, op.topic_filter))

    def _retain(self, op: ops.Retain) -> None:
        self._change_retained(op, op.message)

    def _clear(self, op: ops.Clear) -> None:
        self._change_retained(op, None)

    def _change_retained(self, op: ops.Retain | ops.Clear, message: bytes | None) -> None:
        before = self._rows.retained.get(op.topic, None)
        # one that has gone by itself is cleared with its own id
        ends = before is not None and message is None and before.message is not None and before.id == op.id
        if before is None or before.id < op.id or ends:
            self._rows.retained.put(op.topic, None, Retained(op.id, self._dot, message))
            self.retained[op.topic] = op.id
            self._rows.gone.put(op.topic, None, self._dot if message is None else None)

    # --- members -----------------------------------------------------------------------------------

    def _strike(self, op: ops.Strike) -> None:
        if self._rows.struck.get(op.incarnation, None) is None:
            self._rows.struck.put(op.incarnation, None, (op.name, self._dot.incarnation))
        self._rows.members.put(op.incarnation, None, None)
