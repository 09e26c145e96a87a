"""What waits for a shared group, and is served by nobody: given to the group again, on the keeper's thread.

A message that waits is served by the node that queued it. Where that is dead, the next in the ring gives its
messages to the group's members, wherever they are. So does a node whose own members are away while others
have some online, or one that came back with messages of its own (`rejoining.py`). Who takes one adds it
under a new id, and when that is kept it is removed where it waited. A node that dies in between gives it
twice: to a shared group, across a death, messages come at least once.

What nobody takes waits while anybody is subscribed, whose session is stored, on whatever node, there or not
(`group_members.py`). Else the group has ended, and what waits ends with it.
"""

from __future__ import annotations

import itertools
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from tidemq.cluster import operations as ops
from tidemq.cluster.conversion import Conversion
from tidemq.cluster.group_members import GroupMembers
from tidemq.cluster.node import Node
from tidemq.cluster.operations import Operation, Owner, Stamp
from tidemq.cluster.stored_rows import StoredRows, id_bytes
from tidemq.store import Store
from tidemq.store.rows import IDLE, IN_FLIGHT

if TYPE_CHECKING:
    from tidemq.engine import StoreAccess

GIVEN_AT_ONCE = 256  # messages that nobody has answered for
LOOKED_AT_ONCE = 1024  # entries, of whatever node, between two pieces of work
AGAIN_S = 5.0  # after all of a queue was given, or refused, until it is looked at again
EMPTY_S = 60.0  # after nothing was found: of a dead node a record may still come from another one

Waiting = Iterator[tuple[Owner, Stamp] | None]
"""None for an entry that is another's to give."""


class SharedQueues:
    """`write` makes one batch durable. `counts`: `cluster_shared_given`, `cluster_shared_refused`,
    `cluster_shared_ended`: messages that found a member or a queue, that are tried again, or that were
    dropped, as their group has ended.
    """

    def __init__(
        self,
        node: Node,
        rows: StoredRows,
        conversion: Conversion,
        store: Store,
        access: StoreAccess,
        write: Callable[[list[Operation]], None],
    ) -> None:
        self._node = node
        self._rows = rows
        self._conversion = conversion
        self._store = store
        self._access = access
        self._write = write
        self._tokens = itertools.count(1)
        self._given: dict[int, tuple[Owner, Stamp]] = {}  # by token
        self._over: list[int] = []  # tokens of those that have found a member or a queue
        self._queues: dict[tuple[int, int], Waiting] = {}  # by dead node, or own queue: what is to be given
        self._rest_until: dict[tuple[int, int], float] = {}  # and when they are looked at again
        self._found: set[tuple[int, int]] = set()  # of which something was, since they were begun
        self._let_go: dict[int, Owner] = {}  # own queues that the engine does not serve
        self._has_own_apart = True  # this node's own, in queues that the engine does not know; or may have
        self._members = GroupMembers(rows, store, node.clock)
        self.counts: Counter[str] = Counter()

    def let_go(self, number: int) -> None:
        """The engine has a queue no more: who is online of its members, if anybody, is on other nodes."""
        owner = self._conversion.owner(number)
        if owner is not None:
            self._conversion.forget(number)
            self._let_go[number] = owner

    def look_for_own(self) -> None:
        """This node has added some that the engine was not told of."""
        self._has_own_apart = True
        self._rest_until.pop((self._node.incarnation, 0), None)

    def advance(self, orphans: list[int], now: float) -> None:
        """Gives some, and removes what was given. `orphans`: dead nodes whose next in the ring this is."""
        if self._over:
            self._remove_given()
        nodes = [*orphans, *([self._node.incarnation] if self._has_own_apart else [])]
        wanted = {(each, 0): None for each in nodes} | {(0, number): None for number in self._let_go}
        for key in [key for key in self._queues if key not in wanted]:
            del self._queues[key]
        self._rest_until = {key: until for key, until in self._rest_until.items() if key in wanted}
        if self._members.advance(now):
            self._rest_until.clear()
        for key in wanted:
            if self._rest_until.get(key, 0.0) <= now and len(self._given) < GIVEN_AT_ONCE:
                self._give_of(key, now)

    def _give_of(self, key: tuple[int, int], now: float) -> None:
        incarnation, number = key
        if key not in self._queues:
            self._queues[key] = self._of_node(incarnation) if incarnation else self._of_queue(number)
        looked = 0
        ended: list[Operation] = []
        for each in itertools.islice(self._queues[key], LOOKED_AT_ONCE):
            looked += 1
            if each is not None:
                self._found.add(key)
                if self._members.has_ended(each[0].name, each[1]):
                    ended.append(ops.Remove(*each))
                else:
                    self._give(*each)
            if len(self._given) >= GIVEN_AT_ONCE:
                break
        self.counts["cluster_shared_ended"] += len(ended)
        self._write(ended)
        if looked < LOOKED_AT_ONCE and len(self._given) < GIVEN_AT_ONCE:
            del self._queues[key]
            empty = key not in self._found
            self._rest_until[key] = now + (EMPTY_S if empty else AGAIN_S)
            self._found.discard(key)
            if incarnation == self._node.incarnation and empty:
                self._has_own_apart = False
            if number and empty:
                del self._let_go[number]
                self._store.write([("shared", struct.pack(">Q", number), None)], sync=False)

    def _of_node(self, incarnation: int) -> Waiting:
        """What a dead node has queued, or this one apart from the engine, in the order of ids within each
        group.
        """
        is_own = incarnation == self._node.incarnation
        for owner in self._rows.groups():
            for message_id, entry in self._rows.waiting(owner):
                is_its = entry.adds[0].dot.incarnation == incarnation
                served = is_its and is_own and self._is_served(self._rows.queue_of(owner, message_id))
                yield (owner, message_id) if is_its and not served else None

    def _is_served(self, number: int) -> bool:
        """Whether the engine serves a queue of this node, or it is among those that it does not."""
        return number in self._let_go or self._conversion.owner(number) is not None

    def _of_queue(self, number: int) -> Waiting:
        owner = self._let_go[number]
        for message_id, _ in self._rows.waiting(owner):
            yield (owner, message_id) if self._rows.queue_of(owner, message_id) == number else None

    def _give(self, owner: Owner, message_id: Stamp) -> None:
        if (owner, message_id) in self._given.values():
            return
        number = self._rows.queue_of(owner, message_id)
        keys = [struct.pack(">QB", number, status) + id_bytes(message_id) for status in (IDLE, IN_FLIGHT)]
        payload = self._store.get("payload", id_bytes(message_id))
        for key, value in zip(keys, self._store.get_many("queue", keys), strict=True):
            if value is not None and payload is not None:
                token = next(self._tokens)
                if self._access.give(owner.name, (key, value, payload), token):
                    self._given[token] = owner, message_id
                return

    def given(self, answers: list[tuple[int, int]]) -> None:
        """What has become of some: token, and 0 or a reason code."""
        for token, reason in answers:
            self.counts["cluster_shared_refused" if reason >= 0x80 else "cluster_shared_given"] += 1
            if reason >= 0x80:
                owner, _ = self._given.pop(token)
                self._members.doubt(owner.name)
            else:
                self._over.append(token)

    def _remove_given(self) -> None:
        """Until that is stored they count as being given: nobody gets them again."""
        over = [self._given[token] for token in self._over]
        there = [each for each in over if self._rows.entries.get(*each) is not None]
        self._write([ops.Remove(*each) for each in there])
        for token in self._over:
            del self._given[token]
        self._over.clear()
