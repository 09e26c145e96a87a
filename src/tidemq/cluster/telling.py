"""What other nodes' records have changed of what the engine has, told to it; on the keeper's thread."""

from __future__ import annotations

import struct
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tidemq.broker.durability.queue_rows import IDLE
from tidemq.broker.plugins.forks import SessionForked
from tidemq.cluster.applying import Changes
from tidemq.cluster.conversion import Conversion
from tidemq.cluster.moves import Moves
from tidemq.cluster.node import Node
from tidemq.cluster.operations import SESSION, Owner, Stamp
from tidemq.cluster.rows import Entry
from tidemq.cluster.stored_rows import id_bytes
from tidemq.errors import StoreError
from tidemq.store import Store

if TYPE_CHECKING:
    from tidemq.engine import StoreAccess

CROSSING_S = 10.0  # no word to the engine is on its way for longer

Added = list[tuple[Owner, Stamp]]
Removed = list[tuple[Owner, Stamp, Entry]]


class Telling:
    """Tells the engine, and `moves` of sessions whose rows have changed. What the engine is about to have it
    is told when it has it. `report` is called with sessions that were forked.
    """

    def __init__(
        self,
        store: Store,
        access: StoreAccess,
        node: Node,
        conversion: Conversion,
        moves: Moves,
        report: Callable[[list[SessionForked]], None],
    ) -> None:
        self._store = store
        self._access = access
        self._node = node
        self._rows = node.rows
        self._applier = node.applier
        self._conversion = conversion
        self._moves = moves
        self._report = report
        self._late: dict[str, tuple[Added, Removed]] = defaultdict(lambda: ([], []))
        self._late_filters: dict[str, dict[str, None]] = defaultdict(dict)
        self._told: dict[tuple[str, str], float] = {}  # whose subscription to which filter, and when

    def tell(self) -> None:
        """All that was changed since the last time. StoreError where it cannot be read: it is told later."""
        applier, contests = self._applier, self._moves.contests
        contests.keep_connected(time.monotonic())
        contests.subscribe_again()
        contests.doubt(dict.fromkeys(applier.visited))  # where that cannot be stored all is told later
        self._report_forks()
        changes = applier.take_changes()
        here, self._conversion.changed = self._conversion.changed, []
        try:
            self._tell_of(changes, here)
        except StoreError:
            applier.put_back(changes)
            self._conversion.changed[:0] = here
            raise

    def _tell_of(self, changes: Changes, here: Sequence[tuple[str, str]]) -> None:
        """What is told twice, as the store could not be read, changes nothing. `here`: subscriptions that
        were changed here.
        """
        for client in dict.fromkeys(changes.sessions):
            self._moves.departures.moved(client)
            self._moves.orphans.hear_of(client)
        for client in dict.fromkeys(changes.forked):
            self._moves.share(client)
        for topic, at in changes.retained.items():
            value = self._store.get("retained", topic.encode())
            self._access.retain(topic.encode(), id_bytes(at) if value is None else value)
        self._tell_of_subscriptions(changes.subscriptions, here)
        come = [each for each in changes.added if not self._waits(each[0])]
        gone = [each for each in changes.removed if not self._waits(each[0])]
        self._tell_of_entries(come, gone)
        for added in changes.added:
            if self._waits(added[0]):
                self._late[added[0].name][0].append(added)
        for removed in changes.removed:
            if self._waits(removed[0]):
                self._late[removed[0].name][1].append(removed)

    def forget(self) -> None:
        """The engine need not be told. Which sessions were forked is reported all the same."""
        self._report_forks()
        self._applier.forget_changes()

    def _report_forks(self) -> None:
        forks = [self._fork(client) for client in dict.fromkeys(self._applier.forks)]
        self._applier.forks = []
        if forks:
            self._report(forks)

    def _fork(self, client: str) -> SessionForked:
        standing, own = self._rows.standing(client), self._node.own
        if standing is None:
            return SessionForked(client, "", "", is_here=False)
        home = standing.home
        name = own.name if home == own.incarnation else self._rows.members.get(home, None) or ""
        return SessionForked(client, name, f"{home:016x}", is_here=home == own.incarnation)

    def arrived(self, client: str) -> None:
        """The engine has a session from now on, or will not have it."""
        if client in self._late:
            self._tell_of_entries(*self._late[client])
            del self._late[client]
        while filters := self._late_filters.get(client):
            topic_filter = next(iter(filters))
            self._tell_of_subscription(client, topic_filter)
            del filters[topic_filter]
        self._late_filters.pop(client, None)

    def _waits(self, owner: Owner) -> bool:
        return owner.kind == SESSION and self._moves.is_arriving(owner.name)

    def _tell_of_subscriptions(
        self, elsewhere: Sequence[tuple[str, str]], here: Sequence[tuple[str, str]]
    ) -> None:
        """What was changed elsewhere, as where both sides of a split had the session; and what was changed
        here since then: its client may not have known, and the engine not what it was told, when it was.
        """
        now = time.monotonic()
        while self._told and now - next(iter(self._told.values())) > CROSSING_S:
            del self._told[next(iter(self._told))]
        again = [each for each in here if each in self._told]
        for client, topic_filter in dict.fromkeys([*elsewhere, *again]):
            if self._moves.is_arriving(client):
                self._late_filters[client][topic_filter] = None
            else:
                self._tell_of_subscription(client, topic_filter)

    def _tell_of_subscription(self, client: str, topic_filter: str) -> None:
        number = self._conversion.number(Owner(SESSION, client))
        if not number:
            return
        self._told.pop((client, topic_filter), None)
        self._told[client, topic_filter] = time.monotonic()
        row = self._rows.subscription(client, topic_filter)
        options, identifier = (row.options, row.subscription_id) if row is not None else (None, 0)
        self._access.note_subscription(number, topic_filter.encode(), options, identifier)

    def _tell_of_entries(self, added: Added, removed: Removed) -> None:
        """Of what has come and gone meanwhile it is not told: it counts what waits."""
        come: dict[int, list[tuple[bytes, int]]] = {}
        gone: dict[int, list[tuple[bytes, int]]] = {}
        passed: Counter[tuple[Owner, Stamp]] = Counter()
        changed = {owner for owner, _ in added} | {owner for owner, *_ in removed}
        numbers = {owner: self._conversion.number(owner) for owner in changed}
        keys = [struct.pack(">QBQQ", numbers[owner], IDLE, *message_id) for owner, message_id in added]
        for (owner, message_id), key, value in zip(
            added, keys, self._store.get_many("queue", keys), strict=True
        ):
            if numbers[owner] and value is not None:
                come.setdefault(numbers[owner], []).append((key[9:], int.from_bytes(value[2:6])))
            else:
                passed[owner, message_id] += 1
        for owner, message_id, entry in removed:
            number = numbers[owner]
            if passed[owner, message_id]:
                passed[owner, message_id] -= 1
            elif number and entry.sequence < 0:
                gone.setdefault(number, []).append((id_bytes(message_id), entry.adds[0].message_bytes))
        for number, rows in come.items():
            self._access.note_added(number, *zip(*rows, strict=True))
        for number, rows in gone.items():
            self._access.note_removed(number, *zip(*rows, strict=True))
