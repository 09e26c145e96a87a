"""The engine of a simulated node: what `StoreAccess` and `NodeAccess` say of it, without sockets, and small.

A queue is whole in memory. QoS is 1. What a shared group's member takes is in a queue of the group's.
"""

from __future__ import annotations

import itertools
import json
import struct
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from cluster.nodes import make_message
from cluster.simulation.promises import Promise
from cluster.simulation.sessions import EXPIRY_S, STEP, Doubles, Stored, Work

from tidemq.store.rows import IDLE, parse_message
from tidemq.wire.filters import matches

if TYPE_CHECKING:
    from cluster.simulation.visitors import Visit

    from tidemq.store import Store

REFUSED = 0x80
WINDOW = 8
_ID = struct.Struct(">QQ")


class ToldWronglyError(Exception):
    """The keeper says what cannot be: the history ends with this."""


class Engine:
    """Of one process. `poke` and `poke_neighbours`: that there is something for the keeper, or other nodes;
    `wake`: and for a turn of its own, in which what others asked is done in order. `now` and `wall_ns`:
    clocks. `open_s`: how long something of a session that is to leave stays open.
    """

    def __init__(
        self,
        store: Store,
        now: Callable[[], float],
        wall_ns: Callable[[], int],
        poke: Callable[[], None],
        poke_neighbours: Callable[[], None],
        wake: Callable[[], None],
        open_s: Callable[[], float],
        first_token: int,
    ) -> None:
        self._store = store
        self._now = now
        self._wall_ns = wall_ns
        self._poke = poke
        self._poke_neighbours = poke_neighbours
        self._wake = wake
        self._open_s = open_s
        self._tokens = itertools.count(first_token)
        self.incarnation = 0
        self._work = Work()
        self._asked_for: deque[Callable[[], None]] = deque()
        self._releasing: deque[Callable[[], None]] = deque()  # of which something is open, perhaps
        self._sessions: dict[str, Stored] = {}
        self._adopted: set[str] = set()  # clients whose sessions are on their way into it
        self._removing: Counter[str] = Counter()  # ends of sessions that are not answered yet
        self._numbers = 0
        self._clock = self._lead_ns = 0
        self._wanted: dict[int, dict[str, int]] = {}  # by slot: filters, of groups who is online
        self._pending: dict[int, list[Any]] = {}  # letters by slot
        self._open: dict[int, tuple[int, Promise]] = {}  # by token: the slot that was asked
        self._taken: dict[int, int] = {}  # the clock of the last message, by origin
        self._interest: Counter[str] = Counter()
        self._changed: dict[str, bool] = {}
        self.is_noting = False

    # --- the start ---------------------------------------------------------------------------------

    def open(self, incarnation: int, clock: int, *, as_of_ms: int) -> None:
        """The node is this one from now on."""
        self.incarnation, self._clock = incarnation, max(self._clock, clock)

    def load_session(self, key: bytes, value: bytes, *, unasked: bool = False) -> bool:
        """A session that is at home here."""
        self._sessions[key.decode()] = Stored(key.decode(), int.from_bytes(value[:8]))
        return True

    def load_subscription(self, key: bytes, _value: bytes) -> bool:
        """One of its subscriptions."""
        end = 2 + int.from_bytes(key[:2])
        self._add_filter(self._sessions[key[2:end].decode()], key[end:].decode())
        return True

    def load_retained(self, _topic: bytes, _value: bytes) -> bool:
        """Nothing is retained in these histories."""
        return True

    def load_queue(
        self, rows: Iterable[tuple[bytes, bytes]], _orphans: object, _held: object, _corrupt: object
    ) -> list[Any]:
        """What waits; QoS 1 alone leaves nothing in flight."""
        by_number = {session.number: session for session in self._sessions.values()}
        for key, _ in rows:
            session = by_number.get(int.from_bytes(key[:8]))
            if session is not None:
                self._read(session, key[9:])
        return []

    def loaded(self, *, crashed: bool) -> None:
        """All is here."""

    def ask_for_sessions(self) -> None:
        """It always asks."""

    # --- work --------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Does what was asked."""
        while self._asked_for:
            self._asked_for.popleft()()
        for _ in range(len(self._releasing)):
            self._releasing.popleft()()
        if self._releasing:
            self._wake()

    def take_work(self) -> Work:
        """All that was done since the last one."""
        work, self._work = self._work, Work()
        return work

    def answer(self, work: Work, reason: int = 0) -> None:
        """It is done, or not."""
        for told in work.promises:
            told(reason < REFUSED)

    def answer_uncopied(self, work: Work) -> None:
        """It is done, and nobody is told."""
        self.answer(work, REFUSED)

    def refuse(self, _reason: int, *, messages_only: bool = False) -> None:
        """Only ever said of what cannot be here: a node that takes a snapshot serves nobody yet."""

    def poke(self) -> None:
        """Of both accesses."""
        self._poke()
        self._poke_neighbours()

    def _do(self, act: Callable[[], None]) -> None:
        self._asked_for.append(act)
        self._wake()

    def new_queue(self) -> int:
        self._numbers += 1
        return self._numbers

    def raise_queues(self, number: int) -> None:
        self._numbers = max(self._numbers, number)

    def raise_ids(self, clock: int) -> None:
        self._lead_ns = max(self._lead_ns, clock - self._wall_ns())

    def _next_id(self) -> bytes:
        now = self._wall_ns() + self._lead_ns
        self._clock = max(now // STEP * STEP, self._clock + STEP)
        self._work.writes.append(("meta", b"clock", self._clock.to_bytes(8)))
        return _ID.pack(self._clock, self.incarnation)

    def _put(self, family: str, key: bytes, value: bytes | None) -> None:
        self._work.described.append(("put", family, key, value))
        self._poke()

    # --- clients -----------------------------------------------------------------------------------

    def is_here(self, visit: Visit) -> bool:
        """Whether the client is served on this connection."""
        session = self._sessions.get(visit.client.name)
        return session is not None and session.visit is visit

    @property
    def has_clients(self) -> bool:
        return any(session.visit is not None for session in self._sessions.values())

    def session_ready(self, visit: Visit, reason: int) -> None:
        """The client's session is here, if there is one."""
        self._do(partial(self._begin, visit, reason))

    def _begin(self, visit: Visit, reason: int) -> None:
        session = self._sessions.get(visit.client.name)
        if visit.is_over:
            return
        if reason or (session is not None and session.kept):
            visit.end()
            return
        if session is not None and session.visit is not None:
            session.visit.end()
        if session is not None and visit.clean:
            self._end(session)
            session = None
        present = session is not None
        if session is None:
            session = self._sessions[visit.client.name] = Stored(visit.client.name, self.new_queue())
        session.visit = visit
        self._put("session", session.key, session.value(0))
        if present:
            visit.client.on_connack(visit, present=True)
            self._pump(session)
        else:
            self._work.promises.append(
                lambda kept: visit.client.on_connack(visit, present=False) if kept else visit.end()
            )

    def disconnect(self, visit: Visit, *, ends: bool = False) -> None:
        """The client has gone; `ends`: and wants its session to end."""
        session = self._sessions.get(visit.client.name)
        if session is None or session.visit is not visit:
            return
        session.visit = None
        if ends:
            self._end(session)
        else:
            self._put("session", session.key, session.value(self._wall_ns() // 1_000_000 + EXPIRY_S * 1000))

    def disconnect_all(self) -> None:
        """The node leaves."""
        for session in self._sessions.values():
            if session.visit is not None:
                session.visit.end()

    def _end(self, session: Stored) -> None:
        mine = [each for each in self._work.described if each[:2] == ("add", session.number)]
        for each in mine:  # what it got in the open work never enters
            self._work.described.remove(each)
        self._put("session", session.key, None)
        self._work.purges.append(session.number.to_bytes(8))
        self._removing[session.client] += 1
        self._work.promises.append(lambda _: self._removing.subtract([session.client]))
        self._drop(session)

    def _drop(self, session: Stored) -> None:
        if session.visit is not None:
            session.visit.end()
        self._sessions.pop(session.client, None)
        for each in list(session.filters):
            self._remove_filter(session, each)

    def subscribe(self, visit: Visit, topic_filter: str) -> None:
        """SUBSCRIBE with QoS 1."""
        session = self._sessions[visit.client.name]
        self._add_filter(session, topic_filter)
        key = len(session.key).to_bytes(2) + session.key + topic_filter.encode()
        self._put("subscription", key, struct.pack(">BI", 1, 0))
        self._work.promises.append(lambda kept: visit.client.on_suback(visit) if kept else None)

    def acknowledge(self, visit: Visit, place: int) -> bool:
        """PUBACK of a subscriber; whether it was for something."""
        session = self._sessions[visit.client.name]
        message_id = session.flights.pop(place, None)
        if message_id is None or session.waiting.pop(message_id, None) is None:
            return False
        mine = [each for each in self._work.described if each[:3] == ("add", session.number, message_id)]
        if mine and session.doubles is None and message_id not in session.outside:  # it never enters
            self._work.described.remove(mine[0])
        else:
            self._work.described.append(("remove", session.number, message_id, place))
        self._pump(session)
        self._poke()
        return True

    def _pump(self, session: Stored) -> None:
        visit = session.visit
        if visit is None or session.older_may_come:
            return
        for place, message_id in session.flights.items():
            if place not in visit.sent:
                visit.send(place, session.waiting[message_id])
        flying = set(session.flights.values())
        for message_id in sorted(session.waiting):
            if len(session.flights) >= WINDOW:
                return
            if message_id not in flying:
                session.flights[session.next_place] = message_id
                visit.send(session.next_place, session.waiting[message_id])
                session.next_place += 1

    # --- messages ----------------------------------------------------------------------------------

    def publish(self, topic: str, payload: bytes, done: Callable[[bool], None]) -> None:
        """PUBLISH with QoS 1; `done`: whether it may be acknowledged."""
        message_id, promise = self._next_id(), Promise(done)
        if self._deliver(message_id, topic, payload):
            self._work.promises.append(promise.part())
        for slot, wanted in self._wanted.items():
            if any(matches(each, topic) for each in wanted):
                self._ask(slot, message_id, topic, payload, promise)
        promise.close()
        self._poke()

    def _ask(self, slot: int, message_id: bytes, topic: str, payload: bytes, promise: Promise) -> None:
        token = next(self._tokens)
        self._open[token] = slot, promise
        promise.part_of(token)
        self._say(slot, "message", token, message_id.hex(), topic, payload.decode())

    def _deliver(self, message_id: bytes, topic: str, payload: bytes) -> bool:
        """To the sessions here; whether there was one that had it not."""
        found = False
        for session in self._sessions.values():
            if not any(matches(each, topic) for each in session.filters):
                continue
            doubles = session.doubles
            if doubles is not None and self._now() >= doubles.until:
                doubles = session.doubles = None
            if doubles is not None and doubles.comes_twice(message_id):
                continue
            found = True
            message = make_message(topic, payload)
            session.waiting[message_id] = payload
            session.had.add(message_id)
            row = ("add", session.number, message_id, 1, False, len(message), 0, (), None, False, message)
            self._work.described.append(row)
            self._work.adds = True
            self._pump(session)
        return found

    # --- sessions that come and go -----------------------------------------------------------------

    def lose(self, client: bytes) -> bool:
        self._do(partial(self._end_visit, client.decode(), drives_away=False))
        return self.release(client, keep=True)

    def is_online(self, client: bytes) -> bool:
        session = self._sessions.get(client.decode())
        return session is not None and session.visit is not None

    def release(self, client: bytes, *, keep: bool = False) -> bool:
        name = client.decode()
        if name not in self._sessions and not self._removing[name] and name not in self._adopted:
            return False
        self._do(partial(self._release, name, keep))
        return True

    def _end_visit(self, client: str, *, drives_away: bool) -> None:
        session = self._sessions.get(client)
        if session is not None and session.visit is not None:
            (session.visit.drive_away if drives_away else session.visit.end)()
            session.visit = None

    def _release(self, client: str, keep: bool) -> None:
        session = self._sessions.get(client)
        self._end_visit(client, drives_away=keep)
        if session is not None and self._is_open(session):
            self._releasing.append(partial(self._release, client, keep))
            return
        if session is None:
            self._leave(client.encode(), 0, here=False)
            return
        session.kept = True
        if not keep:
            self._drop(session)
        self._leave(session.key, session.next_place, here=True)

    def _is_open(self, session: Stored) -> bool:
        """Whether something is still to be decided. Those that are to leave twice leave in order."""
        session.open_until = session.open_until or self._now() + self._open_s()
        is_open = self._now() < session.open_until
        if not is_open:
            session.open_until = 0.0
        return is_open

    def _leave(self, key: bytes, place: int, *, here: bool) -> None:
        self._work.left.append((key, place, here))
        self._poke()

    def take_back(self, client: bytes) -> None:
        self._do(partial(self._take_back, client.decode()))

    def _take_back(self, client: str) -> None:
        session = self._sessions.get(client)
        if session is not None:
            session.kept = False

    def adopt(
        self,
        client_id: bytes,
        value: bytes,
        subscriptions: Sequence[tuple[bytes, bytes]],
        received: Sequence[bytes],
        inflight: Sequence[tuple[bytes, bytes, bytes]],
        *,
        idle: tuple[int, int, int],
        next_place: int,
        crashed: bool,
        unasked: bool,
        doubles_s: float,
        taken: Sequence[tuple[int, int, int]],
        recent: Sequence[bytes],
        older_may_come: bool,
        stays: bool,
    ) -> list[Any]:
        filters = [key[2 + len(client_id) :].decode() for key, _ in subscriptions]
        session = Stored(client_id.decode(), int.from_bytes(value[:8]), next_place=next_place)
        session.older_may_come = older_may_come
        if doubles_s:
            marks = {(origin, reactor): clock for origin, reactor, clock in taken}
            session.doubles = Doubles(self._now() + doubles_s, marks, set(recent))
        self._adopted.add(session.client)
        self._do(partial(self._arrive, session, filters))
        return []

    def _arrive(self, session: Stored, filters: list[str]) -> None:
        self._adopted.discard(session.client)
        here = session.client not in self._sessions and not self._removing[session.client]
        if here:
            self._sessions[session.client] = session
            for each in filters:
                self._add_filter(session, each)
            for key, _ in self._store.scan("queue", session.number.to_bytes(8) + bytes([IDLE])):
                self._read(session, key[9:])
        self._work.arrived.append((session.key, here))
        self._poke()

    def _read(self, session: Stored, message_id: bytes) -> None:
        text = self._store.get("payload", message_id)
        if text is not None:
            session.waiting[message_id] = parse_message(text).payload
            session.had.add(message_id)

    def expect_doubles(self, number: int, for_s: float) -> None:
        self._do(partial(self._expect_doubles, number, for_s))

    def _expect_doubles(self, number: int, for_s: float) -> None:
        for session in self._sessions.values():
            if session.number == number:
                until = self._now() + for_s
                session.doubles = session.doubles or Doubles(until, {}, set())
                session.doubles.until = max(session.doubles.until, until)

    def all_came(self, number: int) -> None:
        self._do(partial(self._all_came, number))

    def _of_number(self, number: int) -> Stored | None:
        return next((each for each in self._sessions.values() if each.number == number), None)

    def _all_came(self, number: int) -> None:
        session = self._of_number(number)
        if session is not None:
            session.older_may_come = False
            self._pump(session)

    def let_expire(self, number: int) -> None:
        """Here sessions end when their clients say so."""

    def clear_identifiers(self, number: int) -> None:
        """Here packet identifiers are places, which are never the same."""

    def note_added(self, number: int, ids: Sequence[bytes], _sizes: Sequence[int]) -> None:
        self._do(partial(self._note_added, number, ids))

    def _note_added(self, number: int, ids: Sequence[bytes]) -> None:
        session = self._of_number(number)
        if session is None:
            return
        for each in ids:
            if session.doubles is None or session.doubles.is_new(each):
                session.had.add(each)  # it counts, also when it is gone again before it is read
                session.outside.add(each)
                self._read(session, each)
        self._pump(session)

    def note_removed(self, number: int, ids: Sequence[bytes], _sizes: Sequence[int]) -> None:
        self._do(partial(self._note_removed, number, ids))

    def _note_removed(self, number: int, ids: Sequence[bytes]) -> None:
        session = self._of_number(number)
        if session is not None:
            for each in ids:
                if each not in session.had:
                    raise ToldWronglyError(f"{each.hex()} is gone, and {session.client} never had it")
                if each not in session.flights.values():
                    session.waiting.pop(each, None)

    def note_subscription(
        self, number: int, topic_filter: bytes, options: int | None, _subscription_id: int
    ) -> None:
        self._do(partial(self._note_subscription, number, topic_filter.decode(), options is not None))

    def _note_subscription(self, number: int, topic_filter: str, there: bool) -> None:
        session = self._of_number(number)
        if session is not None and there:
            self._add_filter(session, topic_filter)
        elif session is not None and topic_filter in session.filters:
            self._remove_filter(session, topic_filter)

    def retain(self, _topic: bytes, _value: bytes) -> bool:
        """Nothing is retained in these histories."""
        return True

    # --- other nodes -------------------------------------------------------------------------------

    def _add_filter(self, session: Stored, topic_filter: str) -> None:
        if topic_filter not in session.filters:
            session.filters.add(topic_filter)
            self._interest[topic_filter] += 1
            self._note_interest(topic_filter)

    def _remove_filter(self, session: Stored, topic_filter: str) -> None:
        session.filters.discard(topic_filter)
        self._interest[topic_filter] -= 1
        self._note_interest(topic_filter)

    def _note_interest(self, topic_filter: str) -> None:
        if self.is_noting:
            self._changed[topic_filter] = self._interest[topic_filter] > 0
            self._poke_neighbours()

    def all_interest(self) -> list[str]:
        self.is_noting = True
        return [each for each, count in self._interest.items() if count]

    def interest_changes(self) -> list[tuple[str, bool]]:
        changed, self._changed = self._changed, {}
        return list(changed.items())

    def members_online(self, groups: Sequence[str]) -> list[int]:
        return [0 for _ in groups]

    def change_filters(self, slot: int, removed: Sequence[str], added: Sequence[str]) -> None:
        wanted = self._wanted.setdefault(slot, {})
        for each in removed:
            wanted.pop(each, None)
        wanted.update(dict.fromkeys(added, 0))

    def change_groups(self, slot: int, changes: Sequence[tuple[str, int]]) -> None:
        """None of a group is here."""
        assert not changes

    def drop_node(self, slot: int) -> None:
        self._wanted.pop(slot, None)
        self._pending.pop(slot, None)

    def reset_node(self, _slot: int) -> None:
        """What was taken is known by its origin."""

    def _say(self, slot: int, *letter: object) -> None:
        self._pending.setdefault(slot, []).append(letter)
        self._poke_neighbours()

    def take_batches(self) -> list[tuple[int, bytes]]:
        """What goes to other nodes."""
        pending, self._pending = self._pending, {}
        return [(slot, json.dumps(letters).encode()) for slot, letters in pending.items()]

    def sent(self, _slot: int, _size: int) -> None:
        """There is always room."""

    def use_format(self, _number: int) -> None:
        """There is one."""

    def settle(self, slot: int, reason: int) -> None:
        for token in [token for token, (asked, _) in self._open.items() if asked == slot]:
            self._settled(token, reason)

    def _settled(self, token: int, reason: int) -> None:
        _, promise = self._open.pop(token, (0, None))
        if promise is not None:
            promise.settle(token, reason < REFUSED)

    def give(self, slot: int, batch: bytes) -> bool:
        for kind, token, *rest in json.loads(batch):
            if kind == "answer":
                self._settled(token, *rest)
            else:
                self._hear_message(slot, token, *rest)
        self._poke()
        return True

    def _hear_message(self, slot: int, token: int, named: str, topic: str, payload: str) -> None:
        message_id = bytes.fromhex(named)
        clock, origin = _ID.unpack(message_id)
        self._taken[origin] = clock
        self.raise_ids(clock)
        if self._deliver(message_id, topic, payload.encode()):
            self._work.promises.append(lambda kept: self._say(slot, "answer", token, 0 if kept else REFUSED))
        else:
            self._say(slot, "answer", token, 0)

    def given_so_far(self) -> list[int]:
        return []

    def has_acted_on(self, _given: Sequence[int]) -> bool:
        return True  # at once

    def taken_so_far(self) -> list[tuple[int, int, int]]:
        own = self.incarnation, 0, self._wall_ns() + self._lead_ns
        return [own, *((origin, 0, clock) for origin, clock in self._taken.items())]
