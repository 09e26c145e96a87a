"""The engine's side towards a store: what is loaded before the start, what is to be written while it runs.

One thread works for the store: it takes work, does it, and answers. The store itself is the control plane's;
here are only bytes.
"""

from __future__ import annotations

import cython
from cython.cimports.libc.stdint import int64_t, uint64_t
from cython.cimports.libc.stdlib import free
from cython.cimports.libcpp.memory import make_unique, unique_ptr
from cython.cimports.libcpp.string import string
from cython.cimports.libcpp.string_view import string_view
from cython.cimports.tidemq.engine.base.asserting import holds
from cython.cimports.tidemq.engine.base.clock import clock_ns
from cython.cimports.tidemq.engine.base.locks import lock, unlock
from cython.cimports.tidemq.engine.base.system import ACQUIRE, RELAXED, load_u64, store_int
from cython.cimports.tidemq.engine.door.columns import CapturedRows, Columns, captured_rows
from cython.cimports.tidemq.engine.door.conversion import string_of
from cython.cimports.tidemq.engine.door.dismantling import settle_all_mail
from cython.cimports.tidemq.engine.door.engine import Engine
from cython.cimports.tidemq.engine.door.keeper_work import (
    StoreWork,
    answer_work,
    close_journal,
    poke_journal,
    rest_of_work,
    wait_for_work,
)
from cython.cimports.tidemq.engine.door.restoring import (
    clear_retained,
    doubt_sessions,
    load_inflight,
    load_queue_rows,
    load_received,
    load_retained,
    load_session,
    load_shared,
    load_subscription,
    make_ids,
    make_rows,
    make_sizes,
    reactor_for,
)
from cython.cimports.tidemq.engine.door.session_moves import expect_doubles, make_arrival
from cython.cimports.tidemq.engine.index.subscribers import PLAIN, STREAM_REACTOR, Subscription
from cython.cimports.tidemq.engine.index.subscriptions import (
    lock_exclusive,
    put_subscription,
    remove_subscription,
    unlock_exclusive,
)
from cython.cimports.tidemq.engine.journal.journal import (
    MESSAGES_ONLY,
    UNCOPIED,
    give_section,
    open_journal,
)
from cython.cimports.tidemq.engine.link.mail import new_letter, new_mail, post_directly
from cython.cimports.tidemq.engine.queues.queueing import free_rows
from cython.cimports.tidemq.engine.state.arrival import Arrival
from cython.cimports.tidemq.engine.state.departure import FORGET, HAND_OVER, LOSE, TAKE_BACK
from cython.cimports.tidemq.engine.state.mail import (
    MAIL_ADDED,
    MAIL_ADOPT,
    MAIL_ALL_CAME,
    MAIL_ANSWER_SESSION,
    MAIL_CLEARING,
    MAIL_DOUBLES,
    MAIL_EXPIRED,
    MAIL_EXPIRING,
    MAIL_GIVE,
    MAIL_RELEASE,
    MAIL_REMOVED,
    MAIL_ROWS,
    MAIL_SUBSCRIPTION,
    MAIL_TAKEN,
    Mail,
)
from cython.cimports.tidemq.engine.state.reactor import Common, Reactor
from cython.cimports.tidemq.engine.state.section import StoredRows
from cython.cimports.tidemq.engine.state.wall_clock import raise_ids
from cython.cimports.tidemq.wire.protocol import Span, span_of
from cython.operator import dereference

from tidemq.errors import UsageError
from tidemq.wire.topics import topic_filter_fault

_STREAMS_MAX = cython.declare(cython.uint, 64)


@cython.cclass
class StoreAccess:
    """What a store does for an engine. Made before the engine starts, closed after its reactors ended."""

    def __cinit__(self, engine: Engine) -> None:
        self.engine = engine
        owner: unique_ptr[Columns] = make_unique[Columns]()
        self.columns = owner.release()
        self.adopted = set()

    def __dealloc__(self) -> None:
        del self.columns

    def _check(self):
        if self.engine.started or self.engine.closed:
            raise UsageError("a store is loaded before the engine starts")

    def open(self, incarnation: int, clock: int, *, as_of_ms: int) -> None:
        """From now on the engine keeps a journal. ``incarnation``: of this server, 64 bits; ``clock``: the
        highest that an id was ever given, in ns of the wall clock. What is loaded has the time left that it
        has at ``as_of_ms``, of the wall clock; dates are those of the clock from the first turn on.
        """
        self._check()
        index: cython.size_t
        common: cython.pointer[Common] = self.engine.common
        common.durable = True
        common.incarnation = incarnation
        common.highest_clock = clock
        common.wall_offset_ns = cython.cast(int64_t, as_of_ms) * 1000000 - clock_ns()
        raise_ids(common, cython.cast(int64_t, clock) - clock_ns())
        for index in range(common.reactors.size()):
            common.reactors[index].clock = cython.cast(uint64_t, clock) // 64 * 64

    def load_session(self, client_id: bytes, value: bytes, *, unasked: bool = False) -> bool:
        """Sessions come first. Like all ``load_*``: False when the row cannot be read. ``unasked``: as for
        `adopt`.
        """
        self._check()
        return load_session(self.engine.common, client_id, value, unasked)

    def load_subscription(self, key: bytes, value: bytes) -> bool:
        """A subscription of a session."""
        self._check()
        return load_subscription(self.engine.common, key, value)

    def load_received(self, key: bytes) -> bool | None:
        """A QoS 2 message of a session that waits for its PUBREL: the row's key, and its value behind it.
        False: there is no such session; None: it cannot be read.
        """
        self._check()
        if len(key) not in (10, 16):
            return None
        return load_received(self.engine.common, key)

    def load_shared(self, key: bytes, value: bytes) -> bool:
        """A shared group's queue; after the subscriptions. False: its group is gone, or it cannot be read."""
        self._check()
        return load_shared(self.engine.common, key, value)

    def load_retained(self, topic: bytes, value: bytes) -> bool:
        """A retained message."""
        self._check()
        return load_retained(self.engine.common, topic, value)

    def load_queue(self, rows, orphans: set, held: list, corrupt: list) -> list:
        """Pairs of key and value, all of them. Returns those in flight, which ``load_inflight`` takes with
        their payloads; ``orphans`` gets queues without a session, ``held`` rows in flight of shared groups,
        which are to become idle, ``corrupt`` keys that cannot be read.
        """
        self._check()
        return load_queue_rows(self.engine.common, rows, orphans, held, corrupt)

    def load_inflight(self, key: bytes, value: bytes, payload: bytes) -> bool:
        """A message that was in flight; in the order that ``load_queue`` gave."""
        self._check()
        return load_inflight(self.engine.common, key, value, payload)

    def loaded(self, *, crashed: bool) -> None:
        """All is loaded: what changes from now on is recorded. ``crashed``: the last broker did not end well,
        so what it sent last is known as sent to the client alone.
        """
        self._check()
        index: cython.size_t
        if crashed:
            doubt_sessions(self.engine.common)
        for index in range(self.engine.common.reactors.size()):
            open_journal(self.engine.common.reactors[index])

    def take_work(self, timeout_s: float, *, described: bool = False) -> StoreWork | None:
        """What there is to be done for the reactors, after at most ``timeout_s``; None: nothing will come.
        ``described``: as what was done, not as writes.
        """
        work: StoreWork = wait_for_work(self.engine.common, timeout_s, described)
        if work is not None:
            self.adopted.difference_update(client_id for client_id, _ in work.arrived)
        return work

    def poke(self) -> None:
        """Ends the wait of ``take_work``, with nothing where there is nothing; from any thread."""
        poke_journal(self.engine.common)

    def answer(self, work: StoreWork, reason: int = 0) -> None:
        """The work's writes are durable, or with a reason code of 0x80 and above they are not."""
        answer_work(work, reason)

    def answer_uncopied(self, work: StoreWork) -> None:
        """The work's writes are durable, and no other node has them. Nothing is undone, but publishers whose
        messages they hold get no acknowledgement: they are disconnected (5.0: 0x83). All else is answered.
        """
        answer_work(work, UNCOPIED)

    def rest_of(self, work: StoreWork) -> StoreWork:
        """What of a failed work is to be done before the next; asked for before it is answered."""
        return rest_of_work(work)

    def captured_rows(self, work: StoreWork, stream: int, first_offset: int) -> CapturedRows:
        """The messages of the work for a stream; good until the work is answered, or this is called again."""
        return captured_rows(
            self.columns, cython.address(work.sections), stream, first_offset, self.engine.common.incarnation
        )

    def add_stream(self, filters) -> int:
        """From now on messages on these filters are captured for a stream, whose number is returned.

        UsageError for a malformed filter, or when 64 streams have been added since the start.
        """
        self._check_stream_filters(filters)
        if self.stream_count == _STREAMS_MAX:
            raise UsageError(
                f"{_STREAMS_MAX} streams have been added since the start, which is as many as can be"
            )
        number: cython.uint = self.stream_count
        self.stream_count += 1
        self.change_stream(number, [], filters)
        return number

    def change_stream(self, stream: int, removed, added) -> None:
        """Filters that a stream has no more, and others that it has from now on."""
        self._check_stream_filters(added)
        holds(
            cython.cast(cython.uint, stream) < self.stream_count,
            b"keeper access: a stream that changes was added",
        )
        common: cython.pointer[Common] = self.engine.common
        subscription: Subscription
        mark: cython.p_void = cython.address(self.stream_marks[stream])
        subscription = Subscription(mark, stream, STREAM_REACTOR, 0, PLAIN)
        kept: list = [text.encode() for text in removed]
        wanted: list = [text.encode() for text in added]
        lock_exclusive(common.subscriptions)
        for text in kept:
            remove_subscription(common.subscriptions, span_of(text), Span(cython.NULL, 0), mark)
        for text in wanted:
            put_subscription(common.subscriptions, span_of(text), Span(cython.NULL, 0), subscription)
        unlock_exclusive(common.subscriptions)

    def _check_stream_filters(self, filters):
        for text in filters:
            self.engine._check_topic(text, 0, topic_filter_fault)
            if text.startswith("$share/"):
                raise UsageError(f"{text!r}: a stream takes no shared subscription")

    def deliver_rows(self, reactor: int, queue: int, rows, more: bool) -> list:
        """Answers a read with key, value and payload of each row. Returns the keys of those that cannot be
        read.
        """
        corrupt: list = []
        made: cython.pointer[StoredRows] = make_rows(self.engine.common, rows, corrupt)
        made.more = more
        self._mail_rows(reactor, MAIL_ROWS, queue, made)
        return corrupt

    def expire(self, queue: int, rows) -> None:
        """Idle rows whose time is over, each of key, value and payload. Which of them are to go, if they are
        still there, the queue's owner says in ``StoreWork.expired``.
        """
        reactor: cython.int = self._owner_of(queue)
        if reactor >= 0:
            self._mail_rows(reactor, MAIL_EXPIRED, queue, make_rows(self.engine.common, rows, []))

    def removed(self, queue: int, sizes) -> None:
        """Rows of ``StoreWork.expired`` that were there, and go: the bytes of each one's message."""
        reactor: cython.int = self._owner_of(queue)
        if reactor >= 0:
            self._mail_rows(reactor, MAIL_REMOVED, queue, make_sizes(sizes))

    # --- sessions that move between nodes -------------------------------------------------------------

    def ask_for_sessions(self) -> None:
        """From the start on, every CONNECT that was let in and is about to find or make its session makes a
        SessionRequest, and waits for ``session_ready``. Before ``start``.
        """
        self._check()
        self.engine.common.ask_sessions = True

    def session_ready(self, connection: int, reason: int = 0) -> None:
        """Answers a SessionRequest: the client's session, if there is one, is here now; or the client is
        refused with a reason code, 0x80 and above. From any thread; too late, or twice, it does nothing.
        """
        self.engine._check_open()
        mail: Mail = new_mail(MAIL_ANSWER_SESSION)
        mail.reason = reason
        self.engine._answer(connection, cython.address(mail))

    def release(self, client_id: bytes, *, keep: bool = False) -> bool:
        """A session is to leave; its client is disconnected (5.0: 0x8E). All that is recorded of it comes
        first, then ``StoreWork.left`` names it, and nothing of it comes after; its rows are not removed.
        False: there is none, and nothing of one is under way. A session that is not stored ends.

        A client that comes while its session leaves is disconnected, one that comes later gets a new session:
        with ``ask_for_sessions`` it waits until it may come.

        ``keep``: it is handed over, and goes on to take what comes for it until it is released.
        """
        return self._send_away(client_id, HAND_OVER if keep else FORGET)

    def lose(self, client_id: bytes) -> bool:
        """Another node has taken a session, and its client did not come there: as `release` with ``keep``,
        but the client is to come again (5.0: 0x9C).
        """
        return self._send_away(client_id, LOSE)

    def is_online(self, client_id: bytes) -> bool:
        """Whether a session's client is connected at this moment, and has it."""
        self._check_running()
        common: cython.pointer[Common] = self.engine.common
        named: string = client_id
        lock(cython.address(common.registry_lock))
        known = common.registry.find(string_view(named.data(), named.size()))
        online: cython.bint = known != common.registry.end() and (
            load_u64(
                cython.cast(cython.pointer[uint64_t], cython.address(dereference(known).second.connection)),
                ACQUIRE,
            )
            != 0
        )
        unlock(cython.address(common.registry_lock))
        return online

    def take_back(self, client_id: bytes) -> None:
        """A session that was handed over, and that nobody has taken, is its client's again. A client that is
        let in afterwards finds it so.
        """
        self._send_away(client_id, TAKE_BACK)

    def _send_away(self, client_id, how):
        self._check_running()
        common: cython.pointer[Common] = self.engine.common
        named: string = client_id
        reactor: cython.pointer[Reactor] = cython.NULL
        lock(cython.address(common.registry_lock))
        known = common.registry.find(string_view(named.data(), named.size()))
        if known != common.registry.end():
            reactor = common.reactors[dereference(known).second.reactor]
        elif common.removals.count(named):
            reactor = common.reactors[common.removals[named].reactor]
        unlock(cython.address(common.registry_lock))
        if reactor == cython.NULL and client_id in self.adopted:
            reactor = reactor_for(common, client_id)  # where the mail before this has it
        if reactor == cython.NULL:
            return False
        mail: Mail = new_mail(MAIL_RELEASE)
        mail.reason = how
        mail.letter = new_letter()
        mail.letter.text = string_of(client_id)
        post_directly(reactor, cython.address(mail))
        return True

    def give(self, group: str, row: tuple, token: int) -> bool:
        """A message of a shared group, ``$share/group/filter``, that waits in a queue of a node which is
        dead, or has no members online: to one of its members, on whatever node, or into a queue here.
        ``row``: key, value and payload. False where it cannot be read. Else ``StoreWork.given`` has the
        token, and 0 when it is kept, or the reason code why it is not.
        """
        self._check_running()
        name: bytes = group.encode()
        common: cython.pointer[Common] = self.engine.common
        rows: cython.pointer[StoredRows] = make_rows(common, [row], [])
        if rows.rows.empty():
            free_rows(common.reactors[0], rows)
            return False
        mail: Mail = new_mail(MAIL_GIVE)
        mail.number = token
        mail.message = rows.rows[0].message
        mail.message.counted = False  # it gets an id of its own
        free(rows.rows[0].subscription_ids)
        del rows
        mail.letter = new_letter()
        mail.letter.text = string_of(name)
        post_directly(reactor_for(common, name), cython.address(mail))
        return True

    def raise_ids(self, clock: int) -> None:
        """From now on messages get ids above this clock: another node has given it."""
        raise_ids(self.engine.common, cython.cast(int64_t, clock) - clock_ns())

    def new_queue(self) -> int:
        """A number for the queue of a session that comes from elsewhere; nothing else ever has it."""
        common: cython.pointer[Common] = self.engine.common
        lock(cython.address(common.registry_lock))
        common.next_session += 1
        number: uint64_t = common.next_session
        unlock(cython.address(common.registry_lock))
        return number

    def raise_queues(self, number: int) -> None:
        """Queues that are made from now on have higher numbers."""
        common: cython.pointer[Common] = self.engine.common
        lock(cython.address(common.registry_lock))
        common.next_session = max(common.next_session, cython.cast(uint64_t, number))
        unlock(cython.address(common.registry_lock))

    def adopt(
        self,
        client_id: bytes,
        value: bytes,
        subscriptions,
        received,
        inflight,
        *,
        idle=(0, 0, 0),
        next_place: int = 0,
        crashed: bool = False,
        unasked: bool = False,
        doubles_s: float = 0,
        taken=(),
        recent=(),
        older_may_come: bool = False,
        stays: bool = False,
    ) -> list:
        """A stored session arrives, with the rows that this store has of it by now: its own ``value``; key
        and value of its ``subscriptions``; of ``received`` keys with their values behind them; key, value and
        payload of rows ``inflight``, in the order of their places; of ``idle`` rows, which stay in the store,
        how many, the bytes of their messages, and the clock of the first one's id. No place of its outbox
        below ``next_place`` is given to a message. ``crashed``: what waits may have been sent.
        ``unasked``: its client may hold packet identifiers of messages that nobody knows of.

        For ``doubles_s`` messages may come twice, by their publishers' nodes and as rows of its old home: its
        client gets them once. Those that the old home has ``taken`` (as of ``NodeAccess.taken_so_far``) come
        as rows alone; of those among the ``idle`` rows whose messages may still come, ``recent`` has the ids.
        ``older_may_come``: rows that the old home has added, or adds, may come after messages that were
        published later. So nothing that waits is sent until `all_came` is called, neither does the session
        expire nor its will go out: its client may be about to have it. ``stays``: its client may be connected
        to another node; it does not expire until `let_expire` is called, or its client has come.

        Returns family and key of rows that cannot be read, or are not this session's; then nothing of it is
        taken. Else ``StoreWork.arrived`` says when all of it is here. UsageError where ``idle`` or
        ``next_place`` cannot be.
        """
        self._check_running()
        count, size, oldest = idle
        if min(count, size, oldest, next_place) < 0 or max(count, size, oldest, next_place) >> 63:
            raise UsageError(f"idle {idle!r} and next_place {next_place} must be 0 to 2**63 - 1")
        common: cython.pointer[Common] = self.engine.common
        unreadable: list = []
        arrival: cython.pointer[Arrival] = make_arrival(
            common, client_id, value, subscriptions, received, inflight, next_place, unreadable
        )
        if arrival == cython.NULL:
            return unreadable
        arrival.waiting = count
        arrival.bytes = size
        arrival.oldest = oldest
        arrival.doubtful = crashed
        arrival.unasked = unasked
        arrival.older_may_come = older_may_come
        arrival.row.stays = stays
        expect_doubles(arrival, cython.cast(int64_t, doubles_s * 1000), taken, recent)
        mail: Mail = new_mail(MAIL_ADOPT)
        mail.pointer = arrival
        self.adopted.add(client_id)
        post_directly(reactor_for(common, client_id), cython.address(mail))
        return unreadable

    def all_came(self, queue: int) -> None:
        """What waits in the queue of a session that has arrived is sent from now on, in the order of ids. All
        rows that go before are here and were named by `note_added`. The session's timers count again.
        """
        self._tell_queue(queue, MAIL_ALL_CAME, 0)

    def let_expire(self, queue: int) -> None:
        """The client of a session that has arrived and ``stays`` is connected nowhere else: its Session
        Expiry Interval begins now. Nothing happens where it is connected, or was, or has gone.
        """
        self._tell_queue(queue, MAIL_EXPIRING, 0)

    def expect_doubles(self, queue: int, for_s: float) -> None:
        """Another node has had the session of this queue, too, and takes messages for it still: they may come
        twice, as after `adopt` with ``doubles_s``.
        """
        self._tell_queue(queue, MAIL_DOUBLES, int(for_s * 1000))

    def clear_identifiers(self, queue: int) -> None:
        """Another node has had the session of this queue, too, with its client: that may hold packet
        identifiers of messages that are not known here, as after `adopt` with ``unasked``.
        """
        self._tell_queue(queue, MAIL_CLEARING, 0)

    def note_added(self, queue: int, ids, sizes) -> None:
        """Idle rows of a queue of this engine have come into the store without it: their messages' ids, 16
        bytes each, and the messages' bytes. Any ids: a message that is older than what its client has had
        already comes late, and what waits is sent in the order of ids again.
        """
        self._note_outside(queue, MAIL_ADDED, ids, sizes)

    def note_removed(self, queue: int, ids, sizes) -> None:
        """Idle rows of a queue of this engine have gone from the store without it: a client gets them no
        more, unless they are in flight to it.
        """
        self._note_outside(queue, MAIL_TAKEN, ids, sizes)

    def _tell_queue(self, queue, kind, token):
        """The reactor that has the queue, if one does."""
        self._check_running()
        reactor: cython.int = self._owner_of(queue)
        if reactor >= 0:
            mail: Mail = new_mail(kind)
            mail.number = queue
            mail.token = token
            post_directly(self.engine.common.reactors[reactor], cython.address(mail))

    def _note_outside(self, queue, kind, ids, sizes):
        self._check_running()
        kept: list = list(ids)
        counts: list = list(sizes)
        if len(kept) != len(counts) or {len(each) for each in kept} - {16}:
            raise UsageError("an id has 16 bytes, and each has a size")
        reactor: cython.int = self._owner_of(queue)
        if reactor >= 0:
            self._mail_rows(reactor, kind, queue, make_ids(kept, counts))

    def note_subscription(
        self, queue: int, topic_filter: bytes, options: int | None, subscription_id: int
    ) -> None:
        """A subscription of the session that has this queue has come into the store as it is given, or, None,
        has gone from it, without this engine.
        """
        self._check_running()
        reactor: cython.int = self._owner_of(queue)
        if reactor < 0:
            return
        mail: Mail = new_mail(MAIL_SUBSCRIPTION)
        mail.number = queue
        mail.offered = options is not None
        if options is not None:
            mail.reason, mail.token = options, subscription_id
        mail.letter = new_letter()
        mail.letter.text = string_of(topic_filter)
        post_directly(self.engine.common.reactors[reactor], cython.address(mail))

    def retain(self, topic: bytes, value: bytes) -> bool:
        """A row of ``retained`` has come into the store without this engine, or has gone from it: then the
        value is an id alone, of that time. One that is older than what is retained now changes nothing.
        False: it cannot be read.
        """
        self._check_running()
        if len(value) == 16:
            clear_retained(self.engine.common, topic, value)
            return True
        return load_retained(self.engine.common, topic, value)

    def _check_running(self):
        self.engine._check_open()
        if not self.engine.started or not self.engine.common.durable:
            raise UsageError("sessions move between engines that run and have a store")

    def _owner_of(self, number):
        """The reactor that has the queue; -1: none."""
        common: cython.pointer[Common] = self.engine.common
        lock(cython.address(common.registry_lock))
        known: cython.bint = common.queue_owners.count(number)
        reactor: cython.int = common.queue_owners[number] if known else -1
        unlock(cython.address(common.registry_lock))
        return reactor

    def _mail_rows(self, reactor, kind, queue, rows):
        count: cython.size_t = self.engine.common.reactors.size()
        holds(cython.cast(cython.size_t, reactor) < count, b"keeper access: a reactor owns a queue")
        mail: Mail = new_mail(kind)
        mail.number = queue
        mail.pointer = rows
        post_directly(self.engine.common.reactors[reactor], cython.address(mail))

    def refuse(self, reason: int, *, messages_only: bool = False) -> None:
        """From now on a message that would have to be stored is refused with this reason code; 0: no more.
        With 0x83 also what clients subscribe to, and sessions, unless ``messages_only``.
        """
        if reason and messages_only:
            reason |= MESSAGES_ONLY
        store_int(cython.address(self.engine.common.store_refuses), reason, RELAXED)

    def close(self) -> None:
        """The reactors have ended: all that they recorded can be taken, then no more comes."""
        index: cython.size_t
        common: cython.pointer[Common] = self.engine.common
        settle_all_mail(common)
        for index in range(common.reactors.size()):
            give_section(common.reactors[index])
        close_journal(common)
